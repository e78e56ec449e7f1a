"""Downloads a data set onto the user's machine, through pooch: checksum, resume of nothing half-done, progress.

Only rows that name an address can be downloaded; the others (a licence to accept, a form to fill in) say how to get
them. Nothing in headlong downloads unless this function is called.
"""

from __future__ import annotations

from pathlib import Path

from headlong.errors import DataError, MissingPackageError
from studies.data.files import DataSet


def download(row: DataSet, root: Path, progress: bool = True) -> Path:
    """The folder ``root/row.name`` with every file of the row's downloads in it, checksums compared."""
    if not row.downloads:
        raise DataError(f"{row.name} is not downloaded for you ({row.licence}). {row.obtain}")
    try:
        import pooch  # type: ignore[import-untyped]  # ships no types
    except ImportError as error:
        raise MissingPackageError("downloads need pooch: pip install '.[studies]'") from error
    folder = root / row.name
    for item in row.downloads:
        name = item.url.rsplit("/", 1)[-1]
        unpack = None
        if item.unpack:
            kind = pooch.Unzip if name.endswith(".zip") else pooch.Untar
            unpack = kind(extract_dir=".")
        try:
            pooch.retrieve(item.url, item.checksum, name, folder, processor=unpack, progressbar=progress)
        except ValueError as error:  # pooch's word for a wrong checksum
            raise DataError(f"{item.url} did not return the expected file ({item.checksum}): {error}") from error
        except OSError as error:
            raise DataError(f"{item.url} cannot be downloaded into {folder}: {error}; {row.obtain}") from error
    return folder
