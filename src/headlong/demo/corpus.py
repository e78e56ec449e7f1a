"""The corpus that every Python install carries: the standard library's own source and docstrings.

::

    corpus = builtin.load()
    corpus.words[i]          # class i's word, classes in order of training frequency
    corpus.train             # [tokens] int32, whole files one after the other
    corpus.valid             # the same for every 20th file, which train never saw

Words, identifiers, numbers and single punctuation marks, in the case they are written in; a run of line ends is one
token, indentation is dropped. The same interpreter gives the same arrays every time. Nothing is downloaded, no file
outside the standard library is opened, and tests, installed packages and the character tables of ``encodings`` are left
out. Not a benchmark corpus: it differs between Python versions, so numbers from it are compared within one run only.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError

UNKNOWN = "<unk>"
LINE_END = "⏎"
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib2to3", "encodings"}
HELD_OUT = 20
"""One file in this many is held out."""

_TOKEN = re.compile(r"[^\W\d]\w*|\d+(?:\.\d+)?|\n\s*|[^\w\s]")

Ids = NDArray[np.int32]
Progress = Callable[[int, int], None]


class Corpus(NamedTuple):
    """``words`` in order of training frequency, and two streams of their ids, ``train`` and ``valid``."""

    words: list[str]
    train: Ids
    valid: Ids


def load(vocab: int = 20_000, root: str | os.PathLike[str] | None = None, progress: Progress | None = None) -> Corpus:
    """``words = the vocab - 1 most frequent of the training files and <unk>``; ties in the order of the alphabet."""
    files = list(sources(Path(root) if root is not None else Path(sysconfig.get_path("stdlib"))))
    documents = []
    for done, file in enumerate(files):
        documents.append(tokens(file.read_text(encoding="utf-8", errors="replace")))
        if progress is not None:
            progress(done + 1, len(files))
    held_out = [index % HELD_OUT == HELD_OUT // 2 for index in range(len(files))]
    train = [document for document, out in zip(documents, held_out, strict=True) if not out]
    valid = [document for document, out in zip(documents, held_out, strict=True) if out]
    words = vocabulary(train, vocab)
    if len(words) < vocab or not valid:
        raise DataError(
            f"the standard library's source has {len(words):,} different words in {len(files):,} files where {vocab:,} were "
            f"asked for; use a Python install that carries its source (.py) files, or a smaller vocabulary"
        )
    ids = {word: index for index, word in enumerate(words)}
    return Corpus(words, _encode(train, ids), _encode(valid, ids))


def sources(root: Path) -> Iterator[Path]:
    """The ``.py`` files under ``root`` in a fixed order, less the folders in ``SKIPPED`` and build records."""
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not name.startswith("config-"))
        for name in sorted(files):
            if name.endswith(".py") and not name.startswith(("_sysconfigdata", "sitecustomize", "usercustomize")):
                yield Path(folder, name)


def tokens(text: str) -> list[str]:
    """``"if x:\\n    y" -> ["if", "x", ":", "⏎", "y"]``, with one line end in front so that a file has a start."""
    unescaped = text.replace("\\n", "\n")  # documentation kept in string literals would be one long line
    found: list[str] = _TOKEN.findall(unescaped)
    return [LINE_END, *(LINE_END if token[0] == "\n" else token for token in found)]


def vocabulary(documents: list[list[str]], size: int) -> list[str]:
    """The ``size - 1`` most frequent words and ``<unk>``, which stands for all others, in order of frequency."""
    counts = Counter(word for document in documents for word in document)
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    kept = [*ranked[: size - 1], (UNKNOWN, sum(count for _, count in ranked[size - 1 :]))]
    return [word for word, _ in sorted(kept, key=lambda entry: (-entry[1], entry[0]))]


def _encode(documents: list[list[str]], ids: dict[str, int]) -> Ids:
    unknown = ids[UNKNOWN]
    return np.array([ids.get(word, unknown) for document in documents for word in document], np.int32)
