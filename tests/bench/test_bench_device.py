"""The benchmark for a GPU goes all the way in Triton's interpreter, and counts answers that leave their proof."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import headlong as hl
from children import script
from headlong.engines.device.engine import DeviceEngine

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter's inf - inf is NumPy's, which warns


@pytest.fixture
def tool() -> ModuleType:
    return script("benchmarks/device.py")


def recorded(tool: ModuleType, path: Path, place: str) -> list[dict[str, Any]]:
    words = f"--shape 300,8,1 --batch 1,3 --dtype bfloat16 --rounds 1 --queries 3 --json {path}"
    tool.main([*words.split(), "--seconds", "0", "--device", place])
    record = json.loads(path.read_text())["tables"]["on a GPU"]["300,8,1"]
    assert record["command"].endswith(words) and record["environment"]["gpu"]
    rows: list[dict[str, Any]] = record["rows"]
    return rows


def test_every_row_is_timed_and_checked(interpreter: str, tool: ModuleType, tmp_path: Path) -> None:
    rows = recorded(tool, tmp_path / "device.json", interpreter)
    assert {(row["task"], row["contestant"]) for row in rows if row["batch"] == 3} == {
        *(("top-k", name) for name in ("full", "torch", "copy")),
        *((task, name) for task in tool.STEPS for name in ("full", "torch")),
    }
    assert all(row["us"] > 0 and "failed" not in row and row.get("outside", 0) == 0 for row in rows)
    assert all(row["proved"] == 1 for row in rows if "proved" in row)


def test_what_leaves_its_proof_is_counted_and_what_cannot_run_is_a_row(
    interpreter: str, tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = DeviceEngine.topk

    def lying(self: DeviceEngine, *asked: Any, **more: Any) -> hl.TopK:
        return replace(plain(self, *asked, **more), ids=torch.zeros(len(asked[0]), 10, dtype=torch.int64))

    def broken(*asked: Any) -> Any:
        raise ValueError("no such kernel\nlong story")

    monkeypatch.setattr(DeviceEngine, "topk", lying)
    monkeypatch.setattr(tool.Rival, "topk", broken)
    rows = recorded(tool, tmp_path / "device.json", interpreter)
    found = [row for row in rows if row["task"] == "top-k" and row["batch"] == 3 and "outside" in row]
    assert {row["contestant"]: row["outside"] for row in found}["full"] == 3
    failed = [row for row in rows if "failed" in row]
    assert {(row["task"], row["contestant"]) for row in failed} == {("top-k", "torch")}
    assert "no such kernel" in failed[0]["failed"]


def test_a_device_that_is_not_here_is_one_line(tool: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        tool.main(["--device", "tpu", "--shape", "70,8,1"])
    assert ended.value.code == 2 and "expected 'cuda'" in capsys.readouterr().err
