"""A slice of the storm and of the soak; `just storm` and `just soak` run as much as is asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SECONDS = float(os.environ.get("HEADLONG_STORM", "8"))
"""By the clock, for each of the two; CI sets it to 60."""

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits and forks as Linux has them"),
    pytest.mark.timeout(SECONDS * 3 + 300),
]


@pytest.mark.parametrize("what", [["storm.py"], ["soak.py", "--threads", "6"]], ids=["storm", "soak"])
def test_a_slice(what: list[str]) -> None:
    command = [sys.executable, str(HERE / what[0]), *what[1:], "--seconds", str(SECONDS)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
