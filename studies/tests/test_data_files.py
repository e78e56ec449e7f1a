"""Data sets on disk: one error for what is missing, damaged or foreign: which file, from where, what it should be."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from headlong.errors import DataError
from studies.data import load
from studies.data.files import DataFile, DataSet, data_root, verify
from studies.data.pictures import load_eurosat, load_mnist
from studies.data.text import load_splits

NAMES = ("train.txt", "valid.txt", "test.txt")


def row(folder: Path) -> DataSet:
    """A data set whose files are those in ``folder``, checksums included."""
    files = tuple(DataFile(name, hashlib.sha256((folder / name).read_bytes()).hexdigest()) for name in NAMES)
    return DataSet("toy", "text", "the toy's makers", "CC0", files, load_splits)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    folder = tmp_path / "toy"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text(f"the {name} of a toy\n")
    return folder


@pytest.mark.parametrize(
    ("spoil", "fault"),
    [
        (lambda path: path.unlink(), "is missing"),
        (lambda path: path.write_bytes(b""), "another file, or a damaged one"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "another file, or a damaged one"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"toy", b"boy")), "another file, or a damaged one"),
    ],
)
def test_a_spoilt_file_is_named_with_its_origin_and_checksum(toy: Path, spoil: object, fault: str) -> None:
    whole = row(toy)
    verify(whole, toy)
    spoil(toy / "valid.txt")  # type: ignore[operator]
    with pytest.raises(DataError) as caught:
        verify(whole, toy)
    message = str(caught.value)
    for part in (fault, "valid.txt", "the toy's makers", whole.files[1].checksum):
        assert part in message


def test_the_folder_of_data_is_named_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADLONG_DATA", raising=False)
    with pytest.raises(DataError, match="set HEADLONG_DATA=FOLDER"):
        load("penn-treebank")
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="does not exist"):
        load("penn-treebank")
    monkeypatch.setenv("HEADLONG_DATA", str(tmp_path))
    assert data_root() == tmp_path
    with pytest.raises(DataError, match=r"Mikolov.*Put it into HEADLONG_DATA/penn-treebank/"):
        load("penn-treebank")
    with pytest.raises(DataError, match="known are penn-treebank"):
        load("pen-treebank")


def test_digits_are_those_of_the_file(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays = [rng.integers(0, top, shape, np.uint8) for top, shape in ((256, (24, 5, 5)), (10, 24), (256, (3, 5, 5)), (10, 3))]
    names = ("train_images", "train_labels", "test_images", "test_labels")
    np.savez(tmp_path / "m.npz", **dict(zip(names, arrays, strict=True)))
    files = (DataFile("m.npz", ""),)
    found = load_mnist(tmp_path, files)
    assert (len(found.train.labels), len(found.valid.labels), len(found.test.labels)) == (22, 2, 3)
    np.testing.assert_array_equal(found.test.pixels[..., 0], arrays[2])
    np.testing.assert_array_equal(found.valid.labels, arrays[1][-2:])
    (tmp_path / "m.npz").write_bytes((tmp_path / "m.npz").read_bytes()[:-40])
    with pytest.raises(DataError, match="m.npz is cut off"):
        load_mnist(tmp_path, files)


def test_eurosat_is_read_from_its_tar(tmp_path: Path, rng: np.random.Generator) -> None:
    """Every picture keeps its class: colours say whose it is; the split that is called valid is the test split."""
    image = pytest.importorskip("PIL.Image")
    with tarfile.open(tmp_path / "e.tar", "w") as file:
        for split, count in (("train", 12), ("valid", 3)):
            for number in range(count):
                for label, grey in (("Forest", 10), ("River", 200)):
                    stream = io.BytesIO()
                    image.new("RGB", (64, 64), (grey, grey, grey)).save(stream, "JPEG")
                    member = tarfile.TarInfo(f"{split}/{label}/{label}_{number}.jpg")
                    member.size = stream.tell()
                    stream.seek(0)
                    file.addfile(member, stream)
    found = load_eurosat(tmp_path, (DataFile("e.tar", ""),))
    assert [len(part.labels) for part in found] == [22, 2, 6]
    for part in found:
        assert part.pixels.shape[1:] == (28, 28, 3)
        np.testing.assert_array_equal(part.pixels[:, 14, 14, 0] > 100, part.labels == 1)
    assert np.diff(found.train.labels).astype(bool).sum() > 3, "shuffled, so that classes come in turns"
    (tmp_path / "e.tar").write_bytes(b"no tar")
    with pytest.raises(DataError, match="is no tar of pictures"):
        load_eurosat(tmp_path, (DataFile("e.tar", ""),))


def test_published_pictures(data: Path) -> None:
    assert [len(part.labels) for part in load("mnist", data).content] == [55_000, 5_000, 10_000]
    assert [len(part.labels) for part in load("eurosat", data).content] == [6_875, 625, 1_500]
