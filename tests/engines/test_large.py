"""A mapped layer of more than 2^31 numbers, where no index may pass through 32 bits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from thinned import left_out

VOCAB, DIM = 4_200_000, 512
NEEDED = 9 * 2**30
"""Bytes: the file in the page cache and the int8 codes, with room to spare."""


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(_free_memory() < NEEDED, reason="needs 9 GiB of free memory")
@pytest.mark.parametrize("method", ["codes", left_out("full")])
def test_more_than_two_to_the_31_numbers(tmp_path: Path, method: str) -> None:
    path, rng = tmp_path / "large.safetensors", np.random.default_rng(3)
    ids = np.array([0, 5, 64, 2**20, VOCAB - 65, VOCAB - 2, VOCAB - 1])
    rows = (rng.standard_normal((len(ids), DIM)) * 2).astype(np.float16)
    entry = {"dtype": "F16", "shape": [VOCAB, DIM], "data_offsets": [0, VOCAB * DIM * 2]}
    header = json.dumps({"weight": entry}).encode()
    header += b" " * (-len(header) % 64)
    with path.open("wb") as file:  # sparse: only the rows that are written take room on the disk
        file.write(len(header).to_bytes(8, "little") + header)
        start = file.tell()
        for i, row in zip(ids, rows, strict=True):
            file.seek(start + int(i) * DIM * 2)
            file.write(row.tobytes())
        file.truncate(start + VOCAB * DIM * 2)
    layer = hl.Layer.load(path, weight="weight")
    assert layer.vocab * layer.dim > 2**31
    engine = hl.compile(layer, method, eps=0.1, delta=0)
    hidden = np.stack([rows[-1], rows[3] - rows[5]]).astype(np.float32)
    logits = hidden.astype(np.float64) @ rows.astype(np.float64).T
    top = engine.topk(hidden, 2)
    assert top.proved.all()
    for b in range(2):
        best = np.argsort(-logits[b])[:2]
        assert top.ids[b].tolist() == ids[best].tolist()
        np.testing.assert_allclose(top.logits[b], logits[b, best], rtol=1e-12)
        most = logits[b].max()
        exact = most + np.log(np.exp(logits[b] - most).sum() + (VOCAB - len(ids)) * np.exp(-most))
        assert abs(top.lse[b] - exact) <= top.error[b] + 1e-9 <= 0.1 + 1e-9
    np.testing.assert_allclose(engine.log_prob(hidden, ids[None].repeat(2, 0)).logits, logits, rtol=1e-12, atol=1e-9)
