"""Teacher files: each token's likeliest classes, their exact logits, and the log of the mass behind them.

    tail = log(1 - sum over the k best of p)        within ``tail_error``: from lse, which the engine keeps within eps

A folder of safetensors shards, ``teacher-00000.safetensors`` and so on: ``ids [n, k]`` int32, ``logits [n, k]``, ``lse, error,
tail, tail_error [n]`` float32. A shard is written whole or not at all, so a run that was stopped goes on where it was; it
records digests of the layer and of its vectors, so that no other run goes on from it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headlong.answers import TopK
from headlong.arrays import hidden_rows
from headlong.dtypes import Floats
from headlong.errors import InputError, MalformedFileError, StoreError, named
from headlong.number_checks import file_name, whole
from headlong.store import open_file, write_file

FORMAT, BLOCK, SHARD = "headlong teacher", 256, 65_536


class Teacher(NamedTuple):
    """One shard: ``ids, logits [n, k]``, ``lse, error, tail, tail_error [n]``."""

    ids: NDArray[np.int32]
    logits: Floats
    lse: Floats
    error: Floats
    tail: Floats
    tail_error: Floats


def distill(
    engine: Any, hidden: ArrayLike, out: str | os.PathLike[str], k: int = 64, shard: int = SHARD,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:  # fmt: skip
    """What ``engine`` says of ``hidden [n, dim]``, in ``out``; shards that are there already, of the same call, are kept."""
    if not (hasattr(engine, "topk") and hasattr(getattr(engine, "layer", None), "checksum")):
        raise InputError(f"engine is {named(engine)}; expected one that headlong.compile made, which holds its layer")
    hidden = hidden_rows(hidden, engine.layer.dim)
    whole(k, "k", 1, engine.layer.vocab)
    whole(shard, "shard", 1, 2**40)
    folder = Path(file_name(out, "out"))
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file; give another folder")
    folder.mkdir(parents=True, exist_ok=True)
    call = {"format": FORMAT, "k": str(k), "promise": str(engine.promise), "layer": engine.layer.checksum()}
    made = []
    for number, start in enumerate(range(0, len(hidden), shard)):
        stop, path = min(start + shard, len(hidden)), folder / f"teacher-{number:05d}.safetensors"
        vectors = hashlib.sha256(np.ascontiguousarray(hidden[start:stop]).view(np.uint8).data).hexdigest()
        about = {**call, "start": str(start), "stop": str(stop), "hidden": f"{hidden.dtype} {vectors}"}
        if not path.exists():
            parts = [_taught(engine, hidden[at : min(at + BLOCK, stop)], k) for at in range(start, stop, BLOCK)]
            columns = (np.concatenate(column) for column in zip(*parts, strict=True))
            write_file(path, dict(zip(Teacher._fields, columns, strict=True)), about)
        else:
            open_file(path).check_call(about)
        made.append(path)
        if progress is not None:
            progress(stop, len(hidden))
    return made


def _taught(engine: Any, hidden: ArrayLike, k: int) -> Teacher:
    top: TopK = engine.topk(np.asarray(hidden).astype(np.float64), k)
    tail, tail_error = tail_of(top, engine.layer.vocab)
    ids, logits = top.ids.astype(np.int32), top.logits.astype(np.float32)
    lse, error = top.lse.astype(np.float32), (top.error + np.abs(top.lse) * 2.0**-24).astype(np.float32)
    return Teacher(ids, logits, lse, error, tail.astype(np.float32), tail_error.astype(np.float32))


def tail_of(top: TopK, vocab: int) -> tuple[Any, Any]:
    """``log(1 - mass of top)`` and how far off it is: both ends, whose middle is given; -inf where no class is left."""
    mass = np.where(top.ids < 0, 0.0, np.exp(top.log_probs)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (np.log1p(-np.minimum(mass * np.exp(end), 1.0)) for end in (top.error, -top.error))
        middle = np.where(np.isneginf(high), -np.inf, np.where(np.isneginf(low), high, (low + high) / 2))
        error = np.where(np.isneginf(high), 0.0, np.where(np.isneginf(low), np.inf, (high - low) / 2))
    every = (top.ids < 0).any(axis=1) | (top.ids.shape[1] == vocab)  # what the normaliser's error leaves is no class's
    middle, error = np.where(every, -np.inf, middle), np.where(every, 0.0, error)
    return middle, error + 2.0**-23 * np.abs(np.where(np.isfinite(middle), middle, 0.0))


def read_teacher(folder: str | os.PathLike[str]) -> Iterator[Teacher]:
    """The shards, in the order of their tokens, mapped."""
    paths = sorted(Path(file_name(folder, "folder")).glob("teacher-*.safetensors"))
    if not paths:
        raise MalformedFileError(f"{folder} has no teacher-*.safetensors; expected what headlong distill wrote")
    for path in paths:
        file = open_file(path)
        if file.metadata.get("format") != FORMAT:
            raise MalformedFileError(f"{path} is no teacher file; expected what headlong distill wrote")
        yield Teacher(*(file.read(name) for name in Teacher._fields))
