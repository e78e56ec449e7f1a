"""Whisper's rule on timestamps, from candidates: the tokens of the dense scores, whether or not timestamps outweigh text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LogitsProcessorList, SuppressTokensLogitsProcessor
from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

from dense_noise import dense_with_noise
from headlong.integrations.transformers import accelerate, generate, restore
from language_models import VOCAB, made

FIRST = 2000
PROMPTS = torch.randint(3, FIRST - 1, (4, 3), generator=torch.Generator().manual_seed(1))
SHORT: dict[str, Any] = {"max_new_tokens": 16, "min_new_tokens": 16, "pad_token_id": 0}


def rules(**others: Any) -> LogitsProcessorList:
    said = {"no_timestamps_token_id": FIRST - 1, "eos_token_id": 2, "bos_token_id": 1, "max_initial_timestamp_index": 50}
    said |= others
    suppressed = SuppressTokensLogitsProcessor(list(range(100, 900)))
    return LogitsProcessorList([suppressed, WhisperTimeStampLogitsProcessor(SimpleNamespace(**said), begin_index=3)])


@pytest.mark.parametrize("options", [{"do_sample": False}, {"do_sample": True, "top_k": 0}, {"do_sample": True, "top_p": 0.9}])
@pytest.mark.parametrize("others", [{}, {"_detect_timestamp_from_logprob": False}])
def test_tokens_and_timestamps_are_those_of_the_dense_scores(options: dict[str, Any], others: dict[str, Any]) -> None:
    model = made("gpt2")
    asked = {**SHORT, **options}
    expected = model.generate(PROMPTS, custom_generate=dense_with_noise(5), logits_processor=rules(**others), **asked)
    head = accelerate(model, method="codes")
    found = generate(model, PROMPTS, headlong_seed=5, logits_processor=rules(**others), **asked)
    assert torch.equal(found, expected)
    assert not any("dense" in path for path in head.paths)
    written = found[:, PROMPTS.shape[1] :]
    assert ((written >= FIRST).any() and (written < FIRST).any()) or others
    assert (written < VOCAB).all()


def test_beams_and_their_timestamps_are_those_of_the_dense_scores() -> None:
    model = made("gpt2")
    asked = {**SHORT, "num_beams": 5, "do_sample": False}
    expected = model.generate(PROMPTS, logits_processor=rules(), **asked)
    head = accelerate(model, method="codes")
    assert torch.equal(model.generate(PROMPTS, logits_processor=rules(), **asked), expected)
    assert all(path.startswith("beams") for path in head.paths)


@pytest.mark.parametrize("others", [{"no_timestamps_token_id": VOCAB - 1}, {"eos_token_id": [2]}, {"eos_token_id": VOCAB - 1}])
def test_odd_settings_are_the_rules_own(others: dict[str, Any]) -> None:
    """No timestamps at all, several ends, which the rule takes as long as no timestamp is alone, and an end above them."""
    model = made("gpt2")
    asked: dict[str, Any] = {**SHORT, "max_new_tokens": 1, "min_new_tokens": 1, "do_sample": False}
    texts = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 9]])
    expected = model.generate(texts, logits_processor=rules(**others), **asked)
    accelerate(model, method="codes")
    assert torch.equal(model.generate(texts, logits_processor=rules(**others), **asked), expected)


def test_a_beam_to_which_nothing_is_left_does_not_end_the_others() -> None:
    model = made("gpt2")
    texts, rule = torch.tensor([[1, 5, FIRST], [1, 5, 6]]), rules(eos_token_id=FIRST - 2)[1]
    rule.begin_index = 1
    said = LogitsProcessorList([SuppressTokensLogitsProcessor(list(range(FIRST - 10, VOCAB))), rule])
    asked: dict[str, Any] = {"max_new_tokens": 2, "num_beams": 2, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(texts, logits_processor=said, **asked)
    accelerate(model, method="codes")
    assert torch.equal(model.generate(texts, logits_processor=said, **asked), expected)


def test_a_token_is_one_question_where_the_best_classes_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("gpt2")
    head: Any = accelerate(model, method="codes")
    topk, asked = head.by_ids.topk, list[int]()

    def counted(hidden: Any, **options: Any) -> Any:
        asked.append(options["k"])
        return topk(hidden, **options)

    monkeypatch.setattr(head.by_ids, "topk", counted)
    model.generate(PROMPTS, logits_processor=rules(), do_sample=False, **SHORT)
    assert SHORT["max_new_tokens"] <= len(asked) <= 1.2 * SHORT["max_new_tokens"]


def test_where_other_scores_are_edited_too_all_of_them_are_read() -> None:
    model = made("gpt2")
    head = accelerate(model)
    with pytest.warns(RuntimeWarning, match="WhisperTimeStampLogitsProcessor with other edits"):
        model.generate(PROMPTS, logits_processor=rules(), repetition_penalty=1.3, do_sample=False, **SHORT)
    assert any("dense" in path for path in head.paths)
    restore(model)
