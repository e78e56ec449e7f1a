"""Whatever lies at a path, and whatever a path is, a loader reads it or raises one of headlong's exceptions."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from fuzz_readers import DAMAGES, TARGETS
from headlong.cli import inputs
from headlong.errors import HeadlongError, StoreError
from headlong.layers.checkpoint import open_checkpoint
from headlong.layers.gguf_file import GgufFile
from headlong.store import open_file, write_file
from headlong.teacher import distill, read_teacher

RNG = np.random.default_rng(0)
LAYER = hl.Layer(RNG.standard_normal((70, 8)).astype(np.float32))
TREE = hl.structured.TreeLayer(RNG.standard_normal((2, 8)).astype(np.float32), None, np.array([[1, -1], [-2, -3]]))


def index(path: Any) -> Any:
    pytest.importorskip("torch")
    from headlong.integrations import faiss as faiss_api

    return faiss_api.read_index(path)


LOADERS: dict[str, Callable[[Any], Any]] = {
    "load": hl.load, "Layer.load": hl.Layer.load, "load_layer": hl.structured.load_layer, "open_file": open_file,
    "open_checkpoint": open_checkpoint, "GgufFile": GgufFile, "read_index": index,
    "read_teacher": lambda path: [part.ids.sum() for part in read_teacher(path)],
    "a layer of the command line": lambda path: inputs.any_layer(str(path)),
    "hidden vectors of the command line": lambda path: inputs.hidden(str(path), 8, 70),
    "an engine of the command line": lambda path: inputs.engine(str(path), 1, {}),
    "results of the command line": lambda path: inputs.results([Path(path)]),
}  # fmt: skip
NO_PATHS: list[Any] = [None, 3, 1.5, object(), [], {}, ("a", "b"), np.zeros(3), "", "a\0b", b"a\0b", "no such file", "x" * 5000]


def tried(load: Callable[[Any], Any], path: Any) -> None:
    try:
        load(path)
    except HeadlongError as error:
        str(error).encode()  # printable as it is


def refused(loader: str, path: Any) -> None:
    if loader.startswith("an engine"):  # of which there may be none
        tried(LOADERS[loader], path)
        return
    with pytest.raises(HeadlongError):
        LOADERS[loader](path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("loader", LOADERS)
def test_what_is_no_file_is_refused(loader: str, tmp_path: Path) -> None:
    text = "command line" in loader  # which has nothing but texts
    for path in NO_PATHS:
        if not text or isinstance(path, str):
            refused(loader, path)
    refused(loader, tmp_path)
    for name in ("model.safetensors", "x.gguf", "x.npy", "x.json", "teacher-00000.safetensors"):
        place = tmp_path / name.partition(".")[0]
        place.mkdir(exist_ok=True)
        os.mkfifo(place / name)
        for path in (place, place / name, Path("/dev/null"), Path("/dev/zero")):
            refused(loader, path)
        (place / name).unlink()


def good_files(folder: Path) -> dict[str, bytes]:
    """A file of every kind that is written here, or read."""
    found = {}
    for name, made in TARGETS.items():
        place = folder / name
        place.mkdir()
        found |= {f"{name} {number}": seed for number, seed in enumerate(made(place).seeds[:2])}
    engine = hl.compile(LAYER, "codes")
    for name, one in {"engine": engine, "changed": engine.without([3]), "tree": TREE, "tree engine": hl.compile(TREE)}.items():
        one.save(folder / "one")
        found[name] = (folder / "one").read_bytes()
    found["teacher"] = distill(engine, np.eye(8), folder / "taught", k=4)[0].read_bytes()
    np.save(folder / "h.npy", RNG.standard_normal((5, 8)))
    found["npy"] = (folder / "h.npy").read_bytes()
    write_file(folder / "hidden", {"hidden": RNG.standard_normal((5, 8))})
    found["hidden"] = (folder / "hidden").read_bytes()
    return found | {"json": b'{"tables": {}}', "text": b"words", "zip": b"PK\x03\x04xx", "pickle": b"\x80\x04N."}


@pytest.mark.timeout(300)
def test_damaged_files_of_every_kind_raise_no_foreign_exception(tmp_path: Path) -> None:
    """Each loader is given each kind of file, whole and damaged, under each usual name."""
    chance, place = random.Random(0), tmp_path / "place"
    files = good_files(tmp_path)
    place.mkdir()
    for whole in files.values():
        for number in range(7):
            data = whole if number == 0 else chance.choice(DAMAGES)(whole, chance)
            suffix = chance.choice(["safetensors", "gguf", "npy", "json", "safetensors.index.json", "bin"])
            for old in place.iterdir():
                old.unlink()
            path = place / chance.choice(["model", "teacher-00000", "config"])
            path = path.with_name(f"{path.name}.{suffix}")
            path.write_bytes(data)
            for load in LOADERS.values():
                tried(load, path)
                tried(load, place)


def test_a_foreign_exception_would_be_noticed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        tried(lambda path: 1 // 0, tmp_path)
    with pytest.raises(StoreError, match="not a regular file"):
        open_file(tmp_path)
