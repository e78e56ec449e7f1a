"""The figures that sentences of a page say: neither what tools/tables.py makes nor what is code."""

from __future__ import annotations

import re

BLOCK = re.compile(r"<!-- begin ([\w-]+) -->.*?<!-- end \1 -->", re.DOTALL)
CODE = re.compile(r"^```\w*\n.*?^```", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"(?<![\w.`-])(\d[\d.,]*) ?((?:×|%)|(?:ms|[µu]s|[kMG]i?B|nats?|seconds?|minutes?|hours?|times|s)\b)")


def figures(text: str) -> list[tuple[str, str, str]]:
    """``(as written, number, unit)`` of each."""
    prose = CODE.sub("", BLOCK.sub("", text))
    return [(found[0], found[1], found[2]) for found in FIGURE.finditer(prose)]
