"""How far a few coordinates are off, and what each estimator says of it: the variance figure of Baharav et al. (2024).

::

    mse      mean over draws and queries of (estimate - z)^2,  over that of importance sampling at m = 16
    stated   mean of the estimator's own variance, in the same unit;  ratio = stated / mse

of the best class of each query, m of D coordinates. The paper draws it for Mistral-7B on WikiText-2: with replacement,
and without the finite-population term, the stated variance stays up while the error falls to 0 at m = D; the paper's
estimate follows it down. ``entries`` asks which entries (A, x) are drawn: how log |A| and log |x| go together, and what
share of sum |A x| and of the second-order term sum (A x)^2 the drawn tenth holds, against a tenth drawn evenly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.engines.adaptive.variance import chances, horvitz_thompson, importance, uniform
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.store import open_file
from headlong.studies.papers import Context, Expected, PaperTable, Row, Setting, register

LAYER, HIDDEN = "heads/wikitext2-gpt512.safetensors", "heads/wikitext2-gpt512.hidden.safetensors"
QUERIES, DRAWS, SHARE = 20, 200, 10
LENGTHS = (16, 32, 64, 128, 256, 384, 448, 480, 504)
ESTIMATORS = ("uniform, replaced", "uniform, naive", "uniform, kept", "importance, replaced", "importance, kept")
SOURCE = "what the figure shows, as described in notes; unverified against the paper"


class Subject(NamedTuple):
    """``terms [queries, dim]``: the summands of each best logit; ``shares``: how the sampler weighs coordinates."""

    terms: Doubles
    shares: Doubles
    rows: Doubles
    hidden: Doubles


def subject(context: Context) -> Subject:
    layer = Layer.load(context.data / LAYER, weight="weight")
    weight = np.asarray(layer.weight, np.float64)
    vectors = np.asarray(open_file(context.data / HIDDEN).read("valid_hidden"), np.float64)
    chosen = np.random.default_rng(0).permutation(len(vectors))[: min(QUERIES, context.queries or QUERIES)]
    hidden = vectors[np.sort(chosen)]
    logits = hidden @ weight.T + (0 if layer.bias is None else layer.bias)
    rows = weight[logits.argmax(axis=1)]
    heavy = np.abs(weight).sum(axis=0) * np.abs(hidden)
    return Subject(rows * hidden, heavy / heavy.sum(axis=1, keepdims=True), rows, hidden)


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
    """What the drawn tenth holds, beside a tenth drawn evenly."""
    about = subject(context)
    for kind in ("importance", "uniform"):
        picked = tenth(about, kind)
        a, x = np.log10(np.abs(about.rows) + 1e-12), np.log10(np.abs(about.hidden) + 1e-12)
        first, second = np.abs(about.terms), about.terms**2
        got = {
            "correlation": float(np.corrcoef(a[picked], x[picked])[0, 1]),
            "of_first_order": float((first * picked).sum() / first.sum()),
            "of_second_order": float((second * picked).sum() / second.sum()),
        }
        yield Row((("drawn", kind),), {key: float(f"{value:.5g}") for key, value in got.items()})


def tenth(about: Subject, kind: str) -> NDArray[np.bool_]:
    """``[queries, dim]``: which coordinates the first tenth of the order holds."""
    rng, count = np.random.default_rng(2), about.terms.shape[1] // SHARE
    shares = about.shares if kind == "importance" else np.full_like(about.shares, 1 / about.shares.shape[1])
    with np.errstate(divide="ignore"):
        keys = np.log(shares) + rng.gumbel(size=shares.shape)
    return np.asarray(keys >= -np.sort(-keys, axis=1)[:, count - 1 : count])


def _expected() -> dict[Setting, dict[str, Expected]]:
    """Near m = D only the paper's estimate, and the evenly drawn one with its correction, know how small the error is."""
    found: dict[Setting, dict[str, Expected]] = {}
    for m in (480, 504):
        found[setting("importance, kept", m)] = {"ratio": Expected(0.5, 2.0)}
        found[setting("importance, replaced", m)] = {"ratio": Expected(0.5, 2.0)}
        found[setting("uniform, naive", m)] = {"ratio": Expected(2.0, 1e9)}
    return found


def _table(table: str, claim: str, run: Any, expected: dict[Setting, dict[str, Expected]]) -> None:
    register(PaperTable("baharav2024", table, claim, SOURCE, (LAYER, HIDDEN), run, expected))


_table("variance", "only the new variance estimate follows the error as m goes to D", run_variance, _expected())
_table("entries", "heavy entries are drawn first: the sampled (A, x), and the second-order term", run_entries, {})
