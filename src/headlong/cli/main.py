"""``headlong``: where the program starts; every command, in the order in which ``--help`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any, get_type_hints

from headlong.cli.app import app as app
from headlong.cli.commands.bench import bench
from headlong.cli.commands.chat import chat
from headlong.cli.commands.compile import compile as compile_
from headlong.cli.commands.demo import demo
from headlong.cli.commands.distill import distill
from headlong.cli.commands.harvest import harvest
from headlong.cli.commands.inspect import inspect
from headlong.cli.commands.kld import kld
from headlong.cli.commands.recall import recall
from headlong.cli.commands.report import report
from headlong.cli.commands.serve import serve
from headlong.cli.commands.ties import ties
from headlong.cli.commands.topk import topk
from headlong.cli.commands.truth import truth
from headlong.cli.commands.tune import tune


def taking(run: Callable[..., None]) -> Callable[..., None]:
    """A command; where it takes ``args``, a record, its arguments and options are the record's fields to Typer."""
    record = get_type_hints(run).get("args")
    if record is None:
        return run

    def called(**given: Any) -> None:
        run(record(**given))

    hints, defaults = get_type_hints(record, include_extras=True), record._field_defaults
    asked = [Parameter(one, Parameter.KEYWORD_ONLY, default=defaults.get(one, Parameter.empty)) for one in hints]
    called.__name__, called.__doc__, called.__annotations__ = run.__name__, run.__doc__, hints
    vars(called)["__signature__"] = Signature([one.replace(annotation=hints[one.name]) for one in asked])
    return called


for command in (
    demo, inspect, compile_, tune, topk, truth, recall, ties, chat, serve, kld, bench, report, harvest, distill,
):  # fmt: skip
    app.command()(taking(command))
