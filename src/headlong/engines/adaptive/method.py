"""AdaptiveSoftmax: reads a few coordinates of every class, then more of those that matter.

``published=True`` is the algorithm of Baharav et al. (2024) with its constants, its shared random order of coordinates and
its multipliers: it promises nothing that it could prove (``published.py``). Without, it is a race of intervals that hold:
for certain ("sure"), over fresh randomness ("bernstein"), or for queries like the calibration vectors ("calibrated"); see
``race.py``. It reads floats by the coordinate; the cascade reads bytes and is the faster engine (docs/adaptive.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from headlong.arrays import Array
from headlong.engines.adaptive.columns import Arrays, pieces, published_arrays, race_arrays
from headlong.engines.adaptive.multipliers import fit_multipliers, parts_for
from headlong.engines.adaptive.published import Rules
from headlong.engines.adaptive.race import WIDTHS, tail_scores
from headlong.engines.adaptive.reader import PublishedReader, RaceReader
from headlong.engines.method import EngineParts, Method, register, sure
from headlong.engines.method_choice import crossover
from headlong.engines.methods.learned_answers import Find, answer_factors
from headlong.errors import OptionError
from headlong.layers.matrix import Layer
from headlong.native import Doubles
from headlong.number_checks import flag, real
from headlong.plan import Dense, Plan
from headlong.previews.calibrated_radii import reach, split
from headlong.previews.conformal_bounds import conformal
from headlong.promise import Promise


@register
@dataclass(frozen=True)
class Adaptive(Method):
    """``published``  the paper's algorithm: measured, not trusted
    ``widths``     of the race: "sure", "calibrated", "bernstein"; None: "sure" where ids are to be proved, else "calibrated"
                   where calibration vectors may be relied on, else "bernstein"
    ``share``      candidates beyond this share of the classes are finished densely
    ``warm``       published: the share of the coordinates that the warm-up may read
    ``exact``      published: score the winners exactly, as all of the paper's runs on real data do
    ``hadamard``   published: rotate by random signs and a Hadamard matrix first
    ``arm``, ``sum``  published: the multipliers on variances; None: fitted on calibration vectors, 1 without
    ``arm_share``  published: the share of the allowed failures that the argmax's multiplier may use up; the paper's is 1
    """

    published: bool = False
    widths: str | None = None
    share: float = 0.25
    warm: float = 0.1
    exact: bool = True
    hadamard: bool = False
    arm: float | None = None
    sum: float | None = None
    arm_share: float = 1.0
    aim: tuple[float, ...] | None = None
    """Published: ``(eps, delta)`` as asked for."""

    name: ClassVar[str] = "adaptive"
    filled_in: ClassVar[frozenset[str]] = frozenset({"aim"})

    def __post_init__(self) -> None:
        for name in ("published", "exact", "hadamard"):
            flag(getattr(self, name), name)
        for name in ("share", "warm", "arm_share"):
            real(getattr(self, name), name, 1e-9, 1.0)
        for name in ("arm", "sum"):
            if getattr(self, name) is not None:
                real(getattr(self, name), name, 1e-12, 1e6)
        if self.widths is not None and self.widths not in WIDTHS:
            raise OptionError(f"widths is {self.widths!r}; expected one of {', '.join(WIDTHS)}, or None")
        if self.published and self.widths is not None:
            raise OptionError("published=True has no widths: it trusts its variances; leave one of the two out")
        if self.aim is not None:  # from a file it comes as a list
            object.__setattr__(self, "aim", tuple(real(value, "aim", 1e-300, 1e300) for value in self.aim))

    def aimed(self, wanted: Promise) -> Adaptive:
        """The published search remembers what it was asked for, since it promises none of it."""
        eps, delta = wanted[:2]
        if not self.published:
            return self
        if not (0 < delta < 1 and math.isfinite(eps)):
            raise OptionError(f"published=True takes 0 < delta < 1 and a finite eps; got delta={delta:g}, eps={eps:g}")
        return replace(self, aim=(float(eps), float(delta)))

    def promise(self, wanted: Promise, calibrated: bool) -> Promise:
        if self.published:
            return Promise(math.inf, 1.0, 1.0)
        eps, _, delta_ids, over = wanted
        kind, delta = self._kind(delta_ids, calibrated and "calibration" in over), sure(wanted).delta
        if kind == "sure":
            return sure(wanted)
        if not (0 < delta_ids < 1 and (math.isinf(eps) or 0 < delta < 1)):
            raise OptionError(
                f"widths={kind!r} may fail, which delta={delta:g} and delta_ids={delta_ids:g} do not allow; "
                "pass both between 0 and 1 (eps=inf: delta_ids alone), or use widths='sure'"
            )
        return Promise(eps, delta, delta_ids, frozenset({"calibration", "query"} if kind == "calibrated" else {"query"}))

    def plan(self, layer: Layer, calibration: Doubles | None, threads: int, promise: Promise) -> Plan:
        arrays = self._published(layer, calibration) if self.published else self._race(layer, calibration, promise, threads)
        together = math.inf if self.published else crossover(layer, shares=False)
        seen = reach(calibration) if calibration is not None and "calibration" in promise.over else None
        return Plan(None, None, None, None, (), None, Dense(together, self.share), arrays, seen=seen)

    def reader(self, engine: EngineParts) -> PublishedReader | RaceReader | None:
        """What answers instead of the plain executor; None where float32 cannot hold the columns."""
        if engine.plan.arrays is None:
            return None
        if self.published:
            eps, delta = self._aim
            return PublishedReader(engine, Rules(math.expm1(eps), delta, self.warm, self.exact))
        return RaceReader(engine, self._kind_of(engine.promise), self.share)

    @property
    def _aim(self) -> tuple[float, float]:
        return (math.log(1.3), 0.1) if self.aim is None else (self.aim[0], self.aim[1])

    def _kind(self, delta_ids: float, calibrated: bool) -> str:
        if self.widths is not None:
            return self.widths
        return "sure" if delta_ids == 0 else "calibrated" if calibrated else "bernstein"

    def _kind_of(self, promise: Promise) -> str:
        return self._kind(promise.delta_ids, "calibration" in promise.over)

    def _race(self, layer: Layer, calibration: Doubles | None, promise: Promise, threads: int) -> Arrays | None:
        kind, rate, queries = self._kind_of(promise), promise.ids_rate, None
        bounded_by = None if calibration is None else calibration[len(calibration) // 2 :]
        if kind == "calibrated":
            if calibration is None:
                raise OptionError("widths='calibrated' needs calibration vectors; pass calibration=hidden")
            calibration, queries = split(calibration, rate)
        # A link given as a table is the plain executor's business; so are columns that float32 cannot hold.
        arrays = None if layer.link.lowered()[0] == "table" else race_arrays(layer, calibration)
        if arrays is None or queries is None:
            return arrays
        factor = conformal(tail_scores(arrays, queries, exact_logits(layer, queries)), rate)
        arrays |= {"factor": np.array([min(1.0, factor * (1 + 2.0**-10))])}
        if calibration is None or bounded_by is None or not math.isinf(promise.eps):
            return arrays
        find = self._finder(layer, arrays, threads)
        answers = answer_factors(layer, find, calibration, bounded_by, promise.delta_ids, threads)
        return arrays | {"answers": np.array(answers)}

    def _finder(self, layer: Layer, arrays: Arrays, threads: int) -> Find:
        """Races with radii of a factor; at 1, where hardly any ends before all is read, dense passes."""
        reader = RaceReader(parts_for(layer, arrays), "calibrated", self.share)

        def find(hidden: Doubles, k: int, factor: float) -> tuple[Doubles, Array]:
            if factor >= 1:
                return reader.rows.topk(hidden, k, math.inf, None, True, threads)[0], np.ones(len(hidden), bool)
            found = reader.narrowed(hidden, k, factor, threads)
            return found[0], ~found[8]

        return find

    def _published(self, layer: Layer, calibration: Doubles | None) -> Arrays:
        if layer.link.lowered()[0] != "affine":
            raise OptionError(f"published=True knows temperatures only; the layer's link is {layer.link}: use widths='sure'")
        if not all(np.abs(rows).max() < 1e18 for _, rows in pieces(layer)):
            raise OptionError("published=True squares the weights in float32, and these are too large; use widths='sure'")
        arrays = published_arrays(layer, self.hadamard, 0)
        given = (self.arm, self.sum)
        if calibration is None or None not in given:
            found = tuple(1.0 if value is None else value for value in given)
        else:
            eps, delta = self._aim
            rules = Rules(math.expm1(eps), delta, self.warm, self.exact)
            parts = parts_for(layer, arrays | {"multipliers": np.ones(2)})
            found = fit_multipliers(parts, calibration, rules, given, self.arm_share)
        return arrays | {"multipliers": np.array(found)}


def exact_logits(layer: Layer, hidden: Doubles) -> Doubles:
    """``[n, vocab]`` in float64, before the link."""
    z = np.concatenate([hidden @ rows.T for _, rows in pieces(layer)], axis=1)
    return z if layer.bias is None else z + layer.bias
