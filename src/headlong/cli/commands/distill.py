"""``headlong distill``: teacher files from a layer or an engine and hidden vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headlong.cli.shared_options import Bias, Delta, Eps, HiddenFile, Threads, Weight, settled


class DistillArguments(NamedTuple):
    source: Annotated[str, typer.Argument(metavar="LAYER_OR_ENGINE", help="A layer, or an engine that compile saved.")]
    hidden: HiddenFile
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder of shards; a run that was stopped goes on.")]
    k: Annotated[int, typer.Option("-k", help="Classes of each token.")] = 64
    shard: Annotated[int, typer.Option(help="Tokens of a shard.")] = 65_536
    eps: Eps = 0.01
    delta: Delta = 1e-6
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None


def distill(args: DistillArguments) -> None:
    """Write each token's likeliest classes, their logits and the log of the mass behind them, for training a student."""
    count = settled(args.threads)
    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars
    from headlong.teacher import distill as written

    given = {"--weight": args.weight is not None, "--bias": args.bias is not None}
    engine: Any = inputs.engine(args.source, count, given)
    if engine is None:
        engine = hl.compile(
            inputs.any_layer(args.source, args.weight, args.bias), eps=args.eps, delta=args.delta, threads=count
        )
    rows = inputs.hidden(args.hidden, engine.layer.dim, engine.layer.vocab)
    with bars() as stage:
        paths = written(engine, rows, args.out, args.k, args.shard, stage("teach"))
    typer.echo(f"{len(rows):,} tokens in {len(paths)} shard{'s'[: len(paths) > 1]} in {args.out}; {engine.promise}")
