"""Rivals written from papers find float64's ids, whatever the layer, and stop before the last row where they can."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from numpy.typing import NDArray

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="they are built by c++, which is not installed")
FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "exact_rivals.py"
K = 5
Floats = NDArray[np.float32]


@pytest.fixture(scope="module")
def rivals() -> ModuleType:
    spec = importlib.util.spec_from_file_location("exact_rivals", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def layer(seed: int) -> tuple[Floats, Floats]:
    """Rows with their bias and queries with their 1; ties, zeros, few directions, lengths far apart."""
    rng = np.random.default_rng(seed)
    vocab, dim, rank = int(rng.integers(K, 400)), int(rng.integers(2, 70)), int(rng.integers(1, 70))
    rows = rng.standard_normal((vocab, rank)) @ rng.standard_normal((rank, dim)) * np.exp(2 * rng.standard_normal((vocab, 1)))
    rows = np.column_stack([rows, rng.normal(0, 3, vocab)]).astype(np.float32)
    rows[rng.integers(0, vocab, vocab // 4)] = rows[rng.integers(0, vocab, vocab // 4)]
    rows[rng.integers(0, vocab)] = 0
    queries = np.column_stack([10 ** rng.uniform(-3, 3) * rng.standard_normal((20, dim)), np.ones(20)]).astype(np.float32)
    return rows, queries


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("name", ["Fexipro", "Maximus", "Maximus, asked by strangers"])
def test_ids_are_exact(rivals: ModuleType, name: str, seed: int) -> None:
    rows, queries = layer(seed)
    users = queries[: 3 if name.endswith("strangers") else None]
    index = rivals.Fexipro(rows, K) if name == "Fexipro" else rivals.Maximus(rows, K, users, 3)
    logits = queries.astype(np.float64) @ rows.T.astype(np.float64)
    least = -np.sort(-logits, axis=1)[:, K - 1]
    for query, own, worst in zip(queries, logits, least, strict=True):
        ids, scored, read = index.ask(query)
        assert len(set(ids.tolist())) == K and np.all(own[ids] >= worst - 1e-12 * np.abs(own).max())
        assert K <= scored <= len(rows) and read >= 4 * rows.shape[1] * scored


def test_few_rows_are_scored_where_bounds_are_tight(rivals: ModuleType) -> None:
    rng = np.random.default_rng(0)
    energy = np.arange(1.0, 33) ** -1.5
    rows = (rng.standard_normal((2000, 32)) * energy * np.exp(rng.standard_normal((2000, 1)))).astype(np.float32)
    queries = (np.eye(32)[:1] + 0.01 * rng.standard_normal((8, 32))).astype(np.float32)
    for index in (rivals.Fexipro(rows, K), rivals.Maximus(rows, K, queries, 1)):
        assert all(index.ask(query)[1] < 200 for query in queries)
