"""Damaged files of every kind of engine: refused where they are verified, and never the end of the process where they are not.

::

    python tests/storm/damage.py --seconds 200 --json storm-damage.json      (`just storm-damage`)

One damage is one flipped bit, or up to 64 bytes of an array that become 0, 127, 128, 192 or 255; every array of every file gets
some. Each damaged file is opened without ``verify`` in a child with limits, and asked by every verb: it answers, by no promise
then, or raises one of headlong's exceptions. With ``verify``, which is the default, it has to be refused.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "helpers")]

from cases import MAKERS, Wanted, build_structured  # noqa: E402
from storm import SANITIZED  # noqa: E402

import headlong as hl  # noqa: E402
from headlong.errors import HeadlongError  # noqa: E402

DIM = 40
PROCESSOR, MEMORY = 20, 6 << 30
"""Seconds and bytes of one child."""
BYTES = (0, 255, 127, 128, 192)


def engines(rng: np.random.Generator) -> Iterator[tuple[str, Any, int]]:
    """``(name, engine, columns of its queries)``."""
    weight = rng.standard_normal((2_500, DIM)) * np.exp(-np.arange(DIM) / 10)
    layer = hl.Layer(weight.astype(np.float32), rng.standard_normal(2_500).astype(np.float32))
    vectors = rng.standard_normal((600, DIM))
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "full": ("full", {}), "int8": ("codes", {}), "codes": ("codes", {"bits": 4}), "adaptive": ("adaptive", {}),
        "calibrated": ("codes", {"calibration": vectors}), "blocks": ("codes", {"blocks": True, "eps": np.inf}),
        "svd": ("svd", {"calibration": vectors}),
    }  # fmt: skip
    for name, (method, options) in asked.items():
        yield name, hl.compile(layer, method, threads=1, **options), DIM
    adapted: Any = hl.compile(layer, "codes", threads=1, adapt=True)
    adapted.topk(rng.standard_normal((1_024, DIM)))
    adapted.wait()
    yield "adapted", adapted, DIM
    more = hl.compile(layer, "codes", threads=1).with_rows(rng.standard_normal((90, DIM)).astype(np.float32))
    yield "changed", more.without([3, 4, 2_510]), DIM
    for kind in MAKERS:
        wanted = Wanted(600, 32, 3.0, np.float32, rng.standard_normal((64, 32)), rng)
        yield kind, hl.compile(build_structured(kind, wanted)[0], threads=1), 32


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


def asked(path: Path, dim: int, verify: bool) -> str:
    """ "answered", "refused", or what should not have come."""
    try:
        engine = hl.load(path, threads=2, verify=verify)
        hidden = np.random.default_rng(1).standard_normal((9, dim))
        for some in (hidden[:1], hidden):
            top = engine.topk(some, 5)
            engine.topk(some, 5, eps=np.inf)
            engine.lse(some)
            engine.log_prob(some, np.maximum(top.ids, 0))
            engine.sample(some, 2, seed=1)
            engine.sample(some, 2, seed=1, top_p=0.9)
        return "answered"
    except HeadlongError:
        return "refused"
    except BaseException:
        return traceback.format_exc()[-600:]


def in_a_child(path: Path, dim: int, verify: bool) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if not SANITIZED:
            resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR + 1))
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        os.write(writer, asked(path, dim, verify).encode())
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
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    rng, end = np.random.default_rng(given.seed), time.monotonic() + given.seconds
    came: Counter[str] = Counter()
    trouble: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        files, path = {}, Path(folder) / "damaged"
        for name, engine, dim in engines(rng):
            engine.save(Path(folder) / name)
            files[name] = ((Path(folder) / name).read_bytes(), dim)
        kinds = [(name, *one) for name, one in files.items()]
        while time.monotonic() < end:
            for name, whole, dim in (kinds[i] for i in rng.permutation(len(kinds))):
                for array, (first, last) in arrays(whole).items():
                    if time.monotonic() >= end:
                        break
                    if (data := damaged(whole, first, last, rng)) == whole:
                        continue
                    path.write_bytes(data)
                    for verify in (False, True):
                        said = in_a_child(path, dim, verify)
                        came[f"{'verified' if verify else 'not verified'}: {said if len(said) < 30 else 'other'}"] += 1
                        if said not in ("refused", *(() if verify else ("answered",))):
                            trouble.append(f"{name}, {array}, verify={verify}: {said}")
    print(dict(came), *trouble[:10], sep="\n")
    if given.json is not None:
        record: dict[str, Any] = {"version": hl.__version__, "files": sorted(files)}
        record |= {"came": dict(sorted(came.items())), "trouble": trouble[:20]}
        given.json.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if trouble or not came else 0


if __name__ == "__main__":
    sys.exit(main())
