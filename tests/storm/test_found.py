"""Cases in which the long storm found something, each mended since: they end without a fault."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cases import draw
from checks import run

FOUND = {
    256: "an expert's error and the gate's were more than was promised",
    648: "a table's error counts more below temperature 1",
    1947: "one calibration vector, whose half has none to choose by, was to teach a number of rows",
    2100: "twenty equal classes, half of them within top_p: the check, not the library, took the side that a rounding leads to",
    2074: "shards under a link without temperatures passed top_p by where min_p kept few classes",
}


@pytest.mark.parametrize("number", FOUND)
def test_what_the_storm_found_is_mended(number: int) -> None:
    assert run(draw(number)).faults == []
