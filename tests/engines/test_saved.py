"""Engines in files: what comes back is what was saved; what was damaged or written to is refused; copies and pickles."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import pickle
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from adversarial import build
from bounded import IDS, clustered
from headlong import native
from headlong.engines.base import Engine
from headlong.errors import (
    HeadlongError,
    InputError,
    KernelError,
    MalformedFileError,
    MissingTensorError,
    OptionError,
    StoreError,
    VersionError,
    WrongLayerError,
)
from headlong.plan import Segment, TileLayout
from headlong.store import checksum, open_file, write_file
from headlong.store.checksum import KEY, PIECE, Checksum
from layers import DTYPES
from structured_layers import made


def engine(method: str, case: str = "random", dtype: str = "float32", **options: Any) -> tuple[Engine, np.ndarray]:
    made = build(case, dtype)
    return hl.compile(made.layer, method, eps=0.125, seed=9, **options), made.hidden


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["random", "softcap", "scaled", "one number", "duplicates"])
@pytest.mark.parametrize("method", ["full", "codes", "svd"])
def test_round_trip(tmp_path: Path, method: str, case: str, dtype: str) -> None:
    saved, hidden = engine(method, case, dtype)
    saved.save(tmp_path / "head.safetensors")
    loaded = hl.load(tmp_path / "head.safetensors")
    assert repr(loaded) == repr(saved)
    assert (loaded.promise, loaded.method, loaded.seed, loaded.reason) == (saved.promise, saved.method, 9, saved.reason)
    assert loaded.layer.link == saved.layer.link
    k = min(5, saved.layer.vocab)
    ours, theirs = saved.topk(hidden, k), loaded.topk(hidden, k)
    for name in ("ids", "logits", "proved"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
    # threads add up the same terms in their own order
    np.testing.assert_allclose(ours.lse, theirs.lse, rtol=1e-12)
    np.testing.assert_allclose(ours.error, theirs.error, rtol=1e-6, atol=1e-12)
    assert (saved.sample(hidden, 2, seed=1).ids == loaded.sample(hidden, 2, seed=1).ids).all()


def test_without_its_layer(tmp_path: Path) -> None:
    saved, hidden = engine("codes")
    path = tmp_path / "plan.safetensors"
    saved.save(path, layer=False)
    with pytest.raises(StoreError, match=r"saved without its layer; pass load\(path, layer=...\)"):
        hl.load(path)
    same = hl.Layer(saved.layer.weight.copy(), saved.layer.bias)
    assert (hl.load(path, same).topk(hidden, 3).ids == saved.topk(hidden, 3).ids).all()
    changed = saved.layer.weight.copy()
    changed[-1, -1] += 1e-3
    for other in (
        hl.Layer(changed, saved.layer.bias),
        hl.Layer(saved.layer.weight),
        hl.Layer(saved.layer.weight, saved.layer.bias, hl.SoftCap(3.0)),
        hl.Layer(saved.layer.weight[:-1], saved.layer.bias[:-1]),  # type: ignore[index]
    ):
        with pytest.raises(WrongLayerError, match=r"made for another layer \(777 x 65, float32\)"):
            hl.load(path, other)
    saved.save(path)
    with pytest.raises(WrongLayerError):
        hl.load(path, hl.Layer(changed, saved.layer.bias))


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="what is in memory of a mapped file is read from Linux")
def test_loading_reads_no_weights(tmp_path: Path) -> None:
    """Unverified, next to nothing of a layer of 128 MB comes into memory."""
    rng = np.random.default_rng(0)
    layer = hl.Layer(np.tile(rng.standard_normal((1000, 256)).astype(np.float32), (128, 1)))
    path = tmp_path / "head.safetensors"
    hl.compile(layer, "codes").save(path)
    loaded = hl.load(path, verify=False)
    assert loaded.layer.vocab == 128_000
    assert resident(path) < path.stat().st_size / 2
    float(np.asarray(loaded.layer.weight)[:, ::16].sum())
    assert resident(path) > 100 * 2**20, "what is read is seen"


def resident(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    total, here = 0, False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace").splitlines():
        first = line.split(" ", 1)[0]
        if "-" in first and not first.endswith(":"):
            here = line.endswith(str(path))
        elif here and first == "Rss:":
            total += 1024 * int(line.split()[1])
    return total


def edited(path: Path, change: Any) -> None:
    """Rewrite a saved engine after ``change(record, tensors, metadata)``."""
    file = open_file(path)
    tensors = {name: file.read(name).copy() for name in file.tensors}
    metadata = dict(file.metadata)
    record = json.loads(metadata["engine"])
    change(record, tensors, metadata)
    metadata["engine"] = json.dumps(record) if isinstance(record, dict) and "raw" not in record else "[]"
    write_file(path, tensors, metadata)


def put_in_tile(record: Any, tensors: Any, place: int, number: float, tile: int = -1) -> None:
    """A float32 behind the codes of a tile: scales of every segment, bases, shares, and the tile's own."""
    at = TileLayout.of(tuple(Segment(*one) for one in record["codes"]["segments"])).scales + 4 * place
    tensors["plan.codes.tiles"][tile, at : at + 4] = np.frombuffer(np.float32(number).tobytes(), np.uint8)


