"""``headlong tune``: try the plausible plans on hidden vectors, and keep the fastest that keeps the promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import Bias, Delta, Eps, HiddenFile, Json, K, LayerFile, Seed, Threads, Weight, settled


class TuneArguments(NamedTuple):
    layer: LayerFile
    hidden: HiddenFile
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where the engine goes (.safetensors).")] = None
    eps: Eps = 0.01
    delta: Delta = 1e-6
    k: K = 10
    without_layer: Annotated[bool, typer.Option("--without-layer", help="Leave the layer out of the file.")] = False
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None
    seed: Seed = 0
    as_json: Json = False


def tune(args: TuneArguments) -> None:
    """Try the plausible plans on hidden vectors, and keep the fastest that keeps the promise."""
    count = settled(args.threads)
    from headlong.bench.measure import as_run
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show
    from headlong.report.tuning import table
    from headlong.tune import as_record
    from headlong.tune import tune as tuned

    if args.out is not None:
        inputs.target(args.out, inputs.TENSORS, args.layer, args.hidden, replaced=inputs.ENGINES)
    with bars() as stage:
        subject = inputs.layer(args.layer, args.weight, args.bias)
        vectors = inputs.hidden(args.hidden, subject.dim, subject.vocab)
        engine, report = tuned(
            subject, vectors, k=args.k, eps=args.eps, delta=args.delta, threads=count, seed=args.seed, progress=stage("plans")
        )
        if args.out is not None:
            engine.save(args.out, layer=not args.without_layer)
    if args.as_json:
        say_json(as_run(as_record(report, engine)))
        return
    show(table(report))
    typer.echo(repr(engine))
