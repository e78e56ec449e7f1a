"""What a layer is compared with: energy by its definition, and the measured layer that is most like it."""

from __future__ import annotations

import numpy as np
import pytest

import headlong as hl
from headlong.bench.expected import Measured, energy, measured, most_like
from headlong.inspection import advice, inspect


def measured_as(about: str, energy: float, vocab: int = 1000, dim: int = 64) -> Measured:
    return Measured(about, vocab, dim, energy, {"ids only": [2.5, 3.5]}, "a processor")


def test_energy_is_that_of_the_centred_logits(rng: np.random.Generator) -> None:
    weight = rng.standard_normal((300, 16)).astype(np.float32) * np.linspace(3, 0.1, 16, dtype=np.float32) + 5
    hidden = rng.standard_normal((40, 16)).astype(np.float32)
    logits = hidden.astype(np.float64) @ weight.T.astype(np.float64)
    values = np.linalg.svd(logits - logits.mean(1, keepdims=True), compute_uv=False) ** 2
    for part in (1, 4, 8):
        assert energy(hl.Layer(weight), hidden, part) == pytest.approx(values[: 16 // part].sum() / values.sum(), rel=1e-6)


def test_the_measured_layer_that_is_most_like_it() -> None:
    flat, steep = measured_as("flat", 0.2), measured_as("steep", 0.8)
    assert most_like(0.3, 64_000, [flat, steep]) is flat and most_like(0.6, 64_000, [flat, steep]) is steep
    large = measured_as("large", 0.8, 100_000)
    assert most_like(0.8, 50_000 * 64, [flat, steep, large]) is large and most_like(0.8, 64_000, [steep, large]) is steep


def test_inspect_says_what_to_expect_of_layers_with_vectors_enough(rng: np.random.Generator) -> None:
    layer = hl.Layer(rng.standard_normal((50_000, 8), np.float32))
    for count, said in ((64, "expect about"), (16, "32 hidden vectors or more tell what speed to expect")):
        found = inspect(layer, rng.standard_normal((count, 8), np.float32), 5, 1, lambda done, total: None)
        assert any(said in line for _, line in advice(found))
        assert (found.energy is None) == (count == 16)
    assert inspect(layer, None, 5, 1, lambda done, total: None).energy is None
    small = hl.Layer(rng.standard_normal((500, 8), np.float32))
    found = inspect(small, rng.standard_normal((64, 8), np.float32), 5, 1, lambda done, total: None)
    assert any("expect little" in line for _, line in advice(found)), "none that was measured is like it"


def test_the_measured_layers_are_those_of_the_tables() -> None:
    assert any("SmolLM2" in one.about for one in measured())
    for one in measured():
        assert 0 < one.energy <= 1 and set(one.times) == {"log-probabilities", "ids only"} and one.cpu
