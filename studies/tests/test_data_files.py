"""Data sets on disk: one error for what is missing, damaged or foreign: which file, from where, what it should be."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headlong.errors import DataError
from studies.data import DATA_SETS, fetch, load
from studies.data.download import download
from studies.data.files import DataFile, DataSet, Download, data_root, digest, read_text, verified
from studies.data.text import load_splits

NAMES = ("train.txt", "valid.txt", "test.txt")


def row(folder: Path, **changes: object) -> DataSet:
    """A data set whose files are those in ``folder``, checksums included."""
    files = tuple(DataFile(name, digest(folder / name, "sha256")) for name in NAMES)
    fields = {
        "name": "toy",
        "kind": "text",
        "source": "the toy's makers",
        "licence": "CC0",
        "obtain": "Ask them.",
        "layouts": (files,),
        "loader": load_splits,
    }
    return DataSet(**fields | changes)  # type: ignore[arg-type]  # checked by running


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"the {name} of a toy\n")
    return folder


def test_whole_files_pass(toy: Path) -> None:
    layout = verified(row(toy), toy)
    assert [file.path for file in layout] == list(NAMES)


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "another file, or a damaged one"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"toy", b"boy")), "another file, or a damaged one"),
    ],
)
def test_a_spoilt_file_is_named_with_its_origin_and_checksum(toy: Path, spoil: object, fault: str) -> None:
    whole = row(toy)
    spoil(toy / "valid.txt")  # type: ignore[operator]
    with pytest.raises(DataError) as caught:
        verified(whole, toy)
    message = str(caught.value)
    checksum = whole.layouts[0][1].checksum
    assert checksum is not None
    for part in (fault, "valid.txt", "the toy's makers", checksum, "Ask them."):
        assert part in message


def test_a_missing_folder_says_where_the_data_comes_from(toy: Path) -> None:
    with pytest.raises(DataError, match="is not there; train.txt of toy comes from the toy's makers"):
        verified(row(toy), toy / "elsewhere")


def test_the_layout_that_is_nearly_there_is_the_one_complained_about(toy: Path) -> None:
    other = (DataFile("a"), DataFile("b"))
    both = row(toy, layouts=(other, row(toy).layouts[0]))
    assert verified(both, toy) == both.layouts[1]
    (toy / "test.txt").unlink()
    with pytest.raises(DataError, match=r"test\.txt is missing"):
        verified(both, toy)


def test_the_folder_of_data_is_named_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    with pytest.raises(DataError, match="set HEADLONG_DATA=FOLDER"):
        load("penn-treebank")
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="does not exist"):
        load("penn-treebank")
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path))
    assert data_root() == tmp_path
    with pytest.raises(DataError, match=r"Mikolov.*LDC licence"):
        load("penn-treebank")
    with pytest.raises(DataError, match="known are builtin, penn-treebank"):
        load("pen-treebank")


def test_every_row_says_whose_it_is() -> None:
    for name, data in DATA_SETS.items():
        assert name == data.name
        assert data.source and data.licence and data.obtain
        assert data.kind in ("text", "pairs", "images")


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"caf\xe9 au lait\n", "byte 3 is 0xe9"),
        ("text".encode("utf-16"), "is UTF-16"),
    ],
)
def test_text_that_is_no_utf8(tmp_path: Path, raw: bytes, fault: str) -> None:
    (tmp_path / "t.txt").write_bytes(raw)
    with pytest.raises(DataError, match=fault):
        read_text(tmp_path / "t.txt")


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfword\n")
    assert read_text(tmp_path / "t.txt") == "word\n"


@pytest.fixture
def server(toy: Path) -> Iterator[str]:
    """The toy's files on a port of this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=toy)) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_address[1]}/"
        serving.shutdown()
        thread.join()


def test_a_download_is_checked(toy: Path, server: str, tmp_path: Path) -> None:
    pytest.importorskip("pooch", reason="downloads are pooch's, an optional package")
    good = tuple(Download(server + name, digest(toy / name, "sha256")) for name in NAMES)
    folder = download(row(toy, name="copy", downloads=good), tmp_path, progress=False)
    assert verified(row(toy), folder)
    bad = (Download(server + "train.txt", "sha256:" + hashlib.sha256(b"other").hexdigest()),)
    with pytest.raises(DataError, match="did not return the expected file"):
        download(row(toy, name="bad", downloads=bad), tmp_path, progress=False)
    assert not list((tmp_path / "bad").glob("train.txt"))
    gone = (Download(server + "none.txt", None),)
    with pytest.raises(DataError, match="cannot be downloaded"):
        download(row(toy, name="gone", downloads=gone), tmp_path, progress=False)


def test_what_needs_a_licence_is_not_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="LDC"):
        fetch("penn-treebank", tmp_path)
    with pytest.raises(DataError, match="is not a data set"):
        fetch("ptb", tmp_path)
