"""How far a few coordinates are off, and what each estimator says of it: the variance figure of Baharav et al. (2024).

::

    mse      mean over draws and queries of (estimate - z)^2,  over that of importance sampling at m = 16
    stated   mean of the estimator's own variance, in the same unit;  ratio = stated / mse

of the best class of each query, m of D coordinates. The paper draws it for Mistral-7B on WikiText-2. ``importance, fpc-sparse``
is our reading of a name in its legend: the variance of importance sampling with replacement, times the finite-population
correction 1 - m / D_eff over the D_eff coordinates that are not 0, stated for the estimate of ``importance, kept``.

``entries`` asks which entries (A, x) are drawn: whether their signs are symmetrical and uncorrelated (a), and how large the
cross terms of the estimate's variance are (b), with T_j, T_jk the chances that j, and j and k, are among the drawn::

    var = sum_j t_j^2 (1 - T_j) / T_j + sum_{j != k} cross_jk,      cross_jk = A_j A_k x_j x_k (T_jk - T_j T_k) / (T_j T_k)

``of_first_order``, ``of_second_order``: the share of sum |A x| and of sum (A x)^2 that the drawn tenth holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong import Layer
from headlong.store import open_file
from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.adaptive_softmax.estimators import Doubles, chances, horvitz_thompson, importance, uniform

LAYER, HIDDEN = "heads/wikitext2-gpt512.safetensors", "heads/wikitext2-gpt512.hidden.safetensors"
QUERIES, DRAWS, SHARE = 20, 200, 10
LENGTHS = (16, 32, 64, 128, 256, 384, 448, 480, 504)
ESTIMATORS = (
    "uniform, replaced", "uniform, naive", "uniform, kept",
    "importance, replaced", "importance, fpc-sparse", "importance, kept",
)  # fmt: skip
OTHERS = 50
"""Classes at random, for each query, whose entries are looked at."""
CHANCES = 20_000
"""Orders that T_j and T_jk are counted in."""
SOURCE = "what the figure shows, as described in notes; unverified against the paper"


class Subject(NamedTuple):
    """``terms [queries, dim]``: the summands of each best logit; ``shares``: how the sampler weighs coordinates.

    ``rows``, ``hidden [queries, dim]``: A of the best classes, and x; ``others [queries, OTHERS, dim]``: A of random classes.
    """

    terms: Doubles
    shares: Doubles
    rows: Doubles
    hidden: Doubles
    others: Doubles


def subject(context: Context) -> Subject:
    layer = Layer.load(context.data / LAYER, weight="weight")
    weight = np.asarray(layer.weight, np.float64)
    vectors = np.asarray(open_file(context.data / HIDDEN).read("valid_hidden"), np.float64)
    chosen = np.random.default_rng(0).permutation(len(vectors))[: min(QUERIES, context.queries or QUERIES)]
    hidden = vectors[np.sort(chosen)]
    logits = hidden @ weight.T + (0 if layer.bias is None else layer.bias)
    rows = weight[logits.argmax(axis=1)]
    others = weight[np.random.default_rng(4).integers(len(weight), size=(len(hidden), OTHERS))]
    heavy = np.abs(weight).sum(axis=0) * np.abs(hidden)
    return Subject(rows * hidden, heavy / heavy.sum(axis=1, keepdims=True), rows, hidden, others)


def drawn(terms: Doubles, shares: Doubles, m: int, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """``(estimate, stated variance)`` of one query by every estimator, each from ``m`` draws."""
    dim = len(terms)
    kept = rng.permutation(dim)[:m]
    weighed = rng.choice(dim, m, p=shares)
    live = np.flatnonzero(shares > 0)
    keys = np.log(shares[live]) + rng.gumbel(size=len(live))
    order = np.argsort(-keys)
    last = float(keys[order[m]]) if m < len(order) else -np.inf
    first = live[order[:m]]
    found = {
        "uniform, replaced": uniform(terms[rng.integers(0, dim, m)][None], dim),
        "uniform, naive": uniform(terms[kept][None], dim),
        "uniform, kept": uniform(terms[kept][None], dim, corrected=True),
        "importance, replaced": importance(terms[weighed][None], shares[weighed]),
        "importance, kept": horvitz_thompson(terms[first][None], chances(np.log(shares[first]), last)),
    }
    _, replaced = importance(terms[first][None], shares[first])
    found["importance, fpc-sparse"] = found["importance, kept"][0], replaced * (1 - m / len(live))
    return {name: (float(value[0]), float(variance[0])) for name, (value, variance) in found.items()}


def run_variance(context: Context) -> Iterator[Row]:
    """Every estimator at every number of draws."""
    about, rng, progress = subject(context), np.random.default_rng(1), context.stage("draws")
    exact = about.terms.sum(axis=1)
    unit = 0.0
    for step, m in enumerate(LENGTHS):
        errors: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
        stated: dict[str, list[float]] = {name: [] for name in ESTIMATORS}
        for terms, shares, true in zip(about.terms, about.shares, exact, strict=True):
            for _ in range(DRAWS):
                for name, (value, variance) in drawn(terms, shares, m, rng).items():
                    errors[name].append((value - true) ** 2)
                    stated[name].append(variance)
        unit = unit or float(np.mean(errors["importance, kept"]))
        for name in ESTIMATORS:
            off, said = float(np.mean(errors[name])), float(np.mean(stated[name]))
            bar = float(np.std(errors[name])) / np.sqrt(len(errors[name]))
            got = {"mse": off / unit, "mse_se": bar / unit, "stated": said / unit, "ratio": said / off}
            yield Row(setting(name, m), {key: float(f"{value:.5g}") for key, value in got.items()})
        progress(step + 1, len(LENGTHS))


def setting(name: str, m: int) -> Setting:
    return (("estimator", name), ("m", str(m)))


def run_entries(context: Context) -> Iterator[Row]:
    """What the drawn tenth holds, beside a tenth drawn evenly; and the cross terms of the importance sample."""
    about = subject(context)
    for kind in ("importance", "uniform"):
        picked = tenth(about, kind)
        first, second = np.abs(about.terms), about.terms**2
        a, x = pairs(about, picked)
        got = {
            "entries": float(len(a)),
            "a_positive": float((a > 0).mean()),
            "x_positive": float((x > 0).mean()),
            "product_positive": float((a * x > 0).mean()),
            "correlation": float(np.corrcoef(a, x)[0, 1]),
            "of_first_order": float((first * picked).sum() / first.sum()),
            "of_second_order": float((second * picked).sum() / second.sum()),
        }
        yield Row((("drawn", kind),), _short(got))
    rng = np.random.default_rng(3)
    found = [cross(terms, shares, rng) for terms, shares in zip(about.terms, about.shares, strict=True)]
    off = np.concatenate([part.cross for part in found])
    single = float(np.mean([part.single for part in found]))
    got = {
        "pairs": float(len(off)),
        "largest_of_single": float(np.abs(off).max() / single),
        "within_thousandth": float((np.abs(off) <= single / 1000).mean()),
        "positive": float((off > 0).mean()),
        "sum_of_single": float(np.mean([part.cross.sum() / part.single for part in found])),
        "noise": float(np.mean([part.noise for part in found]) / single),
    }
    yield Row((("drawn", "importance, cross terms"),), _short(got))


def pairs(about: Subject, picked: NDArray[np.bool_]) -> tuple[Doubles, Doubles]:
    """``(A, x)`` of the coordinates that are picked, of all classes drawn at random."""
    query, place = np.nonzero(picked)
    return about.others[query, :, place].ravel(), np.repeat(about.hidden[query, place], OTHERS)


class Cross(NamedTuple):
    """``cross [D (D - 1)]`` of one query; ``single``: sum_j t_j^2 (1 - T_j) / T_j; ``noise``: a cross term's own error."""

    cross: Doubles
    single: float
    noise: float


