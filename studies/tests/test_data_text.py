"""Text and sentence pairs: words to ids and back, published layouts, published counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headlong.errors import DataError
from studies.data import load
from studies.data.files import DataFile
from studies.data.text import Vocabulary, build, load_plain
from studies.data.translation import load_pairs


def test_rare_words_become_unk_which_counts_for_all_of_them() -> None:
    vocabulary = Vocabulary.count("aaabbxyzu", least=2)
    assert vocabulary.words == ("<unk>", "a", "b")
    assert vocabulary.encode(["z", "b"]).tolist() == [0, 2]


def test_new_words_of_the_test_text_become_unk() -> None:
    corpus = build("a b a\n", "a\n", "c\n")
    assert corpus.vocabulary.words == ("a", "b", "<eos>", "<unk>")
    assert corpus.test.tolist() == [3, 2]


def test_plain_text_is_cut_at_line_ends(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("".join(f"word{i}\n" for i in range(100)))
    corpus = load(tmp_path / "t.txt").content
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (180, 10, 10)
    (tmp_path / "short.txt").write_text("one\ntwo\n")
    with pytest.raises(DataError, match="expected 3 or more"):
        load_plain(tmp_path / "short.txt")
    with pytest.raises(DataError, match=r"has no train\.txt, valid\.txt, test\.txt"):
        load_plain(tmp_path)


PAIR_FILES = tuple(DataFile(f"{part}.{side}", "") for part in ("train", "val", "test") for side in ("en", "de"))


def pairs(folder: Path) -> None:
    texts = {"train": ("a b\na c\n", "x\nx y\n"), "val": ("a\n", "x\n"), "test": ("b a\n", "y z\n")}
    for part, (source, target) in texts.items():
        (folder / f"{part}.en").write_text(source)
        (folder / f"{part}.de").write_text(target)


def test_pairs_keep_their_order_and_drop_rare_words(tmp_path: Path) -> None:
    pairs(tmp_path)
    found = load_pairs(tmp_path, PAIR_FILES)
    assert found.source.words == ("<unk>", "<s>", "<eos>", "a")
    assert [ids.tolist() for ids in found.train.source] == [[3, 0, 2], [3, 0, 2]]
    assert found.test.reference == ["y z"]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("penn-treebank", (10_000, 929_589, 73_760, 82_430)), ("wikitext-2", (33_278, 2_088_628, 217_646, 245_569))],
)
def test_published_counts(data: Path, name: str, sizes: tuple[int, ...]) -> None:
    corpus = load(name, data).content
    assert (len(corpus.vocabulary), len(corpus.train), len(corpus.valid), len(corpus.test)) == sizes
    counts = np.bincount(corpus.train, minlength=sizes[0])
    assert np.all(np.diff(counts) <= 0)


def test_published_pair_counts(data: Path) -> None:
    found = load("multi30k", data).content
    assert [len(part.source) for part in found[2:]] == [29_000, 1_014, 1_000]


def test_a_vocabulary_is_cut_to_its_most_frequent_words() -> None:
    corpus = build("a a a <unk> <unk> b c\n", "b a\n", "c <unk>\n")
    few = corpus.of(3)
    assert few.vocabulary.words == corpus.vocabulary.words[:3] == ("a", "<unk>", "b")
    for split, cut in zip(corpus[1:], few[1:], strict=True):
        words = [corpus.vocabulary.words[i] for i in split.tolist()]
        assert [few.vocabulary.words[i] for i in cut.tolist()] == [word if word in ("a", "b") else "<unk>" for word in words]
    for words in (1, 99):
        with pytest.raises(DataError, match=f"cannot be cut to {words}"):
            corpus.of(words)
