"""``headlong capacity``: what a layer can express: the rank of its log-probabilities, and classes that can never be first."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Bias, HiddenFile, HtmlFile, Json, JsonFile, LayerFile, Threads, Weight, settled


def capacity(
    layer: LayerFile,
    hidden: HiddenFile,
    queries: Annotated[int, typer.Option(help="Hidden vectors that are used, evenly spread.", min=2)] = 1024,
    programs: Annotated[int, typer.Option(help="Classes that linear programs may decide.", min=0)] = 200,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    out: JsonFile = None,
    html: HtmlFile = None,
    as_json: Json = False,
) -> None:
    """Show what a layer can express: the rank of its log-probabilities, and classes that can never be first."""
    settled(threads)
    from headlong import capacity as study
    from headlong.arrays import evenly
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_json, write_text

    for path in filter(None, (out, html)):
        inputs.target(path, layer, hidden)
    subject = inputs.mixture(layer) or inputs.layer(layer, weight, bias)
    rows = evenly(inputs.hidden(hidden, subject.dim, subject.vocab), queries)
    with bars() as stage:
        found = study.capacity(subject, rows, stage, programs)
    if out is not None:
        write_json(out, [study.as_json(found)])
    if html is not None:
        write_text(html, study.html_page(found, Path(layer).name))
    if as_json:
        say_json(study.as_json(found))
        return
    typer.echo(repr(subject))
    show(study.table(found))
