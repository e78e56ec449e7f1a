"""Files from before: engines that an older build saved load here, and answer what float64 says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headlong as hl
from headlong import native

FOLDER = Path(__file__).parent / "saved_by_older"
TRUTH: dict[str, Any] = json.loads((FOLDER / "truth.json").read_text(encoding="utf-8"))
KINDS = {
    "cascade": "cascade", "calibrated": "cascade", "few-bits": "cascade", "svd": "svd",
    "tree": "tree", "bands": "bands", "experts": "experts", "mixture": "mixture",
}  # fmt: skip


def test_every_file_is_asked() -> None:
    assert {file.stem for file in FOLDER.glob("*.safetensors")} == set(KINDS) == TRUTH.keys() - {"hidden"}


@pytest.mark.parametrize("level", ["best", native.REFERENCE])
@pytest.mark.parametrize("name", KINDS)
def test_files_from_before_answer_what_float64_says(name: str, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if level == native.REFERENCE:
        monkeypatch.setenv("HEADLONG_ISA", level)
    engine = hl.load(FOLDER / f"{name}.safetensors", threads=1)
    hidden = np.array(TRUTH["hidden"], np.float32)
    ids, log_probs, lse = (np.array(TRUTH[name][part]) for part in ("ids", "log_probs", "lse"))
    assert (engine.name, engine.layer.vocab, engine.layer.dim) == (KINDS[name], 240, 16)
    given, top = engine.log_prob(hidden, ids, eps=1e-9), engine.topk(hidden, 5)
    if engine.promise.delta_ids == 0:
        assert top.proved.all() and (top.ids == ids).all()
        assert (np.abs(top.log_probs - log_probs) <= top.error[:, None] + 1e-9).all() and (top.error <= 0.05).all()
        assert (np.abs(given.log_probs - log_probs) <= given.error[:, None] + 1e-9).all() and (given.error <= 1e-6).all()
    else:  # which may fail: logits are exact, and the best are found all the same
        np.testing.assert_allclose(given.logits, log_probs + lse[:, None], atol=1e-9)
        assert (top.ids[:, 0] == ids[:, 0]).all()
