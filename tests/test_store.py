"""store.py: read and written as the safetensors library does, whole or not at all."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from children import said
from headlong import store
from headlong.errors import (
    DtypeError,
    MalformedFileError,
    MissingTensorError,
    OptionError,
    StoreError,
    VersionError,
)

# complex64 arrays of hypothesis are slow, and C64 is covered by the fuzzer
COMMON = [dtype for name, dtype in store.DTYPES.items() if name not in {"BF16", "F8_E4M3", "F8_E5M2", "C64"}]
shapes = npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
arrays = st.sampled_from(COMMON).flatmap(lambda dtype: npst.arrays(dtype, shapes))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(lambda name: name != "__metadata__")
files = st.dictionaries(names, arrays, max_size=5)


def same(one: Any, other: Any) -> None:
    assert one.dtype == other.dtype
    assert one.shape == other.shape
    assert one.tobytes() == other.tobytes()


def raw(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(start: int = 0, stop: int = 8, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


# ---- both ways with the safetensors library ----


@given(tensors=files, metadata=st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"])), max_size=3))
def test_the_library_reads_what_we_write(tmp_path_factory: Any, tensors: dict[str, Any], metadata: dict[str, str]) -> None:
    path = tmp_path_factory.getbasetemp() / "ours.safetensors"
    store.write_file(path, tensors, metadata)
    theirs = safetensors.numpy.load_file(path)
    assert set(theirs) == set(tensors)
    for name, array in tensors.items():
        same(theirs[name], array)
    ours = store.open_file(path)
    assert ours.metadata == metadata
    for name, array in tensors.items():
        same(ours.read(name), array)


@given(tensors=files)
def test_we_read_what_the_library_writes(tmp_path_factory: Any, tensors: dict[str, Any]) -> None:
    path = tmp_path_factory.getbasetemp() / "theirs.safetensors"
    safetensors.numpy.save_file({name: np.ascontiguousarray(array) for name, array in tensors.items()}, path)
    ours = store.open_file(path)
    for name, array in tensors.items():
        same(ours.read(name).reshape(array.shape), array)  # ascontiguousarray makes a scalar one-dimensional


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.bool, torch.int64])
def test_torch_reads_what_we_write_and_the_other_way(dtype: torch.dtype, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensor = torch.arange(12).reshape(3, 4).to(dtype)
    save_file({"t": tensor}, tmp_path / "theirs.safetensors")
    array = store.open_file(tmp_path / "theirs.safetensors").read("t")
    assert (array.astype(np.float32) == tensor.float().numpy()).all()
    store.write_file(tmp_path / "ours.safetensors", {"t": array})
    assert torch.equal(load_file(tmp_path / "ours.safetensors")["t"].float(), tensor.float())


def test_tensors_and_odd_strides_are_written(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    wide = np.arange(24, dtype=np.float32).reshape(4, 6)
    tensors = {
        "bf16": torch.arange(3).bfloat16(),
        "t": wide.T,
        "step": wide[::-2, ::3],
        "big": wide.astype(">f4"),
        "scalar": np.float64(2.5),
    }
    store.write_file(path, tensors)
    file = store.open_file(path)
    same(file.read("bf16"), np.arange(3).astype(ml_dtypes.bfloat16))
    for name in ("t", "step", "big", "scalar"):
        assert (file.read(name) == tensors[name]).all()


def test_pieces_join_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(store.writing, "PIECE", 100)
    tensors = {f"{n}": rng.integers(0, 99, (n, 3)).astype(np.int16)[:, ::order] for n in (1, 16, 17, 50) for order in (1, -1)}
    store.write_file(tmp_path / "f", tensors)
    for name, array in safetensors.numpy.load_file(tmp_path / "f").items():
        same(array, tensors[name])


# ---- mapping and alignment ----


def test_data_starts_aligned_and_so_does_all_that_can(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    sizes = {"a": 3, "b": 64, "c": 20, "d": 640, "e": 32, "f": 1, "g": 0, "h": 8}
    store.write_file(path, {name: np.zeros(size, np.uint8) for name, size in sizes.items()}, {"name": "é"})
    file = store.open_file(path)
    origin = path.stat().st_size - sum(sizes.values())
    assert origin % 64 == 0
    for name, size in sizes.items():
        assert not size or size % 64 or file.read(name).ctypes.data % 64 == 0, name
        assert file.tensors[name].start % store.writing._alignment(size) == 0, name


def test_tensors_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    store.write_file(path, {"a": np.arange(64, dtype=np.float16), "b": np.arange(4)})
    file = store.open_file(path)
    bytes_of = np.frombuffer(file._data, np.uint8)
    for name in ("a", "b"):
        array = file.read(name)
        assert np.shares_memory(array, bytes_of)
        assert not array.flags.writeable
        assert array.flags.aligned


def test_misaligned_tensors_are_copied() -> None:
    file = store.TensorFile(raw({"a": entry(0, 1, [1], "U8"), "b": entry(1, 9)}, b"\1" + struct.pack("<2f", 2, 3)), "f")
    assert file.read("b").tolist() == [2, 3]
    assert file.read("b").flags.aligned
    assert not file.read("b").flags.writeable


# ---- everything malformed ----

TWO = {"a": entry(0, 8), "b": entry(8, 16)}
LONG = 2**62


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "f has 0 bytes"),
        (b"\x02\0\0\0", "f has 4 bytes"),
        (raw({}, length=3), "cut off: its header ends at byte 11, the file at 10"),
        (raw({}, length=2**64 - 1), "header of 18446744073709551615 bytes"),
        (raw({}, length=100_000_001), "at most 100000000"),
        (raw(b" {}"), "does not start with '{'"),
        (raw(b""), "does not start with '{'"),
        (raw(b"{}\0"), "not valid JSON"),
        (raw(b'{"a'), "not valid JSON"),
        (raw(b'{"a":\xff}'), "not valid JSON"),
        (raw(b'{"\\ud800":1}'), "not valid JSON"),
        (raw(b'{"a":' + b"[" * 100_000), "not valid JSON"),
        (raw(b'{"a":' + b"9" * 10_000 + b"}"), "not valid JSON"),
        (raw(b'{"a":1,"a":2}'), "names a key twice"),
        (raw(b'{"a":{"dtype":"F32","dtype":"F32","shape":[0],"data_offsets":[0,0]}}'), "names a key twice"),
        (raw({"__metadata__": {"a": 1}}), "text to text"),
        (raw({"__metadata__": []}), "text to text"),
        (raw({"a": 3}), "tensor 'a' has to have dtype, shape and data_offsets"),
        (raw({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "has to have"),
        (raw({"a": {**entry(), "more": 1}}, bytes(8)), "nothing else"),
        (raw(b'{"a":{"dtype":"F32","shape":[],"data_offsets":[-0,4]}}', bytes(4)), "the negative number -0"),
        (raw({"a": entry(dtype="F31")}, bytes(8)), "unknown dtype 'F31'"),
        (raw({"a": entry(dtype=["F32"])}, bytes(8)), "unknown dtype"),
        (raw({"a": entry(shape=[3])}, bytes(8)), r"has 8 bytes; shape \[3\] of F32 takes another number"),
        (raw({"a": entry(shape=[-2])}, bytes(8)), r"the negative number -2"),
        (raw({"a": entry(shape=[2.0])}, bytes(8)), r"shape \[2.0\]"),
        (raw({"a": entry(shape=[True, 2])}, bytes(8)), r"shape \[True, 2\]"),
        (raw({"a": entry(shape=2)}, bytes(8)), "shape 2;"),
        (raw({"a": entry(shape=[1] * 65)}, bytes(8)), "at most 64 sizes"),
        (raw({"a": entry(shape=[LONG, LONG])}, bytes(8)), "more bytes than 64 bits can count"),
        (raw({"a": entry(0, 0, [0, LONG, LONG])}), "more bytes than 64 bits can count"),
        (raw({"a": entry(0, 0, [2**63])}), r"shape \[9223372036854775808\]"),
        (raw({"a": {**entry(), "data_offsets": [0, 8, 16]}}, bytes(8)), "data_offsets"),
        (raw({"a": {**entry(), "data_offsets": [8, 0]}}, bytes(8)), "start <= stop"),
        (raw({"a": {**entry(), "data_offsets": [-8, 0]}}, bytes(8)), "the negative number -8"),
        (raw({"a": {**entry(), "data_offsets": [0, 2**64]}}, bytes(8)), "data_offsets"),
        (raw(TWO, bytes(15)), "cut off: its tensors take 16 bytes, it holds 15"),
        (raw(TWO, bytes(17)), "bytes that belong to no tensor"),
        (raw({"a": entry(0, 8), "b": entry(4, 12)}, bytes(12)), "'b' starts at byte 4, not 8: it overlaps"),
        (raw({"a": entry(0, 8), "b": entry(0, 8)}, bytes(8)), "overlaps"),
        (raw({"a": entry(0, 8), "b": entry(9, 17)}, bytes(17)), "leaves a hole"),
        (raw({"a": entry(0, 3, [5], "F4")}, bytes(3)), "another number"),
    ],
)
def test_malformed_files_are_refused(data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(MalformedFileError, match=message):
        store.TensorFile(data, "f")
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(MalformedFileError):
        store.open_file(tmp_path / "f")


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    store.write_file(tmp_path / "f", {"a": np.arange(5), "b": np.ones(3, np.float16)}, {"k": "v"})
    whole = (tmp_path / "f").read_bytes()
    for length in range(len(whole)):
        with pytest.raises(MalformedFileError):
            store.TensorFile(whole[:length], "f")


def test_types_that_numpy_cannot_name_do_not_hide_the_others() -> None:
    file = store.TensorFile(raw({"a": entry(0, 3, [2, 3], "F4"), "b": entry(3, 5, [2], "I8")}, bytes([0, 0, 0, 1, 2])), "f")
    assert file.read("b").tolist() == [1, 2]
    with pytest.raises(DtypeError, match="'a' is F4, which is not read"):
        file.read("a")


def test_a_missing_tensor_is_named_with_those_there() -> None:
    with pytest.raises(MissingTensorError, match="f has no tensor 'c'; it has 'a', 'b'"):
        store.TensorFile(raw(TWO, bytes(16)), "f").read("c")


def test_booleans_are_booleans() -> None:
    with pytest.raises(MalformedFileError, match="other than 0 and 1"):
        store.TensorFile(raw({"a": entry(0, 2, [2], "BOOL")}, b"\1\2"), "f").read("a")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot be read: .*No such file"):
        store.open_file(tmp_path / "none")
    with pytest.raises(StoreError, match="not a regular file"):
        store.open_file(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="not a regular file"):
        store.open_file(tmp_path / "pipe")
    with pytest.raises(StoreError, match="holds no null byte"):
        store.open_file("a\0b")
    (tmp_path / "empty").touch()
    with pytest.raises(MalformedFileError, match="is empty"):
        store.open_file(tmp_path / "empty")


@pytest.mark.skipif(os.name != "posix", reason="pipes and devices as POSIX has them")
def test_a_write_replaces_files_alone(tmp_path: Path) -> None:
    """A device, a pipe or a folder stays what it is, for root, too; so does what a link to one leads to."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("folder", "pipe", "link"):
        with pytest.raises(StoreError, match=f"{name} cannot be written: it is not a regular file"):
            store.write_file(tmp_path / name, {"a": np.zeros(3)})
    assert (tmp_path / "folder").is_dir() and (tmp_path / "pipe").is_fifo() and (tmp_path / "link").is_symlink()
    for device in ("/dev/full", "/dev/null"):
        with pytest.raises(StoreError, match="is not a regular file"):
            store.write_file(device, {})
        assert Path(device).is_char_device()


