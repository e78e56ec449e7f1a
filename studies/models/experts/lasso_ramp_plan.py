"""How long experts are trained, how hard they are pruned, and how they settle: every constant of ``lasso_ramp.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingPlan:
    """``experts``  of each stage, every one twice the one before; the first starts from the whole layer
    ``lasso``    of the first stage, of both lassos; of a later one ``strength``; ``factor``  between rungs
    ``rungs``    of a stage, ``last`` from ``patient`` experts on
    ``rung``     steps of a rung; ``first``  in the first stage, which has most to prune; ``prune``  steps between prunings
    ``slack``    what validation top-1 may lose against the full softmax during a ramp
    ``gate_rate``  of Adam for the gates, ``proximal``  of the rows (``proximal.py``)
    ``dropout``  of the hidden vectors, as the backbone had it
    ``settle``   steps of settling, ``longer`` times as many from ``patient`` experts on
    ``falls``    rates of settling, each 0.4 of the one before: the noise that stays in a row is in proportion to the last;
                 from ``patient`` experts on these ``shares`` of the rate
    ``screen``   take out what the lasso would take in the end (``screening.py``), at the start of a rung and at each pruning
    ``orphans``  of ``prune``: "keep" each class in one expert at least, which allows K experts no more than K times, or "allow"
    """

    experts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    load: float = 10.0
    lasso: float = 8e-5
    power: float = 0.61
    factor: float = 1.1
    rungs: int = 1
    last: int = 2
    first: int = 200
    rung: int = 150
    prune: int = 20
    slack: float = 0.08
    batch: int = 1024
    gate_rate: float = 3e-3
    proximal: float = 0.2
    dropout: float = 0.2
    gamma: float = 0.03
    units: str = "rms"
    noise: float = 3.0
    settle: int = 180
    patient: int = 16
    longer: int = 8
    falls: int = 6
    shares: tuple[float, ...] = (0.5, 0.5, 0.3, 0.2, 0.1, 0.04, 0.015)
    screen: bool = False
    orphans: str = "allow"

    def steps(self, experts: int) -> int:
        return self.first if experts == self.experts[0] else self.rung

    def late(self, experts: int) -> bool:
        return experts >= self.patient

    def rates(self, experts: int) -> tuple[float, ...]:
        """Of settling, as shares of the plan's own."""
        return self.shares if self.late(experts) else tuple(0.4**fall / 3 for fall in range(self.falls))

    def settling(self, experts: int) -> int:
        return self.settle * (self.longer if self.late(experts) else 1) // len(self.rates(experts))

    def strength(self, experts: int) -> float:
        """Of a stage's first rung: a child has half of its parent's targets, and some that the parent hardly had."""
        return float(self.lasso * (self.experts[0] / experts) ** self.power)
