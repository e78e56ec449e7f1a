"""The command line: arguments in, one call, tables or JSON out. Every fault is one line on stderr and exit status 2.

Nothing of headlong but its errors is imported before a command runs, so ``--help`` is quick and the number of threads is
settled before NumPy wakes its own. Progress and faults go to stderr, answers to stdout.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headlong.errors import HeadlongError, OptionError, cause

UsageFault: Any = typer.BadParameter.__mro__[1]
"""What a wrong command line raises; the releases of Typer keep it in different places."""


class OneLine(TyperGroup):
    """Every fault that is not ours to fix is one line on stderr and exit status 2, whoever finds it."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        extra["standalone_mode"] = False  # faults come back here instead of being drawn as a box
        if not standalone_mode:
            return super().main(*args, **extra)
        try:
            status = super().main(*args, **extra)
        except UsageFault as fault:
            status = refused(f"{fault.format_message().rstrip('.')}: see '{_asked(fault.ctx)} --help'")
        except OSError as fault:
            status = refused(f"{fault.filename}: {cause(fault)}" if fault.filename else cause(fault))
        except (HeadlongError, MemoryError) as fault:
            status = refused(str(fault) or type(fault).__name__)
        sys.exit(status)


def refused(fault: str) -> int:
    """The line, and the status."""
    typer.echo(f"headlong: {' '.join(fault.split())}", err=True)
    return 2


def _asked(context: Any) -> str:
    """``headlong topk``, whatever started the program."""
    return f"headlong {context.info_name}" if context is not None and context.parent is not None else "headlong"


app = typer.Typer(name="headlong", cls=OneLine, add_completion=False, pretty_exceptions_enable=False)

LayerFile = Annotated[str, typer.Argument(metavar="LAYER", help="path[:tensor[:bias]]: a safetensors file, index or folder.")]
CalibrationFile = Annotated[
    str | None, typer.Option("--calibration", help="Hidden vectors as the engine will see them: as --hidden.")
]
HiddenFile = Annotated[str | None, typer.Option("--hidden", help="Hidden vectors: file.npy or file.safetensors[:tensor].")]
Weight = Annotated[str | None, typer.Option(help="The weight's tensor; found by itself where models use the usual names.")]
Bias = Annotated[str | None, typer.Option(help="The bias's tensor; '' takes none.")]
Method = Annotated[str, typer.Option(help="auto, full, cascade, svd, adaptive or buckets; of a layer.")]
MethodOption = Annotated[
    list[str] | None, typer.Option("--option", help="name=value, of the method: docs/cli.md lists each method's.")
]
K = Annotated[int, typer.Option("-k", help="How many classes.")]
Eps = Annotated[float, typer.Option(help="How far log-probabilities may be off, in nats.")]
Delta = Annotated[float, typer.Option(help="How often they may be off by more; 0: proved.")]
Threads = Annotated[int | None, typer.Option(help="Threads of everyone; default: all processors.")]
Seed = Annotated[int, typer.Option(help="Seed of whatever is drawn at random.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the raw run there.")]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write an HTML page there.")]

SHOWN = 20
"""Queries printed as text; JSON has them all."""
BLOCK = 64