# ---- under a limit on memory ----

LIMITED = """
import os, resource, signal, sys
import numpy as np
import headlong as hl
from headlong.store.checksum import checksum

size, folder, native = 3 << 24, sys.argv[1], hl.compile(hl.Layer(np.eye(3, dtype=np.float32)), "full", threads=1)
data = np.ones(size, np.uint8)
layer = hl.Layer(data.view(np.float32).reshape(-1, 64))
expected = checksum(memoryview(b""), memoryview(data), 1)

def saved():
    hl.compile(layer, "full", threads=2).save(folder + "/head")

def summed():
    assert checksum(memoryview(b""), memoryview(data), 4) == expected

for what in (summed, saved):
    for extra in (0, 2048, *range(7936, 8448, 32), 9000, 16640, 24000, 40000, 90000):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (extra << 10),) * 2)
            try:
                what()
            except MemoryError:
                pass
            except BaseException as error:
                os.write(2, f"{type(error).__name__}: {error}".encode())
                os._exit(3)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            sys.exit(f"{what.__name__} with {extra} KiB to spare ended with {status}")
print("all ended")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
@pytest.mark.skipif("san.so" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer needs terabytes of addresses")
def test_a_limit_on_memory_is_a_memory_error_and_no_wait(tmp_path: Path) -> None:
    """8 MiB are a thread's stack: with little more it starts and dies."""
    assert said(LIMITED, tmp_path) == "all ended"


