"""``headlong inspect``: what a layer is made of and what would help to read it; or why an engine was chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import Bias, HtmlFile, Json, JsonFile, LayerFile, MaybeHidden, Threads, Weight, settled
from headlong.errors import OptionError


class InspectArguments(NamedTuple):
    layer: LayerFile
    hidden: MaybeHidden = None
    k: Annotated[int | None, typer.Option("-k", help="How many classes; default: 10, or all of fewer.")] = None
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None
    out: JsonFile = None
    html: HtmlFile = None
    as_json: Json = False
    verify: Annotated[bool, typer.Option("--verify", help="Read the whole file and compare it with its checksum.")] = False


def inspect(args: InspectArguments) -> None:
    """Show norms, singular values, interval widths, rows left to score and what would help; or why an engine was chosen."""
    count = settled(args.threads)
    from headlong import inspection
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_json, write_text

    if args.verify and args.out is not None:
        raise OptionError(f"--verify says one line, of which nothing is kept; got --out {args.out}: leave one of the two out")
    if args.verify:
        typer.echo(inputs.verified(args.layer, count))
        return
    given = {"-k": args.k, "HIDDEN": args.hidden, "--html": args.html, "--weight": args.weight, "--bias": args.bias}
    if (engine := inputs.engine(args.layer, count, {name: value is not None for name, value in given.items()})) is not None:
        if args.out is not None:
            inputs.target(args.out, inputs.JSON, args.layer)
        written = {"engine": repr(engine), "name": engine.name, "reason": engine.reason, "promise": str(engine.promise)}
        write_json(args.out, [written])
        if args.as_json:
            say_json(written)
            return
        typer.echo(f"{engine!r}\n{engine.name}: {engine.reason}")
        return
    for path in filter(None, (args.out, args.html)):
        inputs.target(path, inputs.PAGE if path is args.html else inputs.JSON, args.layer, args.hidden)
    with bars() as stage:
        subject = inputs.layer(args.layer, args.weight, args.bias)
        rows = None if args.hidden is None else inputs.hidden(args.hidden, subject.dim, subject.vocab)
        facts = inspection.inspect(
            subject, rows, min(10, subject.vocab) if args.k is None else args.k, count, stage("read the layer")
        )
    if args.out is not None:
        write_json(args.out, [inspection.as_json(facts)])
    if args.html is not None:
        write_text(args.html, inspection.html_page(facts, Path(args.layer).name))
    if args.as_json:
        say_json(inspection.as_json(facts))
        return
    typer.echo(repr(subject))
    for table in inspection.tables(facts):
        show(table)
