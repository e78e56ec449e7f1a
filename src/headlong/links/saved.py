"""Links as plain data, there and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headlong.errors import MalformedFileError, OptionError
from headlong.links.base import Link
from headlong.links.curves import Affine, Gss, SoftCap
from headlong.links.table import Table


def link_from_dict(data: Mapping[str, Any]) -> Link:
    """The link that :meth:`Link.as_dict` described; raises where the description is none."""
    kinds: dict[str, tuple[Callable[..., Link], set[str]]] = {
        "affine": (Affine, {"scale", "shift"}),
        "softcap": (SoftCap, {"cap"}),
        "gss": (Gss, {"centre", "power"}),
        "table": (Table, {"start", "step", "values", "left", "right", "error"}),
    }
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise MalformedFileError(f"a link of kind {kind!r} was saved; this version knows {', '.join(kinds)}")
    build, names = kinds[kind]
    values = {name: value for name, value in data.items() if name != "kind"}
    if set(values) != names:
        raise MalformedFileError(f"a saved {kind} link holds {sorted(values)}; expected {sorted(names)}")
    try:
        return build(**values)
    except OptionError as error:
        raise MalformedFileError(f"a saved link cannot be read: {error}") from error
