"""``headlong compile``: compile a layer and save the engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import (
    Bias,
    CalibrationFile,
    Delta,
    Eps,
    Json,
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


class CompileArguments(NamedTuple):
    layer: LayerFile
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the engine goes (.safetensors).")]
    method: Method = "auto"
    eps: Eps = 0.01
    delta: Delta = 1e-6
    log_probs: Annotated[bool, typer.Option(help="Whether log-probabilities are asked for in addition to ids.")] = True
    calibration: CalibrationFile = None
    option: MethodOption = None
    without_layer: Annotated[bool, typer.Option("--without-layer", help="Leave the layer out of the file.")] = False
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None
    seed: Seed = 0
    as_json: Json = False


def compile(args: CompileArguments) -> None:
    """Compile a layer and save the engine."""
    count = settled(args.threads)
    from inspect import signature

    import headlong as hl
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json
    from headlong.progress import shown
    from headlong.report.tables import duration, size

    chosen = choices(args.option or [])
    if own := sorted(set(chosen) & set(signature(hl.compile).parameters)):
        raise OptionError(f"--option {own[0]} is an option of compile, not of a method: see 'headlong compile --help'")
    inputs.target(args.out, inputs.TENSORS, args.layer, args.calibration, replaced=inputs.ENGINES)
    took: dict[str, float] = {}

    @contextmanager
    def step(label: str) -> Iterator[None]:
        move, start = stage(label), time.perf_counter()
        yield
        took[label] = time.perf_counter() - start
        move(1, 1)

    with bars() as stage, shown(stage):
        with step("read the layer"):
            subject = inputs.any_layer(args.layer, args.weight, args.bias)
            vectors = None if args.calibration is None else inputs.hidden(args.calibration, subject.dim, subject.vocab)
        with step("compile, plans timed"):
            engine = hl.compile(
                subject, args.method, eps=args.eps, delta=args.delta, log_probs=args.log_probs, calibration=vectors,
                threads=count, seed=args.seed, **chosen,
            )  # fmt: skip
        with step("save"):
            engine.save(args.out, layer=not args.without_layer)
    if args.as_json:
        about = {"engine": repr(engine), "name": engine.name, "reason": engine.reason, "promise": str(engine.promise)}
        say_json({"out": str(args.out), "bytes": args.out.stat().st_size, **about, "seconds": took})
        return
    if " written out " in (name := getattr(subject, "name", "")):
        typer.echo(f"read {name}")
    typer.echo(repr(engine))
    typer.echo(f"{engine.name}: {engine.reason}")
    typer.echo(
        f"{args.out}: {size(args.out.stat().st_size)}; {', '.join(f'{label} {duration(one)}' for label, one in took.items())}"
    )
