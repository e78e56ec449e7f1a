"""The training loop, from the command line to a harvested layer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlong import Layer
from headlong.errors import MalformedFileError, NonFiniteError, OptionError, StoreError
from headlong.store import open_file
from studies.models.harvest import Wish, harvest, trained
from studies.models.jobs import build_job
from studies.models.recipe import Recipe, from_dict
from studies.models.run import train
from studies.models.train import BEST, Run
from studies.tests.commands import ran

WORDS = 40


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of a small language in which a word tells much of the next."""
    random = np.random.default_rng(1)
    follows = random.dirichlet(np.full(WORDS, 0.03), WORDS)
    word, lines = 0, []
    for _ in range(240):
        line = []
        for _ in range(10):
            word = int(random.choice(WORDS, p=follows[word]))
            line.append(f"w{word}")
        lines.append(" ".join(line))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(text: Path, **training: Any) -> Recipe:
    fields = {"epochs": 2, "batch": 4, "window": 10, "rate": 0.01} | training
    data = {"data": str(text), "model": {"kind": "lstm", "dim": 12, "layers": 2}, "training": fields}
    return from_dict(data, "small")


def checksum(folder: Path) -> str:
    return str(trained(folder).model.head.to_layer().checksum())


def test_training_learns_and_records(text: Path, tmp_path: Path) -> None:
    record = train(recipe(text, epochs=4, rate=0.05), tmp_path)
    curve = record["curve"]
    assert [entry["epoch"] for entry in curve] == [1, 2, 3, 4]
    assert curve[-1]["valid_perplexity"] < 0.7 * curve[0]["valid_perplexity"]
    assert record["test"]["perplexity"] < 0.5 * (WORDS + 1)
    assert json.loads((tmp_path / "run.json").read_text()) == json.loads(json.dumps(record))
    assert str(text.parent) not in json.dumps(record)
    assert record["layer"]["checksum"] == checksum(tmp_path)


