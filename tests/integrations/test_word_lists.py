"""Lists of thousands of words: biases of their tokens and beams among allowed ids, as the dense layer has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headlong as hl
from headlong.integrations.transformers import accelerate, generate
from language_models import VOCAB, made

WORDS = 10_000


def biased(rng: Any) -> list[Any]:
    """Ten thousand words of one to three tokens, those of ten thousand others in the end."""
    words = {tuple(int(token) for token in rng.integers(3, VOCAB, rng.integers(1, 4))) for _ in range(WORDS + 2500)}
    return [[list(word), float(rng.normal() * 4)] for word in sorted(words)[:WORDS]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("drawn", [False, True], ids=["greedy", "drawn"])
def test_ten_thousand_biased_words_are_as_the_dense_layer_has_them(drawn: bool) -> None:
    model, rng = made("llama"), np.random.default_rng(0)
    prompt = torch.from_numpy(rng.integers(3, VOCAB, (2, 9)))
    asked = {"sequence_bias": biased(rng), "max_new_tokens": 12, "min_new_tokens": 12, "pad_token_id": 0}
    asked |= {"do_sample": True, "top_k": 5} if drawn else {"do_sample": False}
    expected = model.generate(prompt, **asked)
    head = accelerate(model, method="codes")
    found = generate(model, prompt, headlong_seed=1, **asked)
    assert not any("dense" in path for path in head.paths) and found.shape == expected.shape
    if not drawn:
        assert torch.equal(found, expected)
        return
    one = {**asked, "max_new_tokens": 1, "min_new_tokens": 1, "output_scores": True, "return_dict_in_generate": True}
    (scores,) = type(model).generate(model, found[:, :-1], **one).scores
    assert torch.isfinite(scores.gather(1, found[:, -1:])).all(), "a token among the five best"


def test_hundreds_of_beams_choose_among_their_own_allowed_ids() -> None:
    """128 beams, each with 128 ids in packed bits: the best of a product in float64."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((5000, 32)).astype(np.float32)
    engine, hidden = hl.compile(hl.Layer(weight)), rng.standard_normal((128, 32)).astype(np.float32)
    allowed = np.zeros((128, 5000), bool)
    for row in allowed:
        row[rng.choice(5000, 128, replace=False)] = True
    top = engine.topk(hidden, k=8, allowed=np.packbits(allowed, axis=1))
    logits = np.where(allowed, hidden.astype(np.float64) @ weight.T.astype(np.float64), -np.inf)
    np.testing.assert_array_equal(top.ids, np.argsort(-logits, axis=1, kind="stable")[:, :8])
    np.testing.assert_allclose(top.lse, np.logaddexp.reduce(logits, axis=1), atol=0.0101)
