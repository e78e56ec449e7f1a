"""``headlong``: where the program starts; every command, in the order in which ``--help`` lists them."""

from __future__ import annotations

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

for command in (
    demo, inspect, compile_, tune, topk, truth, recall, ties, chat, serve, kld, bench, report, harvest, distill,
):  # fmt: skip
    app.command()(command)
