"""Commands that ask a layer or an engine: demo, topk, bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headlong.cli.app import (
    Bias,
    CalibrationFile,
    Delta,
    Eps,
    HiddenFile,
    HtmlFile,
    JsonFile,
    JsonFlag,
    K,
    Method,
    Seed,
    Threads,
    Weight,
    settled,
)
from headlong.errors import OptionError

SHOWN = 20
"""Queries printed as text; JSON has them all."""
BLOCK = 64
"""Queries answered between two steps of the progress bar."""


def demo(
    html: Annotated[Path, typer.Option(help="Where the HTML page goes.")] = Path("headlong-demo.html"),
    raw: JsonFile = None,
    threads: Threads = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Train again, whatever the cache holds.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="A few calls only: times mean little.")] = False,
) -> None:
    """Train a next-word layer on the standard library's own text, read it with every method, compare."""
    count = settled(threads)
    from headlong.bench.measure import write_run
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show, write_text
    from headlong.demo import run
    from headlong.demo.model import Recipe
    from headlong.report.tables import comparisons

    for path in filter(None, (html, raw)):
        inputs.target(path)
    with bars() as stage:
        trained = run.layer(Recipe(), stage, run.train_apart, fresh, lambda text: typer.echo(f"headlong: {text}", err=True))
        record = run.contest(trained, run.settings(count, quick), stage)
        examples = run.examples(trained, count)
    typer.echo(run.introduction(trained))
    show(examples)
    for table in comparisons(record):
        show(table)
    if raw is not None:
        write_run(raw, record)
    write_text(html, run.html_page(trained, record, examples))


def topk(
    source: Annotated[str, typer.Argument(metavar="LAYER_OR_ENGINE", help="A layer, or an engine that compile saved.")],
    hidden: Annotated[str, typer.Argument(metavar="HIDDEN", help="file.npy or file.safetensors[:tensor].")],
    k: K = 10,
    method: Method = "auto",
    eps: Annotated[float | None, typer.Option(help="In nats; inf: ids and exact logits only.")] = None,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the likeliest classes of each hidden vector, with the error and the proof of each row."""
    count = settled(threads)
    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, json_lines, say_json, show
    from headlong.report.tables import topk_table

    given = {"--method": method != "auto", "--weight": weight is not None, "--bias": bias is not None}
    engine = inputs.engine(source, count, given)
    if engine is None:
        engine = hl.compile(inputs.any_layer(source, weight, bias), method, delta=0.0, threads=count)
    rows = inputs.hidden(hidden, engine.layer.dim, engine.layer.vocab)
    shown = rows if as_json else rows[:SHOWN]
    lines: list[dict[str, Any]] = []
    with bars() as stage:
        move = stage("answer")
        for start in range(0, len(shown), BLOCK):
            lines += json_lines(engine.topk(shown[start : start + BLOCK], k=k, eps=eps), start)
            move(min(start + BLOCK, len(shown)), len(shown))
    if as_json:
        for line in lines:
            say_json(line)
        return
    typer.echo(repr(engine))
    show(topk_table(lines, len(rows)))


def bench(
    layer: Annotated[str | None, typer.Argument(metavar="[LAYER]", help="As everywhere; none with --synthetic.")] = None,
    hidden: HiddenFile = None,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,64",
    k: K = 10,
    eps: Eps = 0.2,
    delta: Delta = 0.0,
    only: Annotated[
        str | None, typer.Option(help="Contestants, with semicolons; default: every one that is installed.")
    ] = None,
    queries: Annotated[int, typer.Option(help="How many of the hidden vectors, evenly spread.")] = 256,
    rounds: Annotated[int, typer.Option(help="Turns of each contestant at each batch size.")] = 15,
    seconds: Annotated[float, typer.Option(help="At most about so many for each batch size and way.", min=0.0)] = 20.0,
    way: Annotated[
        str, typer.Option(help="cold: other work empties the caches before each call, as in a decoder; loop; or both.")
    ] = "both",
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    calibration: CalibrationFile = None,
    seed: Seed = 0,
    synthetic: Annotated[
        str | None, typer.Option(help="VOCAB,DIM,POWER: a layer whose logit energy falls as j^-POWER; calibrates too.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda or cuda:N: engines and PyTorch on that GPU, by its own clock; default: the CPU.")
    ] = None,
    raw: JsonFile = None,
    html: HtmlFile = None,
) -> None:
    """Time every engine and every rival that is installed, interleaved, and compare their answers with float64."""
    count = settled(threads)
    from headlong import inspection
    from headlong.bench import device as bench_device
    from headlong.bench import field
    from headlong.bench import run as contest
    from headlong.bench import synthetic as spectra
    from headlong.bench.gpu_clock import place
    from headlong.bench.measure import write_run
    from headlong.bench.settings import WAYS, Settings, batches
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show, write_text
    from headlong.report.advice import MADE_UP, remarks
    from headlong.report.device import device_table
    from headlong.report.sections import bench_page
    from headlong.report.tables import comparisons, engines

    if (layer is None) == (synthetic is None):
        got = "neither" if layer is None else "both"
        raise OptionError(f"bench takes a layer or --synthetic VOCAB,DIM,POWER; got {got}: pass one of them")
    for path in filter(None, (raw, html)):
        inputs.target(path, layer, hidden, calibration)
    there = None if device is None else place(device)
    ways = WAYS if way == "both" else (way,)
    chosen = Settings(k, batches(batch), eps, delta, count, queries, rounds, seconds=seconds, seed=seed, ways=ways)
    rows: Any
    seen: Any
    with bars() as stage:
        if synthetic is not None:
            subject, rows, seen = spectra.synthetic(*spectra.shape(synthetic), queries, seed, stage("synthetic layer"))
        else:
            subject = inputs.layer(str(layer), weight, bias)
            shape = subject.dim, subject.vocab
            rows = inspection.synthetic_hidden(subject, queries) if hidden is None else inputs.hidden(hidden, *shape)
            seen = None if calibration is None else inputs.hidden(calibration, *shape)
        named = [name.strip() for name in only.split(";")] if only else None
        if there is None:
            record = contest.run(subject, rows, named, chosen, stage, seen)
        else:
            record = bench_device.run(subject, rows, named or field.names(), chosen, there, stage, seen)
    layer = layer or f"synthetic {synthetic}"
    asked = Path(hidden).name if hidden else MADE_UP if synthetic is None else "synthetic"
    record["layer"] |= {"name": Path(layer).name, "hidden": asked}
    for table in comparisons(record):
        show(table)
    show(engines(record))
    for line in remarks(record):
        typer.echo(line)
    if there is not None:
        show(device_table(Path(layer).name, record))
    if raw is not None:
        write_run(raw, record)
        typer.echo(f"wrote {raw}", err=True)
    if html is not None:
        write_text(html, bench_page(record, f"headlong bench {Path(layer).name}", repr(subject)))
