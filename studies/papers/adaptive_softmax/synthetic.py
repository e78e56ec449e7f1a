"""AdaptiveSoftmax on made-up layers: 100 classes, D = 10^3 .. 10^6, true variances given (Baharav et al., 2024).

::

    (a)  W ~ N(0, 1 / (10 D^2)), row 0 raised by 1 / D,  h = 1             a pull has variance 1/10
    (b)  W ~ N(0, 1 / D^2),  h = sign(w_0), so that z_0 = sqrt(2 / pi)     a pull has variance 1

No importance sampling, no exact scores, a warm-up without a cap, eps 0.3, delta 0.1. Entries are drawn when they are
looked at: what is never read of a row is a sum of independent normals, so its exact logit takes one number more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from headlong.engines.methods.adaptive import Rules, Search, answer
from studies.papers import Context, PaperTable, Row, Setting, register
from studies.papers.verdicts import Expected

Ids = NDArray[np.int64]
Doubles = NDArray[np.float64]

CLASSES, TRIALS, POINTS = 100, 100, 20
DIMS = tuple(round(10 ** (3 + 3 * point / (POINTS - 1))) for point in range(POINTS))
PANELS = ("a", "b")
SCALE = {"a": math.sqrt(0.1), "b": 1.0}
"""Standard deviation of D W_ij h_j."""


class Drawn(Search):
    """A search over rows that come into being as they are read: prefix sums of each class's summands."""

    def __init__(self, panel: str, dim: int, rng: np.random.Generator) -> None:
        self.panel, self.dim, self.rng = panel, dim, rng
        self.prefix: list[Doubles] = [np.zeros(1) for _ in range(CLASSES)]
        everything = np.arange(dim)
        nothing = np.zeros((1, CLASSES), np.float32)
        super().__init__(nothing, np.zeros(CLASSES), np.ones(1), (everything, np.zeros(0), np.zeros(0)))

    def summands(self, arm: int, count: int) -> Doubles:
        """Fresh entries of a row times the query's."""
        values = self.rng.standard_normal(count) * SCALE[self.panel]
        if arm == 0:
            values = values + 1 if self.panel == "a" else np.abs(values)
        return np.asarray(values / self.dim)

    def pull(self, arms: Ids, m: int) -> None:
        for arm in arms:
            have = len(self.prefix[arm]) - 1
            if have < m:
                # a few more than are asked for, so that rows grow in few steps
                more = np.cumsum(self.summands(int(arm), min(self.dim, max(m, 1024)) - have)) + self.prefix[arm][-1]
                self.prefix[arm] = np.concatenate([self.prefix[arm], more])
            self.estimate[arm] = self.dim / m * self.prefix[arm][m]
        self.variance[arms] = self.bound / m if m < self.dim else 0.0
        self.pulls[arms] = m

    def exact(self) -> Doubles:
        """The logits of all classes, from what was drawn and one number for the rest of each row."""
        z = np.array([row[-1] for row in self.prefix])
        left = np.array([self.dim - len(row) + 1 for row in self.prefix])
        rest = self.rng.standard_normal(CLASSES) * SCALE[self.panel] / self.dim * np.sqrt(left)
        if left[0]:
            rest[0] = self.summands(0, int(left[0])).sum()
        return np.asarray(z + rest)


def trial(panel: str, dim: int, seed: int) -> tuple[float, bool]:
    """``(samples per class, success)`` of one layer and query."""
    search = Drawn(panel, dim, np.random.default_rng([PANELS.index(panel), dim, seed]))
    rules = Rules(eps=0.3, delta=0.1, warm=1.0, published=True, exact=False, bound=SCALE[panel] ** 2)
    found = answer(search, rules, 1, None, np.arange(CLASSES), 0.0)
    z = search.exact()
    true = z.max() - z.max() - math.log(np.exp(z - z.max()).sum())
    guess = float(found.values[0]) - found.lse
    right = int(found.ids[0]) == int(z.argmax()) and abs(math.expm1(guess - true)) <= 0.3
    return found.pulls / CLASSES, right


def setting(panel: str, dim: int) -> Setting:
    return (("panel", panel), ("dim", str(dim)))


def run(context: Context) -> Iterator[Row]:
    """Means over trials, with their standard errors."""
    progress, done = context.stage("trials"), 0
    trials = min(TRIALS, context.queries or TRIALS)
    for panel in PANELS:
        for dim in DIMS:
            done += 1
            if setting(panel, dim) in context.done:
                continue
            pairs = [trial(panel, dim, seed) for seed in range(trials)]
            samples, right = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
            gain = dim / samples
            got = {
                "samples": samples.mean(), "samples_se": samples.std() / math.sqrt(trials), "gain": dim / samples.mean(),
                "gain_se": gain.std() / math.sqrt(trials), "success": 100 * right.mean(), "trials": trials,
            }  # fmt: skip
            yield Row(setting(panel, dim), {name: float(f"{value:.6g}") for name, value in got.items()})
            progress(done, len(PANELS) * len(DIMS))
        if scaling(panel) not in context.done:
            yield Row(scaling(panel), _slopes(panel, trials))


def scaling(panel: str) -> Setting:
    return (("panel", panel), ("dim", "scaling"))


def _slopes(panel: str, trials: int) -> dict[str, float]:
    """Exponents of D in the samples per class, over the figure's first, second and third decade, and how far they range."""
    found = np.array([np.mean([trial(panel, dim, seed)[0] for seed in range(trials)]) for dim in (10**3, 10**4, 10**5, 10**6)])
    slopes = np.diff(np.log10(found))
    got = {f"slope_1e{3 + step}": slope for step, slope in enumerate(slopes)}
    return {name: round(float(value), 5) for name, value in {**got, "least": found.min(), "most": found.max()}.items()}


register(
    PaperTable(
        paper="baharav2024",
        table="synthetic",
        claim="samples per class stop growing with D; in (b) more than 29 times fewer entries",
        source="a public review of the paper's figure: 'larger than 29x' of panel (b), without a D, so our largest D is held "
        "against it; unverified against the paper",
        needs=(),
        run=run,
        expected={setting("b", 10**6): {"gain": Expected(29.0, 1e6)}},
        planned=lambda: [
            row for panel in PANELS for row in (*(setting(panel, dim) for dim in DIMS), scaling(panel))
        ],
    )
)
