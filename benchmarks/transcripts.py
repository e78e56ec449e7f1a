"""Seconds of a transcript by Whisper base on a CPU: as transformers writes it, and with its output layer read here.

    python benchmarks/fetch_models.py whisper-base && pip install --no-deps moonshine-voice==0.1.5
    python benchmarks/transcripts.py --json results/hosts.json

The model in float32, half a minute of one recording, in turns; the first turn is not counted. The encoder is in the times.
Vectors for calibration are those of two other recordings. ``equal``: tokens that both wrote, timestamps included.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
import warnings
from typing import Any

from common import whisper
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


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--recording", default="two_cities")
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
    models = {"as it is": whisper.opened()}
    models["headlong"] = copy.deepcopy(models["as it is"])
    vectors: list[Any] = []
    keeping = models["as it is"].proj_out.register_forward_pre_hook(lambda _, given: vectors.append(given[0][:, -1]))
    for name in OTHERS:
        models["as it is"].generate(**features(name), **SHARED)
    keeping.remove()
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
        layer = {"about": f"Whisper base, {LONGEST} s of speech", "vocab": head.out_features, "dim": head.in_features}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": rows}
        chosen = "".join(f" --call {name!r}" for name in asked.call or ())
        command = f"python benchmarks/transcripts.py --rounds {asked.rounds}{chosen}"
        measure.keep(asked.json, "transcripts", record, f"whisper-base{chosen}", command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
