"""What a harvested class is called: words stay those of training, whatever text is read and wherever from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong.errors import DataError, MalformedFileError, OptionError, StoreError
from headlong.store import open_file, write_file
from studies.data import load
from studies.data.identity import checksum_of, words_of
from studies.data.text import Corpus, Vocabulary, recoded
from studies.data.translation import RESERVED, Pairs, Split
from studies.models.harvest import Wish, harvest, trained
from studies.models.recipe import Recipe, from_dict
from studies.models.run import train
from studies.models.train import BEST
from studies.tests.commands import ran

FRUIT = ("apple", "pear", "plum", "fig", "lime")


def lines(words: tuple[str, ...], seed: int, count: int = 120, unknown: str = "") -> str:
    random = np.random.default_rng(seed)
    weights = np.arange(len(words), 0, -1.0) ** 2
    text = [" ".join(random.choice(words, 8, p=weights / weights.sum())) for _ in range(count)]
    return "\n".join([*text, unknown]) + "\n"


def recipe(text: Path | str, **training: Any) -> Recipe:
    fields = {"epochs": 1, "batch": 4, "window": 8, "save_steps": 5} | training
    tables = {"data": str(text), "model": {"kind": "lstm", "dim": 4, "layers": 1, "dropout": 0.0}, "training": fields}
    return from_dict(tables, "fruit")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "fruit.txt"
    path.write_text(lines(FRUIT, 1, unknown="quince"))  # a held-out word: the vocabulary has <unk>
    return path


@pytest.fixture(scope="module")
def run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train(recipe(text), folder)
    return folder


def test_other_text_is_read_in_the_words_of_training(run: Path, text: Path, tmp_path: Path) -> None:
    known = trained(run).classes
    other = tmp_path / "other.txt"
    other.write_text(lines(FRUIT[::-1], 2, unknown="durian"))  # as many words, but another order of frequency
    assert load(other).content.vocabulary.words != known and len(load(other).content.vocabulary) == len(known)
    out = harvest(run, tmp_path / "out", str(other), Wish(("train", "test"), 0))
    assert tuple((out / "vocab.txt").read_text().splitlines()) == known
    for split in ("train", "test"):
        target = open_file(out / "hidden.safetensors").read(f"{split}_target")
        job = trained(run, str(other))
        words = {known[i] for i in target.tolist()}
        assert words <= {*FRUIT, "<eos>", "<unk>"}
        assert ("<unk>" in words) == (split == "test"), "durian is no word of this model"
        assert np.bincount(target).tolist() == _counted(job.data.content, split, len(known), len(target))
    most = known[int(np.bincount(open_file(out / "hidden.safetensors").read("train_target")).argmax())]
    assert most == FRUIT[-1], "the other text's most frequent word"


def _counted(corpus: Corpus, split: str, vocab: int, count: int) -> list[int]:
    """Every token but the first of each column is a target."""
    stream = getattr(corpus, split)
    columns = max(1, min(10, len(stream) // 16))
    table = stream[: len(stream) // columns * columns].reshape(columns, -1)[:, 1:]
    assert table.size == count
    found: list[int] = np.bincount(table.ravel()).tolist()
    return found


def test_a_vocabulary_without_unknown_refuses_unknown_words(tmp_path: Path) -> None:
    (tmp_path / "all.txt").write_text(lines(FRUIT, 1))
    (tmp_path / "more.txt").write_text(lines(("kiwi", *FRUIT), 1))
    train(recipe(tmp_path / "all.txt"), tmp_path / "run")
    with pytest.raises(DataError, match="words outside a vocabulary of 6 that has no <unk>"):
        trained(tmp_path / "run", str(tmp_path / "more.txt"))


def test_a_changed_text_does_not_go_on(text: Path, tmp_path: Path) -> None:
    mine = tmp_path / "fruit.txt"
    mine.write_text(text.read_text())
    asked = recipe(mine)
    done = train(asked, tmp_path / "run")
    for changed in (text.read_text().replace("apple", "mango"), "\n".join(text.read_text().split("\n")[::-1])):
        mine.write_text(changed)
        with pytest.raises(OptionError, match=r"data that changed since: fruit\.txt is different"):
            train(asked, tmp_path / "run")
    (tmp_path / "moved.txt").write_text(text.read_text())
    assert train(recipe(tmp_path / "moved.txt"), tmp_path / "run")["test"] == done["test"], "the same text elsewhere"


def test_a_run_finds_its_data_from_any_folder(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "fruit.txt").write_text(text.read_text())
    monkeypatch.chdir(tmp_path / "here")
    record = train(recipe("fruit.txt"), tmp_path / "run")
    assert str(tmp_path) not in str(record)
    monkeypatch.chdir(tmp_path)
    assert trained(tmp_path / "run").data.name == "fruit.txt"
    assert train(recipe("here/fruit.txt"), "run")["test"] == record["test"]
    (tmp_path / "here" / "fruit.txt").rename(tmp_path / "fruit.txt")
    done = ran("harvest", "run", "--out", "out")
    assert done.exit_code == 2 and len(done.stderr.splitlines()) == 1
    assert "say with --data where the data of run/best.safetensors is" in done.stderr
    assert ran("harvest", "run", "--out", "out", "--data", "fruit.txt").exit_code == 0


def _rewritten(path: Path, drop: str | None = None, words: bytes | None = None) -> None:
    """As an older headlong wrote it, or damaged."""
    file = open_file(path)
    tensors = {name: file.read(name).copy() for name in file.tensors if name != drop}
    if words is not None:
        tensors["words"] = np.frombuffer(words, np.uint8)
    write_file(path, tensors, {key: value for key, value in file.metadata.items() if drop is None or key != "data"})


@pytest.mark.parametrize("words", [b"{}", b"[1]", b"\xff", b'{"words": []}', b'{"words": [3]}', b'{"words": 3}'])
def test_damaged_words_are_refused(text: Path, run: Path, tmp_path: Path, words: bytes) -> None:
    (tmp_path / BEST).write_bytes((run / BEST).read_bytes())
    _rewritten(tmp_path / BEST, words=words)
    with pytest.raises(MalformedFileError):
        trained(tmp_path)


def test_what_holds_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"holds no trained model; expected the folder of a run with best\.safetensors"):
        trained(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file; give another folder"):
        harvest(tmp_path, tmp_path / "file")
    with pytest.raises(OptionError, match=r"^splits dev, rows 8192, dtype float16; expected splits of train, valid, test"):
        harvest(tmp_path, tmp_path / "out", wish=Wish(("dev",)))


def test_data_is_told_from_data() -> None:
    ids = np.arange(5, dtype=np.int32)
    words = Vocabulary([*RESERVED, "a", "b"])
    text = Corpus(words, ids, ids, ids)
    one = Split([ids, ids[:2]], [ids[:3], ids], ["", ""])
    two = Split([ids[:4], np.array([4, 0, 1], np.int32)], one.target, one.reference)  # the same ids, cut elsewhere
    pairs = [Pairs(words, words, split, one, one) for split in (one, two)]
    renamed = text._replace(vocabulary=Vocabulary([*RESERVED, "a", "c"]))
    everything = [text, text._replace(valid=ids[::-1].copy()), renamed, *pairs]
    assert len({checksum_of(content) for content in everything}) == len(everything)
    assert checksum_of(pairs[0]) == checksum_of(Pairs(words, words, one, one, one))
    assert words_of(pairs[0]) == (words.words, words.words)


def test_a_corpus_is_recoded_word_by_word() -> None:
    mine, other = Vocabulary(["a", "<unk>", "b"]), Vocabulary(["c", "b", "a"])
    ids = np.array([2, 1, 0, 1], np.int32)
    corpus = recoded(Corpus(other, ids, ids[:2], ids[:0]), mine)
    assert [mine.words[i] for i in corpus.train] == ["a", "b", "<unk>", "b"] and corpus.train.dtype == np.int32
    assert recoded(corpus, Vocabulary(["a", "<unk>", "b"])) is corpus