# ---- versions ----


def test_versions() -> None:
    assert store.check_version({"format": "headlong layer", "version": "2"}, "headlong layer", 3, "f") == 2
    with pytest.raises(VersionError, match=r"f has version 4 of the headlong layer format; this headlong reads up to 3"):
        store.check_version({"format": "headlong layer", "version": "4"}, "headlong layer", 3, "f")
    with pytest.raises(MalformedFileError, match="says format 'pt'"):
        store.check_version({"format": "pt"}, "headlong layer", 3, "f")
    for bad in ("", "0", "-1", "1.5", "٣", "9" * 5000):
        with pytest.raises(MalformedFileError, match="expected a whole number from 1"):
            store.check_version({"format": "x", "version": bad}, "x", 3, "f")


# ---- written whole or not at all ----


def test_unwritable_things_are_refused_before_the_old_file_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "f"
    store.write_file(path, {"old": np.arange(3)})
    for tensors, metadata, error in [
        ({"a": np.zeros(2, np.longdouble)}, {}, DtypeError),
        ({"a": [object()]}, {}, DtypeError),
        ({"__metadata__": np.zeros(2)}, {}, OptionError),
        ({"\ud800": np.zeros(2)}, {}, OptionError),
        ({"a": np.zeros(2)}, {"k": 3}, OptionError),
    ]:
        with pytest.raises(error):
            store.write_file(path, tensors, metadata)  # type: ignore[arg-type]
    assert list(store.open_file(path).tensors) == ["old"]
    assert os.listdir(tmp_path) == ["f"]