def in_tile(kind: int, column: int, number: float, tile: int = -1) -> tuple[Any, type[HeadlongError]]:
    """``kind`` 0: a scale; 1: a base; 2: a share; 3: an error norm of the tile."""
    return lambda r, t, m: put_in_tile(
        r, t, 64 * (kind and len(r["codes"]["segments"]) + kind - 1) + column, number, tile
    ), MalformedFileError


OF_CODES: dict[str, tuple[Any, type[HeadlongError]]] = {
    "a base of a class that only pads": in_tile(1, 63, 0.0),
    "the largest base of a class that only pads": in_tile(1, 63, 3e38),
    "a share of a class that only pads": in_tile(2, 63, 1.0),
    "no base": in_tile(1, 5, -np.inf, 0),
    "a base beyond the largest": in_tile(1, 5, 1e6, 0),
    "a base that is no number": in_tile(1, 5, np.nan, 3),
    "a negative scale": in_tile(0, 5, -1.0, 0),
    "an endless scale": in_tile(0, 5, np.inf, 2),
    "a share below the least": in_tile(2, 5, 0.1, 0),
    "a share of more than all": in_tile(2, 5, 3.0, 0),
    "a negative error": in_tile(3, 0, -1.0, 0),
    "an error that is no number": in_tile(3, 0, np.nan, 1),
    "a centre beyond float32": (lambda r, t, m: t["plan.codes.centre"].__setitem__(0, 1e39), MalformedFileError),
    "a mean beyond all rows": (lambda r, t, m: t["plan.codes.mean"].__setitem__(0, -1e13), MalformedFileError),
    "the largest loss": (lambda r, t, m: r["codes"].update(lost=1e300), MalformedFileError),
    "options that are none": (lambda r, t, m: r["options"].update(segments=7), MalformedFileError),
    "options by number": (lambda r, t, m: r["options"].update(blocks={}), MalformedFileError),
    "newer": (lambda r, t, m: m.update(version="2"), VersionError),
    "another format": (lambda r, t, m: m.update(format="headlong lawyer"), MalformedFileError),
    "no object": (lambda r, t, m: r.update(raw=1), MalformedFileError),
    "no method": (lambda r, t, m: r.pop("method"), MalformedFileError),
    "unknown method": (lambda r, t, m: r.update(method="magic"), MalformedFileError),
    "unknown option": (lambda r, t, m: r["options"].update(speed=9), MalformedFileError),
    "option out of range": (lambda r, t, m: r["options"].update(blocks=-3), MalformedFileError),
    "another vocab": (lambda r, t, m: r["layer"].update(vocab=778), MalformedFileError),
    "another dim": (lambda r, t, m: r["layer"].update(dim=64), MalformedFileError),
    "another dtype": (lambda r, t, m: r["layer"].update(dtype="float16"), MalformedFileError),
    "a foreign link": (lambda r, t, m: r["layer"].update(link={"kind": "table"}), MalformedFileError),
    "negative eps": (lambda r, t, m: r["promise"].__setitem__(0, -1), MalformedFileError),
    "no eps": (lambda r, t, m: r["promise"].__setitem__(0, 0), MalformedFileError),
    "certainly wrong": (lambda r, t, m: r["promise"].__setitem__(1, 2), MalformedFileError),
    "endless norms": (lambda r, t, m: t["norms"].__setitem__(0, np.inf), MalformedFileError),
    "negative norms": (lambda r, t, m: t["norms"].__setitem__(0, -1), MalformedFileError),
    "a mean that is none": (lambda r, t, m: t["plan.codes.mean"].__setitem__(5, np.nan), MalformedFileError),
    "negative bounds": (lambda r, t, m: t["plan.codes.bounds"].__setitem__((0, 1), -1), MalformedFileError),
    "endless bounds": (lambda r, t, m: t["plan.codes.bounds"].__setitem__((0, 1), np.inf), MalformedFileError),
    "negative loss": (lambda r, t, m: r["codes"].update(lost=-1), MalformedFileError),
    "segments beyond dim": (lambda r, t, m: r["codes"].update(segments=[[0, 66, 8, 1]]), MalformedFileError),
    "segments backwards": (lambda r, t, m: r["codes"].update(segments=[[0, 70, 8, 1], [70, 65, 8, 1]]), MalformedFileError),
    "seven bits": (lambda r, t, m: r["codes"]["segments"][0].__setitem__(2, 7), MalformedFileError),
    "fewer bits": (lambda r, t, m: r["codes"]["segments"][0].__setitem__(2, 3), MalformedFileError),
    "three planes": (lambda r, t, m: r["codes"]["segments"][0].__setitem__(3, 3), MalformedFileError),
    "no segments": (lambda r, t, m: r["codes"].update(segments=[]), MalformedFileError),
    "no seed": (lambda r, t, m: r.update(seed=-1), MalformedFileError),
    "short tiles": (lambda r, t, m: t.update({"plan.codes.tiles": t["plan.codes.tiles"][:-1]}), MalformedFileError),
    "short rotation": (lambda r, t, m: t.update({"plan.codes.rotation": t["plan.codes.rotation"][:-1]}), MalformedFileError),
    "wide mean": (lambda r, t, m: t.update({"plan.codes.mean": t["plan.codes.mean"].astype(np.float32)}), MalformedFileError),
    "short norms": (lambda r, t, m: t.update({"norms": t["norms"][:-1]}), MalformedFileError),
    "short bias": (lambda r, t, m: t.update({"layer.bias": t["layer.bias"][:-1]}), MalformedFileError),
    "float64 weight": (lambda r, t, m: t.update({"layer.weight": t["layer.weight"].astype(np.float64)}), MalformedFileError),
    "no centre": (lambda r, t, m: t.pop("plan.codes.centre"), MissingTensorError),
    "no tiles": (lambda r, t, m: t.pop("plan.codes.tiles"), MissingTensorError),
}


