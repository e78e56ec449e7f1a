"""A model without its vocabulary: the GGUF file that llama.cpp runs for us, written once.

Everything is as in the original, byte for byte, but for three things: the tokenizer is "none", and the embedding and the head
have their first 32 rows, which is enough to check on loading that rows go in and logits come out as llama.cpp would have it.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

import numpy as np

from headlong import store
from headlong.arrays import Array
from headlong.errors import HeadlongError, MalformedFileError, MissingTensorError, StoreError, UnsupportedError, cause
from headlong.layers.gguf_file import EMBEDDING, HEAD, GgufFile
from headlong.layers.gguf_header import MAGIC, GgufHeader
from headlong.store import checksum, mapped_bytes, replacing

ROWS = 32
SOURCE = "headlong.source"
FOLDER = "HEADLONG_CACHE"
TEXT, UINT32 = 8, 4
ALIGNMENT = 32


def body_file(file: GgufFile, folder: str | os.PathLike[str] | None = None) -> Path:
    """The body of ``file`` in ``folder``, written if it is not there; found again by the checksum of the whole original."""
    place = cache_folder() if folder is None else Path(folder)
    source = fingerprint(file)
    path = place / f"{Path(file.name).stem}.{source}.body.gguf"
    if not _is_body(path, source):
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{place} cannot be made: {cause(error)}; pass another folder as cache=") from error
        facts, tensors = _facts(file, source), _tensors(file)
        with replacing(path) as out:
            _write(out, facts, tensors)
    return path


def cache_folder() -> Path:
    """``HEADLONG_CACHE``, or ``headlong/models`` in the user's cache folder."""
    named = os.environ.get(FOLDER)
    return Path(named) if named else store.cache_folder() / "models"


def fingerprint(file: GgufFile) -> str:
    """The sizes and checksums of all parts."""
    return "-".join(f"{len(data):x}-{checksum(memoryview(b''), memoryview(data))}" for data in (one.data for one in file.parts))


def _is_body(path: Path, source: str) -> bool:
    """Whether a whole body of this original is there; a damaged one is written anew."""
    if not path.exists():
        return False
    try:
        return bool(GgufHeader(mapped_bytes(path, "GGUF"), str(path)).value(SOURCE) == source)
    except HeadlongError:
        return False


def _facts(file: GgufFile, source: str) -> list[bytes]:
    """The original's, but for those about the vocabulary and about how the file lies on the disk."""
    first = file.parts[0]
    size = f"{first.value('general.architecture')}.vocab_size"
    replaced = ("tokenizer.", "split.", "general.alignment", SOURCE)
    kept = [first.raw(key) for key in first.keys if not key.startswith(replaced) and key != size]
    rows = _shape(file)[0]
    model = _text("tokenizer.ggml.model") + struct.pack("<I", TEXT) + _text("none")
    vocab = _text(size) + struct.pack("<II", UINT32, min(ROWS, rows))
    return [*kept, model, vocab, _text(SOURCE) + struct.pack("<I", TEXT) + _text(source)]


def _shape(file: GgufFile) -> tuple[int, ...]:
    for part in file.parts:
        if EMBEDDING in part.tensors:
            return part.tensors[EMBEDDING].shape
    raise MissingTensorError(f"{file.name} has no tensor {EMBEDDING!r}: it is not a language model that llama.cpp runs")


def _tensors(file: GgufFile) -> list[tuple[bytes, Array]]:
    """``(name, shape and type as the header has them, bytes)`` of every tensor, those of the vocabulary cut."""
    vocab, dim = _shape(file)[0], _shape(file)[-1]
    found = []
    for part in file.parts:
        for name, tensor in part.tensors.items():
            rows, shape = part.rows(tensor), tensor.shape
            if name in (EMBEDDING, HEAD) and shape != (vocab, dim):
                raise MalformedFileError(f"{file.name}: {name} has shape {list(shape)}; expected {[vocab, dim]}")
            if name in (EMBEDDING, HEAD):
                rows, shape = rows[:ROWS], (min(ROWS, vocab), dim)
            elif vocab > ROWS and vocab in shape and not name.startswith("blk."):
                raise UnsupportedError(
                    f"{file.name} has {name} {list(shape)}, rows of tokens that are neither its embedding nor its head, which "
                    "are not read here: use llama_cpp.Llama for this model"
                )
            about = _text(name) + struct.pack(f"<I{len(shape)}QI", len(shape), *shape[::-1], tensor.type)
            found.append((about, np.ascontiguousarray(rows).reshape(-1)))
    return found


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _write(out: BinaryIO, facts: list[bytes], tensors: list[tuple[bytes, Array]]) -> None:
    out.write(MAGIC + struct.pack("<IQQ", 3, len(tensors), len(facts)) + b"".join(facts))
    offset = 0
    for about, data in tensors:
        out.write(about + struct.pack("<Q", offset))
        offset += data.nbytes + -data.nbytes % ALIGNMENT
    out.write(bytes(-out.tell() % ALIGNMENT))
    for _, data in tensors:
        out.write(data.data)
        out.write(bytes(-data.nbytes % ALIGNMENT))
