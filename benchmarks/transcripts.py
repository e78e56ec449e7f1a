"""Seconds of a transcript by Whisper base on a CPU: as transformers writes it, and with its output layer read here.

    python benchmarks/fetch_models.py whisper-base && pip install --no-deps moonshine-voice==0.1.5
    python benchmarks/transcripts.py --json results/hosts.json

The model in float32, half a minute of one recording, in turns; the first turn is not counted. The encoder is in the times.
Vectors for calibration are those of two other recordings. ``equal``: tokens that both wrote, timestamps included.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from common import turns, whisper

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


def main() -> int:
    parser, asking = turns.options(__doc__, recording="two_cities", rounds=2)
    parser.add_argument("--call", choices=list(CALLS), action="append", help="one of these alone")
    asked = asking()
    from transformers.utils import logging

    from headlong.integrations.transformers import accelerate

    logging.set_verbosity_error()
    inputs = whisper.features(half_a_minute(asked.recording))
    models = {"as it is": whisper.opened()}
    models["headlong"] = copy.deepcopy(models["as it is"])
    head = accelerate(models["headlong"], calibration=whisper.heard(models["as it is"], map(half_a_minute, OTHERS)))
    rows = []

    def call(model: Any, options: Any, turn: int) -> Any:
        return model.generate(**inputs, **whisper.SAID, **options)

    for name in asked.call or CALLS:
        ways: dict[str, Callable[[int], Any]] = {way: partial(call, model, CALLS[name]) for way, model in models.items()}
        taken = turns.Turns(ways, asked.rounds)
        for way, given in taken.given.items():
            row = {"what": f"{way}, {name}", "batch": 1, **taken.row(way, "as it is"), "tokens": given[-1].shape[1]}
            if way == "headlong":
                row["equal"] = alike(given[-1][0], taken.given["as it is"][-1][0])
            rows.append(row)
            sys.stdout.write(f"{row}\n")
    sys.stdout.write(f"{head.paths}\n")
    chosen = "".join(f" --call {name!r}" for name in asked.call or ())
    command = f"python benchmarks/transcripts.py --rounds {asked.rounds}{chosen}"
    about = f"Whisper base, {LONGEST} s of speech"
    turns.keep(asked, "transcripts", about, head.engine.layer, rows, f"whisper-base{chosen}", command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
