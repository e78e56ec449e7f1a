"""The layer and hidden vectors of a transformers model: they are the model's own, and a model they are not of is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headlong.errors import DataError, MissingPackageError, OptionError, StoreError
from headlong.layers.matrix import Layer
from headlong.store import open_file

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="Hugging Face models need transformers, an optional package")

from headlong.integrations.harvest import harvest, read_texts  # noqa: E402

TEXT = " ".join(f"w{(7 * i * i + i) % 40}" for i in range(300))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose words are w0, w1, ..."""
    import tokenizers
    from tokenizers import models, pre_tokenizers

    target = tmp_path_factory.mktemp("llama")
    vocab = {"[UNK]": 0} | {f"w{i}": i + 1 for i in range(40)}
    plain = tokenizers.Tokenizer(models.WordLevel(vocab, "[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, unk_token="[UNK]").save_pretrained(target)
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=len(vocab), num_key_value_heads=2, tie_word_embeddings=False, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(target)
    return target


def test_vectors_and_layer_give_the_models_own_logits(folder: Path, tmp_path: Path) -> None:
    seen: list[Any] = []
    out = harvest(folder, {"valid": TEXT}, tmp_path, 60, "float32", window=16, stage=lambda name: lambda *at: seen.append(at))
    layer, file = Layer.load(out / "layer.safetensors"), open_file(out / "hidden.safetensors")
    hidden, target = file.read("valid_hidden"), file.read("valid_target")
    assert hidden.shape == (60, 16) and seen[-1] == (60, 60)
    assert target.tolist() == [int(word[1:]) + 1 for word in TEXT.split()[1:61]]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([[int(TEXT.split()[0][1:]) + 1, *target[:15].tolist()]])).logits[0]
    np.testing.assert_allclose(hidden[:16] @ layer.weight.T, logits.numpy(), atol=1e-4)
    every = open_file(harvest(folder, {"valid": TEXT, "test": TEXT[:60]}, tmp_path / "all", 0) / "hidden.safetensors")
    assert every.read("valid_hidden").shape == (299, 16) and every.read("test_hidden").dtype == np.float16
    assert transformers.utils.logging.is_progress_bar_enabled(), "bars of the rest of the program stay"


def test_a_model_that_is_not_its_layers_is_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(source: Any) -> Layer:
        found = load(source)
        return Layer(found.weight[::-1].copy())

    load = Layer.load
    monkeypatch.setattr(Layer, "load", other)
    with pytest.raises(OptionError, match="the model's logits are up to .* from those of its layer"):
        harvest(folder, {"valid": TEXT}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_harvested_is_said(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("w1 w2")
    for call, fault, said in (
        (lambda: harvest(folder, {"valid": "w1"}, tmp_path / "out"), DataError, "has 1 tokens"),
        (lambda: harvest(folder, {"valid": TEXT}, tmp_path / "file"), StoreError, "is a file"),
        (lambda: harvest(folder, {"valid": TEXT}, tmp_path / "out", dtype="int8"), OptionError, "dtype int8"),
        (lambda: harvest(folder, {}, tmp_path / "out"), OptionError, "0 texts"),
        (lambda: harvest(tmp_path, {"valid": TEXT}, tmp_path / "out"), OptionError, "not a complete causal language model"),
        (lambda: read_texts(tmp_path, ("valid",)), DataError, "cannot be read"),
        (lambda: read_texts(tmp_path / "file", ("train", "valid")), OptionError, "is one text"),
    ):
        with pytest.raises(fault, match=said):
            call()
    assert read_texts(tmp_path / "file", ("valid",)) == {"valid": "w1 w2"}


def test_a_gguf_file_is_a_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gguf", "accelerate"):
        pytest.importorskip(name, reason=f"transformers reads GGUF files with {name}")
    import tiny_gguf

    model = tiny_gguf.write(tmp_path / "model.gguf")
    out = harvest(model, {"valid": "ab comet ab"}, tmp_path / "out")
    assert Layer.load(out / "layer.safetensors").weight.shape == (tiny_gguf.VOCAB, tiny_gguf.DIM)
    assert open_file(out / "hidden.safetensors").read("valid_hidden").shape[1] == tiny_gguf.DIM
    monkeypatch.setattr("headlong.integrations.harvest.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="accelerate"):
        harvest(model, {"valid": TEXT}, tmp_path)
