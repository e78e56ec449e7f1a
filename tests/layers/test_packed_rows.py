"""Rows that stay codes and scales: the numbers, the answers and the memory of an engine over them, and its files.

The oracle is ggml's own dequantisation in the ``gguf`` package, and an engine over the float32 matrix that it gives.
"""

from __future__ import annotations

import json
import pickle
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import headlong as hl
from children import said
from headlong import native
from headlong.errors import InputError, MalformedFileError, WrongLayerError
from headlong.packed_rows import INT8, SIZES, PackedRows, width
from headlong.store import write_file

KINDS = (*SIZES, INT8)
DIM = 512
WAYS = [{"method": name} for name in ("full", "codes")] + [{"method": "codes", "blocks": True}]


def rows_of(kind: str, vocab: int, dim: int = DIM, seed: int = 0) -> PackedRows:
    """Any bytes are codes; scales in float16 are made sane."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (vocab, width(kind, dim)), dtype=np.uint8)
    if kind == INT8:
        data[:, :4] = rng.uniform(0.001, 0.01, (vocab, 1)).astype(np.float32).view(np.uint8)
        return PackedRows(data, kind, dim)
    blocks = data.reshape(vocab, -1, SIZES[kind][1])
    sane = (rng.uniform(0.0005, 0.001, (vocab, blocks.shape[1], 2)) * rng.choice([-1, 1], (vocab, 1, 1))).astype(np.float16)
    if kind == "Q6_K":
        blocks[..., 208:] = sane[..., :1].view(np.uint8)
    else:
        many = 2 if kind.endswith("K") else 1
        blocks[..., : 2 * many] = np.ascontiguousarray(sane[..., :many]).view(np.uint8)
    data.flags.writeable = False
    return PackedRows(data, kind, dim)


def dense_of(rows: PackedRows) -> Any:
    if rows.kind == INT8:
        scale = rows.stored[:, :4].copy().view(np.float32).astype(np.float64)
        return (rows.stored[:, 4:].view(np.int8) * scale).astype(np.float32)
    return gguf.quants.dequantize(rows.stored, gguf.GGMLQuantizationType[rows.kind])


EACH_LEVEL = """
import sys, numpy as np
sys.path.insert(0, sys.argv[1])
from headlong import native
from test_packed_rows import KINDS, dense_of, rows_of
for kind in KINDS:
    rows = rows_of(kind, 70)
    found = native.products(rows, np.eye(512)).T
    assert (found.astype(np.float32).view(np.uint32) << 1 == dense_of(rows).view(np.uint32) << 1).all(), kind
    assert (native.row_norms(rows) == native.row_norms(dense_of(rows))).all(), kind
print(native.isa())
"""


@pytest.mark.parametrize("level", [*native.levels(), native.REFERENCE])
def test_the_numbers_are_those_of_ggml_at_every_level(level: str) -> None:
    """To the last bit, but for the sign of zero, which a product has not."""
    assert said(EACH_LEVEL, Path(__file__).parent, HEADLONG_ISA=level) == level


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", WAYS)
def test_answers_are_those_of_the_float32_matrix(kind: str, how: dict[str, Any]) -> None:
    rows, rng = rows_of(kind, 1100), np.random.default_rng(1)
    bias = rng.standard_normal(len(rows)).astype(np.float32)
    ours, theirs = hl.compile(hl.Layer(rows, bias), **how), hl.compile(hl.Layer(dense_of(rows), bias), **how)
    assert ours.layer.dtype == kind and ours.layer.row_bytes == width(kind, DIM)
    hidden, chosen = rng.standard_normal((20, DIM)), rng.integers(0, len(rows), (20, 4))
    for limits in ({}, {"allowed": np.arange(0, 1100, 3)}, {"exclude": [5, 7]}):
        top, other = ours.topk(hidden, 6, **limits), theirs.topk(hidden, 6, **limits)
        assert (top.ids == other.ids).all() and (top.logits == other.logits).all()
        assert (np.abs(top.lse - other.lse) <= top.error + other.error).all() and (top.error <= 0.01 + 1e-9).all()
    assert (np.concatenate([ours.topk(one[None], 6).logits for one in hidden]) == theirs.topk(hidden, 6).logits).all()
    assert (ours.log_prob(hidden, chosen).logits == theirs.log_prob(hidden, chosen).logits).all()
    for filters in ({}, {"top_p": 0.7}, {"top_k": 5}, {"min_p": 0.1}):
        assert (ours.sample(hidden, 2, seed=4, **filters).ids == theirs.sample(hidden, 2, seed=4, **filters).ids).all()


def bytes_of(engine: hl.Engine) -> int:
    """The bytes of all arrays that an engine keeps: stored rows, codes, and what belongs to each class."""
    arrays = [part for part in engine.plan.codes or () if isinstance(part, np.ndarray)]
    return engine.layer.stored.nbytes + engine.norms.nbytes + sum(array.nbytes for array in arrays)


@pytest.mark.parametrize(("kind", "times"), [("Q8_0", 2.0), ("Q6_K", 1.9), ("Q4_K", 2.2)])
def test_an_engine_takes_no_more_than_twice_the_head(kind: str, times: float, tmp_path: Path) -> None:
    rows = rows_of(kind, 20_000, 1024)
    engine = hl.compile(hl.Layer(rows))
    assert engine.plan.codes is not None
    most = times * rows.nbytes + engine.plan.codes.rotation.nbytes  # dim x dim, however large the head
    assert bytes_of(engine) <= most
    engine.save(tmp_path / "head.safetensors")
    assert (tmp_path / "head.safetensors").stat().st_size <= most


def test_compiling_works_in_slices() -> None:
    rows = rows_of("Q6_K", 60_000, 1024)
    tracemalloc.start()
    hl.compile(hl.Layer(rows))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.size * 4 * 0.3  # of the float32 matrix


RESIDENT = """
import gc, sys, numpy as np
sys.path.insert(0, sys.argv[1])
import headlong as hl
from test_packed_rows import rows_of