def put(name: str, place: Any, value: Any) -> Any:
    """``value``, or what a function makes of the array, at ``place`` of an array."""

    def change(record: Any, tensors: Any, metadata: Any) -> None:
        tensors[name][place] = value(tensors[name]) if callable(value) else value

    return change


def instead(name: str, change: Any) -> Any:
    """Another array; None: none."""

    def put(record: Any, tensors: Any, metadata: Any) -> None:
        array = tensors.pop(name)
        if change is not None:
            tensors[name] = change(array)

    return put


def without_numbers(records: np.ndarray) -> np.ndarray:
    records[:, -100:-96] = records[:, -8:] = 255
    return records


def put_base(of: str, place: int, number: float) -> Any:
    """The base of a node or a class stands in the last 64 bytes of a record of its neighbours."""

    def change(record: Any, tensors: Any, metadata: Any) -> None:
        tensors[f"plan.blocks.levels.{int(of == 'class')}"][place, -64:].view(np.float32)[place] = number

    return change


BASES = {"no number": (0, np.nan), "endless": (0, np.inf), "none": (0, -np.inf), "of one that pads": (-1, 0.0)}
OF_BLOCKS: dict[str, tuple[Any, type[HeadlongError]]] = {
    "a class twice": (put("plan.blocks.order", 3, lambda order: order[2]), HeadlongError),
    **{f"{name} that is no number": (put(f"plan.blocks.{name}", (..., 0), np.nan), HeadlongError)
       for name in ("rest_lost", "mean", "leading")},
    "a negative scale": (put("plan.blocks.rest_scale", 0, -1), HeadlongError),
    **{f"numbers of {name} that are none": (instead(f"plan.blocks.{name}", without_numbers), HeadlongError)
       for name in ("closer", "levels.0")},
    "short levels": (instead("plan.blocks.levels.1", lambda level: level[:-1]), HeadlongError),
    **{f"a base of a {of}, {what}": (put_base(of, *base), HeadlongError)
       for of in ("node", "class") for what, base in BASES.items()},
}  # fmt: skip
OTHERS: dict[str, tuple[Any, str]] = {
    "NaN": (lambda array: array * np.nan, "holds NaN"), "negative": (np.negative, ""),
    "beyond": (lambda array: array * 0 + 1e300, ""), "missing": (None, "is missing"),
    **{kind: (lambda array, kind=kind: array.astype(kind), f"is {kind}") for kind in ("float32", "int64", "complex64")},
}  # fmt: skip
OF_ADAPTIVE = {
    f"{name}, {what}": (instead(f"plan.arrays.{name}", change), MalformedFileError, f"{name} {said}".rstrip())
    for name in ("multipliers", "spread", "column_weight") for what, (change, said) in OTHERS.items()
}  # fmt: skip
OF_CHANGED = {
    what: (change, HeadlongError, "contradicts itself") for what, change in {
        "there": put("changes.there", 0, 2), "ids": instead("changes.ids", lambda ids: ids[::-1].copy()),
        "twice": put("changes.there", 30, 1), "beyond": put("changes.ids", -1, 10**6),
        "rows": put("changes.weight", (0, 0), np.nan),
    }.items()
}  # fmt: skip
CHANGES: dict[str, dict[str, tuple[Any, ...]]] = {
    "codes": OF_CODES, "blocks": OF_BLOCKS, "adaptive": OF_ADAPTIVE, "changed": OF_CHANGED,
}  # fmt: skip


