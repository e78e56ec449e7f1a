"""Commands that look at a layer or turn it into an engine: inspect, capacity, compile, tune, shortlist."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
    LayerFile,
    Method,
    MethodOption,
    Seed,
    Threads,
    Weight,
    choices,
    settled,
)
from headlong.errors import OptionError


def inspect(
    layer: LayerFile,
    hidden: HiddenFile = None,
    k: Annotated[int | None, typer.Option("-k", help="How many classes; default: 10, or all of fewer.")] = None,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    html: HtmlFile = None,
    as_json: JsonFlag = False,
    verify: Annotated[bool, typer.Option("--verify", help="Read the whole file and compare it with its checksum.")] = False,
) -> None:
    """Show norms, singular values, interval widths, rows left to score and what would help; or why an engine was chosen."""
    count = settled(threads)
    from headlong import inspection
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_text

    if verify:
        typer.echo(inputs.verified(layer, count))
        return
    given = {"-k": k, "--hidden": hidden, "--html": html, "--weight": weight, "--bias": bias}
    if (engine := inputs.engine(layer, count, {name: value is not None for name, value in given.items()})) is not None:
        said = {"engine": repr(engine), "name": engine.name, "reason": engine.reason, "promise": str(engine.promise)}
        say_json(said) if as_json else typer.echo(f"{engine!r}\n{engine.name}: {engine.reason}")
        return
    if html is not None:
        inputs.target(html, layer, hidden)
    with bars() as stage:
        subject = inputs.layer(layer, weight, bias)
        rows = None if hidden is None else inputs.hidden(hidden, subject.dim, subject.vocab)
        facts = inspection.inspect(subject, rows, min(10, subject.vocab) if k is None else k, count, stage("read the layer"))
    if html is not None:
        write_text(html, inspection.html_page(facts, Path(layer).name))
    if as_json:
        say_json(inspection.as_json(facts))
        return
    typer.echo(repr(subject))
    for table in inspection.tables(facts):
        show(table)


def capacity(
    layer: LayerFile,
    hidden: Annotated[str, typer.Option("--hidden", help="Hidden vectors: file.npy or file.safetensors[:tensor].")],
    queries: Annotated[int, typer.Option(help="Hidden vectors that are used, evenly spread.", min=2)] = 1024,
    programs: Annotated[int, typer.Option(help="Classes that linear programs may decide.", min=0)] = 200,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    html: HtmlFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what a layer can express: the rank of its log-probabilities, and classes that can never be first."""
    settled(threads)
    from headlong import capacity as study
    from headlong.arrays import evenly
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_text

    if html is not None:
        inputs.target(html, layer, hidden)
    subject = inputs.mixture(layer) or inputs.layer(layer, weight, bias)
    rows = evenly(inputs.hidden(hidden, subject.dim, subject.vocab), queries)
    with bars() as stage:
        found = study.capacity(subject, rows, stage, programs)
    if html is not None:
        write_text(html, study.html_page(found, Path(layer).name))
    if as_json:
        say_json(study.as_json(found))
        return
    typer.echo(repr(subject))
    show(study.table(found))


