"""``headlong bench``: time every engine and every rival that is installed, and compare their answers with float64."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headlong.cli.shared_options import (
    LAYER,
    Bias,
    CalibrationFile,
    HtmlFile,
    Json,
    K,
    MaybeHidden,
    RunFile,
    Seed,
    Threads,
    Weight,
    settled,
)
from headlong.errors import OptionError


class BenchArguments(NamedTuple):
    layer: Annotated[str | None, typer.Argument(metavar="[LAYER]", help=f"{LAYER} None with --synthetic or --gguf.")] = None
    hidden: MaybeHidden = None
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,8,64"
    k: K = 10
    eps: Annotated[float | None, typer.Option(help="Of our engines; default: compile's own.")] = None
    delta: Annotated[float | None, typer.Option(help="Of our engines; default: compile's own.")] = None
    only: Annotated[
        str | None, typer.Option(help="Contestants as their rows are called, with semicolons; default: all installed.")
    ] = None
    queries: Annotated[int, typer.Option(help="How many of the hidden vectors, evenly spread.")] = 256
    rounds: Annotated[int, typer.Option(help="Turns of each contestant at each batch size.")] = 15
    seconds: Annotated[float, typer.Option(help="At most about so many for each batch size and way.", min=0.0)] = 20.0
    way: Annotated[
        str, typer.Option(help="cold: other work empties the caches before each call, as in a decoder; loop; or both.")
    ] = "both"
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None
    calibration: CalibrationFile = None
    seed: Seed = 0
    synthetic: Annotated[
        str | None, typer.Option(help="VOCAB,DIM,POWER: a layer whose logit energy falls as j^-POWER; calibrates too.")
    ] = None
    gguf: Annotated[
        str | None, typer.Option(help="A GGUF model: decoded by llama.cpp alone and with the head read here, in turns.")
    ] = None
    out: RunFile = None
    html: HtmlFile = None
    as_json: Json = False


def bench(args: BenchArguments) -> None:
    """Time every engine and every rival that is installed, interleaved, and compare their answers with float64."""
    layer = args.layer
    count = settled(args.threads)
    given = [
        name for name, one in (("a layer", layer), ("--synthetic", args.synthetic), ("--gguf", args.gguf)) if one is not None
    ]
    if len(given) != 1:
        expected = "a layer, --synthetic VOCAB,DIM,POWER or --gguf MODEL"
        raise OptionError(f"bench takes {expected}; got {' and '.join(given) or 'none of them'}: pass one")
    if args.gguf is not None:
        decoders(args.gguf, count, args.rounds, args.out, args.as_json)
        return
    from headlong import inspection
    from headlong.bench import rows as contest
    from headlong.bench import synthetic as spectra
    from headlong.bench.rows import WAYS, Settings, batches
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, told, write_text
    from headlong.report.files import MADE_UP, bench_page

    for path in filter(None, (args.out, args.html)):
        ends = inputs.PAGE if path is args.html else inputs.JSON
        inputs.target(path, ends, layer, args.hidden, args.calibration)
    ways = WAYS if args.way == "both" else (args.way,)
    same = {name: getattr(args, name) for name in ("k", "eps", "delta", "queries", "rounds", "seconds", "seed")}
    chosen = Settings(batches=batches(args.batch), threads=count, ways=ways, **same)
    rows: Any
    seen: Any
    with bars() as stage:
        if args.synthetic is not None:
            shaped = *spectra.shape(args.synthetic), args.queries, args.seed
            subject, rows, seen = spectra.synthetic(*shaped, stage("synthetic layer"))
        else:
            subject = inputs.layer(str(layer), args.weight, args.bias)
            shape = subject.dim, subject.vocab
            given_rows = None if args.hidden is None else inputs.hidden(args.hidden, *shape)
            rows = inspection.synthetic_hidden(subject, args.queries) if given_rows is None else given_rows
            seen = None if args.calibration is None else inputs.hidden(args.calibration, *shape)
        named = [name.strip() for name in args.only.split(";")] if args.only else None
        record = contest.run(subject, rows, named, chosen, stage, seen)
    layer = layer or f"synthetic {args.synthetic}"
    asked = Path(args.hidden).name if args.hidden else MADE_UP if args.synthetic is None else "synthetic"
    record["layer"] |= {"name": Path(layer).name, "hidden": asked}
    told(record, lambda: shown(record), args.out, args.as_json)
    if args.html is not None:
        write_text(args.html, bench_page(record, f"headlong bench {Path(layer).name}", repr(subject)))


def decoders(path: str, threads: int, rounds: int, out: Path | None, as_json: bool) -> None:
    """``--gguf``: the same text by both, one sequence and four."""
    from headlong.bench import gguf
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, show, told
    from headlong.report.decoding import decoding

    if out is not None:
        inputs.target(out, inputs.JSON, path)
    with bars() as stage:
        record = gguf.run(path, gguf.Turns(rounds=rounds), threads, progress=stage("turns"))
    told(record, lambda: show(decoding(record)), out, as_json)


def shown(record: dict[str, Any]) -> None:
    """The run as tables, and what to make of it."""
    from headlong.cli.terminal import show
    from headlong.report.files import meaning, remarks
    from headlong.report.tables import batches, comparison, engines

    for size in batches(record):
        show(comparison(record, size))
    show(engines(record))
    for line in (meaning(record), *remarks(record)):
        typer.echo(line)