def megabytes(name):
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name))) / 1024

vectors = np.random.default_rng(1).standard_normal((1200, 1024)) * np.geomspace(1, 0.01, 1024)
options = {"calibration": vectors} if sys.argv[3] == "calibrated" else {}
hl.compile(hl.Layer(rows_of(sys.argv[2], 3000, 256)), "codes").topk(np.ones((1, 256)), 5)  # what any engine loads
gc.collect()
before = megabytes("VmRSS")
rows = rows_of(sys.argv[2], 90_000, 1024)
gc.collect()
open("/proc/self/clear_refs", "w").write("5")  # the peak begins here
engine = hl.compile(hl.Layer(rows), "codes", **options)
engine.topk(vectors[:8], 5)
gc.collect()
head = rows.nbytes / 2**20
print((megabytes("VmRSS") - before) / head, (megabytes("VmHWM") - before) / head, 4 * rows.size / rows.nbytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is read from /proc")
@pytest.mark.one_of("how")
@pytest.mark.parametrize("how", ["without vectors", "calibrated"])
@pytest.mark.parametrize(("kind", "times"), [("Q8_0", 2.2), ("Q6_K", 2.0), ("Q4_K", 2.3)])
def test_a_process_holds_no_more_than_twice_the_head(kind: str, times: float, how: str) -> None:
    """Freed pages and all; and little more at any time while it compiles, or, for vectors, less than the float32 matrix."""
    held, peak, dense = map(float, said(RESIDENT, Path(__file__).parent, kind, how).split())
    assert held <= times and peak <= (times + 0.5 if how == "without vectors" else dense), (held, peak, dense)


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K", INT8])
def test_files_keep_the_rows(kind: str, tmp_path: Path) -> None:
    rows = rows_of(kind, 900)
    layer, path = hl.Layer(rows), tmp_path / "engine.safetensors"
    engine = hl.compile(layer, "codes")
    hidden = np.random.default_rng(5).standard_normal((8, DIM))
    expected = engine.topk(hidden, 4)
    engine.save(path)
    for found in (hl.load(path), pickle.loads(pickle.dumps(engine))):  # noqa: S301  # our own
        assert found.layer.dtype == kind and (found.topk(hidden, 4).logits == expected.logits).all()
        assert found.layer.checksum() == layer.checksum()
    engine.save(path, layer=False)
    assert (hl.load(path, layer).topk(hidden, 4).ids == expected.ids).all()
    with pytest.raises(WrongLayerError):
        hl.load(path, hl.Layer(dense_of(rows)))
    layer.save(tmp_path / "layer.safetensors")
    again = hl.Layer.load(tmp_path / "layer.safetensors")
    assert again.dtype == kind and again.checksum() == layer.checksum()
    about = {"format": "headlong layer", "version": "1", "link": json.dumps(layer.link.as_dict())}
    for row_facts in ({"kind": kind, "dim": DIM + 256}, {"kind": "Q9", "dim": DIM}, {"kind": 8, "dim": DIM}, {}):
        write_file(tmp_path / "odd.safetensors", {"lm_head.weight": rows.stored}, about | {"rows": json.dumps(row_facts)})
        with pytest.raises(MalformedFileError):
            hl.Layer.load(tmp_path / "odd.safetensors")


def test_bytes_that_change_are_noticed() -> None:
    stored = rows_of("Q8_0", 900).stored.copy()
    engine = hl.compile(hl.Layer(PackedRows(stored, "Q8_0", DIM)), "codes")
    stored[:] = rows_of("Q8_0", 900, seed=1).stored
    with pytest.raises(InputError, match="have changed since"):
        engine.topk(np.ones((1, DIM)), 1)


def test_classes_come_and_go() -> None:
    """Rows beside are float32; compacted, all are."""
    rows, rng = rows_of("Q6_K", 900), np.random.default_rng(6)
    hidden, more = rng.standard_normal((8, DIM)), rng.standard_normal((3, DIM)).astype(np.float32)
    weight = np.concatenate([dense_of(rows), more])
    z = hidden @ weight.T.astype(np.float64)
    z[:, [1, 4]] = -np.inf
    changed = hl.compile(hl.Layer(rows), "codes").with_rows(more).without([1, 4])
    for engine in (changed, changed.compact()):
        assert (engine.topk(hidden, 5).ids == np.argsort(-z, axis=1, kind="stable")[:, :5]).all()