def test_the_same_recipe_is_the_same_run(text: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for kind in ("adam", "sgd"):
            asked = recipe(text, optimiser=kind, rate=0.01 if kind == "adam" else 30.0)
            one, other = (train(asked, tmp_path / kind / name) for name in ("one", "other"))
            assert one["test"] == other["test"] and one["layer"] == other["layer"]
    finally:
        torch.set_num_threads(threads)


def test_the_best_of_its_epochs_is_kept(text: Path, tmp_path: Path) -> None:
    run = Run(build_job(recipe(text, epochs=3, rate=0.05)), tmp_path)
    seen: list[str] = []

    def spoil(done: int, total: int) -> None:
        if done == 2 * total // 3:
            seen.append(run.job.model.head.to_layer().checksum())
        if done == total:
            with torch.no_grad():
                run.job.model.head.bias.add_(torch.arange(float(run.job.model.head.vocab)))

    run._report = spoil
    run.fit()
    assert run.history[2]["valid_loss"] > run.history[1]["valid_loss"] == run.best
    assert checksum(tmp_path) == run.job.model.head.to_layer().checksum() == seen[0]


def test_a_trained_model_is_not_trained_over(text: Path, tmp_path: Path) -> None:
    train(recipe(text, epochs=1), tmp_path)
    before = (tmp_path / BEST).read_bytes()
    with pytest.raises(StoreError, match="holds a trained model; give another folder"):
        train(recipe(text), tmp_path)
    assert (tmp_path / BEST).read_bytes() == before
    (tmp_path / BEST).write_bytes(before[: len(before) // 2])
    with pytest.raises(MalformedFileError):
        trained(tmp_path)


def test_a_loss_that_explodes_stops_the_run(text: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"lower training\.rate \(now 1e\+38\), or training\.clip$"):
        train(recipe(text, optimiser="sgd", rate=1e38, clip=0.0), tmp_path)


def test_a_harvested_layer_and_its_vectors_belong_together(text: Path, tmp_path: Path) -> None:
    record = train(recipe(text), tmp_path / "run")
    out = harvest(tmp_path / "run", tmp_path / "out", wish=Wish(("valid", "test"), 0, "float32"))
    layer, file = Layer.load(out / "layer.safetensors"), open_file(out / "hidden.safetensors")
    assert layer.checksum() == record["layer"]["checksum"] == file.metadata["layer"]
    assert file.metadata["source"] == "small on text.txt"
    assert sorted(file.tensors) == ["test_hidden", "test_target", "valid_hidden", "valid_target"]
    hidden, target = file.read("test_hidden").astype(np.float64), file.read("test_target")
    assert layer.bias is not None
    logits = hidden @ layer.weight.T.astype(np.float64) + layer.bias
    log_prob = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert len(target) == record["test"]["targets"]
    assert np.exp(-log_prob[np.arange(len(target)), target].mean()) == pytest.approx(record["test"]["perplexity"], rel=1e-5)
    assert len((out / "vocab.txt").read_text().splitlines()) == layer.vocab
    some = harvest(tmp_path / "run", tmp_path / "some", wish=Wish(("train",), 100))
    assert open_file(some / "hidden.safetensors").read("train_hidden").shape == (100, 12)
    with pytest.raises(OptionError, match="expected splits of"):
        harvest(tmp_path / "run", tmp_path / "out", wish=Wish(("dev",)))


def test_a_translator_learns_to_copy_a_word(tmp_path: Path) -> None:
    pytest.importorskip("sacrebleu", reason="BLEU is sacrebleu's, an optional package")
    from studies.data import Loaded
    from studies.data.text import Vocabulary
    from studies.data.translation import RESERVED, Pairs, Split
    from studies.models.run import describe

    random = np.random.default_rng(0)
    words = Vocabulary([*RESERVED, "a", "b", "c", "d"])
    sentences = [[words.words[random.integers(3, 7)]] * int(random.integers(4, 6)) for _ in range(200)]
    ids = [words.encode([*sentence, "<eos>"]) for sentence in sentences]
    split = Split(ids, ids, [" ".join(sentence) for sentence in sentences])
    data = {
        "data": "toy",
        "model": {"kind": "seq2seq", "dim": 24, "dropout": 0.0},
        "training": {"batch": 16, "epochs": 10, "rate": 0.02, "clip": 1.0},
    }
    job = build_job(from_dict(data, "toy"), data=Loaded("toy", "pairs", Pairs(words, words, split, split, split), "none"))
    run = Run(job, tmp_path)
    test = describe(job, run, run.fit())["test"]
    assert test["bleu"] > 80 and test["sentences"] == 200
    assert "tok:none" in test["signature"] and "version:" in test["signature"]


def test_the_command_line_trains_and_harvests(text: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    options = ["--option", "model.dim=8", "--option", "training.epochs=1", "--option", "training.batch=4"]
    done = ran("train", "ptb-lstm", "--data", str(text), "--head", "dense", "--out", str(run), *options)
    assert done.exit_code == 0, done.stderr
    assert "ptb-lstm: test perplexity" in done.stdout
    assert {path.name for path in run.iterdir()} == {BEST, "run.json"}
    done = ran("harvest", str(run), "--out", str(out), "--rows", "50")
    assert done.exit_code == 0, done.stderr
    assert open_file(out / "hidden.safetensors").read("valid_hidden").shape == (50, 8)
    for words, fault in [
        (["train", "ptb"], "'ptb' is no recipe"),
        (["train", "ptb-lstm", "--data", str(tmp_path / "none" / "penn-treebank")], "is missing"),
        (["harvest", str(tmp_path / "none")], "cannot be read"),
        (["harvest", str(tmp_path)], "holds no trained model"),
    ]:
        done = ran(*words)
        assert done.exit_code == 2 and fault in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_text_is_cut_in_words_and_in_what_is_measured(text: Path, tmp_path: Path) -> None:
    with_unknown = tmp_path / "t.txt"
    with_unknown.write_text(text.read_text().replace("w1 ", "<unk> ").replace("w0 ", "<unk> "))
    whole, cut = (build_job(recipe(with_unknown, **few)) for few in ({}, {"words": 20, "measured": 44}))
    assert cut.model.head.vocab == len(cut.classes) == 20 and cut.classes == whole.classes[:20]
    assert cut.train.steps(0) == whole.train.steps(0), "the training text is as long"
    columns, window = 2, 10  # of 44 tokens
    assert sum(len(cut.valid.batch(0, step).target) for step in range(cut.valid.steps(0))) == 44 - columns
    assert 44 // (2 * window) == columns


def test_the_control_starts_from_the_softmax_and_validation_chooses_its_rate(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from studies.papers.monotonic_softmax import language_models as study

    monkeypatch.chdir(tmp_path)
    vocab = len(build_job(recipe(text)).classes)
    monkeypatch.setitem(study.VOCABS, str(text), vocab)
    training = {"epochs": 1, "epoch_steps": 8, "batch": 4, "window": 10}
    monkeypatch.setitem(study.STUDIES, "tiny", study.Study(str(text), {study.SOFTMAX: 1, study.TUNED: 1}, 12, 0.0, training))
    before = study.train("tiny", study.SOFTMAX, 1, lambda *_: None)
    seen = {}
    for rates in ((1e-9,), (1.0,), (1e-9, 1.0)):
        monkeypatch.setattr(study, "RATES", rates)
        seen[rates] = study.tuned("tiny", 1, lambda *_: None)
    assert seen[1e-9,]["valid"] == pytest.approx(before["valid"]), "a rate of nothing leaves the softmax as it was"
    assert seen[1e-9,]["epochs"] == 2
    assert seen[1e-9, 1.0] == min(seen[1e-9,], seen[1.0,], key=lambda one: one["valid"])
