"""Every level gives the same ids, proofs and samples, on every machine: what x86-64 answered is stored in levels.json.

``python tests/kernels/test_levels.py`` writes it anew. The layers are made of whole numbers, so that every machine has the
same. Logits and normalisers are sums in an order of a level's own, and not compared here: the oracle's tests bound those.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import headlong as hl
from headlong import native
from headlong.engines.base import Engine
from headlong.layers.bands import Band
from headlong.layers.differentiated import Block
from headlong.layers.structured import StructuredLayer

STORED = Path(__file__).with_name("levels.json")
LEVELS = native.levels()[1:]
VOCAB, DIM = 1200, 40

# name: (dtype of the weights, method, options)
ENGINES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "full": (np.float32, "full", {}),
    "codes": (np.float32, "codes", {}),
    "float16": (np.float16, "codes", {}),
    "proved": (ml_dtypes.bfloat16, "codes", {"delta": 0.0}),
    "linked": (np.float32, "codes", {"link": hl.SoftCap(20.0)}),
    "blocks": (np.float32, "codes", {"blocks": True}),
}
STRUCTURED = ("tree", "bands", "parts", "experts", "mixture")
EVERY = (*ENGINES, *STRUCTURED)


def numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """About normal, and the same everywhere: the mean of twelve uniform whole numbers."""
    return (rng.integers(-1000, 1001, (*shape, 12)).sum(-1) / 2000).astype(np.float32)


def compiled(name: str) -> tuple[Engine, np.ndarray]:
    dtype, method, options = ENGINES[name]
    rng = np.random.default_rng(20)
    fading = (1 / np.arange(1, DIM + 1, dtype=np.float32)).astype(np.float32)
    weight, hidden = numbers(rng, VOCAB, DIM) * fading, numbers(rng, 400, DIM) * 4
    layer = hl.Layer(weight.astype(dtype), numbers(rng, VOCAB), options.get("link"))
    rest = {key: value for key, value in options.items() if key != "link"}
    if method == "codes":
        rest["calibration"] = hidden[40:]
    engine = hl.compile(layer, method, eps=0.05, threads=2, **rest)
    assert isinstance(engine, Engine)
    return engine, hidden[:72]


def layer_of(kind: str, rng: np.random.Generator) -> StructuredLayer:
    """A structured layer whose classes are spread over its parts out of order."""
    order = rng.permutation(VOCAB)
    if kind == "tree":
        inner = np.arange(1, VOCAB - 1)  # node n leads to nodes 2n + 1 and 2n + 2; those beyond the last are leaves
        children = np.array([[2 * n + 1, 2 * n + 2] for n in (0, *inner)])
        leaves = children >= VOCAB - 1
        children[leaves] = ~order[children[leaves] - (VOCAB - 1)]
        return hl.structured.TreeLayer(numbers(rng, VOCAB - 1, DIM), numbers(rng, VOCAB - 1), children)
    if kind == "bands":
        bands = [(hl.Layer(numbers(rng, 400, 8)), numbers(rng, 8, DIM)), (hl.Layer(numbers(rng, 600, 4)), numbers(rng, 4, DIM))]
        return hl.structured.BandsLayer(hl.Layer(numbers(rng, 202, DIM)), [Band(*band) for band in bands], order)
    if kind == "parts":
        wide, narrow = hl.Layer(numbers(rng, 300, DIM), numbers(rng, 300)), hl.Layer(numbers(rng, 900, 16), numbers(rng, 900))
        return hl.structured.BlocksLayer([Block(wide), Block(narrow, 8)], DIM, order)
    if kind == "experts":
        ids = np.concatenate([np.sort(rng.choice(VOCAB, 350, replace=False)) for _ in range(4)])
        return hl.structured.ExpertsLayer(numbers(rng, 4, DIM), numbers(rng, 1400, DIM), ids, np.arange(0, 1401, 350), VOCAB)
    matrix = hl.Layer(numbers(rng, VOCAB, 16), numbers(rng, VOCAB))
    return hl.structured.MixtureLayer(matrix, numbers(rng, 48, DIM) / 8, numbers(rng, 48), numbers(rng, 3, DIM))


def structured(kind: str) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(21)
    layer, hidden = layer_of(kind, rng), numbers(rng, 200, DIM) * 2
    return hl.compile(layer, threads=2), hidden[:72]


def digest(*arrays: np.ndarray) -> str:
    whole = hashlib.sha256()
    for array in arrays:
        whole.update(np.ascontiguousarray(array).tobytes())
    return whole.hexdigest()[:16]


def either(name: str) -> tuple[Any, np.ndarray]:
    return structured(name) if name in STRUCTURED else compiled(name)


def answers(name: str) -> dict[str, str]:
    """Batches of every kind of product, ids alone, draws among the best, and some classes left out."""
    engine, hidden = either(name)
    tops = [engine.topk(hidden[:count], 7) for count in (1, 3, 24, 72)]
    tops += [engine.topk(hidden[:9], 7, eps=float("inf")), engine.topk(hidden[:4], 5, exclude=np.arange(0, VOCAB, 3))]
    drawn = [engine.sample(hidden[:count], 4, seed=5, temperature=0.8) for count in (1, 3, 24)]
    drawn.append(engine.sample(hidden[:5], 4, seed=6, top_k=20))
    return {verb: digest(*(part for one in found for part in (one.ids, one.proved))) for verb, found in
            (("topk", tops), ("samples", drawn))}  # fmt: skip


@pytest.mark.parametrize("level", LEVELS, indirect=True)
@pytest.mark.parametrize("name", EVERY)
def test_ids_proofs_and_samples_are_those_of_x86(name: str, level: str) -> None:
    assert answers(name) == json.loads(STORED.read_text())[name]


@pytest.mark.parametrize("level", LEVELS, indirect=True)
@pytest.mark.parametrize("name", ["codes", "tree", "mixture"])
def test_a_forced_level_is_what_runs(name: str, level: str) -> None:
    engine, hidden = either(name)
    assert re.search(rf"\bkernel {level}\b", repr(engine))
    assert engine.topk(hidden[:1], 3).cost.path.endswith(f"/{level}")


def test_a_level_that_this_processor_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    every = {"avx2", "avxvnni", "avx512vnni", "neon", "dotprod"}
    lacking = sorted(every - set(LEVELS))
    assert lacking, "no processor has all of them"
    for level in lacking:
        monkeypatch.setenv("HEADLONG_ISA", level)
        with pytest.raises(hl.errors.HeadlongError, match=f"{level}.*choose from numpy, portable"):
            compiled("codes")


def test_what_this_machine_is_expected_to_have() -> None:
    """HEADLONG_EXPECT names levels: CI states what its machines, and its emulated ones, have and lack."""
    stated = os.environ.get("HEADLONG_EXPECT")
    if not stated:
        pytest.skip("HEADLONG_EXPECT names no levels")
    assert LEVELS[0] == "portable" and LEVELS[1:] == stated.split(",")


if __name__ == "__main__":
    os.environ["HEADLONG_ISA"] = "avx2"
    STORED.write_text(json.dumps({name: answers(name) for name in EVERY}, indent=1) + "\n")
    sys.stdout.write(STORED.read_text())
