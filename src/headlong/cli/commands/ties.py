"""``headlong ties``: which rows' likeliest class some rounding could turn over."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from headlong.cli.shared_options import Bias, HiddenFile, JsonFile, JsonLines, LayerFile, Threads, Weight, settled

LISTED = "Which rounding's open rows are listed: bf16 output, bf16 weights, int8 weights or Q6_K weights."
SHOWN = 20
"""Rows that are listed as text, the nearest ties first; JSON has them all."""


class TiesArguments(NamedTuple):
    layer: LayerFile
    hidden: HiddenFile
    weight: Weight = None
    bias: Bias = None
    threads: Threads = None
    rounding: Annotated[str, typer.Option(help=LISTED)] = "bf16 output"
    out: JsonFile = None
    as_json: JsonLines = False


def ties(args: TiesArguments) -> None:
    """Say which rows' likeliest class a rounding could turn over, and which it cannot: a fault, or a tie?"""
    count = settled(args.threads)
    import numpy as np

    from headlong import margins
    from headlong.cli import inputs
    from headlong.cli.terminal import bars, say_json, show, write_json
    from headlong.errors import OptionError
    from headlong.progress import shown
    from headlong.report.tables import ReportTable, percent

    if args.rounding not in margins.ROUNDINGS:
        raise OptionError(f"--rounding is {args.rounding!r}; choose from {', '.join(margins.ROUNDINGS)}")
    if args.out is not None:
        inputs.target(args.out, inputs.JSON, args.layer, args.hidden)
    subject = inputs.layer(args.layer, args.weight, args.bias)
    with bars() as stage, shown(stage):
        found = margins.margins(subject, inputs.hidden(args.hidden, subject.dim, subject.vocab), count)
    every = [
        {"row": row, "first": int(first), "second": int(second), "gap": float(gap),
         "decided": {name: bool(flags[row]) for name, flags in found.decided.items()}}
        for row, (first, second, gap) in enumerate(zip(found.first, found.second, found.gap, strict=True))
    ]  # fmt: skip
    write_json(args.out, every)
    if args.as_json:
        for one in every:
            say_json(one)
        return
    lines = [(name, f"{flags.sum():,}", percent(float(flags.mean()))) for name, flags in found.decided.items()]
    note = f"of {len(found.gap):,} rows; the smallest gap is {found.gap.min():.3g}, the median {np.median(found.gap):.3g}"
    show(ReportTable("Likeliest classes that no rounding can turn over", ("rounding", "rows", ""), tuple(lines), note))
    nearest = [row for row in np.argsort(found.gap, kind="stable") if not found.decided[args.rounding][row]][:SHOWN]
    rows = [(str(row), str(found.first[row]), str(found.second[row]), f"{found.gap[row]:.4g}") for row in nearest]
    show(ReportTable(f"Nearest ties under {args.rounding}", ("row", "first", "second", "gap"), tuple(rows)))
