"""What every test of the command line needs: files that commands read, and an environment that they may change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong.store import write_file


@pytest.fixture(autouse=True)
def settled_environment() -> Iterator[None]:
    """Commands claim threads for their whole process; here that ends with the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def files(tmp_path: Path, rng: np.random.Generator) -> Path:
    """A folder with a layer, under the usual names and others, with hidden vectors, and with what else people save."""
    weight, bias = rng.standard_normal((200, 16), np.float32), rng.standard_normal(200).astype(np.float32)
    hidden = rng.standard_normal((70, 16), np.float32)
    hl.Layer(weight, bias).save(tmp_path / "layer.safetensors")
    hl.Layer(np.ascontiguousarray(weight.T)).save(tmp_path / "transposed.safetensors")
    write_file(tmp_path / "plain.safetensors", {"weight": weight, "bias": bias})
    write_file(tmp_path / "named.safetensors", {"out.w": weight, "shift": bias})
    write_file(tmp_path / "h.safetensors", {"hidden": hidden, "other": hidden[:3]})
    np.save(tmp_path / "h.npy", hidden)
    np.savez(tmp_path / "h.npz", states=hidden, other=hidden[:3])
    np.savetxt(tmp_path / "h.csv", hidden, delimiter=",", header="a,b", comments="")
    (tmp_path / "h.pkl").write_bytes(b"\x80\x04junk")
    return tmp_path
