"""``headlong kld``: how far a quantised GGUF model is from another, as llama.cpp's ``--kl-divergence`` says it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from headlong.cli.shared_options import Json, Threads, settled


class KldArguments(NamedTuple):
    base: Annotated[str, typer.Argument(metavar="BASE", help="The GGUF file to which another is compared.")]
    other: Annotated[str, typer.Argument(metavar="OTHER", help="A GGUF file of the same model in other numbers.")]
    text: Annotated[Path, typer.Argument(metavar="TEXT", help="A text file.")]
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="A folder for the base's hidden vectors and what was found; a stopped run goes on."),
    ] = None
    context: Annotated[int, typer.Option(help="Tokens of a window; the second half of each is scored.")] = 512
    tokens: Annotated[int | None, typer.Option(help="Read so many tokens of the text; default: all.")] = None
    as_json: Json = False
    threads: Threads = None


def kld(args: KldArguments) -> None:
    """Compare the next-token distributions of two GGUF models on a text: divergence, likeliest tokens, perplexities."""
    count = settled(args.threads)
    from headlong.cli.terminal import bars
    from headlong.integrations.llama_cpp import Model
    from headlong.integrations.llama_cpp.divergence import kld as compared
    from headlong.integrations.llama_cpp.divergence import summary

    words = args.text.read_text(encoding="utf-8")
    options: dict[str, Any] = {"n_ctx": args.context + 1, "n_threads": count, "compiled": False}
    with Model(args.base, **options) as one, Model(args.other, **options) as two, bars() as stage:
        found = compared(one, two, words, context=args.context, tokens=args.tokens, folder=args.out, progress=stage("windows"))
    sums = summary(found)
    if args.as_json:
        typer.echo(json.dumps(sums._asdict()))
        return
    typer.echo(f"{sums.tokens:,} tokens of {args.text.name}; each value, and its standard error over tokens")
    for name, (value, error) in list(sums._asdict().items())[:-1]:
        typer.echo(f"{LABELS[name]:<42}{value:>12.6f}" + (f"  ± {error:.6f}" if error else ""))


LABELS = {
    "mean": "mean divergence, nats",
    "median": "median",
    "percentile_99": "99th percentile",
    "largest": "largest",
    "same_top": "share of tokens with one likeliest",
    "base_perplexity": "perplexity of the base",
    "other_perplexity": "perplexity of the other",
    "log_ratio": "log of other / base",
}
