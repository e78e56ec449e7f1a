"""The public API, name by name with signatures and defaults, is ``docs/api.txt``: a change is seen and reviewed.

    python tests/test_public_api.py      writes it anew

What is public is what ``docs/api.md`` names, and the names at the top of the package. They are read from the source, as when
the site is built: nothing optional has to be installed.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "docs/api.txt"
MOST_AT_THE_TOP = 18


@cache
def package() -> Any:
    griffe = pytest.importorskip("griffe", reason="griffe is not installed: pip install 'headlong[docs]'")
    return griffe.load("headlong", search_paths=[ROOT / "src"], allow_inspection=False)


def shown(thing: Any, name: str, shown_before: set[str]) -> Iterator[str]:
    """One line for a function or a value; for a class its own, and one for each documented method and each declared value,
    its parents' too where they are not on the page."""
    thing = thing.final_target if thing.is_alias else thing
    if thing.is_function:
        yield f"{name}{thing.signature().removeprefix(thing.name)}"
    elif thing.is_class:
        made = thing.members.get("__init__")
        yield f"class {name}{made.signature(return_type=False).removeprefix('__init__') if made is not None else ''}"
        for member, inner in sorted(thing.all_members.items()):
            seen = inner.parent is not thing and inner.final_target.parent.path in shown_before
            told = inner.docstring if inner.is_function else getattr(inner, "annotation", None) or passed_on(inner)
            if told and not seen and not member.startswith("_"):
                yield from shown(inner, f"    {member}", shown_before)
        shown_before.add(thing.path)
    else:
        yield f"{name}: {thing.annotation or passed_on(thing)}"


def passed_on(thing: Any) -> str:
    """``as Engine.save`` where a verb is another's: ``save = passing(Engine.save)``."""
    found = re.fullmatch(r"\w+\((\w+\.\w+)\)", str(getattr(thing, "value", None)))
    return f"as {found[1]}" if found else ""


def named(page: str) -> Iterator[tuple[str, Any]]:
    """What ``::: path`` and its members ask mkdocstrings for; a module without a list: all that it defines."""
    for path, members in re.findall(r"^::: ([\w.]+)(?:\n    options:\n      members: \[(.*)\])?", page, re.MULTILINE):
        found = package()[path.removeprefix("headlong.")]
        if not found.is_module:
            yield path, found
            continue
        asked = members.split(", ") if members else [
            name for name, one in found.members.items()
            if not (name.startswith("_") or one.is_alias) and (one.is_class or one.is_function)
        ]  # fmt: skip
        yield from ((f"{path}.{name}", found[name]) for name in asked)


def api() -> str:
    top = [f"headlong.{name}" for name in package()["__all__"].value.elements]
    page, before = (ROOT / "docs/api.md").read_text(encoding="utf-8"), set[str]()
    lines = [line for path, thing in named(page) for line in shown(thing, path, before)]
    return "\n".join([*(line.replace("'", "") for line in top), "", *lines, ""])


def test_the_public_api_is_the_one_that_was_reviewed() -> None:
    told = "another API than docs/api.txt: if it is meant, run python tests/test_public_api.py and say so in CHANGELOG.md"
    assert api() == RECORD.read_text(encoding="utf-8"), told


def test_a_changed_default_is_noticed() -> None:
    before = api()
    (k,) = (one for one in package()["engines.base.Engine"].all_members["topk"].parameters if one.name == "k")
    was, k.default = k.default, "11"
    try:
        assert api() != before
    finally:
        k.default = was
    assert api() == before


def test_few_names_are_at_the_top() -> None:
    import headlong

    assert len(headlong.__all__) <= MOST_AT_THE_TOP


if __name__ == "__main__":
    RECORD.write_text(api(), encoding="utf-8")
    sys.stdout.write(f"{RECORD.relative_to(ROOT)}: {api().count(chr(10))} lines\n")
