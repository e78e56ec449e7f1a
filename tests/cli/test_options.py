"""One name for one thing on the command line: whatever a command does, the same option means the same."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from headlong.cli.main import app

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", COMMANDS)
def test_options_have_one_meaning(name: str) -> None:
    spelt = {option: param for param in COMMANDS[name].params for option in param.opts}
    arguments = [param.name for param in COMMANDS[name].params if param.param_type_name == "argument"]
    assert spelt["--json"].is_flag if "--json" in spelt else name in {"compile", "shortlist", "report", "harvest"}
    assert ("-o" in spelt) == ("--out" in spelt)
    assert "--hidden" not in spelt and ("hidden" not in arguments or arguments[1] == "hidden")
    assert "--threads" in spelt or name == "report"


def test_every_command_is_looked_at() -> None:
    assert {"topk", "bench", "reproduce"} < COMMANDS.keys()
