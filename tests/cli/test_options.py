"""One name for one thing on the command line: whatever a command does, the same option means the same."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.main import get_command
from typer.testing import CliRunner

import headlong as hl
from headlong.cli.main import app
from headlong.cli.terminal import write_json
from headlong.errors import StoreError

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_options_have_one_meaning(name: str) -> None:
    spelt = {option: param for param in COMMANDS[name].params for option in param.opts}
    arguments = [param.name for param in COMMANDS[name].params if param.param_type_name == "argument"]
    silent = {"chat", "compile", "report", "harvest", "distill"}
    assert spelt["--json"].is_flag if "--json" in spelt else name in silent
    assert ("-o" in spelt) == ("--out" in spelt)
    assert "--out" in spelt or "--json" not in spelt
    assert "--hidden" not in spelt and ("hidden" not in arguments or arguments[1] == "hidden")
    assert "--threads" in spelt or name == "report"


def test_every_command_is_looked_at() -> None:
    assert {"topk", "bench", "harvest"} < COMMANDS.keys()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rng = np.random.default_rng(7)
    hl.Layer(rng.standard_normal((60, 8), np.float32)).save(tmp_path / "layer.safetensors")
    np.save(tmp_path / "h.npy", rng.standard_normal((30, 8), np.float32))
    return tmp_path


@pytest.mark.parametrize("name", ["topk", "inspect"])
def test_out_has_what_json_prints(files: Path, name: str) -> None:
    asked = [name, str(files / "layer.safetensors"), str(files / "h.npy"), "--threads", "1", "-o", str(files / "found.json")]
    for more in ([], ["--json"]):
        result = CliRunner().invoke(app, [*asked, *more])
        assert result.exit_code == 0, result.output
    assert (files / "found.json").read_text(encoding="utf-8") == result.stdout
    assert result.stdout.count("\n") == (30 if name == "topk" else 1)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "found.json"
    write_json(there, [{"old": 1}])

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match=r"found.json cannot be written: No space left"):
        write_json(there, [{"new": 2}] * 1000)
    assert json.loads(there.read_text(encoding="utf-8")) == {"old": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["found.json"]
