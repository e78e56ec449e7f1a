"""The figure of variances and the figure of entries of Baharav et al. (2024), on SmolLM2's head in place of Mistral-7B's.

``variance``: a logit z = sum_j a_j x_j from m of D summands, by the authors' definitions (their program draws it for one class
and one query of Mistral-7B on WikiText-2; here means over ``PAIRS`` classes and queries at random), q_j = |x_j| / sum |x|::

    MSE [wr]                 of D mean(a x), drawn evenly with replacement        Variance             D^2 var(a x) / m
    MSE [imp] [wr]           of mean(a x / q), drawn by q with replacement        Variance [imp]       var(a x / q) / m
    MSE [imp] [wor]          of sum(a x / w) over the first m by ln q + Gumbel, w = 1 - exp(-exp(ln q - the next key))
    Variance [imp] [fpc]     that of [imp] times (D - m) / (D - 1)
    New variance estimate    sum((a x)^2 (1 - w) / w^2) over the same m

each over the first MSE of [imp] [wor]. ``entries`` asks which entries (A, x) importance sampling draws: whether their signs are
symmetrical and uncorrelated (a), and how large the cross terms of the estimate's variance are (b), with T_j, T_jk the chances
that j, and j and k, are among the drawn::

    var = sum_j t_j^2 (1 - T_j) / T_j + sum_{j != k} cross_jk,      cross_jk = A_j A_k x_j x_k (T_jk - T_j T_k) / (T_j T_k)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.papers import Context, Model, PaperTable, Row, register
from studies.papers.adaptive_softmax.tables import SMOLLM2, of_smollm2

Doubles = NDArray[np.float64]

PAIRS, DRAWS, TENTH = 20, 200, 10
POINTS = 12
"""Sizes of samples, evenly from 10 to all."""
ENTRIES = 200_000
"""Of random classes, queries and coordinates."""
CHANCES = 20_000
"""Orders that T_j and T_jk are counted in."""
LINES = (
    "MSE [wr]", "Variance", "MSE [imp] [wr]", "Variance [imp]", "MSE [imp] [wor]", "Variance [imp] [fpc]",
    "New variance estimate",
)  # fmt: skip
SOURCE = "what the figures show, as a public review describes them; lines by the authors' program; unverified against the paper"


class Subject(NamedTuple):
    """``rows [queries, dim]``: A of random classes; ``hidden [queries, dim]``: x; ``shares``: column weights times |x|."""

    rows: Doubles
    hidden: Doubles
    shares: Doubles
    model: Model


def subject(context: Context) -> Subject:
    layer, vectors, model = of_smollm2("wikitext2", context.data)
    weight = np.asarray(layer.weight, np.float64)
    chosen = np.random.default_rng(0).permutation(len(vectors))[: min(PAIRS, context.queries or PAIRS)]
    hidden = vectors[np.sort(chosen)].astype(np.float64)
    rows = weight[np.random.default_rng(4).integers(len(weight), size=len(hidden))]
    heavy = np.abs(weight).sum(axis=0) * np.abs(hidden)
    return Subject(rows, hidden, heavy / heavy.sum(axis=1, keepdims=True), model)


def lines(a: Doubles, x: Doubles, m: int, rng: np.random.Generator, draws: int = DRAWS) -> dict[str, float]:
    """The seven lines of the figure at one sample size, for one class and query."""
    terms, dim, exact = a * x, len(x), float(a @ x)
    live = x != 0
    q = np.abs(x) / np.abs(x).sum()
    ratio, logs = terms[live] / q[live], np.log(q[live])
    even = terms[rng.integers(0, dim, (draws, m))].mean(axis=1) * dim
    weighed = ratio[rng.choice(len(ratio), (draws, m), p=q[live])].mean(axis=1)
    keys = logs + rng.gumbel(size=(draws, len(logs)))
    order = np.argsort(-keys, axis=1)
    first = order[:, :m]
    following = np.take_along_axis(keys, order[:, m : m + 1], 1) if m < len(logs) else np.full((draws, 1), -np.inf)
    w = -np.expm1(-np.exp(np.minimum(logs[first] - following, 700.0)))
    mine = terms[live][first]
    imp = float(ratio.var(ddof=1)) / m
    return {
        "MSE [wr]": float(((even - exact) ** 2).mean()),
        "Variance": dim * dim * float(terms.var(ddof=1)) / m,
        "MSE [imp] [wr]": float(((weighed - exact) ** 2).mean()),
        "Variance [imp]": imp,
        "MSE [imp] [wor]": float((((mine / w).sum(axis=1) - exact) ** 2).mean()),
        "Variance [imp] [fpc]": imp * max(0, len(logs) - m) / (len(logs) - 1),
        "New variance estimate": float((mine**2 * (1 - w) / w**2).sum(axis=1).mean()),
    }


def run_variance(context: Context) -> Iterator[Row]:
    """Every line at every sample size."""
    about, rng, progress = subject(context), np.random.default_rng(1), context.stage("draws")
    unit = 0.0
    for step, m in enumerate(np.linspace(10, about.hidden.shape[1], POINTS).astype(int).tolist()):
        found = [lines(row, x, m, rng) for row, x in zip(about.rows, about.hidden, strict=True)]
        means = {name: float(np.mean([one[name] for one in found])) for name in LINES}
        unit = unit or means["MSE [imp] [wor]"]
        got = {name: float(f"{value / unit:.5g}") if value / unit > 1e-12 else 0.0 for name, value in means.items()}
        yield Row((("m", str(m)),), got, about.model)
        progress(step + 1, POINTS)


def run_entries(context: Context) -> Iterator[Row]:
    """Entries of any class, query and coordinate, drawn evenly and by importance; and the cross terms of a sample."""
    layer, vectors, model = of_smollm2("wikitext2", context.data)
    rng, heavy = np.random.default_rng(2), np.abs(np.asarray(layer.weight, np.float64)).sum(axis=0)
    query, row = rng.integers(len(vectors), size=ENTRIES), rng.integers(layer.vocab, size=ENTRIES)
    for kind in ("evenly", "by importance"):
        place = rng.integers(layer.dim, size=ENTRIES)
        for mine in np.unique(query) if kind != "evenly" else ():
            shares, at = heavy * np.abs(vectors[mine].astype(np.float64)), np.flatnonzero(query == mine)
            place[at] = rng.choice(layer.dim, len(at), p=shares / shares.sum())
        a, x = layer.weight[row, place].astype(np.float64), vectors[query, place].astype(np.float64)
        got = {
            "entries": float(ENTRIES),
            "a_positive": float((a > 0).mean()),
            "x_positive": float((x > 0).mean()),
            "product_positive": float((a * x > 0).mean()),
            "correlation": float(np.corrcoef(a, x)[0, 1]),
            "sign_correlation": float(np.corrcoef(np.sign(a), np.sign(x))[0, 1]),
        }
        yield Row((("drawn", kind),), _short(got), model)
    about, rng = subject(context), np.random.default_rng(3)
    found = [cross(row * x, shares, rng) for row, x, shares in zip(about.rows, about.hidden, about.shares, strict=True)]
    off = np.concatenate([part.cross / part.single for part in found])
    got = {
        "pairs": float(len(off)),
        "largest_of_single": float(np.abs(off).max()),
        "within_thousandth": float((np.abs(off) <= 1 / 1000).mean()),
        "positive": float((off > 0).mean()),
        "sum_of_single": float(np.mean([part.cross.sum() / part.single for part in found])),
    }
    yield Row((("drawn", "by importance, cross terms"),), _short(got), model)


class Cross(NamedTuple):
    """``cross [D (D - 1)]`` of one query; ``single``: sum_j t_j^2 (1 - T_j) / T_j."""

    cross: Doubles
    single: float


def cross(terms: Doubles, shares: Doubles, rng: np.random.Generator, orders: int = CHANCES) -> Cross:
    """The second-order terms of one estimate from the first tenth of the order; chances counted in ``orders`` orders."""
    live = np.flatnonzero(shares > 0)
    terms, shares = terms[live], shares[live]
    m = len(terms) // TENTH
    both = np.zeros((len(terms), len(terms)))
    for start in range(0, orders, 1000):
        keys = np.log(shares) + rng.gumbel(size=(min(1000, orders - start), len(terms)))
        among = (keys >= -np.sort(-keys, axis=1)[:, m - 1 : m]).astype(np.float32)
        both += among.T @ among
    both /= orders
    chance = np.diag(both).clip(1 / orders)
    product = np.outer(chance, chance)
    found = np.outer(terms, terms) / product * (both - product)
    return Cross(found[~np.eye(len(terms), dtype=bool)], float((terms**2 * (1 - chance) / chance).sum()))


def _short(got: dict[str, float]) -> dict[str, float]:
    return {key: float(f"{value:.5g}") for key, value in got.items()}


FIGURES = {
    "variance": (
        run_variance,
        "of variances stated for importance sampling only the new one falls with the error as m goes to D",
    ),
    "entries": (run_entries, "entries drawn have symmetrical signs, and cross terms of the variance lie near 0"),
}
for _table, (_run, _claim) in FIGURES.items():
    register(PaperTable("baharav2024", _table, _claim, SOURCE, (SMOLLM2["wikitext2"][0],), _run))
