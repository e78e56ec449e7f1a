"""The curves by name: what heads are made from."""

from __future__ import annotations

from typing import Any

from headlong.errors import OptionError
from headlong.heads.curves import Cap, Curve, Identity, Monotone, Sigmoidal, SigSoftmax, Temperature
from headlong.heads.plif import Plif

CURVES: dict[str, type[Curve]] = {
    "identity": Identity,
    "temperature": Temperature,
    "softcap": Cap,
    "sigsoftmax": SigSoftmax,
    "gss": Sigmoidal,
    "monotone": Monotone,
    "plif": Plif,
}


def build_curve(name: str, **options: Any) -> Curve:
    """``CURVES[name](**options)``; OptionError names what there is."""
    if not isinstance(name, str) or name not in CURVES:
        raise OptionError(f"no curve is called {name!r}; there are {', '.join(sorted(CURVES))}")
    return CURVES[name](**options)
