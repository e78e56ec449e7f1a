"""``headlong``: every command, in the order in which ``--help`` lists them. The program starts here."""

from __future__ import annotations

from headlong.cli import evidence, layers, reading
from headlong.cli.app import app as app

for command in (
    reading.demo, layers.inspect, layers.capacity, layers.compile, layers.tune, layers.shortlist, reading.topk, reading.bench,
    evidence.report, evidence.reproduce, evidence.train, evidence.harvest,
):  # fmt: skip
    app.command()(command)
