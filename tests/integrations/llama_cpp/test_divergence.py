"""The divergence of two quantisations beside a product of everything in float64, and ``headlong kld``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import tiny_gguf
from headlong.cli.main import app
from headlong.errors import InputError, OptionError, StoreError

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model, divergence

TEXT = " ".join(f"one {number} two" for number in range(120))
CONTEXT = 32


def opened(folder: Path, family: str, head: str, **facts: Any) -> Model:
    path = tiny_gguf.write(folder / f"{family}.{head}.{len(facts)}.gguf", family, head=head, **facts)
    return Model(path, cache=folder, n_ctx=256, n_threads=1)


def in_full(base: Model, other: Model) -> divergence.Compared:
    """llama.cpp's formulas over all logits."""
    ids = base.tokenize(TEXT.encode(), add_bos=False)
    found = []
    for at in range(0, len(ids) - CONTEXT + 1, CONTEXT):
        window = ids[at : at + CONTEXT]
        window[:1] = base.tokenize(b"", add_bos=True) or window[:1]
        sides = []
        for model in (base, other):
            layer = model.layer
            logits = layer.link(model.hidden(window).astype(np.float64) @ np.asarray(layer.weight[:], np.float64).T)
            sides.append((logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))[CONTEXT // 2 : -1])
        p, q = sides
        after, rows = np.array(window[CONTEXT // 2 + 1 :]), np.arange(len(p))
        same = p.argmax(axis=1) == q.argmax(axis=1)
        found.append(((np.exp(p) * (p - q)).sum(axis=1), p[rows, after], q[rows, after], same.astype(float)))
    return divergence.Compared(*map(np.concatenate, zip(*found, strict=True)))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_every_number_is_that_of_the_product_in_float64(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "BLOCK", 300)  # several blocks, the last a part of one
    with opened(tmp_path, family, "F32") as base, opened(tmp_path, family, "Q4_0") as other:
        found, expected = divergence.kld(base, other, TEXT, context=CONTEXT), in_full(base, other)
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-10, atol=1e-12)
        assert found.kl.min() > 1e-6 and len(found.kl) == len(expected.kl) > 100
        sums = divergence.summary(found)
        assert sums.mean == pytest.approx((expected.kl.mean(), expected.kl.std() / (len(expected.kl) - 1) ** 0.5))
        assert sums.percentile_99[0] == pytest.approx(np.percentile(expected.kl, 99)) and sums.largest[0] == found.kl.max()
        assert sums.base_perplexity[0] == pytest.approx(np.exp(-expected.base.mean()))
        assert sums.log_ratio[0] == pytest.approx(np.log(sums.other_perplexity[0] / sums.base_perplexity[0]))
        assert all(error > 0 for name, (_, error) in list(sums._asdict().items())[:-1] if name not in ("largest", "same_top"))
        with Model(base.model_path, cache=tmp_path, n_ctx=256, n_threads=1, compiled=False, delta=0.5) as bare:
            assert divergence.kld(bare, other, TEXT, context=CONTEXT, tokens=64).kl[0] == found.kl[0]
            assert "engine" not in vars(bare._decoder.head) and "Layer(vocab=1000" in repr(bare)
            assert "codes, mapped" not in bare.memory()
        nothing = divergence.kld(base, base, TEXT, context=CONTEXT)
        assert nothing.kl.max() < 1e-9 and nothing.same.all()


def test_a_stopped_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kept"
    with opened(tmp_path, "llama", "F32") as base, opened(tmp_path, "llama", "Q4_0") as other:
        expected = divergence.kld(base, other, TEXT, context=CONTEXT)
        asked: list[int] = []

        def stop(done: int, of: int) -> None:
            asked.append(done)
            if len(asked) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            divergence.kld(base, other, TEXT, context=CONTEXT, folder=folder, progress=stop)
        read = [0]
        hidden = Model.hidden
        monkeypatch.setattr(Model, "hidden", lambda *given: read.__setitem__(0, read[0] + 1) or hidden(*given))
        found = divergence.kld(base, other, TEXT, context=CONTEXT, folder=folder)
        windows = len(found.kl) // (CONTEXT // 2 - 1)
        assert read[0] == 2 * (windows - 2 * divergence.AT_ONCE), "of both models, what was not there"
        read[0] = 0
        divergence.kld(base, base, TEXT, context=CONTEXT, folder=folder)
        assert read[0] == windows, "the base's vectors are kept for other models"
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, two)
        with pytest.raises(StoreError, match="is of another call"):
            divergence.kld(other, base, TEXT, context=CONTEXT, folder=folder)
        with pytest.raises(OptionError, match="the text has 3 tokens; expected 32 or more"):
            divergence.kld(base, other, TEXT, context=CONTEXT, tokens=3)
        with opened(tmp_path, "llama", "F32", vocab=900) as foreign, pytest.raises(InputError, match="of two vocabularies"):
            divergence.kld(base, foreign, TEXT, context=CONTEXT)


def test_the_command_prints_each_value_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADLONG_CACHE", str(tmp_path / "cache"))
    paths = [tiny_gguf.write(tmp_path / f"{head}.gguf", "llama", head=head) for head in ("F32", "Q4_0")]
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    words = ["kld", *map(str, paths), str(text), "--context", "32", "--threads", "1", "-o", str(tmp_path / "kept")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "mean divergence, nats" in done.stdout and " ± " in done.stdout
    sums = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert sums["mean"][0] > 0 and f"{sums['mean'][0]:.6f}" in done.stdout
