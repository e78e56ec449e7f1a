"""Damaged files of every kind that ``save`` writes: never the end of the process, a foreign exception, or an id of no class.

::

    python tests/storm/damage.py --seconds 200 --json storm-damage.json      (`just storm-damage`)

Damage by accident is one flipped bit, or up to 64 bytes of an array that become 0, 127, 128, 192 or 255: with ``verify``, which
is the default, it has to be refused. Damage on purpose is a number, an array or a field of the record that says something else
under a checksum that is right again. Every array of every file gets some of both, and so does its record. Each file is opened
in a child with limits, and asked by every verb: it answers, by no promise then, or raises one of headlong's exceptions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]

from cases import MAKERS, Wanted, build_structured  # noqa: E402
from storm import SANITIZED  # noqa: E402

import headlong as hl  # noqa: E402
from bounded import always, boxes, clustered  # noqa: E402
from fuzz_readers import changed  # noqa: E402
from headlong.engines.base import Engine  # noqa: E402
from headlong.engines.changed import Changed  # noqa: E402
from headlong.errors import HeadlongError  # noqa: E402
from headlong.packed_rows import INT8, PackedRows, width  # noqa: E402
from headlong.store import checksum, open_file, write_file  # noqa: E402
from headlong.store.checksum import NONE, START  # noqa: E402

DIM = 40
PROCESSOR, MEMORY = 20, 6 << 30
"""Seconds and bytes of one child."""
BYTES = (0, 255, 127, 128, 192)
EXTREMES = (math.nan, math.inf, -math.inf, 3e38, -3e38, 1e39, -1e39, 1e300, -1e300, 1e12, 1e-45, 5e-324, -1.0, 0.0, 1.0, 1e6)
WHOLE = (0, 1, -1, 2, 63, 64, 127, 128, 255, 599, 600, 2_499, 2_500, 2**15, 2**16 - 1, 2**31 - 1, -(2**31), 2**62, -(2**63))
"""Numbers that a damage on purpose puts in the place of others."""


def engines(rng: np.random.Generator) -> Iterator[tuple[str, Any]]:
    """Engines of every kind; and layers, which have files of their own."""
    weight = rng.standard_normal((2_500, DIM)) * np.exp(-np.arange(DIM) / 10)
    layer = hl.Layer(weight.astype(np.float32), rng.standard_normal(2_500).astype(np.float32))
    vectors = rng.standard_normal((600, DIM))
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "full": ("full", {}), "int8": ("codes", {}), "codes": ("codes", {"bits": 4}), "adaptive": ("adaptive", {}),
        "calibrated": ("codes", {"calibration": vectors}), "blocks": ("codes", {"blocks": True, "eps": np.inf}),
        "svd": ("svd", {"calibration": vectors}),
    }  # fmt: skip
    for name, (method, options) in asked.items():
        yield name, hl.compile(layer, method, threads=1, **options)
    adapted: Any = hl.compile(layer, "codes", threads=1, adapt=True)
    adapted.topk(rng.standard_normal((1_024, DIM)))
    adapted.wait()
    yield "adapted", adapted
    more = hl.compile(layer, "codes", threads=1).with_rows(rng.standard_normal((90, DIM)).astype(np.float32))
    yield "changed", more.without([3, 4, 2_510])
    rows = np.zeros((300, width(INT8, DIM)), np.uint8)
    rows[:, :4], rows[:, 4:] = np.full((300, 1), 0.01, np.float32).view(np.uint8), rng.integers(0, 256, (300, DIM))
    yield "packed", hl.compile(hl.Layer(PackedRows(rows, INT8, DIM)), "codes", threads=1)
    link = hl.Table(-50.0, 50.0, np.linspace(-9.0, 9.0, 9), 0.1, 0.1)
    yield "table", hl.compile(hl.Layer(weight[:130].astype(ml_dtypes.bfloat16), link=link), "codes", threads=1)
    for dim in (24, 100):  # with leading coordinates alone, and with a rest
        some, hidden = clustered(1_500, dim)
        plain = hl.compile(some, "codes", threads=1, delta=0.0, blocks=False)
        engine = always(plain, boxes(some, hidden), threads=1)
        yield f"boxes{dim}", engine
        if dim == 24:
            yield "changed boxes", engine.with_rows(some.weight[:40]).without([5, 1_510])
    for kind in MAKERS:
        wanted = Wanted(600, 32, 3.0, np.float32, rng.standard_normal((64, 32)), rng)
        structured = build_structured(kind, wanted)[0]
        yield f"engine of {kind}", hl.compile(structured, threads=1)
        yield f"layer of {kind}", structured
    yield "layer", hl.Layer(layer.weight[:200], layer.bias[:200], hl.SoftCap(30.0))  # type: ignore[index]


def arrays(whole: bytes) -> dict[str, tuple[int, int]]:
    """Where the arrays of a safetensors file begin and end."""
    size = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:size])
    places = {name: about["data_offsets"] for name, about in header.items() if name != "__metadata__"}
    return {name: (size + first, size + last) for name, (first, last) in places.items() if last > first}


def damaged(whole: bytes, first: int, last: int, rng: np.random.Generator) -> bytes:
    """With something else in ``first .. last``."""
    data, at = bytearray(whole), int(rng.integers(first, last))
    if rng.random() < 0.5:
        data[at] ^= 1 << int(rng.integers(8))
        return bytes(data)
    stop = min(last, at + int(rng.integers(1, 65)))
    data[at:stop] = rng.choice(BYTES, stop - at).astype(np.uint8).tobytes()
    return bytes(data)


def retold(good: Path, name: str, path: Path, rng: np.random.Generator) -> None:
    """``good`` with another ``name``, an array, or the record where it is empty, at ``path``: its checksum is right."""
    file = open_file(good)
    tensors, metadata = {key: file.read(key) for key in file.tensors}, file.metadata
    if not name:
        metadata = changed(dict(metadata), random.Random(int(rng.integers(2**62))))
    elif rng.random() < 0.75:
        tensors[name] = with_other_numbers(tensors[name], rng)
    else:
        tensors[name] = reshaped(tensors[name], rng)
        if rng.random() < 0.1:
            del tensors[name]
    write_file(path, tensors, metadata)


def moved(whole: bytes, rng: np.random.Generator) -> bytes:
    """The same file with a longer header, behind which no array begins where its type or a line of the caches would have it."""
    size, more = int.from_bytes(whole[:8], "little"), int(rng.integers(1, 64))
    head = bytearray((size + more).to_bytes(8, "little") + whole[8 : 8 + size] + b" " * more)
    place = 8 + len(START)
    head[place : place + len(NONE)] = checksum(memoryview(bytes(head)), memoryview(whole[8 + size :])).encode()
    return bytes(head) + whole[8 + size :]


def with_other_numbers(array: Any, rng: np.random.Generator) -> Any:
    """Some, a run or all of its numbers are others; bytes count as float32 half of the time, at one place of each record."""
    found, number = np.array(array), rng.choice(EXTREMES)
    if not found.size:
        return found
    if found.dtype == np.uint8 and found.ndim == 2 and found.shape[1] >= 4 and rng.random() < 0.7:
        at = int(rng.integers(found.shape[1] // 4)) * 4
        at = max(0, found.shape[1] - 4 - at) // 4 * 4 if rng.random() < 0.7 else at  # numbers stand at the end of a record
        where = slice(None) if rng.random() < 0.4 else int(rng.choice([0, len(found) - 1, rng.integers(len(found))]))
        found[where, at : at + 4] = np.frombuffer(np.float32(number).tobytes(), np.uint8)
        return found
    flat = found.reshape(-1)
    if flat.dtype.kind in "iu":
        info = np.iinfo(flat.dtype)
        number = min(max(int(rng.choice(WHOLE)), info.min), info.max)
    first = int(rng.choice([0, flat.size - 1, rng.integers(flat.size)]))
    flat[first : first + int(rng.choice([1, 1, 2, 64, flat.size]))] = number
    return found


def reshaped(array: Any, rng: np.random.Generator) -> Any:
    """The array with another size, shape or type."""
    forms: list[Callable[[], Any]] = [
        lambda: array[:-1], lambda: array[:0], lambda: np.concatenate([array, array[-1:]]), lambda: array.reshape(-1),
        lambda: array[None], lambda: array.T, lambda: array.view(np.uint8), lambda: array.astype(np.float64),
        lambda: array.astype(np.float16), lambda: array[..., :1], lambda: array[::-1], lambda: np.zeros_like(array),
    ]  # fmt: skip
    return np.ascontiguousarray(forms[rng.integers(len(forms))]())


def asked(path: Path, verify: bool) -> str:
    """ "answered", "refused", or what should not have come."""
    try:
        engine = hl.load(path, threads=2, verify=verify)
        if not hasattr(engine, "topk"):
            engine = hl.compile(engine, "full" if isinstance(engine, hl.Layer) else "auto", threads=1)
        every_verb(engine)
        if isinstance(engine, Engine | Changed):
            settled = getattr(engine, "settled", engine).layer
            every_verb(engine.with_rows(settled.weight[:2]).without([1]))
        engine.save(path.with_name("again"))
        return "answered"
    except HeadlongError:
        return "refused"
    except BaseException:
        return traceback.format_exc()[-900:]


def every_verb(engine: Any) -> None:
    """Whatever it answers, an id is that of a class, or -1."""
    vocab, hidden = engine.layer.vocab, np.random.default_rng(1).standard_normal((9, engine.layer.dim))
    if vocab > 10_000 or engine.layer.dim > 10_000:
        return  # a record that grew: what it asks for takes long, and nothing else
    few, calls = np.arange(vocab) % 7 == 0, [(hidden[:1], {}), (hidden, {}), (hidden, {"exclude": [0, vocab - 1]})]
    for some, limits in [*calls, (hidden[:2], {"allowed": np.flatnonzero(few)})]:
        for top in (engine.topk(some, 5, **limits), engine.topk(some, min(vocab, 300), eps=np.inf, **limits)):
            assert ((top.ids >= -1) & (top.ids < vocab)).all(), f"ids {top.ids.min()} to {top.ids.max()} of {vocab} classes"
        eps = 0.01 if math.isinf(engine.promise.eps) and engine.promise.delta < 1 else None
        engine.lse(some, eps=eps, **limits)
        engine.log_prob(some, np.maximum(top.ids, 0), eps=eps, **limits)
        engine.entropy(some[:2], eps=eps, **limits)
        for filters in ({}, {"top_p": 0.9}, {"top_k": 3, "temperature": 0.5}, {"min_p": 0.1}):
            drawn = engine.sample(some, 2, seed=1, **filters, **limits)
            assert ((drawn.ids >= 0) & (drawn.ids < vocab)).all(), f"draws {drawn.ids.ravel()} of {vocab} classes"
    for ids, _ in itertools.islice(engine.ranked(hidden[:2]), 40):
        assert ((ids >= -1) & (ids < vocab)).all()


def in_a_child(path: Path, verify: bool) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(writer, asked(path, verify).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    status = os.waitpid(child, 0)[1]
    return f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200.0, help="by the clock")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*", help="kinds of files; without, all")
    parser.add_argument("--keep", type=Path, help="a folder for the files that made trouble")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(given.seed)
    came: Counter[str] = Counter()
    trouble: list[str] = []

    def tell(kind: str, array: str, how: str, said: str, may_answer: bool) -> None:
        came[f"{how}: {said if len(said) < 30 else 'other'}"] += 1
        if said != "refused" and not (may_answer and said == "answered"):
            trouble.append(f"{kind}, {array or 'record'}, {how}: {said}")
            if given.keep is not None:
                shutil.copy(path, given.keep / f"{len(trouble)}-{kind}-{array}")

    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        files, path = {}, Path(folder) / "damaged"
        for name, engine in engines(rng):
            engine.save(Path(folder) / name)
            files[name] = (Path(folder) / name).read_bytes()
            path.write_bytes(files[name])
            assert (said := in_a_child(path, True)) == "answered", f"{name}: {said}"
        kinds = [name for name in files if not given.only or name in given.only]
        end = time.monotonic() + given.seconds
        while time.monotonic() < end:
            for name in rng.permutation(kinds):
                for array, (first, last) in (*arrays(files[name]).items(), ("", (0, 0)), ("", (0, 0)), ("", (0, 0))):
                    if time.monotonic() >= end:
                        break
                    if array and (data := damaged(files[name], first, last, rng)) != files[name]:
                        path.write_bytes(data)
                        for verify in (False, True):
                            tell(name, array, "verified" if verify else "not verified", in_a_child(path, verify), not verify)
                    try:
                        retold(Path(folder) / name, array, path, rng)
                        if rng.random() < 0.1:
                            path.write_bytes(moved(path.read_bytes(), rng))
                    except (HeadlongError, ValueError, TypeError, OverflowError, AttributeError):
                        continue  # no such file can be written
                    tell(name, array, "right checksum", in_a_child(path, True), True)
    print(dict(came), *trouble[:40], sep="\n")
    if given.json is not None:
        record: dict[str, Any] = {"version": hl.__version__, "files": sorted(files)}
        record |= {"came": dict(sorted(came.items())), "trouble": trouble[:20]}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if trouble or not came else 0


if __name__ == "__main__":
    sys.exit(main())
