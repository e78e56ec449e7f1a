"""``headlong topk``: find the likeliest classes of each hidden vector, with the error and the proof of each row."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from headlong.cli.shared_options import AnswerFile, Bias, HiddenFile, JsonLines, K, Method, Threads, Weight, settled

SHOWN = 20
"""Queries printed as text; JSON has them all."""
BLOCK = 64
"""Queries answered between two steps of the progress bar."""


def topk(
    source: Annotated[str, typer.Argument(metavar="LAYER_OR_ENGINE", help="A layer, or an engine that compile saved.")],
    hidden: HiddenFile,
    k: K = 10,
    method: Method = "auto",
    eps: Annotated[float | None, typer.Option(help="In nats; inf: ids and exact logits only.")] = None,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N: the layer on that GPU; default: the CPU.")] = None,
    out: AnswerFile = None,
    as_json: JsonLines = False,
) -> None:
    """Find the likeliest classes of each hidden vector, with the error and the proof of each row."""
    count = settled(threads)
    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, json_lines, say_json, show, topk_table, write_json
    from headlong.tables import answers

    given = {"--method": method != "auto", "--weight": weight is not None, "--bias": bias is not None,
             "--device": device is not None}
    engine: Any = inputs.engine(source, count, given)
    if engine is None:
        engine = hl.compile(inputs.any_layer(source, weight, bias), method, delta=0.0, threads=count, device=device)
    rows = inputs.hidden(hidden, engine.layer.dim, engine.layer.vocab)
    if out is not None:
        inputs.target(out, source, hidden)
    shown = rows if as_json or out is not None else rows[:SHOWN]
    lines: list[dict[str, Any]] = []
    parts: list[Any] = []
    as_table = out is not None and answers.is_table(out)
    with bars() as stage:
        move = stage("answer")
        for start in range(0, len(shown), BLOCK):
            top = engine.topk(shown[start : start + BLOCK], k=k, eps=eps)
            if as_table:
                parts.append(answers.table(top))
            if as_json or not as_table or start < SHOWN:
                lines += json_lines(top, start)
            move(min(start + BLOCK, len(shown)), len(shown))
    if out is not None and as_table:
        answers.write(out, parts)
        typer.echo(f"wrote {out}", err=True)
    else:
        write_json(out, lines)
    if as_json:
        for line in lines:
            say_json(line)
        return
    typer.echo(repr(engine))
    show(topk_table(lines[:SHOWN], len(rows)))
