"""Some cases of the storm on a device, and a fault in an engine there is noticed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton", minversion="3.6", reason="no triton 3.6: kernels run on Linux on x86-64")
sys.path.insert(0, str(Path(__file__).parent))

import on_device

from headlong.engines.device.engine import DeviceEngine

# the interpreter's inf - inf is NumPy's, which warns
pytestmark = [pytest.mark.filterwarnings("ignore::RuntimeWarning"), pytest.mark.usefixtures("plain_interpreter")]
CASES = (4, 5, 11)
"""None that draws thousands, which takes the interpreter minutes."""


@pytest.mark.parametrize("number", CASES)
def test_no_answer_is_wrong(number: int) -> None:
    found = on_device.run(number)
    assert found.faults == [] and found.rows > 0


def test_a_wrong_answer_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = DeviceEngine.topk

    def wrong(self: DeviceEngine, *asked: Any, **more: Any) -> Any:
        answer = plain(self, *asked, **more)
        return answer._replace(logits=answer.logits + 1)

    monkeypatch.setattr(DeviceEngine, "topk", wrong)
    found = on_device.work((CASES[0], 100, CASES[0] + 1, float("inf")))
    assert found[0][0] == CASES[0] and any("proved and wrong" in fault for fault in found[0][2])
