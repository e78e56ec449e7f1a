"""A stand-in for CASIA-HWDB, and only that: Chinese characters *rendered* from free fonts, then bent::

    picture = shrink(bend(draw(font, character)))      bend: rotation, shear, scale and shift, then a jittered 4 x 4 mesh

Kept of the original: thousands of classes of the same frequency, which is the property that class-sparse layers are
measured on. Not kept: handwriting. Accuracies on it are not comparable with any published for CASIA-HWDB.

The same seed gives the same pictures wherever the same fonts, Pillow and FreeType are installed.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError, MissingPackageError
from studies.data.images import Images, Labels, Split

if TYPE_CHECKING:
    from PIL import Image

CLASSES = 3740
SIDE = 32
CANVAS = 64
GLYPH = 54
PER_CLASS = (24, 2, 6)
"""Pictures of each character for training, validation and test."""


class Font(NamedTuple):
    """A font file's name, the face within it, the Debian package that brings it, and its licence."""

    file: str
    face: int
    package: str
    licence: str


FONTS = (
    Font("NotoSansCJK-Regular.ttc", 2, "fonts-noto-cjk", "OFL-1.1"),
    Font("NotoSerifCJK-Regular.ttc", 2, "fonts-noto-cjk", "OFL-1.1"),
    Font("wqy-microhei.ttc", 0, "fonts-wqy-microhei", "Apache-2.0 or GPL-3 with font exception"),
    Font("wqy-zenhei.ttc", 0, "fonts-wqy-zenhei", "GPL-2 with font exception"),
    Font("uming.ttc", 0, "fonts-arphic-uming", "Arphic Public License"),
    Font("ukai.ttc", 0, "fonts-arphic-ukai", "Arphic Public License"),
    Font("gkai00mp.ttf", 0, "fonts-arphic-gkai00mp", "Arphic Public License"),
    Font("gbsn00lp.ttf", 0, "fonts-arphic-gbsn00lp", "Arphic Public License"),
)
FONT_FOLDERS = (Path("/usr/share/fonts"), Path("/usr/local/share/fonts"))


def alphabet(count: int = CLASSES) -> str:
    """The first ``count`` characters of GB 2312, level 1 (3,755, in the order of their pronunciation)."""
    codes = (bytes((row, cell)) for row in range(0xB0, 0xD8) for cell in range(0xA1, 0xFF))
    level1 = "".join(code.decode("gb2312", errors="ignore") for code in codes)
    return level1[:count]


def find_font(font: Font) -> Path:
    """Where fontconfig or Debian keeps the file; DataError names the package that brings it."""
    for folder in FONT_FOLDERS:
        found = next(folder.rglob(font.file), None) if folder.is_dir() else None
        if found is not None:
            return found
    if shutil.which("fc-list"):
        listed = subprocess.run(["fc-list", ":", "file"], capture_output=True, text=True, check=False).stdout
        for line in listed.splitlines():
            if Path(line.split(":")[0]).name == font.file:
                return Path(line.split(":")[0])
    packages = " ".join(sorted({each.package for each in FONTS}))
    raise DataError(
        f"the font {font.file} is not installed; the rendered characters need it from the Debian package {font.package} "
        f"({font.licence}): apt-get install {packages}"
    )


def load_rendered(
    seed: int = 0,
    letters: str | None = None,
    per_class: tuple[int, int, int] = PER_CLASS,
    fonts: tuple[Path, ...] | None = None,
) -> Images:
    """``per_class`` pictures of each of ``letters`` for training, validation and test, drawn in turn from all fonts."""
    try:
        from PIL import ImageFont
    except ImportError as error:
        raise MissingPackageError("rendering characters needs Pillow: pip install '.[studies]'") from error
    letters = alphabet() if letters is None else letters
    if len(letters) < 2 or len(set(letters)) < len(letters):
        raise DataError(f"{len(letters)} letters were asked for; expected two or more, all different")
    if fonts is None:
        faces = [ImageFont.truetype(str(find_font(font)), GLYPH, index=font.face) for font in FONTS]
    else:
        faces = [ImageFont.truetype(str(path), GLYPH) for path in fonts]
    total = sum(per_class)
    pixels = np.empty((len(letters), total, SIDE, SIDE), np.uint8)
    for number, letter in enumerate(letters):
        glyphs = [_glyph(letter, face) for face in faces]
        random = np.random.default_rng([seed, number])
        for sample in range(total):
            pixels[number, sample] = _bent(glyphs[int(random.integers(len(glyphs)))], random)
    cuts = np.cumsum(per_class)[:-1]
    return Images(tuple(letters), *(_split(part) for part in np.split(pixels, cuts, axis=1)))


def _split(pixels: NDArray[np.uint8]) -> Split:
    classes, count = pixels.shape[:2]
    labels: Labels = np.repeat(np.arange(classes, dtype=np.int64), count)
    return Split(pixels.reshape(classes * count, SIDE, SIDE, 1), labels)


def _glyph(letter: str, face: object) -> Image.Image:
    from PIL import Image, ImageDraw

    picture = Image.new("L", (CANVAS, CANVAS), 0)
    ImageDraw.Draw(picture).text((CANVAS / 2, CANVAS / 2), letter, fill=255, font=face, anchor="mm")  # type: ignore[arg-type]
    if picture.getbbox() is None:
        raise DataError(f"a font has no picture of {letter!r}; expected fonts that cover every letter")
    return picture


def _bent(glyph: Image.Image, random: np.random.Generator) -> NDArray[np.uint8]:
    from PIL import Image

    corners = _bent_corners(random)
    mesh = []
    for row in range(4):
        for column in range(4):
            box = tuple(CANVAS // 4 * edge for edge in (column, row, column + 1, row + 1))
            # Pillow's order of a quad: upper left, lower left, lower right, upper right
            quad = [corners[row + down, column + right] for down, right in ((0, 0), (1, 0), (1, 1), (0, 1))]
            mesh.append((box, tuple(float(value) for corner in quad for value in corner)))
    bent = glyph.transform((CANVAS, CANVAS), Image.Transform.MESH, mesh, Image.Resampling.BILINEAR)
    return np.asarray(bent.reduce(CANVAS // SIDE))


def _bent_corners(random: np.random.Generator) -> NDArray[np.float64]:
    """``[5, 5, 2]``: where in the glyph each corner of the mesh reads: affine about the middle, plus jitter."""
    angle, shear = random.uniform(-0.15, 0.15), random.uniform(-0.2, 0.2)
    stretch = random.uniform(0.9, 1.2, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    affine = turn @ np.array([[1.0, shear], [0.0, 1.0]]) * stretch
    jitter: NDArray[np.float64] = random.uniform(-4, 4, 2) + random.normal(0, 1.3, (5, 5, 2))
    corners: NDArray[np.float64] = (_grid() - CANVAS / 2) @ affine.T + CANVAS / 2 + jitter
    return corners


@functools.cache
def _grid() -> NDArray[np.float64]:
    edges = np.linspace(0.0, CANVAS, 5)
    return np.stack(np.meshgrid(edges, edges), -1)