def cross(terms: Doubles, shares: Doubles, rng: np.random.Generator, orders: int = CHANCES) -> Cross:
    """The second-order terms of one estimate from the first tenth of the order; chances counted in ``orders`` orders."""
    live = np.flatnonzero(shares > 0)
    terms, shares = terms[live], shares[live]
    m = len(terms) // SHARE
    both = np.zeros((len(terms), len(terms)))
    for start in range(0, orders, 1000):
        keys = np.log(shares) + rng.gumbel(size=(min(1000, orders - start), len(terms)))
        among = (keys >= -np.sort(-keys, axis=1)[:, m - 1 : m]).astype(np.float32)
        both += among.T @ among
    both /= orders
    chance = np.diag(both).clip(1 / orders)
    product = np.outer(chance, chance)
    scale = np.outer(terms, terms) / product
    others = ~np.eye(len(terms), dtype=bool)
    spread = np.abs(scale) * np.sqrt(product * (1 - product) / orders)
    single = float((terms**2 * (1 - chance) / chance).sum())
    return Cross((scale * (both - product))[others], single, float(np.median(spread[others])))


def _short(got: dict[str, float]) -> dict[str, float]:
    return {key: float(f"{value:.5g}") for key, value in got.items()}


def tenth(about: Subject, kind: str) -> NDArray[np.bool_]:
    """``[queries, dim]``: which coordinates the first tenth of the order holds."""
    rng, count = np.random.default_rng(2), about.terms.shape[1] // SHARE
    shares = about.shares if kind == "importance" else np.full_like(about.shares, 1 / about.shares.shape[1])
    with np.errstate(divide="ignore"):
        keys = np.log(shares) + rng.gumbel(size=shares.shape)
    return np.asarray(keys >= -np.sort(-keys, axis=1)[:, count - 1 : count])


def _table(table: str, claim: str, run: Any) -> None:
    register(PaperTable("baharav2024", table, claim, SOURCE, (LAYER, HIDDEN), run))


FOLLOWS = "of variances stated for importance sampling without replacement only the new one falls with the error as m goes to D"
_table("variance", FOLLOWS, run_variance)
_table("entries", "entries drawn have symmetrical signs, and cross terms of the variance lie near 0", run_entries)
