"""How long experts are trained, how hard they are pruned, and how they settle: every constant of ``lasso_ramp.py``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingPlan:
    """``experts``  of each stage, every one twice the one before; the first starts from the whole layer
    ``lasso``    of the first rung, of both lassos; ``factor``  between rungs; ``rungs``  of a stage, ``last`` of the last one
    ``rung``     steps of a rung, and of settling at the end of a stage; ``first``  in the first stage, which has most to prune
    ``prune``    steps between prunings; ``calm``  from so many experts on, settling takes twice as long at half the rate
    ``slack``    what validation top-1 may lose against the full softmax during a ramp
    ``rate``     of Adam for the rows, ``gate_rate`` for the gates; ``dropout``  of the hidden vectors, as the backbone had it
    ``proximal`` above 0: the rate of ``proximal.py`` instead; then a stage's first lasso is ``strength``, and ``settle`` the
                 steps of settling, ``longer`` times as many from ``patient`` experts on (0: the last), with ``last`` rungs
    ``falls``    rates of settling, each 0.4 of the one before: the noise that stays in a row is in proportion to the last;
                 from ``patient`` experts on these ``shares`` of the rate, where there are any
    ``screen``   take out what the lasso would take in the end (``screening.py``), at the start of a rung and at each pruning
    ``orphans``  of ``prune``: "keep" each class in one expert at least, which allows K experts no more than K times, or "allow"
    """

    experts: tuple[int, ...] = (2, 4, 8, 16, 32, 64)
    load: float = 10.0
    lasso: float = 3e-4
    factor: float = 3.0
    rungs: int = 2
    last: int = 3
    first: int = 80
    rung: int = 40
    prune: int = 20
    calm: int = 8
    slack: float = 0.006
    batch: int = 1024
    rate: float = 2e-3
    gate_rate: float = 3e-3
    dropout: float = 0.2
    gamma: float = 0.03
    units: str = "rms"
    noise: float = 0.3
    proximal: float = 0.0
    power: float = 0.75
    settle: int = 0
    patient: int = 0
    longer: int = 5
    falls: int = 3
    shares: tuple[float, ...] = ()
    screen: bool = False
    orphans: str = "keep"

    def steps(self, experts: int) -> int:
        return self.first if experts == self.experts[0] else self.rung

    def late(self, experts: int) -> bool:
        return experts >= (self.patient or self.experts[-1])

    def rates(self, experts: int) -> tuple[float, ...]:
        """Of settling, as shares of the plan's own."""
        calm = 3 if self.proximal else 2 if experts >= self.calm else 1
        return (self.late(experts) and self.shares) or tuple(0.4**fall / calm for fall in range(self.falls))

    def settling(self, experts: int) -> int:
        steps = self.settle * (self.longer if self.late(experts) else 1) or self.steps(experts)
        return steps * (2 if experts >= self.calm and not self.proximal else 1) // len(self.rates(experts))

    def strength(self, experts: int) -> float:
        """Of a proximal stage's first rung: a child has half of its parent's targets, and some that the parent hardly had."""
        return float(self.lasso * (self.experts[0] / experts) ** self.power)
