"""Sentence pairs for translation: parallel files, one tokenised sentence a line::

    pairs.train.source[i], pairs.train.target[i]      # [words] int32, <eos> at the end of each

Both vocabularies come from the training side; words seen once become ``<unk>``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError
from studies.data.files import DataFile, read_text
from studies.data.text import END, UNKNOWN, Vocabulary

Ids = NDArray[np.int32]
START = "<s>"
RESERVED = (UNKNOWN, START, END)


class Split(NamedTuple):
    """Sentences of both sides, in the same order, and the target's text as it was for scoring."""

    source: list[Ids]
    target: list[Ids]
    reference: list[str]


class Pairs(NamedTuple):
    """Two vocabularies and three splits of sentence pairs."""

    source: Vocabulary
    target: Vocabulary
    train: Split
    valid: Split
    test: Split


def _sides(folder: Path, files: tuple[DataFile, DataFile]) -> tuple[list[str], list[str]]:
    source, target = (read_text(folder / file.path).rstrip("\n").split("\n") for file in files)
    if len(source) != len(target):
        raise DataError(
            f"{folder / files[0].path} has {len(source)} lines, {files[1].path} has {len(target)}; expected the same "
            f"number, one sentence a line: one of them is cut off"
        )
    return source, target


def _split(sides: tuple[list[str], list[str]], source: Vocabulary, target: Vocabulary) -> Split:
    return Split(
        [source.encode([*line.split(), END]) for line in sides[0]],
        [target.encode([*line.split(), END]) for line in sides[1]],
        sides[1],
    )


def load_pairs(folder: Path, layout: tuple[DataFile, ...], least: int = 2) -> Pairs:
    """Layout: source and target of train, of valid, of test. Vocabularies: training words seen ``least`` times."""
    train, valid, test = (_sides(folder, (layout[at], layout[at + 1])) for at in (0, 2, 4))
    source, target = (Vocabulary.count((word for line in side for word in line.split()), least, RESERVED) for side in train)
    return Pairs(source, target, *(_split(sides, source, target) for sides in (train, valid, test)))
