"""One row per data set, and the check of its files before a loader opens them::

    folder = find(row, root)                  # root/row.name, or root itself where it is that folder
    layout = verified(row, folder)            # the first layout whose files are all there; checksums compared

A data set can lie on disk in more than one published layout (an archive's own file names, a repacked ``.npz``); a layout
is a tuple of files. A fault is one :class:`DataError` that says which file, from where, and its expected checksum.
Downloading is the business of ``download.py``, reading that of the loaders.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from headlong.errors import DataError

VARIABLE = "HEADLONG_DATA"


class DataFile(NamedTuple):
    """``path`` inside the data set's folder (may be a folder itself); ``checksum`` as ``algorithm:digest``, if known."""

    path: str
    checksum: str | None = None


class Download(NamedTuple):
    """``url`` and its checksum; ``unpack`` says whether it is an archive whose files are what is wanted."""

    url: str
    checksum: str | None
    unpack: bool = False


@dataclass(frozen=True)
class DataSet:
    """A row of the registry: what it is, whose it is, where it comes from, how it is read."""

    name: str
    kind: str  # "text", "pairs" or "images"
    source: str
    licence: str
    obtain: str
    layouts: tuple[tuple[DataFile, ...], ...]
    loader: Callable[..., Any]
    downloads: tuple[Download, ...] = ()


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """``root``, else what ``HEADLONG_DATA`` names; DataError where neither is a folder."""
    named = os.fspath(root) if root is not None else os.environ.get(VARIABLE, "")
    if not named:
        raise DataError(f"no data folder was named; set {VARIABLE}=FOLDER, or give the data set's own folder or file")
    if not Path(named).is_dir():
        raise DataError(f"the data folder {named} does not exist; make it, or point {VARIABLE} at the right one")
    return Path(named)


def verified(row: DataSet, folder: Path) -> tuple[DataFile, ...]:
    """The first layout whose files are all in ``folder``, each of them checked; DataError names the first fault."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not there; {origin(row, row.layouts[0][0])}")
    layout = next((files for files in row.layouts if all((folder / file.path).exists() for file in files)), None)
    if layout is None:
        missing = next(file for file in _closest(row, folder) if not (folder / file.path).exists())
        raise DataError(f"{folder / missing.path} is missing; {origin(row, missing)}")
    for file in layout:
        check(row, folder, file)
    return layout


def _closest(row: DataSet, folder: Path) -> tuple[DataFile, ...]:
    """The layout most of whose files are there: the one the user meant."""
    return max(row.layouts, key=lambda files: sum((folder / file.path).exists() for file in files) / len(files))


def check(row: DataSet, folder: Path, file: DataFile) -> None:
    """DataError where ``file`` is empty or its bytes are not those the registry knows."""
    path = folder / file.path
    if path.is_dir():
        return
    if path.stat().st_size == 0:
        raise DataError(f"{path} is empty; {origin(row, file)}")
    if file.checksum is None:
        return
    came = digest(path, file.checksum.partition(":")[0])
    if came != file.checksum:
        raise DataError(f"{path} has {came}: another file, or a damaged one; {origin(row, file)}")


def digest(path: Path, algorithm: str) -> str:
    """``"sha256:" + hexdigest`` of a file's bytes."""
    with path.open("rb") as stream:
        return f"{algorithm}:{hashlib.file_digest(stream, algorithm).hexdigest()}"


def origin(row: DataSet, file: DataFile) -> str:
    """The second half of every message: where the file comes from and what it should be."""
    checksum = f"expected {file.checksum}" if file.checksum else "no published checksum"
    return f"{file.path} of {row.name} comes from {row.source} ({checksum}). {row.obtain}"


def read_text(path: Path) -> str:
    """The whole file as UTF-8, BOM dropped; DataError says at which byte it is none, or that it is empty."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if not raw.strip():
        raise DataError(f"{path} is empty; expected UTF-8 text")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError(f"{path} is UTF-16; expected UTF-8 text: convert it, e.g. with iconv -f UTF-16 -t UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}; convert it first") from error
