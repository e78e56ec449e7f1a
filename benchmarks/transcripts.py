"""Seconds of a transcript by Whisper base on a CPU: as transformers, OpenVINO or ONNX Runtime write it, and with its output
layer read here.

    python benchmarks/fetch_models.py whisper-base && pip install --no-deps moonshine-voice==0.1.5
    python benchmarks/transcripts.py --json results/hosts.json    # --host openvino, onnx: the versions that `just hosts` names

The model in float32, or with weights in int8, half a minute of one recording, in turns; the first turn is not counted. The
encoder is in the times. Vectors for calibration are those of two other recordings. ``equal``: tokens that both wrote, timestamps included.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from common import whisper
from common.models import folder
from headlong.bench import measure

CALLS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "timestamps": {"return_timestamps": True},
    "five beams": {"num_beams": 5},
    "timestamps, five beams": {"return_timestamps": True, "num_beams": 5},
}
LONGEST = 30
OTHERS = ("beckett", "endgame_nagg_nell")
SHARED = {"language": "en", "task": "transcribe"}


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
                quantize_dynamic(file, file, per_channel=True)
    return kept


def opened_by(host: str, path: Path, threads: int = 2, **options: Any) -> Any:
    import importlib

    package, name = CLASSES[host]
    if host == "openvino":
        options["ov_config"] = {"INFERENCE_NUM_THREADS": str(threads)}
    else:
        import onnxruntime

        options["session_options"] = onnxruntime.SessionOptions()
        options["session_options"].intra_op_num_threads = threads
    return getattr(importlib.import_module(package), name).from_pretrained(path, **options)


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--recording", default="two_cities")
    parser.add_argument("--host", choices=["transformers", *CLASSES], default="transformers")
    parser.add_argument("--kind", choices=["fp32", "int8"], default="fp32")
    parser.add_argument("--call", choices=list(CALLS), action="append", help="one of these alone")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    import torch
    from transformers import WhisperFeatureExtractor
    from transformers.utils import logging

    from headlong.integrations.transformers import accelerate

    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    read = WhisperFeatureExtractor()

    def features(name: str) -> Any:
        sound = whisper.speech(name)[: LONGEST * whisper.RATE]
        return read(sound, sampling_rate=whisper.RATE, return_tensors="pt", return_attention_mask=True)

    inputs = features(asked.recording)
    plain = whisper.opened()
    vectors: list[Any] = []
    keeping = plain.proj_out.register_forward_pre_hook(lambda _, given: vectors.append(given[0][:, -1]))
    for name in OTHERS:
        plain.generate(**features(name), **SHARED)
    keeping.remove()
    if asked.host == "transformers":
        models = {"as it is": plain, "headlong": copy.deepcopy(plain)}
    else:
        path = exported(asked.host, asked.kind, plain)
        models = {name: opened_by(asked.host, path, asked.threads) for name in ("as it is", "headlong")}
    head = accelerate(models["headlong"], calibration=torch.cat(vectors))
    rows = []
    for name in asked.call or CALLS:
        options = CALLS[name]
        seconds: dict[str, list[float]] = {way: [] for way in models}
        found: dict[str, Any] = {}
        for turn in range(asked.rounds + 1):
            for way in sorted(models, reverse=bool(turn % 2)):
                began = time.perf_counter()
                found[way] = models[way].generate(**inputs, **SHARED, **options)
                if turn:
                    seconds[way].append(time.perf_counter() - began)
        ratios = [one / other for one, other in zip(seconds["as it is"], seconds["headlong"], strict=True)]
        for way, taken in seconds.items():
            row = {"what": f"{way}, {name}", "batch": 1, "seconds": statistics.median(taken), "times": 1.0}
            if way == "headlong":
                row |= {"times": statistics.median(ratios), "equal": alike(found[way][0], found["as it is"][0])}
            rows.append(row | {"tokens": found[way].shape[1]})
            sys.stdout.write(f"{rows[-1]}\n")
    sys.stdout.write(f"{head.paths}\n")
    if asked.json:
        by = "" if asked.host == "transformers" else f", {asked.host}, {asked.kind}"
        layer = {"about": f"Whisper base{by}, {LONGEST} s of speech", "vocab": head.out_features, "dim": head.in_features}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": rows}
        chosen = "".join(f" --call {name!r}" for name in asked.call or ())
        more = f" --host {asked.host} --kind {asked.kind}" if by else ""
        command = f"python benchmarks/transcripts.py{more} --rounds {asked.rounds}{chosen}"
        measure.keep(asked.json, "transcripts", record, f"whisper-base{by}", command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
