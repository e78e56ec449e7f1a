"""``headlong distill``: teacher files from a layer or an engine and hidden vectors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headlong.cli.shared_options import Bias, Delta, Eps, HiddenFile, Threads, Weight, settled


def distill(
    source: Annotated[str, typer.Argument(metavar="LAYER_OR_ENGINE", help="A layer, or an engine that compile saved.")],
    hidden: HiddenFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="The folder of shards; a run that was stopped goes on.")],
    k: Annotated[int, typer.Option("-k", help="Classes of each token.")] = 64,
    shard: Annotated[int, typer.Option(help="Tokens of a shard.")] = 65_536,
    eps: Eps = 0.01,
    delta: Delta = 1e-6,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
) -> None:
    """Write each token's likeliest classes, their logits and the log of the mass behind them, for training a student."""
    count = settled(threads)
    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars
    from headlong.teacher import distill as written

    given = {"--weight": weight is not None, "--bias": bias is not None}
    engine: Any = inputs.engine(source, count, given)
    if engine is None:
        engine = hl.compile(inputs.any_layer(source, weight, bias), eps=eps, delta=delta, threads=count)
    rows = inputs.hidden(hidden, engine.layer.dim, engine.layer.vocab)
    with bars() as stage:
        paths = written(engine, rows, out, k, shard, stage("teach"))
    typer.echo(f"{len(rows):,} tokens in {len(paths)} shard{'s'[: len(paths) > 1]} in {out}; {engine.promise}")
