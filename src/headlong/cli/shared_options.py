"""Options that several commands share, and what they become: how many threads there are is settled before NumPy loads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headlong.errors import OptionError

LAYER = "path[:tensor[:bias]]: safetensors, GGUF, an index, a checkpoint's folder; .npy, .npz[:array]; a table, path[:column]."
LayerFile = Annotated[str, typer.Argument(metavar="LAYER", help=LAYER)]
CalibrationFile = Annotated[
    str | None, typer.Option("--calibration", help="Hidden vectors like those of later queries; given as HIDDEN is.")
]
VECTORS = "Vectors: file.npy, file.npz[:array], file.safetensors[:tensor], or a table (Parquet, Arrow, Lance): file[:column]."
HiddenFile = Annotated[str, typer.Argument(metavar="HIDDEN", help=VECTORS)]
MaybeHidden = Annotated[str | None, typer.Argument(metavar="[HIDDEN]", help=VECTORS)]
Weight = Annotated[str | None, typer.Option(help="Name of the weight tensor; default: the usual names are tried.")]
Bias = Annotated[str | None, typer.Option(help="Name of the bias tensor; '': no bias.")]
Method = Annotated[str, typer.Option(help="How a layer is read: auto, full, codes, svd or adaptive.")]
MethodOption = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the method, name=value: docs/cli.md lists them.")
]
K = Annotated[int, typer.Option("-k", help="How many classes.")]
Eps = Annotated[float, typer.Option(help="How far log-probabilities may be off, in nats.")]
Delta = Annotated[float, typer.Option(help="How often an answer may fail its promise; 0: proved.")]
Threads = Annotated[int | None, typer.Option(help="Threads of every library; default: all processors.")]
Seed = Annotated[int, typer.Option(help="Seed of whatever is drawn at random.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines for programs: an object for each row.")]
RunFile = Annotated[Path | None, typer.Option("-o", "--out", help="Write the raw run there (.json).")]
JsonFile = Annotated[Path | None, typer.Option("-o", "--out", help="Write what --json prints there.")]
ANSWERS = "Write what --json prints there, or arrays (.npz), or a table (.parquet, .arrow)."
AnswerFile = Annotated[Path | None, typer.Option("-o", "--out", help=ANSWERS)]
HtmlFile = Annotated[Path | None, typer.Option("--html", help="Write an HTML page there.")]


def settled(threads: int | None) -> int:
    """The number of threads; every library is set to it before it is imported."""
    from headlong.bench.measure import claim_threads, processors
    from headlong.native.thread_count import MOST_THREADS

    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise OptionError(f"--threads is {threads}; expected 1 to {MOST_THREADS}, or leave it out for all processors")
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