def compile(
    layer: LayerFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the engine goes (.safetensors).")],
    method: Method = "auto",
    eps: Eps = 0.01,
    delta: Delta = 1e-3,
    delta_ids: Annotated[float, typer.Option(help="How often ids may be wrong; 0: proved.")] = 0.0,
    over: Annotated[
        str | None, typer.Option(help="What the chances rest on, with commas: query, rotation, calibration.")
    ] = None,
    calibration: CalibrationFile = None,
    option: MethodOption = None,
    without_layer: Annotated[bool, typer.Option("--without-layer", help="Leave the layer out of the file.")] = False,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Compile a layer and save the engine."""
    count = settled(threads)
    from inspect import signature

    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars

    chosen = choices(option or [])
    if own := sorted(set(chosen) & set(signature(hl.compile).parameters)):
        raise OptionError(f"--option {own[0]} is an option of compile, not of a method: see 'headlong compile --help'")
    inputs.target(out, layer, calibration, replaced=inputs.ENGINES)
    with bars() as stage:
        move = stage("compile")
        subject = inputs.any_layer(layer, weight, bias)
        vectors = None if calibration is None else inputs.hidden(calibration, subject.dim, subject.vocab)
        engine = hl.compile(
            subject, method, eps=eps, delta=delta, delta_ids=delta_ids, over=over.split(",") if over else None,
            calibration=vectors, threads=count, seed=seed, **chosen,
        )  # fmt: skip
        move(1, 2)
        engine.save(out, layer=not without_layer)
        move(2, 2)
    if " written out " in (name := getattr(subject, "name", "")):
        typer.echo(f"read {name}")
    typer.echo(repr(engine))
    typer.echo(f"{engine.name}: {engine.reason}")


def tune(
    layer: LayerFile,
    hidden: Annotated[str, typer.Argument(metavar="HIDDEN", help="file.npy or file.safetensors[:tensor].")],
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where the engine goes (.safetensors).")] = None,
    eps: Eps = 0.01,
    delta: Delta = 1e-3,
    delta_ids: Annotated[float, typer.Option(help="How often ids may be wrong; 0: proved.")] = 0.0,
    k: K = 10,
    without_layer: Annotated[bool, typer.Option("--without-layer", help="Leave the layer out of the file.")] = False,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    seed: Seed = 0,
    raw: JsonFile = None,
) -> None:
    """Try the plausible plans on hidden vectors, and keep the fastest that keeps the promise."""
    count = settled(threads)
    from headlong.bench.measure import write_run
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show
    from headlong.report.tuning import crossing_table, table
    from headlong.tune import as_record
    from headlong.tune import tune as tuned

    if out is not None:
        inputs.target(out, layer, hidden, replaced=inputs.ENGINES)
    with bars() as stage:
        subject = inputs.layer(layer, weight, bias)
        vectors = inputs.hidden(hidden, subject.dim, subject.vocab)
        engine, report = tuned(
            subject, vectors, k=k, eps=eps, delta=delta, delta_ids=delta_ids, threads=count, seed=seed, progress=stage("plans")
        )
        if out is not None:
            engine.save(out, layer=not without_layer)
    show(table(report))
    if len(report.crossings):
        show(crossing_table(report))
    typer.echo(repr(engine))
    if raw is not None:
        write_run(raw, as_record(report, engine))


def shortlist(
    layer: LayerFile,
    hidden: Annotated[str, typer.Argument(metavar="HIDDEN", help="Calibration vectors: file.npy, file.safetensors[:tensor].")],
    out: Annotated[Path, typer.Option("-o", "--out", help="A file (.safetensors); for centroid-head, a folder.")],
    kind: Annotated[str, typer.Option(help="tokens, learned, clusters or centroid-head.")] = "tokens",
    size: Annotated[int, typer.Option(help="tokens: how many.")] = 32000,
    clusters: Annotated[int, typer.Option(help="Of the screens; 0: 100 learned ones, or V/16 of equal size.")] = 0,
    budget: Annotated[float, typer.Option(help="learned: classes that a query reads on average.")] = 400.0,
    probes: Annotated[int, typer.Option(help="clusters: how many are read; 0: for 99 % of the top ids.")] = 0,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    seed: Seed = 0,
) -> None:
    """Build a token map or a screen for a trained layer from calibration vectors, and say what it misses."""
    settled(threads)
    from headlong.cli import inputs
    from headlong.previews.screens import build

    if kind != "centroid-head":
        inputs.target(out, layer, hidden, replaced=inputs.SHORTLISTS)
    subject = inputs.layer(layer, weight, bias)
    vectors = inputs.hidden(hidden, subject.dim, subject.vocab)
    typer.echo(build(kind, subject, vectors, out, size, clusters, budget, probes, seed))
