"""``headlong harvest``: write a transformers model's output layer, and hidden vectors of a text with their targets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import Threads, settled


class HarvestArguments(NamedTuple):
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A causal language model: Hugging Face folder or GGUF file.")]
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text file, or a folder with train.txt, valid.txt, ...")]
    out: Annotated[
        Path, typer.Option("-o", "--out", help="The folder for layer.safetensors and hidden.safetensors.")
    ] = Path("harvest")
    splits: Annotated[str, typer.Option(help="Names of the folder's files, with commas; one for a file.")] = "valid"
    rows: Annotated[int, typer.Option(help="Hidden vectors of each split; 0: all.")] = 8192
    dtype: Annotated[str, typer.Option(help="Of the hidden vectors: float16 or float32.")] = "float16"
    threads: Threads = None


def harvest(args: HarvestArguments) -> None:
    """Write a transformers model's output layer, and hidden vectors of a text with their targets."""
    settled(args.threads)
    from headlong.cli.terminal import bars
    from headlong.integrations import harvest as integration

    texts = integration.read_texts(args.text, tuple(split.strip() for split in args.splits.split(",")))
    with bars() as stage:
        folder = integration.harvest(args.model, texts, args.out, args.rows, args.dtype, stage=stage)
    typer.echo(f"wrote {folder}", err=True)
