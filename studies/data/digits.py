"""MNIST: ``digits.train.pixels [n, 28, 28, 1] uint8``, ``digits.train.labels [n] int64``."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError
from studies.data.files import DataFile

NAMES = ("train_images", "train_labels", "test_images", "test_labels")


class Split(NamedTuple):
    """Pictures and the number of the class that each shows."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Digits(NamedTuple):
    """Three splits; the last 5,000 training images are the validation set."""

    train: Split
    valid: Split
    test: Split


def load_mnist(folder: Path, layout: tuple[DataFile, ...]) -> Digits:
    """From one ``.npz`` with ``train_images``, ``train_labels``, ``test_images`` and ``test_labels``."""
    path = folder / layout[0].path
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            arrays = [file[name] for name in NAMES]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} is cut off or not an MNIST archive: {error}; expected {', '.join(NAMES)}") from error
    train, test = _split(arrays[0], arrays[1], path), _split(arrays[2], arrays[3], path)
    held = min(5000, len(train.labels) // 12)
    if not held:
        raise DataError(f"{path} has {len(train.labels)} training images; expected at least 12")
    return Digits(Split(train.pixels[:-held], train.labels[:-held]), Split(train.pixels[-held:], train.labels[-held:]), test)


def _split(pixels: NDArray[Any], labels: NDArray[Any], path: Path) -> Split:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or labels.shape != pixels.shape[:1] or np.any(labels > 9):
        raise DataError(f"{path} holds {pixels.dtype} {pixels.shape} and labels {labels.shape}; expected digits")
    return Split(np.ascontiguousarray(pixels)[..., None], labels.astype(np.int64))
