"""``headlong tune``: try the plausible plans on hidden vectors, and keep the fastest that keeps the promise."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Bias, Delta, Eps, HiddenFile, Json, K, LayerFile, Seed, Threads, Weight, settled


def tune(
    layer: LayerFile,
    hidden: HiddenFile,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where the engine goes (.safetensors).")] = None,
    eps: Eps = 0.01,
    delta: Delta = 1e-6,
    k: K = 10,
    without_layer: Annotated[bool, typer.Option("--without-layer", help="Leave the layer out of the file.")] = False,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Try the plausible plans on hidden vectors, and keep the fastest that keeps the promise."""
    count = settled(threads)
    from headlong.bench.measure import as_run
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show
    from headlong.report.tuning import table
    from headlong.tune import as_record
    from headlong.tune import tune as tuned

    if out is not None:
        inputs.target(out, layer, hidden, replaced=inputs.ENGINES)
    with bars() as stage:
        subject = inputs.layer(layer, weight, bias)
        vectors = inputs.hidden(hidden, subject.dim, subject.vocab)
        engine, report = tuned(
            subject, vectors, k=k, eps=eps, delta=delta, threads=count, seed=seed, progress=stage("plans")
        )
        if out is not None:
            engine.save(out, layer=not without_layer)
    if as_json:
        say_json(as_run(as_record(report, engine)))
        return
    show(table(report))
    typer.echo(repr(engine))
