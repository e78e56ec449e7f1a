"""Some cases of the storm on a device, and a fault in an engine there is noticed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.6", reason="no triton 3.6: kernels run on Linux on x86-64")
sys.path.insert(0, str(Path(__file__).parent))

import on_device

# the interpreter's inf - inf is NumPy's, which warns
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("plain_interpreter")]
CASES = (4, 5, 11)
"""None that draws thousands, which takes the interpreter minutes."""


@pytest.mark.parametrize("number", CASES)
def test_no_answer_is_wrong(number: int) -> None:
    found = on_device.run(number)
    assert found.faults == [] and found.rows > 0
