"""Pictures in classes: ``pictures.train.pixels [n, side, side, depth] uint8``, ``pictures.train.labels [n] int64``."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError
from studies.data.files import DataFile

NAMES = ("train_images", "train_labels", "test_images", "test_labels")
SIDE = 28
"""Of every picture: EuroSAT's, 64 x 64 in the file, are scaled down to MNIST's."""


class Split(NamedTuple):
    """Pictures and the number of the class that each shows."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Pictures(NamedTuple):
    """Three splits; the last twelfth of the training pictures, 5,000 at most, is the validation set."""

    train: Split
    valid: Split
    test: Split


def load_mnist(folder: Path, layout: tuple[DataFile, ...]) -> Pictures:
    """From one ``.npz`` with ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``."""
    path = folder / layout[0].path
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = [file[name] for name in NAMES]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is cut off or not an MNIST archive: {error}; expected {', '.join(NAMES)}") from error
    return _three(_split(arrays[0], arrays[1], path), _split(arrays[2], arrays[3], path), path)


def load_eurosat(folder: Path, layout: tuple[DataFile, ...]) -> Pictures:
    """From a tar of JPEGs, ``train/CLASS/NAME.jpg`` shuffled and ``valid/CLASS/NAME.jpg`` (the test split); classes by name."""
    from PIL import Image

    path = folder / layout[0].path
    found: dict[str, list[tuple[str, NDArray[np.uint8]]]] = {"train": [], "valid": []}
    try:
        with tarfile.open(path) as file:
            for name in sorted(name for name in file.getnames() if name.endswith(".jpg")):
                split, label, _ = name.split("/")
                stream = file.extractfile(name)
                assert stream is not None  # a regular file has one
                picture = Image.open(stream).convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
                found[split].append((label, np.asarray(picture)))
    except (OSError, ValueError, KeyError, tarfile.TarError) as error:
        raise DataError(f"{path} is no tar of pictures: {error}; expected train/CLASS/NAME.jpg and valid/...") from error
    names = sorted({label for label, _ in found["train"]})
    train, test = (
        Split(np.stack([one for _, one in part]), np.array([names.index(label) for label, _ in part]))
        for part in found.values()
    )
    order = np.random.default_rng(0).permutation(len(train.labels))
    return _three(Split(train.pixels[order], train.labels[order]), test, path)


def _three(train: Split, test: Split, path: Path) -> Pictures:
    held = min(5000, len(train.labels) // 12)
    if not held:
        raise DataError(f"{path} has {len(train.labels)} training pictures; expected at least 12")
    return Pictures(Split(train.pixels[:-held], train.labels[:-held]), Split(train.pixels[-held:], train.labels[-held:]), test)


def _split(pixels: NDArray[Any], labels: NDArray[Any], path: Path) -> Split:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.shape != pixels.shape[:1] or np.any(labels > 9):
        raise DataError(f"{path} holds {pixels.dtype} {pixels.shape} and labels {labels.shape}; expected digits")
    return Split(np.ascontiguousarray(pixels)[..., None], labels.astype(np.int64))
