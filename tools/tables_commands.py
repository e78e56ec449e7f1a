"""The tables of the command line: its commands, their arguments, and the options of every method."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import typer
from tables_records import left

import headlong.compile as _registers  # noqa: F401
from headlong.cli.main import app
from headlong.engines.method import METHODS, option_names
from headlong.engines.structured.base import ENGINES
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
            parts.append(f"Every method and every kind of structured layer has its own `--option`:\n\n{method_options()}")
    return "\n\n".join(parts)


def method_options() -> str:
    """Every method and every kind of structured layer that has options, with their defaults."""
    rows = [(f"`{name}`", _options(method) or "none") for name, method in sorted(METHODS.items())]  # not as imported
    kinds = [(f"{kind} layer", _options(engine.Options)) for kind, engine in sorted(ENGINES.items())]
    rows += [(name, shown) for name, shown in kinds if shown]
    return left(ReportTable("", ("--method", "--option, with its default"), tuple(rows)))


def _options(record: Any) -> str:
    """``name=default`` of every option that a user can set."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    return ", ".join(f"`{name}={_spelt(fields[name])}`" for name in option_names(record))


def _spelt(field: Any) -> str:
    """The default as the command line spells it, which is JSON where it is no text."""
    return field.default if isinstance(field.default, str) else json.dumps(field.default)


def _commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _default(param: Any) -> str:
    return "" if param.default is None or param.default is False else f"`{param.default}`"


BLOCKS = {"commands": commands, "reference": reference}
