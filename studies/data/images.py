"""Images with labels: MNIST and EuroSAT::

    images.train.pixels [n, height, width, channels] uint8,  images.train.labels [n] int64

Pillow is needed for JPEGs only and imported when one is read.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError, MissingPackageError
from studies.data.files import DataFile

Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]


class Split(NamedTuple):
    """Pictures and the number of the class that each shows."""

    pixels: Pixels
    labels: Labels


class Images(NamedTuple):
    """Names of the classes and three splits."""

    classes: tuple[str, ...]
    train: Split
    valid: Split
    test: Split


def load_mnist(folder: Path, layout: tuple[DataFile, ...]) -> Images:
    """``mnist.npz`` or the four published IDX files. The last 5,000 training images are the validation set."""
    paths = [folder / file.path for file in layout]
    arrays = _npz(paths[0]) if len(paths) == 1 else tuple(_idx(path) for path in paths)
    train, test = _digits(arrays[0], arrays[1], paths[0]), _digits(arrays[2], arrays[3], paths[0])
    held = min(5000, len(train.labels) // 12)
    if not held:
        raise DataError(f"{paths[0]} has {len(train.labels)} training images; expected at least 12")
    first, last = (Split(train.pixels[part], train.labels[part]) for part in (slice(-held), slice(-held, None)))
    return Images(tuple("0123456789"), first, last, test)


def _npz(path: Path) -> tuple[NDArray[Any], ...]:
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return tuple(file[name] for name in ("train_images", "train_labels", "test_images", "test_labels"))
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is cut off or not an MNIST archive: {error}; expected train_images, ... as .npz") from error


def _idx(path: Path) -> NDArray[Any]:
    """LeCun's format: two zero bytes, type 8 (uint8), the number of axes, their sizes big-endian, the bytes."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        zero, kind, axes = struct.unpack(">HBB", raw[:4])
        shape = struct.unpack(f">{axes}I", raw[4 : 4 + 4 * axes])
        if zero != 0 or kind != 8:
            raise ValueError(f"it starts with {raw[:4].hex()}, not 000008")
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise DataError(f"{path} is cut off or not an IDX file: {error}") from error


def _digits(pixels: NDArray[Any], labels: NDArray[Any], path: Path) -> Split:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.shape != pixels.shape[:1] or np.any(labels > 9):
        raise DataError(f"{path} holds {pixels.dtype} {pixels.shape} and labels {labels.shape}; expected digits")
    return Split(np.ascontiguousarray(pixels)[..., None], labels.astype(np.int64))


def load_eurosat(folder: Path, layout: tuple[DataFile, ...]) -> Images:
    """JPEGs by class: the published zip or folder (every 5th is the test set), or a tar of ``train/`` and ``valid/``.

    The tar's ``valid`` split becomes the test set; of what is left, every 10th picture of a class is for validation.
    """
    path = folder / layout[0].path
    splits: dict[str, dict[str, list[Pixels]]] = {"train": {}, "test": {}}
    for place, data in sorted(_members(path), key=lambda member: _natural(member[0])):
        *above, kind, _ = place.split("/")
        of_kind = [len(split.get(kind, [])) for split in splits.values()]
        held = above[-1:] == ["valid"] or (above[-1:] != ["train"] and sum(of_kind) % 5 == 4)
        splits["test" if held else "train"].setdefault(kind, []).append(_jpeg(data, f"{path}: {place}"))
    classes = tuple(sorted(splits["train"]))
    if len(classes) < 2 or sorted(splits["test"]) != sorted(classes):
        raise DataError(f"{path} has pictures of {len(classes)} classes; expected CLASS/*.jpg for each of 10 classes")
    parts = {"train": splits["train"], "valid": {}, "test": splits["test"]}
    parts["valid"] = {kind: pictures[9::10] for kind, pictures in splits["train"].items()}
    parts["train"] = {kind: [p for i, p in enumerate(every) if i % 10 != 9] for kind, every in splits["train"].items()}
    return Images(classes, *(_stack(parts[name], classes, path) for name in ("train", "valid", "test")))


def _natural(name: str) -> tuple[str, int, str]:
    """``River_2.jpg`` before ``River_10.jpg``."""
    stem, _, number = name.removesuffix(".jpg").rpartition("_")
    return (stem, int(number), name) if number.isdecimal() else (name, 0, name)


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            for file in path.rglob("*.jpg"):
                yield file.relative_to(path.parent).as_posix(), file.read_bytes()
        elif path.suffix == ".zip":
            with zipfile.ZipFile(path) as packed:
                for name in packed.namelist():
                    if name.endswith(".jpg"):
                        yield name, packed.read(name)
        else:
            with tarfile.open(path) as tar:
                for member in tar:
                    stream = tar.extractfile(member) if member.isfile() and member.name.endswith(".jpg") else None
                    if stream is not None:
                        yield member.name, stream.read()
    except (OSError, EOFError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is cut off or damaged: {error}") from error


def _jpeg(data: bytes, name: str) -> Pixels:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("reading JPEGs needs Pillow: pip install '.[studies]'") from error
    try:
        with Image.open(io.BytesIO(data)) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, SyntaxError) as error:  # Pillow reports some broken files as SyntaxError
        raise DataError(f"{name} is not a complete JPEG: {error}") from error


def _stack(pictures: dict[str, list[Pixels]], classes: tuple[str, ...], path: Path) -> Split:
    every = [picture for kind in classes for picture in pictures[kind]]
    if len({picture.shape for picture in every}) != 1:
        raise DataError(f"{path} has {len(every)} pictures of different sizes; expected all of 64 x 64")
    labels = [number for number, kind in enumerate(classes) for _ in pictures[kind]]
    return Split(np.stack(every), np.array(labels, np.int64))
