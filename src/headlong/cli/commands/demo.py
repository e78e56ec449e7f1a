"""``headlong demo``: train a next-word layer on the standard library's own text, read it with every method, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headlong.cli.shared_options import Json, RunFile, Threads, settled


def demo(
    html: Annotated[Path, typer.Option(help="Where the HTML page goes.")] = Path("headlong-demo.html"),
    out: RunFile = None,
    threads: Threads = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again, whatever the cache holds.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few calls only: times mean little.")] = False,
    as_json: Json = False,
) -> None:
    """Train a next-word layer on the standard library's own text, read it with every method, compare."""
    count = settled(threads)
    from headlong.bench.measure import as_run, write_run
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_text
    from headlong.demo import run
    from headlong.demo.model import Recipe
    from headlong.report.tables import batches, comparison

    for path in filter(None, (html, out)):
        inputs.target(path)
    long = "half a minute" if quick else "a minute"
    typer.echo(f"headlong: a layer is trained and read with every method: about {long} on two idle processors", err=True)
    with bars() as stage:
        trained = run.layer(Recipe(), stage, run.train_apart, fresh, lambda text: typer.echo(f"headlong: {text}", err=True))
        record = run.contest(trained, run.settings(count, quick), stage)
        examples = run.examples(trained, count)
    if as_json:
        say_json(as_run(record))
    else:
        typer.echo(run.introduction(trained))
        show(examples)
        for size in batches(record):
            show(comparison(record, size))
    if out is not None:
        write_run(out, record)
    write_text(html, run.html_page(trained, record, examples))
    if not as_json:
        typer.echo(f"{html} has figures. Next, your own layer: headlong compile MODEL -o head.safetensors, and then")
        typer.echo("headlong topk head.safetensors hidden.npy; in Python: headlong.load('head.safetensors').topk(hidden, k=10)")
