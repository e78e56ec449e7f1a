"""Pictures: published layouts written small, damaged files, and the rendered stand-in."""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headlong.errors import DataError
from studies.data import load
from studies.data.characters import HEADER, fitted, samples
from studies.data.files import DataFile
from studies.data.images import load_eurosat, load_mnist
from studies.data.rendered import FONTS, Font, alphabet, find_font, load_rendered

IDX = tuple(DataFile(name) for name in ("a-images.gz", "a-labels.gz", "b-images.gz", "b-labels"))


def idx(array: NDArray[np.uint8]) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def digits(folder: Path, rng: np.random.Generator) -> list[NDArray[np.uint8]]:
    arrays = [rng.integers(0, top, shape, np.uint8) for top, shape in ((256, (24, 5, 5)), (10, 24), (256, (3, 5, 5)), (10, 3))]
    for file, array in zip(IDX, arrays, strict=True):
        raw = idx(array)
        (folder / file.path).write_bytes(gzip.compress(raw) if file.path.endswith(".gz") else raw)
    np.savez(folder / "m.npz", train_images=arrays[0], train_labels=arrays[1], test_images=arrays[2], test_labels=arrays[3])
    return arrays


def test_mnist_in_both_layouts_is_the_same(tmp_path: Path, rng: np.random.Generator) -> None:
    arrays = digits(tmp_path, rng)
    for layout in (IDX, (DataFile("m.npz"),)):
        images = load_mnist(tmp_path, layout)
        assert (len(images.train.labels), len(images.valid.labels), len(images.test.labels)) == (22, 2, 3)
        np.testing.assert_array_equal(images.test.pixels[..., 0], arrays[2])
        np.testing.assert_array_equal(images.valid.labels, arrays[1][-2:])


@pytest.mark.parametrize("name", ["a-images.gz", "b-labels", "m.npz"])
def test_a_cut_off_mnist_file_is_named(tmp_path: Path, rng: np.random.Generator, name: str) -> None:
    digits(tmp_path, rng)
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:-2])
    with pytest.raises(DataError, match=f"{name} is cut off"):
        load_mnist(tmp_path, (DataFile("m.npz"),) if name == "m.npz" else IDX)


def test_a_file_of_another_format_is_no_idx_file(tmp_path: Path, rng: np.random.Generator) -> None:
    digits(tmp_path, rng)
    (tmp_path / "b-labels").write_bytes(b"\x00\x00\x0d\x01\x00\x00\x00\x00")
    with pytest.raises(DataError, match="not 000008"):
        load_mnist(tmp_path, IDX)


def jpeg(shade: int) -> bytes:
    image = pytest.importorskip("PIL.Image", reason="JPEGs are Pillow's, an optional package")
    stream = io.BytesIO()
    image.new("RGB", (8, 8), (shade, 0, 0)).save(stream, "JPEG")
    return stream.getvalue()


def pictures(top: str, count: int = 10) -> dict[str, bytes]:
    return {f"{top}{kind}/{kind}_{i}.jpg": jpeg(10 * i) for kind in ("River", "Forest") for i in range(count)}


def test_eurosat_as_tar_zip_and_folder(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "s.tar", "w") as tar:
        for name, raw in (pictures("train/") | pictures("valid/", 2)).items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    images = load_eurosat(tmp_path, (DataFile("s.tar"),))
    assert images.classes == ("Forest", "River")
    assert [len(part.labels) for part in images[1:]] == [18, 2, 4]
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as packed:
        for name, raw in pictures("2750/", 20).items():
            packed.writestr(name, raw)
    with zipfile.ZipFile(tmp_path / "s.zip") as packed:
        packed.extractall(tmp_path)
    zipped, plain = load_eurosat(tmp_path, (DataFile("s.zip"),)), load_eurosat(tmp_path, (DataFile("2750"),))
    assert [len(part.labels) for part in zipped[1:]] == [30, 2, 8]
    np.testing.assert_array_equal(zipped.train.pixels, plain.train.pixels)
    np.testing.assert_array_equal(zipped.test.pixels, plain.test.pixels)


def test_damaged_pictures_are_named(tmp_path: Path) -> None:
    for name, raw in pictures("2750/").items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw[:-40] if name.endswith("River_3.jpg") else raw)
    with pytest.raises(DataError, match=r"River_3\.jpg is not a complete JPEG"):
        load_eurosat(tmp_path, (DataFile("2750"),))
    (tmp_path / "s.tar").write_bytes(b"no tar at all")
    with pytest.raises(DataError, match="cut off or damaged"):
        load_eurosat(tmp_path, (DataFile("s.tar"),))


