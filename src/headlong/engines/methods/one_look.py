"""The cascade without closer looks: exact rows follow the first pass. ``headlong tune`` alone asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from headlong.engines.methods.cascade import Cascade


@dataclass(frozen=True)
class OneLook(Cascade):
    """Faster where finer codes are not worth their bytes."""

    deeper: ClassVar[bool] = False
