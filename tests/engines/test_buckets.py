"""Buckets: their intervals hold, kernel densities stay cheap, draws from closed buckets are unbiased and within their error.

The contract of all engines (adversarial layers, masks, samples, bad input) is under test in test_engines.py.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import headlong as hl
from headlong.engines.base import Engine
from headlong.engines.methods.buckets import BucketQuery, BucketReader
from headlong.errors import OptionError
from headlong.layers.density import log_density
from headlong.previews.buckets import bucket_arrays, clusters, default_buckets
from oracle import truth


def reader_of(engine: Engine) -> BucketReader:
    assert isinstance(engine._executor, BucketReader)
    return engine._executor


@pytest.fixture
def cloud(rng: np.random.Generator) -> NDArray[np.float64]:
    centres = rng.standard_normal((20, 5)) * 6
    return np.asarray(centres[rng.integers(0, 20, 6000)] + rng.standard_normal((6000, 5)))


def test_every_class_is_in_one_bucket(rng: np.random.Generator) -> None:
    for vocab, buckets in ((1, 1), (7, 3), (500, 64), (64, 64)):
        parts = clusters(rng.standard_normal((vocab, 3)), buckets)
        assert sorted(np.concatenate(parts)) == list(range(vocab))
        assert len(parts) == buckets and min(map(len, parts)) > 0
    assert len(clusters(np.zeros((9, 2)), 9)) == 9  # equal rows: cut in halves
    assert default_buckets(1) == 1 and default_buckets(10**6) == 4096


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("equal_rows", [False, True])
def test_no_logit_leaves_its_bucket(rng: np.random.Generator, with_bias: bool, equal_rows: bool) -> None:
    weight = np.tile(rng.standard_normal((1, 9)), (300, 1)) if equal_rows else rng.standard_normal((300, 9)) * 5
    layer = hl.Layer(weight.astype(np.float32), rng.standard_normal(300).astype(np.float32) * 30 if with_bias else None)
    hidden = np.concatenate([rng.standard_normal((20, 9)) * 10, np.zeros((1, 9))]).astype(np.float32)
    reader = reader_of(hl.compile(layer, method="buckets", buckets=16))
    exact = truth(layer, hidden).logits
    for row, logits in zip(hidden.astype(np.float64), exact, strict=True):
        query = BucketQuery(reader, row, 1)
        for bucket, part in enumerate(np.split(reader.arrays["order"], reader.arrays["starts"][1:-1])):
            assert (logits[part] >= query.low[bucket]).all() and (logits[part] <= query.high[bucket]).all()


def test_a_density_reads_few_points(cloud: NDArray[np.float64], rng: np.random.Generator) -> None:
    queries, h = cloud[:30] + 0.1, 0.5
    engine = hl.compile(hl.Layer.gaussian_kernel(cloud, h), method="buckets", eps=0.05, delta=0.0)
    found = engine.lse(queries)
    distance = ((queries[:, None] - cloud) ** 2).sum(axis=2)
    exact = np.log(np.exp(-distance / (2 * h * h)).mean(axis=1)) - 2.5 * math.log(2 * math.pi * h * h)
    assert (np.abs(log_density(found.lse, queries, len(cloud), h) - exact) <= found.error + 1e-3).all()
    assert (found.error <= 0.05).all() and not found.cost.dense.any()
    assert np.median(found.cost.rows) < len(cloud) / 10


def test_draws_are_unbiased_and_within_their_error(rng: np.random.Generator) -> None:
    layer = hl.Layer((rng.standard_normal((20_000, 3)) * 0.5).astype(np.float32))
    hidden = rng.standard_normal((40, 3))
    exact = truth(layer, hidden.astype(np.float32)).lse
    ratios, inside = [], []
    for seed in range(5):
        engine = hl.compile(layer, method="buckets", eps=0.05, delta=0.05, seed=seed)
        found = engine.lse(hidden.astype(np.float32))
        again = engine.lse(hidden.astype(np.float32))
        assert (found.lse == again.lse).all()
        drawn = ~found.cost.dense
        ratios += list(np.exp(found.lse - exact)[drawn])
        inside += list((np.abs(found.lse - exact) <= found.error)[drawn])
    assert len(inside) > 100
    assert np.mean(inside) >= 0.95
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / math.sqrt(len(ratios)) + 1e-3


def test_ids_are_proved_from_a_part(cloud: NDArray[np.float64]) -> None:
    layer = hl.Layer.gaussian_kernel(cloud, 1.0)
    found = hl.compile(layer, method="buckets", eps=math.inf).topk(cloud[:25] + 0.01, 5)
    distance = ((cloud[:25, None] + 0.01 - cloud) ** 2).sum(axis=2)
    assert (found.ids == np.argsort(distance, axis=1)[:, :5]).all()
    assert found.proved.all() and not found.cost.dense.all()


def test_it_is_saved_and_loaded(cloud: NDArray[np.float64], tmp_path: Path) -> None:
    engine = hl.compile(hl.Layer.gaussian_kernel(cloud, 1.0), method="buckets", buckets=50)
    engine.save(tmp_path / "one.safetensors")
    loaded = hl.load(tmp_path / "one.safetensors")
    assert (loaded.lse(cloud[:4]).lse == engine.lse(cloud[:4]).lse).all()
    assert loaded.method == engine.method


def test_anchors_only_where_biases_are(rng: np.random.Generator) -> None:
    layer = hl.Layer(rng.standard_normal((500, 4)).astype(np.float32))
    assert "anchor" not in bucket_arrays(layer, 8)


@pytest.mark.parametrize("options", [{"buckets": 0}, {"buckets": 501}, {"share": 0.0}, {"share": 2.0}])
def test_options_that_make_no_sense(rng: np.random.Generator, options: dict[str, float]) -> None:
    layer = hl.Layer(rng.standard_normal((500, 4)).astype(np.float32))
    with pytest.raises(OptionError, match=next(iter(options))):
        hl.compile(layer, method="buckets", **options)
