"""A data set as a row, and the check of its files before a loader opens them.

A fault is one :class:`DataError` that says which file, from where, and its expected checksum. Nothing is downloaded.
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
    """``path`` inside the data set's folder; ``checksum``: sha256."""

    path: str
    checksum: str


@dataclass(frozen=True)
class DataSet:
    """What it is, whose it is, where it comes from, how it is read."""

    name: str
    kind: str  # "text", "pairs" or "pictures"
    source: str
    licence: str
    files: tuple[DataFile, ...]
    loader: Callable[..., Any]


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """``root``, else what ``HEADLONG_DATA`` names; DataError where neither is a folder."""
    named = os.fspath(root) if root is not None else os.environ.get(VARIABLE, "")
    if not named:
        raise DataError(f"no data folder was named; set {VARIABLE}=FOLDER, or give the data set's own folder or file")
    if not Path(named).is_dir():
        raise DataError(f"the data folder {named} does not exist; make it, or point {VARIABLE} at the right one")
    return Path(named)


def verify(row: DataSet, folder: Path) -> None:
    """DataError where a file of the data set is missing, or its bytes are not those the registry knows."""
    for file in row.files:
        path = folder / file.path
        origin = f"{file.path} of {row.name} comes from {row.source} (expected sha256:{file.checksum})"
        if not path.is_file():
            raise DataError(f"{path} is missing; {origin}. Put it into {VARIABLE}/{row.name}/")
        with path.open("rb") as stream:
            came = hashlib.file_digest(stream, "sha256").hexdigest()
        if came != file.checksum:
            raise DataError(f"{path} has sha256:{came}: another file, or a damaged one; {origin}")


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