@app.callback(invoke_without_command=True)
def headlong(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False
) -> None:
    """Reads a model's output layer faster, and says with every answer how far it can be trusted."""
    if version:
        import headlong as hl

        typer.echo(f"headlong {hl.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def settled(threads: int | None) -> int:
    """The number of threads, which every library is told before it is imported."""
    from headlong.bench.measure import claim_threads, processors

    if threads is not None and threads < 1:
        raise OptionError(f"--threads is {threads}; expected 1 or more, or leave it out for all processors")
    count = threads or processors()
    claim_threads(count)
    return count


def choices(pairs: Sequence[str]) -> dict[str, Any]:
    """``["width=64"] -> {"width": 64}``: JSON where it is JSON, text elsewhere."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise OptionError(f"--option {pair!r}; expected name=value, such as width=64")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


@app.command()
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
    from headlong.report.tables import comparison

    for path in filter(None, (html, raw)):
        inputs.target(path)
    with bars() as stage:
        trained = run.layer(Recipe(), stage, run.train_apart, fresh)
        record = run.contest(trained, run.settings(count, quick), stage)
        examples = run.examples(trained, count)
    typer.echo(run.introduction(trained))
    show(examples)
    show(comparison(record))
    if raw is not None:
        write_run(raw, record)
    write_text(html, run.html_page(trained, record, examples))


@app.command()
def inspect(
    layer: LayerFile,
    hidden: HiddenFile = None,
    k: Annotated[int | None, typer.Option("-k", help="How many classes; default: 10, or all of fewer.")] = None,
    weight: Weight = None,
    bias: Bias = None,
    threads: Threads = None,
    html: HtmlFile = None,
    as_json: JsonFlag = False,
) -> None:
    """Norms, singular values, int8 interval widths, rows left to score, and what would help; of an engine, why it is it."""
    count = settled(threads)
    from headlong import inspection
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_text

    given = {"-k": k, "--hidden": hidden, "--html": html, "--weight": weight, "--bias": bias}
    if (engine := inputs.engine(layer, count, {name: value is not None for name, value in given.items()})) is not None:
        said = {"engine": repr(engine), "name": engine.name, "reason": engine.reason, "promise": str(engine.promise)}
        say_json(said) if as_json else typer.echo(f"{engine!r}\n{engine.name}: {engine.reason}")
        return
    if html is not None:
        inputs.target(html, layer, hidden)
    with bars() as stage:
        subject = inputs.layer(layer, weight, bias)
        rows = None if hidden is None else inputs.hidden(hidden, subject.dim)
        facts = inspection.inspect(subject, rows, min(10, subject.vocab) if k is None else k, count, stage("read the layer"))
    if html is not None:
        write_text(html, inspection.html_page(facts, Path(layer).name))
    if as_json:
        say_json(inspection.as_json(facts))
        return
    typer.echo(repr(subject))
    for table in inspection.tables(facts):
        show(table)


@app.command()
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
    """What a layer can say at all: the rank of its log-probabilities, and classes that it can never put first."""
    settled(threads)
    from headlong import capacity as study
    from headlong.arrays import evenly
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_text

    if html is not None:
        inputs.target(html, layer, hidden)
    subject = inputs.mixture(layer) or inputs.layer(layer, weight, bias)
    rows = evenly(inputs.hidden(hidden, subject.dim), queries)
    with bars() as stage:
        found = study.capacity(subject, rows, stage, programs)
    if html is not None:
        write_text(html, study.html_page(found, Path(layer).name))
    if as_json:
        say_json(study.as_json(found))
        return
    typer.echo(repr(subject))
    show(study.table(found))


@app.command(name="compile")
def compile_layer(
    layer: LayerFile,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the engine goes (.safetensors).")],
    method: Method = "auto",
    eps: Eps = 0.01,
    delta: Delta = 1e-3,
    delta_ids: Annotated[float, typer.Option(help="How often ids may be wrong; 0: proved.")] = 0.0,
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
        raise OptionError(f"--option {own[0]} is no option of a method but compile's own: see 'headlong compile --help'")
    inputs.target(out, layer, calibration, replaced=inputs.ENGINES)
    with bars() as stage:
        move = stage("compile")
        subject = inputs.layer(layer, weight, bias)
        vectors = None if calibration is None else inputs.hidden(calibration, subject.dim)
        engine = hl.compile(subject, method, eps, delta, delta_ids, vectors, threads=count, seed=seed, **chosen)
        move(1, 2)
        engine.save(out, layer=not without_layer)
        move(2, 2)
    typer.echo(repr(engine))
    typer.echo(f"{engine.method.name}: {engine.reason}")


@app.command()
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
    """Try the plausible plans on hidden vectors, keep the fastest that keeps the promise, and say why."""
    count = settled(threads)
    from headlong import tune
    from headlong.bench.measure import write_run
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show

    if out is not None:
        inputs.target(out, layer, hidden, replaced=inputs.ENGINES)
    with bars() as stage:
        subject = inputs.layer(layer, weight, bias)
        vectors = inputs.hidden(hidden, subject.dim)
        engine, report = tune.tune(subject, vectors, k, eps, delta, delta_ids, count, seed, stage("plans"))
        if out is not None:
            engine.save(out, layer=not without_layer)
    show(tune.table(report))
    if len(report.crossings):
        show(tune.crossing_table(report))
    typer.echo(repr(engine))
    if raw is not None:
        write_run(raw, tune.as_record(report, engine))


@app.command()
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
    typer.echo(build(kind, subject, inputs.hidden(hidden, subject.dim), out, size, clusters, budget, probes, seed))


@app.command()
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
    """The likeliest classes of each hidden vector, each row with its error and its proof."""
    count = settled(threads)
    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, json_lines, say_json, show
    from headlong.report.tables import topk_table

    given = {"--method": method != "auto", "--weight": weight is not None, "--bias": bias is not None}
    engine = inputs.engine(source, count, given)
    if engine is None:
        engine = hl.compile(inputs.layer(source, weight, bias), method, delta=0.0, threads=count)
    rows = inputs.hidden(hidden, engine.layer.dim)
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


@app.command()
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
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show, write_text
    from headlong.report.device import device_table
    from headlong.report.page import bench_page
    from headlong.report.tables import comparison, engines

    if (layer is None) == (synthetic is None):
        got = "neither" if layer is None else "both"
        raise OptionError(f"bench takes a layer or --synthetic VOCAB,DIM,POWER; got {got}: pass one of them")
    for path in filter(None, (raw, html)):
        inputs.target(path, layer, hidden, calibration)
    there = None if device is None else place(device)
    chosen = contest.Settings(k, contest.batches(batch), eps, delta, count, queries, rounds, seed=seed)
    rows: Any
    seen: Any
    with bars() as stage:
        if synthetic is not None:
            subject, rows, seen = spectra.synthetic(*spectra.shape(synthetic), queries, seed, stage("synthetic layer"))
        else:
            subject = inputs.layer(str(layer), weight, bias)
            rows = inspection.synthetic_hidden(subject, queries) if hidden is None else inputs.hidden(hidden, subject.dim)
            seen = None if calibration is None else inputs.hidden(calibration, subject.dim)
        named = [name.strip() for name in only.split(";")] if only else None
        if there is None:
            record = contest.run(subject, rows, named or contest.default_names(seen is not None), chosen, stage, seen)
        else:
            record = bench_device.run(subject, rows, named or field.names(), chosen, there, stage, seen)
    layer = layer or f"synthetic {synthetic}"
    record["layer"] |= {"name": Path(layer).name, "hidden": "synthetic" if hidden is None else Path(hidden).name}
    show(comparison(record))
    show(engines(record))
    if there is not None:
        show(device_table(Path(layer).name, record))
    if raw is not None:
        write_run(raw, record)
        typer.echo(f"wrote {raw}", err=True)
    if html is not None:
        write_text(html, bench_page(record, f"headlong bench {Path(layer).name}", repr(subject)))


@app.command()
def report(
    results: Annotated[list[Path], typer.Argument(metavar="RESULTS...", help="Files (.json, .jsonl) or folders of them.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the HTML page goes.")] = Path("headlong-report.html"),
) -> None:
    """One self-contained HTML page from stored results: tables that sort, plots that name their points."""
    from headlong.cli import inputs
    from headlong.cli.terminal import write_text
    from headlong.report.sections import Source
    from headlong.report.sections import report as written

    inputs.target(out, *map(str, results))
    write_text(out, written([Source(*pair) for pair in inputs.results(results)]))


@app.command()
def reproduce(
    target: Annotated[str | None, typer.Argument(metavar="[PAPER[:TABLE]]", help="Default: everything.")] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the tables, what they claim and whether they can run here.")
    ] = False,
    out: Annotated[Path, typer.Option(help="The folder for the results, one JSON-lines file per table.")] = Path("results"),
    queries: Annotated[int | None, typer.Option(help="At most this many queries; default: all.")] = None,
    rows: Annotated[str, typer.Option(help="Of a study, only rows that hold this text, such as 'seed=1'.")] = "",
    threads: Threads = None,
    as_json: JsonFlag = False,
) -> None:
    """Run published tables on the data at hand and say of each number whether it matched."""
    count = settled(threads)
    from headlong.bench.measure import environment
    from headlong.checks import whole
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show
    from headlong.report.papers import paper_table
    from headlong.report.tables import paper_list
    from headlong.studies import papers

    if queries is not None:
        whole(queries, "--queries", 1, 2**31)
    found = papers.tables(target)
    if queries is not None and all(table.planned is not None for table in found):
        raise OptionError(f"--queries is {queries}; the rows of {target} have a fixed size: leave it out; --rows chooses rows")
    if not any(papers.planned(table, rows) for table in found):
        where = target or "any study"
        raise OptionError(f"no row of {where} holds {rows!r}; --rows takes a part of a study's setting, such as 'seed=1'")
    if listed:
        here = [(table.name, table.claim, papers.missing(table) or "can run") for table in found]
        if as_json:
            for name, claim, state in here:
                say_json({"table": name, "claim": claim, "here": state})
        else:
            show(paper_list(here))
        return
    for table in found:
        if target is None and (reason := papers.missing(table)):
            typer.echo(f"{table.name} is not run: {reason}", err=True)
            continue
        if not papers.planned(table, rows):
            continue
        path = inputs.target(out / f"{table.paper}.{table.table}.jsonl")
        with bars() as stage:
            if table.planned is not None:
                lines = papers.study(table, path, environment(count), stage, rows)
            else:
                lines = list(papers.results(table, stage, queries))
                papers.write(path, lines, environment(count))
        if as_json:
            for line in lines:
                say_json(line)
        else:
            show(paper_table(lines, f"{table.name}: {table.claim}", table.source))
        typer.echo(f"wrote {path}", err=True)


@app.command()
def train(
    config: Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="A recipe: its name or a .toml file.")] = None,
    model: Annotated[str | None, typer.Option(help="lstm, awd, gpt, seq2seq or cnn.")] = None,
    data: Annotated[str | None, typer.Option(help="A data set's name or folder, or a text file.")] = None,
    head: Annotated[str | None, typer.Option(help="The output layer: dense, ...")] = None,
    option: Annotated[list[str] | None, typer.Option(help="table.key=value of the recipe; may be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; one that exists is gone on with.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the run; default: the recipe's.")] = None,
    threads: Threads = None,
    listed: Annotated[bool, typer.Option("--list", help="List the recipes that headlong brings.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Train a small model, or go on after a kill; writes best.safetensors and run.json into its folder."""
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
        return  # the first process speaks for all
    if as_json:
        say_json(record)
    else:
        typer.echo(run.summary(record))


@app.command()
def harvest(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run's folder, a checkpoint, or a Hugging Face folder.")],
    data: Annotated[str | None, typer.Option(help="A data set's name or folder, or a text file; default: the run's.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for layer.safetensors and hidden.safetensors.")] = Path("harvest"),
    splits: Annotated[str, typer.Option(help="Which, with commas: train, valid, test.")] = "train,valid",
    rows: Annotated[int, typer.Option(help="Hidden vectors of each split; 0: all.")] = 8192,
    dtype: Annotated[str, typer.Option(help="Of the hidden vectors: float16 or float32.")] = "float16",
    threads: Threads = None,
) -> None:
    """Write a trained model's output layer and the hidden vectors that it was asked about, with their targets."""
    settled(threads)
    from headlong.cli.terminal import bars
    from headlong.studies.models.harvest import Wish, harvest_any

    wish = Wish(tuple(split.strip() for split in splits.split(",")), rows, dtype)
    with bars() as stage:
        folder = harvest_any(model, out, data, wish, stage)
    typer.echo(f"wrote {folder}", err=True)


if __name__ == "__main__":  # python -m headlong.cli.commands, where no script was installed
    app()