@functools.cache
def file_of(kind: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        if kind == "blocks":
            layer, hidden = clustered(1000, 100)
            one: Any = hl.compile(layer, calibration=hidden, **IDS)
        else:
            one = engine("codes" if kind == "changed" else kind)[0]
        one = one.with_rows(one.layer.weight[:40], ids=np.arange(30, 70)).without([3, 31]) if kind == "changed" else one
        one.save(Path(folder) / "head")
        return (Path(folder) / "head").read_bytes()


@pytest.mark.parametrize(("kind", "change"), [(kind, change) for kind, some in CHANGES.items() for change in some])
def test_contradictions_are_refused(tmp_path: Path, kind: str, change: str) -> None:
    path = tmp_path / "head.safetensors"
    path.write_bytes(file_of(kind))
    edit, error, *said = CHANGES[kind][change]
    edited(path, edit)
    with pytest.raises(error, match=said[0] if said else None):
        hl.load(path)


@pytest.mark.parametrize("number", [3e38, -3e38, 1e15])
@pytest.mark.parametrize("method", ["full", "codes", "svd"])
def test_rows_that_a_plan_was_not_made_of_are_never_classes_behind_the_last(method: str, number: float, tmp_path: Path) -> None:
    """70 classes are a tile and some: what pads the second one is no class, whatever the weights of a file have come to."""
    rng, path = np.random.default_rng(0), tmp_path / "head.safetensors"
    layer, hidden = hl.Layer(rng.standard_normal((70, 8)).astype(np.float32)), rng.standard_normal((9, 8))
    hl.compile(layer, method, threads=1).save(path)
    for rows in (slice(None), slice(60, None), 69):
        edited(path, lambda r, t, m, rows=rows: t["layer.weight"].__setitem__(rows, number))
        with pytest.raises(MalformedFileError, match="its norms are not those of its rows|longer than float32 can hold"):
            hl.load(path)
        engine = hl.load(path, verify=False)
        asked: list[tuple[str, dict[str, Any]]] = [("topk", {}), ("topk", {"eps": np.inf}), ("sample", {"seed": 1})]
        for some, (verb, given) in itertools.product((hidden[:1], hidden), asked):
            with contextlib.suppress(HeadlongError):
                ids = getattr(engine, verb)(some, 5, **given).ids
                assert ((ids >= -1) & (ids < 70)).all()


def test_load_opens_an_engine_or_a_layer_and_says_which(tmp_path: Path) -> None:
    saved, _ = engine("codes")
    path = tmp_path / "head.safetensors"
    saved.save(path)
    assert repr(hl.load(path)).startswith("Engine(")
    with pytest.raises(MalformedFileError, match="holds a headlong engine; expected a layer: headlong.load opens engines, too"):
        hl.structured.load_layer(path)
    saved.layer.save(path)
    found = hl.load(path)
    assert repr(found).startswith("Layer(") and found.checksum() == saved.layer.checksum()
    with pytest.raises(InputError, match="holds a layer; expected an engine where layer= is given"):
        hl.load(path, layer=saved.layer)
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(StoreError, match="checksum"):
        hl.load(path)
    assert hl.load(path, verify=False).vocab == saved.layer.vocab


def test_every_level_opens_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved, hidden = engine("codes")
    saved.save(tmp_path / "head.safetensors")
    for level in native.levels():
        monkeypatch.setenv("HEADLONG_ISA", level)
        loaded = hl.load(tmp_path / "head.safetensors", threads=1)
        assert f"kernel {level}" in repr(loaded)
        assert (loaded.topk(hidden, 3).ids == saved.topk(hidden, 3).ids).all()
    monkeypatch.setenv("HEADLONG_ISA", "none")
    with pytest.raises(KernelError):
        hl.load(tmp_path / "head.safetensors")


POSIX = pytest.mark.skipif(os.name != "posix", reason="permissions and kill as POSIX has them")


def some_engine(kind: str) -> tuple[Any, np.ndarray]:
    case = made(kind, 8, 60) if kind in ("experts", "tree") else build("random", "float32")
    return hl.compile(case.layer, "auto" if kind in ("experts", "tree") else kind), case.hidden


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
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    if kind == "codes":  # what ends other files contradicts the rest of them
        with pytest.raises(MalformedFileError, match=r"is damaged: its bytes have .* [0-9a-f]{8}, it records '[0-9a-f]{8}'"):
            hl.load(path)
        hl.load(path, verify=False)
    path.write_bytes(whole)
    assert same(hl.load(path), engine, hidden) and same(hl.load(path, verify=False, mapped=False), engine, hidden)


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
