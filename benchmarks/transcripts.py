"""Seconds of a transcript by Whisper base on a CPU: as transformers writes it, and with its output layer read here.

    python benchmarks/fetch_models.py whisper-base && pip install --no-deps moonshine-voice==0.1.5
    python benchmarks/transcripts.py --json results/hosts.json

The model in float32 or int8 (of PyTorch: its dynamic one of all products), half a minute of one recording, in turns; the first
turn is not counted. ``encoder``: seconds of a call inside the encoder; ``decoding``: the median of ratios of the others.
Vectors for calibration are those of two other recordings. ``equal``: tokens that both wrote, timestamps included; of PyTorch's
int8 those of the same layers under the head in float32, which ours reads. ONNX Runtime is timed as it is twice, once with
threads that stop looking out for work when a call ends.
"""

from __future__ import annotations

import copy
import functools
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from common import turns, whisper
from common.models import folder

CALLS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "timestamps": {"return_timestamps": True},
    "five beams": {"num_beams": 5},
    "timestamps, five beams": {"return_timestamps": True, "num_beams": 5},
}
LONGEST = 30
OTHERS = ("beckett", "endgame_nagg_nell")


def half_a_minute(name: str) -> Any:
    return whisper.speech(name)[: LONGEST * whisper.RATE]


def alike(one: Any, other: Any) -> float:
    """The share of places, of the longer text, that have the same token."""
    pairs = zip(one.tolist(), other.tolist(), strict=False)
    return sum(a == b for a, b in pairs) / max(len(one), len(other))


CLASSES = {
    "openvino": ("optimum.intel", "OVModelForSpeechSeq2Seq"), "onnx": ("optimum.onnxruntime", "ORTModelForSpeechSeq2Seq"),
}  # fmt: skip


def exported(host: str, kind: str, plain: Any) -> Path:
    """The folder of a model for ``host``; made once and kept beside the fetched models."""
    kept, source = folder() / f"whisper-base.{host}-{kind}", folder() / "whisper-base.transformers"
    if not kept.is_dir():
        plain.save_pretrained(source)
        options: dict[str, Any] = {"load_in_8bit": kind == "int8"} if host == "openvino" else {}
        opened_by(host, source, export=True, **options).save_pretrained(kept)
        if host == "onnx" and kind == "int8":
            from onnxruntime.quantization import quantize_dynamic

            for file in kept.glob("*.onnx"):
                quantize_dynamic(file, file, per_channel=True, reduce_range=True)
    return kept


def opened_by(host: str, path: Path, threads: int = 2, stopped: bool = False, **options: Any) -> Any:
    package, name = CLASSES[host]
    if host == "openvino":
        options["ov_config"] = {"INFERENCE_NUM_THREADS": str(threads)}
    else:
        options["session_options"] = turns.onnx_options(threads, stopped)
    return getattr(importlib.import_module(package), name).from_pretrained(path, **options)


def clocked(model: Any, inside: list[float]) -> list[float]:
    """``inside`` gets the seconds of each call of the encoder."""
    encoder = model.get_encoder()
    own = encoder.forward

    @functools.wraps(own)
    def forward(*inputs: Any, **options: Any) -> Any:
        start = time.perf_counter()
        found = own(*inputs, **options)
        inside.append(time.perf_counter() - start)
        return found

    encoder.forward = forward
    return inside


def main() -> int:
    parser, asking = turns.options(__doc__, recording="two_cities", rounds=2)
    parser.add_argument("--host", choices=["transformers", *CLASSES], default="transformers")
    parser.add_argument("--kind", choices=["fp32", "int8"], default="fp32")
    parser.add_argument("--call", choices=list(CALLS), action="append", help="one of these alone")
    asked = asking()
    import torch
    from transformers.utils import logging

    from headlong.integrations.transformers import accelerate

    logging.set_verbosity_error()
    inputs = whisper.features(half_a_minute(asked.recording))
    plain = whisper.opened()
    vectors = whisper.heard(plain, map(half_a_minute, OTHERS))
    same = "as it is"
    if asked.host != "transformers":
        path = exported(asked.host, asked.kind, plain)
        names = (same, turns.STOPPED, "headlong") if asked.host == "onnx" else (same, "headlong")
        models = {name: opened_by(asked.host, path, asked.threads, stopped=name == turns.STOPPED) for name in names}
    elif asked.kind == "fp32":
        models = {same: plain, "headlong": copy.deepcopy(plain)}
    else:
        quantised: Any = torch.ao.quantization.quantize_dynamic
        models, same = {same: quantised(plain)}, "with its head in float32"
        plain.model = quantised(plain.model)
        models |= {same: plain, "headlong": copy.deepcopy(plain)}
    head = accelerate(models["headlong"], calibration=vectors)
    clocks, rows = {way: clocked(model, []) for way, model in models.items()}, []

    def call(way: str, options: Any, turn: int) -> Any:
        clocks[way].clear()
        return models[way].generate(**inputs, **whisper.SAID, **options)[0], sum(clocks[way])

    for name in asked.call or CALLS:
        ways: dict[str, Callable[[int], Any]] = {way: partial(call, way, CALLS[name]) for way in models}
        taken = turns.Turns(ways, asked.rounds)
        inside = {way: [seconds for _, seconds in given[1:]] for way, given in taken.given.items()}
        rest = {way: [a - b for a, b in zip(taken.seconds[way], inside[way], strict=True)] for way in ways}
        for way, given in taken.given.items():
            tokens = given[-1][0]
            row = {"what": f"{way}, {name}", "batch": 1, **taken.row(way, "as it is"), "tokens": len(tokens)}
            ratios = (one / other for one, other in zip(rest["as it is"], rest[way], strict=True))
            row |= {"encoder": statistics.median(inside[way]), "decoding": statistics.median(ratios)}
            if way == "headlong" and turns.STOPPED in ways:
                ratios = (one / other for one, other in zip(rest[turns.STOPPED], rest[way], strict=True))
                row["over stopped"] = statistics.median(ratios)
            if way == "headlong":
                row["equal"] = alike(tokens, taken.given[same][-1][0])
            rows.append(row)
            sys.stdout.write(f"{row}\n")
    sys.stdout.write(f"{head.paths}\n")
    chosen = "".join(f" --call {name!r}" for name in asked.call or ())
    by, more = "", ""
    if (asked.host, asked.kind) != ("transformers", "fp32"):
        by, more = f", {asked.host}, {asked.kind}", f" --host {asked.host} --kind {asked.kind}"
    command = f"python benchmarks/transcripts.py{more} --rounds {asked.rounds}{chosen}"
    about = f"Whisper base{by}, {LONGEST} s of speech"
    turns.keep(asked, "transcripts", about, head.engine.layer, rows, f"whisper-base{by}", command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