def test_a_fault_while_writing_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def write_half(fault: BaseException) -> None:
        with store.replacing(path) as file:
            file.write(b"new")
            raise fault

    with pytest.raises(KeyboardInterrupt):
        write_half(KeyboardInterrupt())
    with pytest.raises(StoreError, match=r"cannot be written: disk full"):
        write_half(OSError("disk full"))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_that_is_not_there_is_made(tmp_path: Path) -> None:
    """As ``-o`` of every command does."""
    store.write_file(tmp_path / "none" / "at all" / "f", {})
    assert store.open_file(tmp_path / "none" / "at all" / "f").tensors == {}
    with pytest.raises(StoreError, match="cannot be written"):
        store.write_file(tmp_path / "none" / "at all" / "f" / "g", {})


def test_a_link_keeps_pointing_and_permissions_are_the_usual(tmp_path: Path) -> None:
    store.write_file(tmp_path / "f", {})
    (tmp_path / "link").symlink_to("f")
    store.write_file(tmp_path / "link", {"a": np.zeros(1)})
    assert (tmp_path / "link").is_symlink()
    assert "a" in store.open_file(tmp_path / "f").tensors
    (tmp_path / "plain").touch()
    assert (tmp_path / "f").stat().st_mode == (tmp_path / "plain").stat().st_mode


SAVER = """
import sys, numpy as np
from headlong.store import write_file
n = 0
while True:
    n += 1
    write_file(sys.argv[1], {"a": np.full(1 << 20, n, np.int32), "n": np.array(n)})
    if n == 1: print("ready", flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is POSIX")
def test_a_killed_save_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for delay in (0.0, 0.003, 0.007, 0.011, 0.02):
        child = subprocess.Popen([sys.executable, "-c", SAVER, path], stdout=subprocess.PIPE)
        assert child.stdout is not None
        with child.stdout:
            child.stdout.readline()
            time.sleep(delay)
            child.send_signal(signal.SIGKILL)
            child.wait()
        file = store.open_file(path)
        assert (file.read("a") == file.read("n")).all()
