"""The demo: its corpus, the layer that it trains, its cache, all of it without torch; and both heads of a language model."""

from __future__ import annotations

import json
import re
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from children import said
from headlong.bench import rivals
from headlong.bench.measure import Progress
from headlong.cli.main import app
from headlong.demo import corpus as builtin
from headlong.demo import language_model
from headlong.demo import run as demo
from headlong.demo.language_model import smollm2_file
from headlong.demo.model import Network, Recipe, Trained, perplexity, train
from headlong.errors import DataError, HeadlongError
from headlong.report import plots
from tiny_model import tiny_model

TINY = Recipe(vocab=300, dim=16, embedding=8, batch=128, negatives=64, steps=150, held_out=200)


def silent(_: str) -> Progress:
    return lambda done, total: None


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> builtin.Corpus:
    return builtin.load(TINY.vocab, library(tmp_path_factory.mktemp("library")))


def library(root: Path) -> Path:
    """Sixty small files with a grammar: what follows a word depends on it."""
    rng = np.random.default_rng(0)
    for file in range(60):
        start = int(rng.integers(400))
        lines = [f"def name{(start + i) % 400}(self, name{(start + i + 1) % 400}):\n    return name{i}" for i in range(60)]
        (root / f"m{file:02}.py").write_text("\n".join(lines))
    return root


def test_the_standard_library_has_words_enough() -> None:
    moved: list[tuple[int, int]] = []
    first = builtin.load(15_000, progress=lambda *at: moved.append(at))
    assert len(first.words) == len(set(first.words)) == 15_000
    assert moved[-1][0] == moved[-1][1] > 300
    counts = np.bincount(first.train, minlength=15_000)
    assert (np.diff(counts) <= 0).all()
    assert len(first.train) > 1_000_000
    assert 0.02 < len(first.valid) / len(first.train) < 0.2
    again = builtin.load(15_000, sysconfig.get_path("stdlib"))
    assert again.words == first.words
    np.testing.assert_array_equal(again.train, first.train)
    np.testing.assert_array_equal(again.valid, first.valid)


def test_training_beats_word_frequencies(corpus: builtin.Corpus) -> None:
    moved: list[tuple[int, int]] = []
    trained = train(corpus, TINY, lambda *at: moved.append(at))
    assert moved == [(step + 1, TINY.steps) for step in range(TINY.steps)]
    assert trained.perplexity < 0.5 * trained.unigram_perplexity
    assert trained.weight.shape == (300, 16)
    assert trained.hidden.shape == (200, 16)
    z = trained.hidden.astype(np.float64) @ trained.weight.T.astype(np.float64) + trained.bias
    p = np.exp(z)[np.arange(200), trained.target] / np.exp(z).sum(1)
    assert trained.perplexity == pytest.approx(np.exp(-np.log(p).mean()), rel=1e-5)
    assert perplexity(trained.weight, trained.bias, trained.hidden, trained.target) == trained.perplexity


def test_one_step_follows_the_gradient() -> None:
    """With every class drawn, a tiny step changes the loss as the gradient's sign says: Adam's first step is rate * sign."""
    rng = np.random.default_rng(1)
    recipe = replace(TINY, vocab=12, batch=32, negatives=2000, context=3)
    network = Network(recipe, np.full(12, 1 / 12), rng)
    network._log_chance[:] = 0.0
    contexts, target = rng.integers(0, 12, (32, 3)).astype(np.int32), rng.integers(0, 12, 32).astype(np.int32)

    def loss() -> float:
        hidden = np.tanh(
            network.embedding.value[contexts].reshape(32, -1).astype(np.float64) @ network.mixing.value + network.shift.value
        )
        z = hidden @ network.weight.value.T.astype(np.float64) + network.bias.value
        return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(32), target]))

    for name in ("weight", "bias", "mixing", "shift", "embedding"):
        held = {other: getattr(network, other).value.copy() for other in ("weight", "bias", "mixing", "shift", "embedding")}
        before = loss()
        network.learn(contexts, target, 1e-4)
        moved = getattr(network, name).value.copy()
        for other, value in held.items():
            getattr(network, other).value[...] = value
        getattr(network, name).value[...] = moved
        assert loss() < before, name
        getattr(network, name).value[...] = held[name]


