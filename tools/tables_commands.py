"""The tables of the command line: its commands, their arguments, and the options of every method."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

import typer
from tables_records import left

from headlong.cli.main import app
from headlong.engines.method import METHODS
from headlong.report.tables import ReportTable


def commands() -> str:
    """One line for each command."""
    rows = [(f"`headlong {name}`", (command.help or "").strip()) for name, command in _commands().items()]
    return left(ReportTable("", ("command", "what it does"), tuple(rows)))


def reference() -> str:
    """Every command with its arguments and options."""
    parts = []
    for name, command in _commands().items():
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        shown = " ".join(param.metavar or param.name.upper() for param in arguments)
        rows = [
            (f"`{', '.join(param.opts)}`", _default(param), (getattr(param, "help", "") or "").strip())
            for param in command.params
            if param.param_type_name == "option" and param.name != "help"
        ]
        usage = f"    headlong {name} {shown}".rstrip()
        options = left(ReportTable("", ("option", "default", "what it says"), tuple(rows)))
        parts.append(f"## {name}\n\n{(command.help or '').strip()}\n\n{usage}\n\n{options}")
        if name == "compile":
            parts.append(f"Every method has its own `--option`:\n\n{method_options()}")
    return "\n\n".join(parts)


def method_options() -> str:
    """Every method with its options and their defaults."""
    rows = []
    for name, method in sorted(METHODS.items()):  # not by who was imported first
        fields = [field for field in dataclasses.fields(cast("Any", method)) if field.name != "name"]
        rows.append((f"`{name}`", ", ".join(f"`{field.name}={_spelt(field)}`" for field in fields) or "none"))
    return left(ReportTable("", ("--method", "--option, with its default"), tuple(rows)))


def _spelt(field: Any) -> str:
    """The default as the command line spells it, which is JSON where it is no text."""
    return field.default if isinstance(field.default, str) else json.dumps(field.default)


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _default(param: Any) -> str:
    return "" if param.default is None or param.default is False else f"`{param.default}`"


BLOCKS = {"commands": commands, "reference": reference}
