"""Largest |log ratio| between a sampler's log-probabilities and a trainer's in float64, for ours and for rounded heads.

    python examples/importance_ratios.py             # SmolLM2's head, from the data that HEADLONG_DATA names
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np

import headlong as hl

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from common.real_layers import load

ROWS = 1024


def given(z: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Log-probabilities of ``ids [n, 1]`` by logits ``[n, vocab]``, normalised in float64."""
    shifted = z.astype(np.float64) - z.max(axis=1, keepdims=True).astype(np.float64)
    return (np.take_along_axis(shifted, ids, 1) - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))[:, 0]


def main() -> None:
    one = load("smollm2")
    engine = hl.compile(one.layer, calibration=one.train)
    drawn = engine.sample(one.valid[:ROWS], seed=7, position=np.arange(ROWS))
    wide = np.asarray(one.layer.weight, np.float64)
    step = np.abs(wide).max(axis=1, keepdims=True) / 127
    short, coarse = wide.astype(ml_dtypes.bfloat16).astype(np.float32), (np.rint(wide / step) * step).astype(np.float32)
    ratios: dict[str, list[np.ndarray]] = {"headlong": [], "bfloat16 weights and logits": [], "int8 weights": []}
    for start in range(0, ROWS, 64):
        part = slice(start, start + 64)
        hidden, ids = one.valid[part].astype(np.float32), drawn.ids[part]
        trainer = given(hidden.astype(np.float64) @ wide.T, ids)
        rounded = (hidden.astype(ml_dtypes.bfloat16).astype(np.float32) @ short.T).astype(ml_dtypes.bfloat16)
        samplers = drawn.log_probs[part, 0], given(rounded, ids), given(hidden @ coarse.T, ids)
        for name, theirs in zip(ratios, samplers, strict=True):
            ratios[name].append(theirs - trainer)
    print(f"{ROWS} draws; eps {engine.promise.eps}, largest stated error {drawn.error.max():.2g}")
    for name, parts in ratios.items():
        off = np.abs(np.concatenate(parts))
        print(f"{name:28} largest |log ratio| {off.max():.2g}, mean {off.mean():.2g}, beyond 0.1: {np.mean(off > 0.1):.2%}")


if __name__ == "__main__":
    main()
