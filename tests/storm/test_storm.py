"""A slice of the storm, of the soak and of damaged files; `just storm` and its like run as much as is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from cases import draw  # noqa: E402
from checks import run  # noqa: E402

SECONDS = float(os.environ.get("HEADLONG_STORM", "5"))
"""By the clock, for each of them; CI sets it to 60."""

FORKS = "tsan" not in os.environ.get("LD_PRELOAD", "")
"""A forked child hangs inside the thread sanitizer: it gets the soak without forks, and of the storm the cases of FOUND."""

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and forks as Linux has them"),
    pytest.mark.timeout(SECONDS * 3 + 300),
]


@pytest.mark.parametrize("what", [["storm.py"], ["soak.py", "--threads", "6"], ["damage.py"]], ids=["storm", "soak", "damage"])
def test_a_slice(what: list[str]) -> None:
    if not FORKS and what[0] != "soak.py":
        pytest.skip("each case is a forked child")
    what = what if FORKS else [*what, "--no-forks"]
    command = [sys.executable, str(HERE / what[0]), *what[1:], "--seconds", str(SECONDS)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]


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
