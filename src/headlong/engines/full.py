"""The plain softmax: every row for every query. What other engines are measured against, and the fastest on small layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headlong.engines.method import Making, Method, register
from headlong.plan import Plan
from headlong.promise import Promise


@register
@dataclass(frozen=True)
class Full(Method):
    """No options: ids and log-probabilities are proved, up to the rounding that ``error`` states."""

    name: ClassVar[str] = "full"

    def plan(self, making: Making) -> Plan:
        return Plan()

    def promise(self, wanted: Promise, plan: Plan) -> Promise:
        return Promise(wanted.eps, 0.0)
