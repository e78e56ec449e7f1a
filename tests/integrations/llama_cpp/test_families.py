"""Each family that is taken: hidden vectors and logits as llama.cpp's own from the full file; others are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from headlong.errors import UnsupportedError

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model, families  # noqa: E402

TEXT = [17, 301, 42, 999, 5, 77, 640, 3, 250, 511, 8]


def logits_of_llama_cpp(path: Path) -> Any:
    whole = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    whole.eval(TEXT)
    found = np.array(whole.scores[: len(TEXT)], np.float64)
    whole.close()
    return found


def log_softmax(logits: Any) -> Any:
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)


def test_every_family_is_tried() -> None:
    assert set(families.FAMILIES) == set(tiny_gguf.FAMILIES)


@pytest.mark.parametrize("head", ["F32", "Q8_0"])
@pytest.mark.parametrize("family", sorted(tiny_gguf.FAMILIES))
def test_logits_are_llama_cpps_own(family: str, head: str, tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", family, head=head)
    expected = log_softmax(logits_of_llama_cpp(path))
    with Model(path, cache=tmp_path, n_ctx=64, n_threads=1, eps=1e-6) as model:
        found, error = model.log_probs(TEXT)
        following = np.array(TEXT[1:])
        # where the head is Q8_0, llama.cpp rounds hidden vectors to eight bits, too
        far = (1e-5 if head == "F32" else 2e-2) * np.abs(expected).max()
        assert np.abs(found - expected[np.arange(len(following)), following]).max() < far and error.max() <= 1e-6
        likeliest = model.generate(TEXT, 1, temperature=0, logprobs=0)
    best = int(np.argmax(expected[-1]))
    assert likeliest.ids == (() if best == 999 else (best,)) or head == "Q8_0"


def test_scales_and_caps_move_logits(tmp_path: Path) -> None:
    """What the comparison above would notice: the same weights with other facts."""
    found = []
    for cap in (30.0, 3.0):
        path = tiny_gguf.write(tmp_path / f"{cap}.gguf", "gemma2", final_logit_softcapping=cap)
        with Model(path, cache=tmp_path, n_ctx=64, n_threads=1) as model:
            found.append(model.log_probs(TEXT)[0])
    assert np.abs(found[0] - found[1]).max() > 0.1


def test_a_convention_that_is_not_llama_cpps_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", "gemma3")
    monkeypatch.delitem(families.SCALED, "gemma3")
    with pytest.raises(UnsupportedError, match="treats the rows of this model's embedding otherwise"):
        Model(path, cache=tmp_path, n_ctx=64)
    from headlong.layers import gguf_logits

    path = tiny_gguf.write(tmp_path / "other.gguf", "granite")
    monkeypatch.setattr(gguf_logits, "TIMES", {*gguf_logits.TIMES, "granite"})
    with pytest.raises(UnsupportedError, match="logits of the first 32 tokens are not"):
        Model(path, cache=tmp_path, n_ctx=64)


def test_unknown_families_are_refused(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "model.gguf", "olmo2")
    with pytest.raises(UnsupportedError, match="is a olmo2 model; bodies are run of falcon-h1, .*use llama_cpp.Llama"):
        Model(path, cache=tmp_path)
    assert not list(tmp_path.glob("*.body.gguf"))


NARROW = {"head_dim": tiny_gguf.PER_HEAD}
WHAT_TRANSFORMERS_DOES_NOT_READ: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": NARROW,
    "phi3": {"pad_token_id": 0},
    "gemma2": NARROW | {"query_pre_attn_scalar": tiny_gguf.PER_HEAD},
    "gemma3": NARROW | {"query_pre_attn_scalar": tiny_gguf.PER_HEAD},
}
"""Facts of the file that its GGUF reader leaves at its own models' sizes. The other families it does not read."""


@pytest.mark.parametrize("family", sorted(WHAT_TRANSFORMERS_DOES_NOT_READ))
def test_log_probabilities_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    path = tiny_gguf.write(tmp_path / "model.gguf", family)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(tmp_path), gguf_file="model.gguf", dtype=torch.float32, **WHAT_TRANSFORMERS_DOES_NOT_READ[family]
    )
    with torch.no_grad():
        expected = log_softmax(theirs(torch.tensor([TEXT])).logits[0].double().numpy())[np.arange(len(TEXT) - 1), TEXT[1:]]
    with Model(path, cache=tmp_path / "cache", n_ctx=64, n_threads=1, eps=1e-6, type_k=0, type_v=0) as model:  # float32 caches
        found, _ = model.log_probs(TEXT)
    # ggml looks Gemma's GELU up in a table of float16
    assert np.abs(found - expected).max() < (2e-3 if family.startswith("gemma") else 2e-5)
