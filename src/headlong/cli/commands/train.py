"""``headlong train``: train a small model, or continue a stopped run; writes best.safetensors and run.json into its folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Json, Threads, choices, settled


def train(
    config: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="A recipe: its name or a .toml file.")] = None,
    model: Annotated[str | None, typer.Option(help="lstm, awd, gpt, seq2seq or cnn.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set's name or folder, or a text file.")] = None,
    head: Annotated[str | None, typer.Option(help="The output layer: dense, ...")] = None,
    option: Annotated[list[str] | None, typer.Option(help="table.key=value of the recipe; may be repeated.")] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The run's folder; a run that is there already is continued.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run; default: the recipe's.")] = None,
    threads: Threads = None,
    listed: Annotated[bool, typer.Option("--list", help="List the recipes that headlong brings.")] = False,
    as_json: Json = False,
) -> None:
    """Train a small model, or continue a stopped run; writes best.safetensors and run.json into its folder."""
    import os

    # torchrun starts one of these for each process, and wants one thread in each unless told otherwise
    settled(1 if threads is None and "WORLD_SIZE" in os.environ else threads)
    from headlong.studies.models import recipe

    if listed:
        typer.echo("\n".join(recipe.shipped()))
        return
    from headlong.cli.terminal import say_json
    from headlong.studies.models import run

    settings = choices(option or []) | ({} if seed is None else {"training.seed": seed})
    record = run.train(run.chosen_recipe(config, model, data, head, settings), out, sys.stderr)
    if os.environ.get("RANK", "0") != "0":
        return  # only the first process prints
    if as_json:
        say_json(record)
    else:
        typer.echo(run.summary(record))
