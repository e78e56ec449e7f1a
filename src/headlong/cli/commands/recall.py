"""``headlong recall``: how many of the nearest items others found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Json, JsonFile


def recall(
    truth: Annotated[Path, typer.Argument(metavar="TRUTH", help="What headlong truth wrote.")],
    answers: Annotated[Path, typer.Argument(metavar="ANSWERS", help="A table with a column ids; ids [n, k] in .npy, .npz.")],
    k: Annotated[int | None, typer.Option("-k", help="Recall at this k; default: as many as both have.")] = None,
    out: JsonFile = None,
    as_json: Json = False,
) -> None:
    """Print the recall of answers against a truth, and what ties leave open."""
    from headlong.cli import arrays, inputs
    from headlong.cli.terminal import say_json, write_json
    from headlong.truth import recall as counted

    if out is not None:
        inputs.target(out, inputs.JSON, str(truth), str(answers))
    given = arrays.read(str(answers), None, ("ids",)) if arrays.is_array(str(answers)) else answers
    found = counted(truth, given, k)
    complete, worst = float((found.of_each == 1).mean()), float(found.of_each.min())
    about = {"k": found.k, "recall": found.mean, "recall_with_ties": found.with_ties, "queries": len(found.of_each),
             "complete": complete, "worst": worst}  # fmt: skip
    write_json(out, [about])
    if as_json:
        say_json(about)
    else:
        typer.echo(str(found))
