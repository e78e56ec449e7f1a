"""``headlong topk``: find the likeliest classes of each hidden vector, with the error and the proof of each row."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headlong.cli.shared_options import AnswerFile, Bias, HiddenFile, JsonLines, K, Method, Threads, Weight, settled
from headlong.errors import OptionError, ShapeError

FIELDS = ("ids", "log_probs", "logits", "lse", "error", "proved")
SHOWN = 20
"""Queries printed as text; JSON has them all."""
BLOCK = 64
"""Queries answered between two steps of the progress bar."""


class TopkArguments(NamedTuple):
    source: Annotated[str, typer.Argument(metavar="LAYER_OR_ENGINE", help="A layer, items, or an engine that compile saved.")]
    hidden: HiddenFile
    k: K = 10
    metric: Annotated[str | None, typer.Option(help="Nearest items by ip, cosine or l2, proved; no probabilities.")] = None
    labels: Annotated[Path | None, typer.Option(help="A text file with a label for each class or item, one a line.")] = None
    method: Method = "auto"
    eps: Annotated[float | None, typer.Option(help="In nats; inf, as for items in an array: ids and logits only.")] = None
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None
    device: Annotated[str | None, typer.Option(help="cuda or cuda:N: the layer on that GPU; default: the CPU.")] = None
    out: AnswerFile = None
    as_json: JsonLines = False


def topk(args: TopkArguments) -> None:
    """Find the likeliest classes of each hidden vector, or the nearest items, with the error and the proof of each row."""
    eps = args.eps
    count = settled(args.threads)
    import numpy as np

    import headlong as hl
    from headlong.cli import arrays, inputs
    from headlong.cli.nearest import ARRAYS, SCORES, metric_of, nearest, write_arrays
    from headlong.cli.terminal import answered_lines, bars, say_json, show, topk_table, write_json
    from headlong.tables import answers

    given = {"--method": args.method != "auto", "--weight": args.weight is not None, "--bias": args.bias is not None,
             "--device": args.device is not None}
    name = args.metric and metric_of(args.metric)
    if name and (unused := [one for one, there in {**given, "--eps": eps is not None}.items() if there and one != "--weight"]):
        raise OptionError(f"--metric is of items, not of probabilities; leave {', '.join(unused)} out")
    engine: Any = inputs.engine(args.source, count, {**given, "--metric": name is not None})
    if engine is not None:
        layer = engine.layer
    else:
        layer = (inputs.layer if name else inputs.any_layer)(args.source, args.weight, args.bias)
    if eps is None and engine is None and arrays.is_array(inputs.split(args.source, 2)[0]):
        eps = math.inf  # of items nobody asked for probabilities
    rows = inputs.hidden(args.hidden, layer.dim, layer.vocab)
    if not len(rows):
        raise ShapeError(f"{args.hidden} has shape {list(rows.shape)}: no rows to answer")
    words = None if args.labels is None else inputs.labels(args.labels, layer.vocab)
    if args.out is not None:
        ends = (*inputs.JSON, ARRAYS, *answers.ENDS)
        inputs.target(args.out, ends, args.source, args.hidden, None if args.labels is None else str(args.labels))
    if name:
        search = nearest(layer, name, count)
    elif engine is None:
        asked = eps is None or math.isfinite(eps)
        engine = hl.compile(layer, args.method, delta=0.0, log_probs=asked, threads=count, device=args.device)

    def ask(some: Any) -> Any:
        return search(some, args.k) if name else engine.topk(some, k=args.k, eps=eps)

    shown = rows if args.as_json or args.out is not None else rows[:SHOWN]
    lines: list[dict[str, Any]] = []
    parts: list[Any] = []
    as_table = args.out is not None and answers.is_table(args.out)
    as_arrays = args.out is not None and args.out.suffix == ARRAYS
    with bars() as stage:
        move = stage("answer")
        for start in range(0, len(shown), BLOCK):
            top = ask(shown[start : start + BLOCK])
            if as_table or as_arrays:
                ids = top["ids"] if name else top.ids
                more = {} if words is None else {"labels": np.array([[words[i] if i >= 0 else "" for i in row] for row in ids])}
                if as_arrays:
                    parts.append((dict(top) if name else {one: getattr(top, one) for one in FIELDS}) | more)
                else:
                    made = answers.columns(top) if name else answers.table(top)
                    parts.append(made.append_column("labels", answers.columns(more)["labels"]) if more else made)
            if args.as_json or not (as_table or as_arrays) or start < SHOWN:
                lines += answered_lines(top, start, words)
            move(min(start + BLOCK, len(shown)), len(shown))
    if args.out is not None and (as_table or as_arrays):
        (answers.write if as_table else write_arrays)(args.out, parts)
        typer.echo(f"wrote {args.out}", err=True)
    else:
        write_json(args.out, lines)
    if args.as_json:
        for line in lines:
            say_json(line)
        return
    typer.echo(repr(engine) if not name else f"{layer.vocab:,} items × {layer.dim}, nearest by {SCORES[name]}, proved")
    show(topk_table(lines[:SHOWN], len(rows), SCORES[name] if name else "logit"))
