"""Files that were damaged, cut off or left behind, layers that were written to, and engines that are pickled."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from adversarial import DTYPES, build
from headlong.errors import MalformedFileError, OptionError, StoreError, WrongLayerError
from headlong.layers.experts import ExpertsLayer
from headlong.layers.tree import TreeLayer
from headlong.store import checksum, open_file, write_file
from headlong.store.checksum import KEY, PIECE, Checksum

POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions and kill as POSIX has them")


def experts() -> Any:
    weight = np.random.default_rng(0).standard_normal((60, 8)).astype(np.float32)
    return ExpertsLayer(weight[:3], weight, np.tile(np.arange(20), 3), [0, 20, 40, 60], 20)


def tree() -> Any:
    below = np.arange(1, 63).reshape(31, 2)
    weight = np.random.default_rng(0).standard_normal((31, 8)).astype(np.float32)
    return TreeLayer(weight, None, np.where(below < 31, below, ~(below - 31)))


def some_engine(kind: str) -> tuple[Any, np.ndarray]:
    if kind not in ("experts", "tree"):
        made = build("random", "float32")
        return hl.compile(made.layer, kind), made.hidden
    layer = experts() if kind == "experts" else tree()
    return hl.compile(layer), np.random.default_rng(1).standard_normal((5, 8))


def pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))  # noqa: S301  (its own)


def same(a: Any, b: Any, hidden: np.ndarray) -> bool:
    ours, theirs = a.topk(hidden, 3), b.topk(hidden, 3)
    drawn = a.sample(hidden, 2, seed=1).ids == b.sample(hidden, 2, seed=1).ids
    return bool((ours.ids == theirs.ids).all() and (ours.logits == theirs.logits).all() and drawn.all())


@pytest.mark.parametrize("kind", ["full", "codes", "svd", "adaptive", "experts", "tree"])
def test_a_flipped_bit_anywhere_is_noticed(tmp_path: Path, kind: str) -> None:
    engine, hidden = some_engine(kind)
    path = tmp_path / "head.safetensors"
    engine.save(path)
    whole, rng = path.read_bytes(), np.random.default_rng(5)
    for place in rng.integers(0, len(whole), 60):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        with pytest.raises(StoreError):
            hl.load(path)
    path.write_bytes(whole)
    assert same(hl.load(path), engine, hidden) and same(hl.load(path, verify=False, mapped=False), engine, hidden)


def test_damage_is_named_and_can_be_passed_over(tmp_path: Path) -> None:
    engine, _ = some_engine("codes")
    path = tmp_path / "head.safetensors"
    engine.save(path)
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(MalformedFileError, match=r"is damaged: its bytes have .* [0-9a-f]{8}, it records '[0-9a-f]{8}'"):
        hl.load(path)
    hl.load(path, verify=False)


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5])
def test_the_checksum_does_not_depend_on_how_it_is_taken(size: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8).tobytes()
    step, one_by_one = 7_000_001, Checksum()
    for start in range(0, size, step):
        one_by_one.add(memoryview(data)[start : start + step])
    assert one_by_one.text(b"header") == checksum(memoryview(b"header"), memoryview(data), threads=1)
    assert checksum(memoryview(b"header"), memoryview(data)) != checksum(memoryview(b"Header"), memoryview(data))
    for place in {0, size // 2, size - 1} if size else ():
        damaged = bytearray(data)
        damaged[place] ^= 128
        assert checksum(memoryview(b"header"), memoryview(damaged)) != one_by_one.text(b"header")


def without_checksum(path: Path) -> None:
    """The file as earlier versions wrote it."""
    file = open_file(path)
    from safetensors.numpy import save_file

    tensors = {name: np.array(file.read(name)) for name in file.tensors}
    save_file(tensors, str(path), file.metadata)
    assert open_file(path).checksum is None


@pytest.mark.parametrize("kind", ["codes", "tree"])
def test_an_engine_without_a_checksum_is_opened_only_unverified(tmp_path: Path, kind: str) -> None:
    engine, hidden = some_engine(kind)
    path = tmp_path / "head.safetensors"
    engine.save(path)
    without_checksum(path)
    with pytest.raises(StoreError, match="carries no checksum"):
        hl.load(path)
    assert same(hl.load(path, verify=False), engine, hidden)


def test_the_checksums_name_is_taken(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the file's own checksum"):
        write_file(tmp_path / "f", {"a": np.arange(3)}, {KEY: "00000000"})
    write_file(tmp_path / "f", {"a": np.arange(3)}, {"k": "v"})
    assert open_file(tmp_path / "f").metadata == {"k": "v"}


KILLED = """
import os, sys
from headlong.store import replacing
if sys.argv[2] == "by name":
    vars(os).pop("O_TMPFILE", None)
