"""The training loop: killed and resumed, on a full disk, in two processes, from the command line to a harvested layer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headlong import Layer
from headlong.errors import DataError, MalformedFileError, NonFiniteError, OptionError
from headlong.store import open_file
from studies.models import optimisers
from studies.models.evaluate import evaluate
from studies.models.harvest import Wish, harvest, trained
from studies.models.jobs import build_job
from studies.models.recipe import Recipe, from_dict
from studies.models.run import train
from studies.models.train import BEST, LAST, Run, _seed
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
    fields = {"epochs": 2, "batch": 4, "window": 10, "rate": 0.01, "save_steps": 5} | training
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


@pytest.mark.parametrize("able", [None, False])
def test_bfloat16_is_asked_for_where_the_processor_has_it(
    text: Path, tmp_path: Path, able: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shipped recipe asks for it; an LSTM in bfloat16 is refused by PyTorch on a processor without."""
    if able is not None:
        monkeypatch.setattr(optimisers, "has_bfloat16", lambda: able)
    there = optimisers.has_bfloat16()
    record = train(recipe(text, bf16=True), tmp_path / "asked")
    assert record["environment"]["products"] == ("bfloat16" if there else "float32")
    plain = train(recipe(text), tmp_path / "plain")
    assert plain["environment"]["products"] == "float32"
    assert (record["layer"]["checksum"] == plain["layer"]["checksum"]) == (not there)


def test_the_test_figure_is_that_of_the_best_epoch(text: Path, tmp_path: Path) -> None:
    record = train(recipe(text, epochs=6, rate=0.2), tmp_path)
    figures = [entry["valid_perplexity"] for entry in record["curve"]]
    job = trained(tmp_path)
    assert evaluate(job.model, job.valid).perplexity == pytest.approx(min(figures))


def test_stopped_anywhere_and_resumed_is_the_same_run(text: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for kind in ("adam", "sgd"):
            asked = recipe(text, epochs=4, optimiser=kind, rate=0.01 if kind == "adam" else 30.0)
            whole = train(asked, tmp_path / kind / "whole")
            for stop in (7, 60, 112):
                _interrupted(asked, tmp_path / kind / "cut", stop)
            cut = train(asked, tmp_path / kind / "cut")
            assert cut["test"] == whole["test"] and cut["layer"] == whole["layer"]
            plain = ("train_loss", "valid_loss", "rate")
            for one, other in zip(cut["curve"], whole["curve"], strict=True):
                assert [one[key] for key in plain] == [other[key] for key in plain]
    finally:
        torch.set_num_threads(threads)


class StoppedError(Exception):
    pass


def _interrupted(asked: Recipe, folder: Path, steps: int) -> None:
    def stop(done: int, total: int) -> None:
        nonlocal steps
        steps -= 1
        if not steps:
            raise StoppedError

    with pytest.raises(StoppedError):
        Run(build_job(asked), folder, stop).fit()


def test_another_recipe_does_not_go_on_with_this_run(text: Path, tmp_path: Path) -> None:
    _interrupted(recipe(text), tmp_path, 8)
    with pytest.raises(OptionError, match="is a run of another recipe"):
        train(recipe(text, rate=0.02), tmp_path)


@pytest.mark.parametrize("spoil", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"x" * len(raw)])
def test_a_damaged_checkpoint_is_refused_and_kept(text: Path, tmp_path: Path, spoil: Any) -> None:
    _interrupted(recipe(text), tmp_path, 8)
    damaged = spoil((tmp_path / LAST).read_bytes())
    (tmp_path / LAST).write_bytes(damaged)
    with pytest.raises(MalformedFileError):
        train(recipe(text), tmp_path)
    assert (tmp_path / LAST).read_bytes() == damaged


def test_a_loss_that_explodes_stops_the_run(text: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"lower training\.rate \(now 1e\+38\), or training\.clip$"):
        train(recipe(text, optimiser="sgd", rate=1e38, clip=0.0), tmp_path)


@pytest.mark.parametrize(
    ("option", "fault"),
    [
        ("model.dim=99999999999", "model.dim = 99999999999; expected 1 to 65,536"),
        ("model.dim=9999999999999999999999", "model.dim = 9999999999999999999999; expected 1 to 65,536"),
        ("model.layers=0", "model.layers = 0; expected 1 to 1,000"),
        ("model.dropout=2", "model.dropout = 2.0; expected 0 or more and less than 1"),
        ("training.epochs=0", "training.epochs = 0; expected a number from 1 up to 2^31"),
        ("training.rate=NaN", "training.rate = nan; expected a finite rate above 0"),
        ("head.bogus=1", "the dense head does not take these options: bogus; expected such as bias=True, chunk=None"),
        ("data=3", 'recipe ptb-lstm: data = 3; expected data = "..." (a name, a folder or a file), model, head, training'),
    ],
)
def test_impossible_options_are_named(text: Path, tmp_path: Path, option: str, fault: str) -> None:
    options = ["--out", str(tmp_path / "run"), "--option", option]
    done = ran("train", "ptb-lstm", "--data", str(text), *options)
    assert (done.exit_code, done.stderr) == (2, f"studies: {fault}\n") and not (tmp_path / "run").exists()


def test_any_seed_seeds_every_step() -> None:
    seeds = [0, 1, 2000, 2**31 - 1]
    steps = {_seed(seed, epoch, step) for seed in seeds for epoch in (0, 9) for step in (0, 7)}
    assert len(steps) == 4 * len(seeds)
    for step in steps:
        torch.manual_seed(step)


def test_a_held_out_part_that_is_too_short_is_named(text: Path) -> None:
    with pytest.raises(DataError, match=r"the valid split: a text of \d+ tokens in 1 columns is shorter than the window"):
        build_job(recipe(text, window=400, batch=2))


def test_models_and_data_have_to_fit(text: Path) -> None:
    wrong = from_dict({"data": str(text), "model": {"kind": "seq2seq"}}, "wrong")
    with pytest.raises(OptionError, match=r"the model seq2seq reads pairs, text\.txt is text"):
        build_job(wrong)
    with pytest.raises(OptionError, match="no model is called 'rnn'"):
        build_job(from_dict({"data": str(text), "model": {"kind": "rnn"}}, "wrong"))
    with pytest.raises(DataError, match="shorter than the window"):
        build_job(recipe(text, window=5000))


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
    assert {path.name for path in run.iterdir()} == {LAST, BEST, "run.json"}
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


def test_a_recipe_that_is_not_there_is_refused_before_torch_is_loaded() -> None:
    code = "import sys; sys.modules['torch'] = None; from studies.__main__ import main; sys.exit(main())"
    call = [sys.executable, "-c", code, "train", "missing.toml"]
    done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and "'missing.toml' is no recipe" in done.stderr, done.stderr
