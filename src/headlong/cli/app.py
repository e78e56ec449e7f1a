"""The program itself: its name, what it says without a command, and what it says of a wrong command line.

Every fault is one line on stderr and exit status 2. Nothing of headlong but its errors is imported before a command runs,
so ``--help`` is quick and the number of threads is settled before NumPy wakes its own. Progress and faults go to stderr,
answers to stdout.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headlong.errors import HeadlongError, cause

UsageFault: Any = typer.BadParameter.__mro__[1]
"""What a wrong command line raises; the releases of Typer keep it in different places."""


STOPPED = 130
"""The status of a program that Ctrl-C ended."""
RESUMED = ("distill", "truth")
"""Commands that go on where they were stopped."""


class OneLine(TyperGroup):
    """Every fault that is not ours to fix is one line on stderr and exit status 2, whoever finds it."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        extra["standalone_mode"] = False  # faults come back here instead of being drawn as a box
        if not standalone_mode:
            return super().main(*args, **extra)
        try:
            status = super().main(*args, **extra)
        except UsageFault as fault:
            status = refused(f"{fault.format_message().rstrip('.')}: see '{_asked(fault.ctx)} --help'")
        except (HeadlongError, MemoryError) as fault:
            options = self._options(args[0] if args else extra.get("args"))
            status = refused(as_spelt(str(fault), options) or type(fault).__name__)
        except OSError as fault:
            status = refused(f"{fault.filename}: {cause(fault)}" if fault.filename else cause(fault))
        if status == STOPPED:
            again = self._asked_for(args[0] if args else extra.get("args")) in RESUMED
            refused(f"stopped, no file is half-written{'; the same command goes on from there' if again else ''}")
        sys.exit(status)

    def _asked_for(self, args: Any) -> str:
        words = sys.argv[1:] if args is None else list(args)
        return next((word for word in words if word in self.commands), "")

    def _options(self, args: Any) -> dict[str, str]:
        """``{"log_probs": "--log-probs"}`` of the command that was asked for."""
        command = self.commands.get(self._asked_for(args))
        params = command.params if command is not None else []
        return {str(one.name): max(one.opts, key=len) for one in params if one.param_type_name == "option"}


def as_spelt(fault: str, options: Mapping[str, str]) -> str:
    """``"top_k is -1" -> "--top-k is -1"``: what the library calls by a name, as the command line spells it."""
    known = "|".join(sorted(map(re.escape, options), key=len, reverse=True))
    if not known:
        return fault
    return re.sub(rf"(?<![\w.-])({known})(?= is (?!no )|=)", lambda found: options[found[1]], fault)


def refused(fault: str) -> int:
    """The line, and the status."""
    typer.echo(f"headlong: {' '.join(fault.split())}", err=True)
    return 2


def _asked(context: Any) -> str:
    """``headlong topk``, whatever started the program."""
    return f"headlong {context.info_name}" if context is not None and context.parent is not None else "headlong"


app = typer.Typer(name="headlong", cls=OneLine, add_completion=False, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def headlong(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="With --version: also processor, threads and packages.")] = False,
) -> None:
    """Reads a model's output layer faster, and says with every answer how far it can be trusted."""
    if verbose and not version:
        raise typer.BadParameter("--verbose goes with --version")
    if version:
        import headlong as hl

        typer.echo(f"headlong {hl.__version__}")
        if verbose:
            from headlong.cli.about import about

            typer.echo("\n".join(about()))
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