@pytest.fixture
def cached(corpus: builtin.Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and a corpus that takes no time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(builtin, "load", lambda vocab, progress=None: corpus)
    return tmp_path


SHORT = replace(TINY, steps=30)


def test_the_layer_is_trained_once(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = demo.layer(SHORT, silent, demo.train_here)
    monkeypatch.setattr(demo, "train", None)
    said: list[str] = []
    second = demo.layer(SHORT, silent, demo.train_here, say=said.append)
    assert said == ["the layer is one that was trained before; --fresh trains it again"]
    assert second.words == first.words
    assert (second.perplexity, second.unigram_perplexity) == (first.perplexity, first.unigram_perplexity)
    for name in ("weight", "bias", "hidden", "contexts", "target"):
        np.testing.assert_array_equal(getattr(second, name), getattr(first, name))
    with pytest.raises(TypeError):
        demo.layer(SHORT, silent, demo.train_here, fresh=True)
    with pytest.raises(TypeError):
        demo.layer(replace(SHORT, seed=1), silent, demo.train_here)


def test_a_damaged_cache_is_said_and_made_again(cached: Path) -> None:
    demo.layer(SHORT, silent, demo.train_here)
    path = demo.cache_file(SHORT)
    path.write_bytes(path.read_bytes()[:-100])
    said: list[str] = []
    again = demo.layer(SHORT, silent, demo.train_here, say=said.append)
    assert said == ["the cached layer is damaged: training again"]
    np.testing.assert_array_equal(demo.read(path).weight, again.weight)


def test_training_apart_tells_its_progress_and_its_faults(tmp_path: Path) -> None:
    moved: dict[str, tuple[int, int]] = {}

    def stage(label: str) -> Progress:
        return lambda done, total: moved.update({label: (done, total)})

    recipe = replace(SHORT, vocab=500, steps=3)
    demo.train_apart(recipe, tmp_path / "layer.safetensors", stage)
    assert len(demo.read(tmp_path / "layer.safetensors").words) == 500
    assert moved["train"] == (3, 3)
    assert moved["read the standard library"][0] > 300
    with pytest.raises(DataError, match="10,000,000 were asked for; use a Python install"):
        demo.train_apart(replace(recipe, vocab=10**7), tmp_path / "none.safetensors", silent)
    with pytest.raises(DataError, match="cannot be written"):
        demo.train_apart(recipe, tmp_path / "layer.safetensors" / "where.safetensors", silent)


@pytest.fixture(scope="module")
def held(corpus: builtin.Corpus) -> tuple[Trained, dict[str, Any]]:
    """A trained layer and its contest, without the products that PyTorch takes seconds to compile."""
    trained, quick = train(corpus, SHORT), [name for name in rivals.dense_installed() if "compiled" not in name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "dense_installed", lambda: quick)
        return trained, demo.contest(trained, demo.settings(1, quick=True), silent)


def test_the_contest_is_with_every_dense_product_that_is_installed(held: tuple[Trained, dict[str, Any]]) -> None:
    trained, record = held
    found = {(row["contestant"], row["batch"]): row for row in record["rows"]}
    there = {name for name in rivals.dense_installed() if "compiled" not in name}
    assert {name for name, _ in found} == {"numpy fp32", *there, *demo.METHODS}
    gone = [name for name in (*rivals.DENSE, *rivals.FEW_BITS) if name not in there]
    assert record["left_out"] == [{"contestant": ", ".join(gone), "why": "not installed"}] and "torch compiled fp32" in gone
    for name in demo.METHODS:
        for batch in (1, 64):
            row = found[name, batch]
            assert row["same"] == 1 and not row["outside"] and row["cold"]["us"] > 0
            assert ("worst" not in row) if "ids only" in name else row["worst"] <= 0.01
    assert record["layer"]["perplexity"] == trained.perplexity
    shown = demo.examples(trained, 1)
    assert len(shown.rows) == demo.SHOWN
    text = demo.html_page(trained, record, shown)
    assert "What comes next" in text
    assert f"{trained.unigram_perplexity:.0f}" in text


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None                     # an import of torch fails from here on
from headlong.bench import rivals
from headlong.demo import run as demo
from headlong.demo.model import Recipe
silent = lambda label: lambda done, total: None
recipe = Recipe(vocab=500, dim=16, embedding=8, batch=64, negatives=32, steps=10, held_out=64)
trained = demo.layer(recipe, silent, demo.train_apart)
record = demo.contest(trained, demo.settings(1, quick=True), silent)
assert "torch fp32" not in rivals.installed()
assert record["left_out"][0]["contestant"].startswith("torch fp32, torch bf16")
print(*dict.fromkeys(row["contestant"] for row in record["rows"]), sep=";")
print(len(demo.html_page(trained, record, demo.examples(trained, 1))) > 5000)
"""


def test_the_query_that_is_shown_closes_on_its_best_words(held: tuple[Trained, dict[str, Any]]) -> None:
    """Those of the classes shown are read whose interval reaches the fourth logit, and every exact logit is inside its own."""
    one = demo.one_query(held[0])
    assert sum(exact is not None and exact >= one.threshold for exact in one.exact) == 4
    for estimate, radius, exact in zip(one.estimates, one.radii, one.exact, strict=True):
        assert (exact is None) == (estimate + radius < one.threshold)
        assert exact is None or abs(exact - estimate) <= radius
    pytest.importorskip("matplotlib", reason="matplotlib is not installed: pip install '.[test-all]'")
    (figure,) = plots.closing(one)
    assert "are ruled out" in figure.svg and "Dashed" in figure.caption


def test_on_a_busy_machine_no_factor_is_told(held: tuple[Trained, dict[str, Any]]) -> None:
    trained, record = held
    shown = demo.examples(trained, 1)
    for others in (0.0, 0.5):
        busy = {**record, "environment": {**record["environment"], "others": others}}
        text = demo.html_page(trained, busy, shown)
        assert (re.search(r"\d×<", text) is None) == ("no factor is told" in text) == (others > 0.1)


def test_the_demo_writes_its_page_into_the_cache_or_where_it_is_told(
    cached: Path, held: tuple[Trained, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "layer", lambda *_: held[0])
    monkeypatch.setattr(demo, "contest", lambda *_: held[1])
    monkeypatch.chdir(tmp_path)
    for asked in ((), ("--html", "own.html")):
        done = CliRunner().invoke(app, ["demo", "--quick", "--threads", "1", *asked])
        assert done.exit_code == 0, done.output
    assert demo.page_file().is_file() and Path("own.html").is_file() and not Path("headlong-demo.html").exists()


def test_the_demo_needs_no_torch(tmp_path: Path) -> None:
    printed = said(WITHOUT_TORCH, XDG_CACHE_HOME=str(tmp_path), OMP_NUM_THREADS="1").splitlines()
    assert printed == [";".join(("numpy fp32", *demo.METHODS)), "True"]
    assert list((tmp_path / "headlong").glob("demo-*.safetensors"))


def test_both_continue_as_greedy_decoding_does(tmp_path: Path) -> None:
    torch, transformers = (pytest.importorskip(name, reason=f"{name} is an extra") for name in ("torch", "transformers"))
    tiny_model(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.tensor([[2, 7, 9]])
    steps = list(language_model.continued(model, language_model.heads(model, 1), ids, 5))
    expected = model.generate(ids, do_sample=False, max_new_tokens=5, min_new_tokens=5, pad_token_id=1)[0, 3:].tolist()
    assert [[pair[who].token for pair in steps] for who in ("stock", "headlong")] == [expected] * 2
    assert language_model.summary(steps).caption == "100% of the tokens are the same."
    assert [row[0] for row in language_model.summary(steps).rows] == ["stock", "headlong"]


def test_tokens_that_differ_are_counted() -> None:
    step = language_model.Step(3, 0.01, 0.002)
    steps = [{"stock": step, "headlong": step}, {"stock": step, "headlong": step._replace(token=4, head=0.001)}]
    found = language_model.summary(steps)
    assert found.caption == "50.0% of the tokens are the same." and found.rows == (
        ("stock", "12.0", "2.00"), ("headlong", "11.0", "1.00"),
    )  # fmt: skip
    assert language_model.line(1, ["'a'", "'b'"], steps[1]).count("ms, head") == 2


def test_smollm2_continues_a_sentence() -> None:
    for name in ("transformers", "gguf", "accelerate"):
        pytest.importorskip(name, reason=f"transformers reads GGUF files with {name}")
    try:
        smollm2_file()
    except HeadlongError as error:
        pytest.skip(str(error))
    done = CliRunner().invoke(app, ["demo", "--model", "--quick", "--threads", "1", "--json"])
    assert done.exit_code == 0, done.output
    steps = json.loads(done.stdout)["steps"]
    assert len(steps) == 6 and all(pair["stock"]["token"] == pair["headlong"]["token"] for pair in steps)
    assert len({pair["stock"]["token"] for pair in steps}) > 3
