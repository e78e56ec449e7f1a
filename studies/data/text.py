"""Text for language models: words in, one stream of ids per split out::

    vocabulary.words[i]                                    # class i's word, classes in order of training frequency
    corpus.train = ids of  line₁ <eos> line₂ <eos> ...     # [tokens] int32

Every file is already tokenised by its publisher: words are what lies between blanks. Words that the training text does
not have become ``<unk>``, which is added only where a split needs it and the corpus has none of its own.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.errors import DataError
from studies.data.files import DataFile, read_text

Ids = NDArray[np.int32]
END = "<eos>"
UNKNOWN = "<unk>"


class Vocabulary:
    """``words[ids[word]] == word``, most frequent first; ties in order of first appearance."""

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self.ids = {word: index for index, word in enumerate(self.words)}
        if len(self.ids) < len(self.words):
            raise DataError(f"a vocabulary names {len(self.words) - len(self.ids)} words twice; expected each word once")

    @classmethod
    def count(cls, words: Iterable[str], least: int = 1, first: tuple[str, ...] = ()) -> Vocabulary:
        """The words seen ``least`` times or more; ``first`` come in front, others that were dropped into ``<unk>``."""
        counts = Counter(words)
        kept = Counter({word: n for word, n in counts.items() if n >= least and word not in first})
        rare = sum(n for n in counts.values() if n < least)
        if rare and UNKNOWN not in first:
            kept[UNKNOWN] += rare
        return cls([*first, *(word for word, _ in kept.most_common())])

    def __len__(self) -> int:
        return len(self.words)

    def with_unknown(self) -> Vocabulary:
        """The same words and ``<unk>``, last where it is new."""
        return self if UNKNOWN in self.ids else Vocabulary([*self.words, UNKNOWN])

    def encode(self, words: Iterable[str]) -> Ids:
        """``[ids[word] or ids["<unk>"]]``; DataError where a word is new and there is no ``<unk>``."""
        unknown = self.ids.get(UNKNOWN, -1)
        ids = np.fromiter((self.ids.get(word, unknown) for word in words), np.int32)
        if ids.size and ids.min() < 0:
            raise DataError(f"text has words outside a vocabulary of {len(self)} that has no {UNKNOWN}; leave them out")
        return ids


class Corpus(NamedTuple):
    """A vocabulary and three streams of its ids."""

    vocabulary: Vocabulary
    train: Ids
    valid: Ids
    test: Ids

    def of(self, words: int) -> Corpus:
        """The same text in its ``words`` most frequent words, ``<unk>`` among them, which stands for every other word too."""
        unknown = self.vocabulary.ids.get(UNKNOWN, len(self.vocabulary))
        if not unknown < words <= len(self.vocabulary):
            raise DataError(
                f"a vocabulary of {len(self.vocabulary)} words cannot be cut to {words}; expected as many at most, and "
                f"{UNKNOWN} among the words that are kept"
            )
        few = (np.where(ids < words, ids, np.int32(unknown)) for ids in (self.train, self.valid, self.test))
        return Corpus(Vocabulary(self.vocabulary.words[:words]), *few)


def stream(text: str, end: str = END) -> Iterator[str]:
    """The words of each line, and ``<eos>`` after it; an empty line is one ``<eos>``."""
    lines = text.split("\n")
    for line in lines[:-1] if not lines[-1].strip() else lines:
        yield from line.split()
        yield end


def build(train: str, valid: str, test: str) -> Corpus:
    """A corpus from three texts, in the words of the first."""
    vocabulary = Vocabulary.count(stream(train))
    known = vocabulary.ids.keys()
    if any(word not in known for text in (valid, test) for word in stream(text)):
        vocabulary = vocabulary.with_unknown()
    return Corpus(vocabulary, *(vocabulary.encode(stream(text)) for text in (train, valid, test)))


def load_splits(folder: Path, layout: tuple[DataFile, ...]) -> Corpus:
    """Three files, train, valid and test in this order: Penn Treebank and WikiText-2."""
    train, valid, test = (read_text(folder / file.path) for file in layout)
    return build(train, valid, test)


def load_plain(path: str | os.PathLike[str]) -> Corpus:
    """The user's own text: one file, cut 90 : 5 : 5 at line ends, or a folder with train, valid and test ``.txt``."""
    where = Path(path)
    if where.is_dir():
        names = ("train.txt", "valid.txt", "test.txt")
        missing = [name for name in names if not (where / name).is_file()]
        if missing:
            raise DataError(f"{where} has no {', '.join(missing)}; expected {', '.join(names)}, or give one text file")
        train, valid, test = (read_text(where / name) for name in names)
        return build(train, valid, test)
    lines = read_text(where).rstrip("\n").split("\n")
    if len(lines) < 3:
        raise DataError(f"{where} has {len(lines)} line(s); expected 3 or more, to cut into train, valid and test")
    held = max(1, len(lines) // 20)
    parts = lines[: -2 * held], lines[-2 * held : -held], lines[-held:]
    train, valid, test = ("\n".join(part) + "\n" for part in parts)
    return build(train, valid, test)
