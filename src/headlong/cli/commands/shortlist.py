"""``headlong shortlist``: a token map or a screen for a trained layer, built from calibration vectors, and what it misses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Bias, HiddenFile, LayerFile, Seed, Threads, Weight, settled


def shortlist(
    layer: LayerFile,
    hidden: HiddenFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="A file (.safetensors); for centroid-head, a folder.")],
    kind: Annotated[str, typer.Option(help="tokens, learned, clusters or centroid-head.")] = "tokens",
    size: Annotated[int, typer.Option(help="tokens: how many.")] = 32000,
    clusters: Annotated[int, typer.Option(help="Of the screens; 0: 100 learned ones, or V/16 of equal size.")] = 0,
    budget: Annotated[float, typer.Option(help="learned: classes that a query reads on average.")] = 400.0,
    probes: Annotated[int, typer.Option(help="clusters: how many are read; 0: for 99 % of the top ids.")] = 0,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Build a token map or a screen for a trained layer from calibration vectors, and say what it misses."""
    settled(threads)
    from headlong.cli import inputs
    from headlong.previews.screens import build

    if kind != "centroid-head":
        inputs.target(out, layer, hidden, replaced=inputs.SHORTLISTS)
    subject = inputs.layer(layer, weight, bias)
    vectors = inputs.hidden(hidden, subject.dim, subject.vocab)
    typer.echo(build(kind, subject, vectors, out, size, clusters, budget, probes, seed))
