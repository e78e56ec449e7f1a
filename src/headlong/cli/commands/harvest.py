"""``headlong harvest``: write a trained model's output layer, and hidden vectors with their targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Threads, settled


def harvest(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a checkpoint, or a Hugging Face folder.")],
    data: Annotated[str | None, typer.Option(help="A data set's name or folder, or a text file; default: the run's.")] = None,
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder for layer.safetensors and hidden.safetensors.")
    ] = Path("harvest"),
    splits: Annotated[str, typer.Option(help="Which, with commas: train, valid, test.")] = "train,valid",
    rows: Annotated[int, typer.Option(help="Hidden vectors of each split; 0: all.")] = 8192,
    dtype: Annotated[str, typer.Option(help="Of the hidden vectors: float16 or float32.")] = "float16",
    threads: Threads = None,
) -> None:
    """Write a trained model's output layer, and hidden vectors with their targets."""
    settled(threads)
    from headlong.cli.terminal import bars
    from headlong.studies.models.harvest import Wish, harvest_any

    wish = Wish(tuple(split.strip() for split in splits.split(",")), rows, dtype)
    with bars() as stage:
        folder = harvest_any(model, out, data, wish, stage)
    typer.echo(f"wrote {folder}", err=True)
