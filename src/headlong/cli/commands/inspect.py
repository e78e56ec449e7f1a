"""``headlong inspect``: what a layer is made of and what would help to read it; or why an engine was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Bias, HtmlFile, Json, JsonFile, LayerFile, MaybeHidden, Threads, Weight, settled
from headlong.errors import OptionError


def inspect(
    layer: LayerFile,
    hidden: MaybeHidden = None,
    k: Annotated[int | None, typer.Option("-k", help="How many classes; default: 10, or all of fewer.")] = None,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    out: JsonFile = None,
    html: HtmlFile = None,
    as_json: Json = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read the whole file and compare it with its checksum.")] = False,
) -> None:
    """Show norms, singular values, interval widths, rows left to score and what would help; or why an engine was chosen."""
    count = settled(threads)
    from headlong import inspection
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_json, write_text

    if verify and out is not None:
        raise OptionError(f"--verify says one line, of which nothing is kept; got --out {out}: leave one of the two out")
    if verify:
        typer.echo(inputs.verified(layer, count))
        return
    given = {"-k": k, "HIDDEN": hidden, "--html": html, "--weight": weight, "--bias": bias}
    if (engine := inputs.engine(layer, count, {name: value is not None for name, value in given.items()})) is not None:
        if out is not None:
            inputs.target(out, layer)
        written = {"engine": repr(engine), "name": engine.name, "reason": engine.reason, "promise": str(engine.promise)}
        write_json(out, [written])
        if as_json:
            say_json(written)
            return
        typer.echo(f"{engine!r}\n{engine.name}: {engine.reason}")
        return
    for path in filter(None, (out, html)):
        inputs.target(path, layer, hidden)
    with bars() as stage:
        subject = inputs.layer(layer, weight, bias)
        rows = None if hidden is None else inputs.hidden(hidden, subject.dim, subject.vocab)
        facts = inspection.inspect(subject, rows, min(10, subject.vocab) if k is None else k, count, stage("read the layer"))
    if out is not None:
        write_json(out, [inspection.as_json(facts)])
    if html is not None:
        write_text(html, inspection.html_page(facts, Path(layer).name))
    if as_json:
        say_json(inspection.as_json(facts))
        return
    typer.echo(repr(subject))
    for table in inspection.tables(facts):
        show(table)