def gnt(letters: str, size: tuple[int, int] = (6, 9)) -> bytes:
    width, height = size
    picture = bytes(range(width * height))
    return b"".join(
        HEADER.pack(10 + len(picture), c.encode("gb2312").ljust(2, b"\0"), width, height) + picture for c in letters
    )


def test_casia_in_its_published_layout(tmp_path: Path) -> None:
    pytest.importorskip("PIL", reason="scaling is Pillow's, an optional package")
    for folder, writers in (("HWDB1.1trn_gnt", 3), ("HWDB1.1tst_gnt", 1)):
        (tmp_path / "casia-hwdb" / folder).mkdir(parents=True)
        for writer in range(writers):
            (tmp_path / "casia-hwdb" / folder / f"{writer:04}.gnt").write_bytes(gnt("一丁A啊"))
    images = load("casia-hwdb", tmp_path).content
    assert images.classes == ("啊", "丁", "一")
    assert [part.pixels.shape for part in images[1:]] == [(6, 32, 32, 1), (3, 32, 32, 1), (3, 32, 32, 1)]
    assert images.test.labels.tolist() == [2, 1, 0]
    (tmp_path / "casia-hwdb/HWDB1.1tst_gnt/0000.gnt").unlink()
    with pytest.raises(DataError, match=r"3 training and 0 test files.*rendered-characters"):
        load("casia-hwdb", tmp_path)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (b"", "is empty"),
        (gnt("一")[:-1], "is cut off: the picture at byte 0"),
        (gnt("一") + b"\x01", "is cut off: 1 bytes are left"),
        (b"\x09" + gnt("一")[1:], "is not a .gnt file"),
    ],
)
def test_damaged_gnt_files(tmp_path: Path, raw: bytes, fault: str) -> None:
    (tmp_path / "w.gnt").write_bytes(raw)
    with pytest.raises(DataError, match=fault):
        list(samples(tmp_path / "w.gnt"))


@given(st.binary(max_size=60), st.integers(0, 70), st.binary(max_size=4))
def test_any_bytes_are_characters_or_one_error(junk: bytes, at: int, patch: bytes) -> None:
    whole = gnt("一丁")
    for raw in (junk, whole[:at] + patch + whole[at + len(patch) :]):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "w.gnt"
            path.write_bytes(raw)
            with contextlib.suppress(DataError):
                list(samples(path))
            with contextlib.suppress(DataError):
                load_mnist(path.parent, (DataFile("w.gnt"),) * 4)


def test_a_character_is_fitted_into_its_square() -> None:
    pytest.importorskip("PIL", reason="scaling is Pillow's, an optional package")
    square = fitted(np.full((40, 10), 255, np.uint8), 32)
    rows, columns = np.nonzero(square)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (1, 30, 12, 19)


def test_the_alphabet_is_level_one_of_gb2312() -> None:
    assert len(alphabet()) == 3740
    assert alphabet(3) == "啊阿埃"


def test_rendered_characters_are_the_same_for_the_same_seed() -> None:
    pytest.importorskip("PIL", reason="drawing is Pillow's, an optional package")
    matplotlib = pytest.importorskip("matplotlib", reason="brings a font that is everywhere")
    font = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    one, two, other = (load_rendered(seed, "ABC", (2, 1, 1), (font,)) for seed in (1, 1, 2))
    assert one.train.pixels.shape == (6, 32, 32, 1)
    assert one.train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(one.train.pixels, two.train.pixels)
    assert np.any(one.train.pixels != other.train.pixels)
    assert np.any(one.train.pixels[0] != one.train.pixels[1])
    assert all(picture.max() > 128 for picture in one.train.pixels)
    with pytest.raises(DataError, match="two or more"):
        load_rendered(1, "A", (1, 1, 1), (font,))


def test_a_font_that_is_not_there_is_named_with_its_package() -> None:
    absent = Font("no-such-font.ttc", 0, "fonts-none", "OFL-1.1")
    with pytest.raises(DataError, match="Debian package fonts-none"):
        find_font(absent)
    assert len({font.file for font in FONTS}) == len(FONTS)


def test_published_picture_counts(data: Path) -> None:
    pytest.importorskip("PIL", reason="JPEGs are Pillow's, an optional package")
    images = load("mnist", data).content
    assert [len(part.labels) for part in images[1:]] == [55_000, 5_000, 10_000]
    scenes = load("eurosat", data).content
    assert (len(scenes.classes), len(scenes.train.labels) + len(scenes.valid.labels), len(scenes.test.labels)) == (
        10,
        7500,
        1500,
    )
