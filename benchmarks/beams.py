"""Beams under a grammar: 128 beams of a language model, each with its own allowed tokens as packed bits, the 128 best of each.

    python benchmarks/beams.py --json results/beside.json

SmolLM2's head (:mod:`common.real_layers`). The rivals multiply everything out, put minus infinity where a token is not allowed,
and take the largest: PyTorch in float32, in bfloat16 and by ``quantize_dynamic``. Times are medians, in turns. ``same``: places
of the 128 that are those of float64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from headlong.bench import measure
from headlong.bench.measure import Contestant, Schedule

BEAMS, K = 128, 128
SHARES = {"half of all": 0.5, "a tenth": 0.1, "500": 500}
"""Of the tokens, that each beam may go on with."""


def ways(layer: Any, engine: Any, bits: Any) -> dict[str, Callable[[Any], Any]]:
    """The ids of each, from hidden vectors."""
    import numpy as np
    import torch

    forbidden = torch.from_numpy(np.unpackbits(bits, axis=1, count=layer.vocab) == 0)
    weight = torch.from_numpy(np.array(layer.weight, np.float32))
    half, linear = weight.bfloat16(), torch.nn.Linear(layer.dim, layer.vocab, bias=False)
    linear.weight = torch.nn.Parameter(weight, requires_grad=False)
    quantise: Any = torch.ao.quantization.quantize_dynamic
    small = quantise(torch.nn.Sequential(linear), {torch.nn.Linear}, torch.qint8)

    def best(logits: Any) -> Any:
        return torch.topk(logits.masked_fill_(forbidden, float("-inf")), K).indices.numpy()

    def dense(product: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def call(rows: Any) -> Any:
            with torch.inference_mode():
                return best(product(torch.from_numpy(rows)))

        return call

    return {
        "torch float32": dense(lambda rows: rows @ weight.T),
        "torch bfloat16": dense(lambda rows: (rows.bfloat16() @ half.T).float()),
        "torch int8 dynamic": dense(small),
        "headlong": lambda rows: engine.topk(rows, K, allowed=bits).ids,
        "headlong, ids only": lambda rows: engine.topk(rows, K, allowed=bits, eps=float("inf")).ids,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="at most about so many for each share")
    parser.add_argument("--json", help="the file of a page's results")
    asked = parser.parse_args()
    measure.claim_threads(asked.threads)
    import numpy as np
    import torch

    import headlong
    from common.real_layers import load

    torch.set_num_threads(asked.threads)
    real = load("smollm2")
    engine = headlong.compile(real.layer, calibration=real.train, threads=asked.threads)
    full = headlong.compile(real.layer, "full", threads=asked.threads)
    rng, rows = np.random.default_rng(5), np.ascontiguousarray(real.valid[:BEAMS], np.float32)
    found = []
    with measure.pinned(asked.threads):
        for share, size in SHARES.items():
            chance = size if size < 1 else size / real.layer.vocab
            bits = np.packbits(rng.random((BEAMS, real.layer.vocab)) < chance, axis=1)
            calls = ways(real.layer, engine, bits)
            right = full.topk(rows, K, allowed=bits).ids
            schedule = Schedule(rounds=7, settle=1, calls=3, seconds=asked.seconds)
            timings = measure.contest([Contestant(way, call) for way, call in calls.items()], rows, BEAMS, schedule)
            medians = {one.contestant: 1e6 * statistics.median(one.seconds) / BEAMS for one in timings}
            fastest = min(us for way, us in medians.items() if not way.startswith("headlong"))
            for way, us in medians.items():
                row = {"what": way, "allowed": share, "batch": BEAMS, "us": round(us, 2), "times": round(fastest / us, 3)}
                row["same"] = float((calls[way](rows) == right).mean())
                found.append(row)
                sys.stdout.write(f"{row}\n")
    if asked.json:
        layer = {"about": "SmolLM2-135M-Instruct, beams under a grammar", "vocab": real.layer.vocab, "dim": real.layer.dim}
        record = {"environment": measure.environment(asked.threads), "layer": layer, "rows": found}
        measure.keep(asked.json, "beams", record, "smollm2", "python benchmarks/beams.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