with replacing(sys.argv[1]) as file:
    file.write(b"half of it")
    file.flush()
    print("writing", flush=True)
    sys.stdin.read()
"""


@POSIX
@pytest.mark.parametrize("how", ["by name", "unnamed"] if sys.platform == "linux" else ["by name"])
def test_a_killed_save_leaves_nothing_or_what_a_later_one_clears(tmp_path: Path, how: str) -> None:
    path = tmp_path / "head[1].safetensors"
    command = [sys.executable, "-c", KILLED, str(path), how]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]
    for writer in writers:
        assert writer.stdout is not None and writer.stdout.readline() == b"writing\n"
    writers[0].kill()
    writers[0].communicate()
    writers[1].communicate(b"")
    left = [file for file in tmp_path.iterdir() if file != path]
    assert path.read_bytes() == b"half of it" and len(left) == (how == "by name")
    engine, _ = some_engine("full")
    engine.save(path)
    assert len(list(tmp_path.iterdir())) == 1 + len(left), "files that were written to a moment ago stay"
    for file in left:
        os.utime(file, (time.time() - 4000,) * 2)
    engine.save(path)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("place", ["weight", "bias"])
def test_a_layer_that_was_written_to_is_not_saved(tmp_path: Path, place: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {"weight": rng.standard_normal((300, 8)).astype(np.float32), "bias": np.zeros(300, np.float32)}
    engine = hl.compile(hl.Layer(**arrays), "codes")
    engine.save(tmp_path / "before")
    borrowed = engine.at_temperature(0.5), copy.copy(engine), copy.deepcopy(engine)
    arrays[place][7] += 1
    for one in (engine, *borrowed):
        with pytest.raises(WrongLayerError, match="was written to after this engine was compiled"):
            one.save(tmp_path / "after")
        with pytest.raises(WrongLayerError, match="was written to"):
            pickle.dumps(one)
    assert not (tmp_path / "after").exists()
    again = hl.compile(engine.layer, "codes")
    again.save(tmp_path / "after")
    assert json.loads(open_file(tmp_path / "after").metadata["engine"])["layer"]["checksum"] == hl.Layer(**arrays).checksum()
    with pytest.raises(WrongLayerError, match="made for another layer"):
        hl.load(tmp_path / "before", engine.layer)


def test_a_copy_is_nobody_elses(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).standard_normal((300, 8)).astype(np.float32)
    layer = hl.Layer(weight, copy=True)
    engine = hl.compile(layer, "codes")
    expected = hl.compile(hl.Layer(weight.copy()), "codes")
    weight[:] = 0
    assert layer.stamp() is None and same(engine, expected, np.eye(8))
    engine.save(tmp_path / "head")
    assert same(hl.load(tmp_path / "head"), expected, np.eye(8))
    assert not layer.weight.flags.writeable


@pytest.mark.parametrize("dtype", DTYPES)
def test_layers_are_pickled(dtype: str) -> None:
    layer = build("softcap", dtype).layer
    other = pickled(layer)
    assert other.checksum() == layer.checksum() and repr(other) == repr(layer)
    assert not other.weight.flags.writeable and other.stamp() is None
