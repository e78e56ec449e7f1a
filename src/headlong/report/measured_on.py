"""Where numbers were measured, in one line: our version and commit, machine, what else it did, versions, date. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

BUSY = 0.1
"""A share of the processors that others took, from which on times mean little."""


def machine(made: Mapping[str, Any]) -> str:
    """What the times of a run hold for."""
    place = f"{made.get('gpu') or made['cpu']}, {made['threads']} threads, {_levels(made)}{_beside(made)}"
    ours, versions = _ours(made), _versions(made)
    return f"{place}; {ours + ', ' if ours else ''}Python {made['python']}, {versions}; {made['date']}."


def _levels(made: Mapping[str, Any]) -> str:
    return ", ".join(made.get("isa_used") or made.get("isa", []))


def _ours(made: Mapping[str, Any]) -> str:
    """``"headlong 0.1.0 at 0123456789ab"``; a ``+`` behind the commit: files differed from it."""
    commit = f" at {made['commit']}" if made.get("commit") else ""
    return f"headlong {made['headlong']}{commit}" if made.get("headlong") else ""


def _versions(made: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in made.get("versions", {}).items())


def _beside(made: Mapping[str, Any]) -> str:
    """What else the machine did: the load before, and the share of its processors that others took meanwhile."""
    load, others = made.get("load"), made.get("others")
    words = [] if load is None else [f"load average {load} before"]
    if others is not None:
        warning = ": BUSY, so times mean little" if others > BUSY else ""
        words.append(f"other programs took {others:.0%} of the processors{warning}")
    return "".join(f", {word}" for word in words)


def measured_where(environment: Mapping[str, Any]) -> str:
    """Machine, threads, versions, date in one line, of any record."""
    threads = f"{environment['threads']} threads" if "threads" in environment else None
    words = [environment.get("cpu"), threads, _ours(environment), _versions(environment), environment.get("date")]
    return "; ".join(str(word) for word in words if word)


def ran(environments: Iterable[Mapping[str, Any]]) -> str:
    """``"2026-11-21, commit not kept; 2026-11-22, headlong 0.1.0 at 0123456789ab"``: each day and build that rows are of."""
    return "; ".join(dict.fromkeys(f"{made['date']}, {_build(made)}" for made in environments))


def _build(made: Mapping[str, Any]) -> str:
    if not made.get("commit"):
        return "commit not kept"
    return _ours(made) or f"commit {made['commit']}"
