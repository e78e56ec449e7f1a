"""CASIA-HWDB, handwritten Chinese characters, in its published ``.gnt`` files::

    size uint32 | tag 2 bytes (GB 2312 code) | width uint16 | height uint16 | width * height grey bytes      little-endian

A picture comes out as ``[side, side, 1]`` uint8 with ink 255 on 0, its longer edge fitted into the square. Classes are
the Chinese characters of the training files in the order of their codes; digits, letters and marks are left out. The
stand-in for machines without these files is in ``rendered.py``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError, MissingPackageError
from studies.data.files import DataFile
from studies.data.images import Images, Labels, Pixels, Split

HEADER = struct.Struct("<I2sHH")
SIDE = 32
FIRST, LAST = b"\xb0\xa1", b"\xf7\xfe"
"""The Chinese characters of GB 2312."""


def load_casia(folder: Path, layout: tuple[DataFile, ...], side: int = SIDE) -> Images:
    """Folders of ``*.gnt``, one file for each writer; the last tenth of the training writers are for validation."""
    training, testing = (sorted((folder / file.path).glob("*.gnt")) for file in layout)
    if len(training) < 2 or not testing:
        raise DataError(
            f"{folder} has {len(training)} training and {len(testing)} test files *.gnt; expected 2 or more and 1 or "
            f"more (HWDB1.1: 240 and 60): unpack the archives, the .alz files inside them too"
        )
    held = max(1, len(training) // 10)
    parts = [_read(files, side) for files in (training[:-held], training[-held:], testing)]
    codes = sorted(set(parts[0][1]))
    number = {code: index for index, code in enumerate(codes)}
    splits = []
    for pixels, tags in parts:
        known = np.array([tag in number for tag in tags], bool)
        labels: Labels = np.array([number[tag] for tag in tags if tag in number], np.int64)
        splits.append(Split(pixels[known], labels))
    return Images(tuple(code.decode("gb2312") for code in codes), *splits)


def _read(files: list[Path], side: int) -> tuple[Pixels, list[bytes]]:
    pictures, tags = [], []
    for file in files:
        for tag, picture in samples(file):
            pictures.append(fitted(255 - picture, side))
            tags.append(tag)
    if not pictures:
        raise DataError(f"{files[0]} and the {len(files) - 1} files beside it hold no Chinese character")
    return np.stack(pictures)[..., None], tags


def samples(path: Path) -> Iterator[tuple[bytes, NDArray[np.uint8]]]:
    """The code and the picture (paper 255, ink darker) of each Chinese character of a ``.gnt`` file."""
    raw = path.read_bytes()
    if not raw:
        raise DataError(f"{path} is empty; expected the characters of one writer")
    at = 0
    while at < len(raw):
        if at + HEADER.size > len(raw):
            raise DataError(f"{path} is cut off: {len(raw) - at} bytes are left at byte {at}, a header takes {HEADER.size}")
        size, tag, width, height = HEADER.unpack_from(raw, at)
        if size != HEADER.size + width * height or not width * height:
            raise DataError(f"{path} is not a .gnt file: at byte {at} it says {size} bytes for {width} x {height} pixels")
        if at + size > len(raw):
            raise DataError(f"{path} is cut off: the picture at byte {at} ends at {at + size}, the file at {len(raw)}")
        if FIRST <= tag <= LAST:
            yield tag, np.frombuffer(raw, np.uint8, width * height, at + HEADER.size).reshape(height, width)
        at += size


def fitted(picture: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """``[side, side]``: the picture in the middle, its longer edge ``side - 2`` pixels long."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("scaling characters needs Pillow: pip install '.[studies]'") from error
    height, width = picture.shape
    scale = (side - 2) / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    small = np.asarray(Image.fromarray(picture).resize(size, Image.Resampling.BOX))
    square = np.zeros((side, side), np.uint8)
    top, left = (side - size[1]) // 2, (side - size[0]) // 2
    square[top : top + size[1], left : left + size[0]] = small
    return square
