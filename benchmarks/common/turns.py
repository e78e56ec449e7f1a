"""Whole calls of models in turns: what the scripts share that time transcripts, tokens of `generate` and those of hosts."""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pydoc_data.topics import topics
from typing import Any

from headlong.bench import measure

PAGES = [page[:400] for page in list(topics.values())[:24]]
"""Calibration text of another kind than what models write here: Python's manual."""
STEPS: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "top_p 0.95": {"do_sample": True, "top_p": 0.95, "top_k": 0},
    "top_p 0.95, temperature 0.8": {"do_sample": True, "top_p": 0.95, "top_k": 0, "temperature": 0.8},
}
STOPPED = "as it is, threads stopped"
"""ONNX Runtime whose threads do not look out for work behind a call, on processors that others need then."""


def onnx_options(threads: int, stopped: bool) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    if stopped:
        options.add_session_config_entry("session.force_spinning_stop", "1")
    return options


def options(doc: str | None, **more: Any) -> tuple[argparse.ArgumentParser, Callable[[], Any]]:
    """A parser with what every script is asked, and what reads it; threads are claimed before PyTorch is imported."""
    parser = argparse.ArgumentParser(description=str(doc).splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="the file of a page's results")
    for name, default in more.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)

    def asked() -> Any:
        found = parser.parse_args()
        measure.claim_threads(found.threads)
        import torch

        torch.set_num_threads(found.threads)
        warnings.simplefilter("ignore")  # the libraries' own
        return found

    return parser, asked


class Turns:
    """``call(turn)`` of each way, ``rounds`` times, every other turn the other way round; what each gave and took. The first
    turn wakes everybody and is not timed."""

    def __init__(self, ways: Mapping[str, Callable[[int], Any]], rounds: int) -> None:
        self.seconds: dict[str, list[float]] = {way: [] for way in ways}
        self.given: dict[str, list[Any]] = {way: [] for way in ways}
        for turn in range(rounds + 1):
            for way in list(ways)[:: -1 if turn % 2 else 1]:
                start = time.perf_counter()
                self.given[way].append(ways[way](turn))
                if turn:
                    self.seconds[way].append(time.perf_counter() - start)

    def row(self, way: str, base: str) -> dict[str, float]:
        """The median of seconds, and ``times``: that of ratios of turns side by side."""
        ratios = (one / other for one, other in zip(self.seconds[base], self.seconds[way], strict=True))
        return {"seconds": statistics.median(self.seconds[way]), "times": statistics.median(ratios)}


def keep(asked: Any, table: str, about: str, engine: Any, rows: list[dict[str, Any]], name: str, command: str) -> None:
    """The run, where a file was named."""
    if asked.json:
        layer = {"about": about, "vocab": engine.vocab, "dim": engine.dim}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": rows}
        measure.keep(asked.json, table, record, name, command)
