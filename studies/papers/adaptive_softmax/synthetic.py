"""AdaptiveSoftmax on made-up layers: 100 classes, D = 10^3 .. 10^6, true variances given (Baharav et al., 2024).

::

    (a)  W ~ N(0, 1 / (10 D^2)), row 0 raised by 1 / D,  h = 1             a pull has variance 1/10
    (b)  W ~ N(0, 1 / D^2),  h = sign(w_0), so that z_0 = sqrt(2 / pi)     a pull has variance 1

No importance sampling, no exact scores, a warm-up without a cap, eps 0.3, delta 0.1. An estimate from m of D coordinates then
is D / m times their sum and has the variance s^2 / m, so every stage of the published search is a number of coordinates, the
first of ``ceil(16 * 1.5^i)`` that is large enough. Entries are drawn when they are looked at: what is never read of a row is a
sum of independent normals, so its exact logit takes one number more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from studies.papers import Context, PaperTable, Row, Setting, register

Doubles = NDArray[np.float64]

CLASSES, TRIALS, POINTS = 100, 100, 20
DIMS = tuple(round(10 ** (3 + 3 * point / (POINTS - 1))) for point in range(POINTS))
PANELS = ("a", "b")
SCALE = {"a": math.sqrt(0.1), "b": 1.0}
"""Standard deviation of D W_ij h_j."""
EPS, STAGE = 0.3, 0.1 / 3
"""The relative error of p, and the failure probability of each of three stages."""
LOGS = math.log(6 * CLASSES / STAGE)


class Drawn:
    """A search over rows that come into being as they are read: the sum of what each class has read."""

    def __init__(self, panel: str, dim: int, rng: np.random.Generator) -> None:
        self.panel, self.dim, self.rng = panel, dim, rng
        self.pulls = np.zeros(CLASSES, np.int64)
        self.read, self.total = np.zeros(CLASSES, np.int64), np.zeros(CLASSES)

    def summands(self, arm: int, count: int) -> float:
        """Of ``count`` fresh entries of a row times the query's."""
        if arm == 0 and self.panel == "b":
            return float(np.abs(self.rng.standard_normal(count)).sum() / self.dim)
        drawn = self.rng.standard_normal() * math.sqrt(count) * SCALE[self.panel]
        return float((drawn + (count if arm == 0 else 0)) / self.dim)

    def pull(self, arm: int, m: int) -> None:
        """The first ``m`` coordinates, in order."""
        self.total[arm] += self.summands(arm, m - int(self.read[arm]))
        self.read[arm] = self.pulls[arm] = m

    def variance(self, m: int) -> float:
        return SCALE[self.panel] ** 2 / m if m < self.dim else 0.0

    def until(self, arm: int, target: float) -> None:
        """Longer and longer prefixes, until the variance is at most ``target``."""
        m, length = int(self.pulls[arm]), 16.0
        while m == 0 or self.variance(m) > target:
            while math.ceil(length) <= m:
                length *= 1.5
            m = min(self.dim, math.ceil(length))
        if m > self.pulls[arm]:
            self.pull(arm, m)

    @property
    def estimate(self) -> Doubles:
        return np.asarray(self.dim / np.maximum(self.pulls, 1) * self.total)

    @property
    def variances(self) -> Doubles:
        return np.array([self.variance(int(m)) for m in self.pulls])

    def best_arm(self) -> int:
        """Elimination in rounds of half the variance; the best estimate of the last survivors."""
        live, target = np.arange(CLASSES), SCALE[self.panel] ** 2 / 4
        logs = math.log(6 * CLASSES * math.log(self.dim) / STAGE)
        while len(live) > 1:
            for arm in live:
                self.until(int(arm), target)
            estimate, half = self.estimate[live], np.sqrt(2 * logs * self.variances[live])
            best = int(estimate.argmax())
            keep = estimate + half >= estimate[best] - half[best]
            if keep.sum() <= 1 or self.pulls[live].min() >= self.dim:
                break
            live, target = live[keep], target / 2
        return int(live[self.estimate[live].argmax()])

    def answer(self) -> tuple[int, float]:
        """The published stages: the best class, and the logarithm of its probability."""
        for arm in range(CLASSES):
            self.until(arm, 1 / (17 * LOGS))
        best = self.best_arm()
        self.until(best, (EPS / 4) ** 2 / (32 * math.log(2 / STAGE)))
        low = self.estimate - np.sqrt(2 * LOGS * self.variances)
        alpha, gamma = np.exp(low - low.max()), np.exp((low - low.max()) / 2)
        second = 16 * math.sqrt(2) * LOGS / EPS * gamma.sum() ** 2 / alpha.sum()
        first = 16 * math.log(12 / STAGE) / EPS**2
        for arm, target in enumerate(np.minimum(gamma.sum() / (second * gamma), alpha.sum() / (first * alpha))):
            self.until(arm, float(target))
        found = self.estimate
        return best, float(found[best] - np.logaddexp.reduce(found))

    def exact(self) -> Doubles:
        """The logits of all classes, from what was drawn and the rest of each row."""
        return np.array([self.total[arm] + self.summands(arm, self.dim - int(self.read[arm])) for arm in range(CLASSES)])


def trial(panel: str, dim: int, seed: int) -> tuple[float, bool]:
    """``(samples per class, success)`` of one layer and query."""
    search = Drawn(panel, dim, np.random.default_rng([PANELS.index(panel), dim, seed]))
    best, guess = search.answer()
    samples, z = search.pulls.sum() / CLASSES, search.exact()
    true = z.max() - np.logaddexp.reduce(z)
    return float(samples), best == int(z.argmax()) and abs(math.expm1(guess - true)) <= EPS


def planned() -> list[Setting]:
    return [(("panel", panel), ("dim", str(dim))) for panel in PANELS for dim in DIMS]


def run(context: Context) -> Iterator[Row]:
    """Means over trials, with their standard errors."""
    progress, todo = context.stage("trials"), context.left(planned())
    trials = min(TRIALS, context.queries or TRIALS)
    for done, row in enumerate(todo):
        panel, dim = row[0][1], int(row[1][1])
        pairs = [trial(panel, dim, seed) for seed in range(trials)]
        samples, right = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
        gain = dim / samples
        got = {
            "samples": samples.mean(), "samples_se": samples.std() / math.sqrt(trials), "gain": dim / samples.mean(),
            "gain_se": gain.std() / math.sqrt(trials), "success": 100 * right.mean(), "trials": trials,
        }  # fmt: skip
        yield Row(row, {name: float(f"{value:.6g}") for name, value in got.items()})
        progress(done + 1, len(todo))


register(
    PaperTable(
        paper="baharav2024",
        table="synthetic",
        claim="samples per class stop growing with D; the gain of (b) is printed as larger than 29, without a D",
        source="a public review of the paper's figure; sizes from notes; unverified against the paper",
        needs=(),
        run=run,
        planned=planned,
    )
)
