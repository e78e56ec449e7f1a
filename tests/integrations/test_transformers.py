"""Hugging Face models: the same tokens as the dense model, in law and to the token, and everything undone by restore."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import GPT2LMHeadModel, LogitsProcessorList, WatermarkingConfig

import headlong
from dense_noise import Noise, dense_with_noise
from headlong import Affine, SoftCap
from headlong.errors import DtypeError, HeadlongError, IdError, InputError, OptionError
from headlong.integrations.generation.fingerprint import Fingerprint
from headlong.integrations.transformers import FastHead, accelerate, generate, restore
from language_models import ARCHITECTURES, VOCAB, made

DOCS = Path(__file__).resolve().parents[2] / "docs/transformers.md"
PROMPTS = torch.randint(3, VOCAB, (3, 6), generator=torch.Generator().manual_seed(1))
SHORT = {"max_new_tokens": 8, "pad_token_id": 0}


@pytest.fixture(params=["gpt2", "gemma2", "phi"])
def model(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


@pytest.fixture
def plain() -> Any:
    return made("gpt2")


EXACT: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {},
    "temperature": {"temperature": 1.7},
    "top_k": {"top_k": 7, "temperature": 0.8},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "typical_p": {"typical_p": 0.8},
    "epsilon_cutoff": {"epsilon_cutoff": 3e-3},
    "eta_cutoff": {"eta_cutoff": 2e-2},
    "top_h": {"top_h": 0.4},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "sequence_bias": {"sequence_bias": [[[int(PROMPTS[0, 0])], 4.0], [[17], 12.0], [[17, 18], 20.0], [[19], -3.0]]},
    "bad_words_ids": {"bad_words_ids": [[4], [5], [6, 7]]},
    "min_new_tokens": {"min_new_tokens": 5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "suppress_tokens": {"suppress_tokens": list(range(3, 200))},
    "exponential_decay_length_penalty": {"exponential_decay_length_penalty": (2, 1.5)},
    "min_length": {"min_length": 12},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(3, 200))},
    "forced_bos_token_id": {"forced_bos_token_id": 7},
    "forced_eos_token_id": {"forced_eos_token_id": 7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.6},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "renormalize_logits": {"renormalize_logits": True, "top_p": 0.8},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": lambda row, ids: [5 + row, 7, 100 + len(ids), 2000]},
}
ELSEWHERE = {"num_beams", "assistant_model", "prompt_lookup_num_tokens"}
"""Rows of the documented table that test_transformers_calls.py has."""
TOGETHER: dict[str, dict[str, Any]] = {
    "penalty, temperature, top_p": {"repetition_penalty": 1.5, "temperature": 0.7, "top_p": 0.9},
    "penalty, warm, top_p": {"repetition_penalty": 1.5, "temperature": 1.3, "top_p": 0.7},
    "penalty, all filters": {"repetition_penalty": 0.6, "temperature": 0.9, "top_k": 50, "top_p": 0.9, "min_p": 0.02},
    "bias, min_p": {"sequence_bias": [[[40], 30.0]], "min_p": 0.01},
    "penalty, bias, n-grams": {
        "repetition_penalty": 1.3, "no_repeat_ngram_size": 1, "sequence_bias": [[[40], 12.0]], "top_k": 3,
    },
    "penalty, grammar": {"repetition_penalty": 1.3, "prefix_allowed_tokens_fn": lambda row, ids: [9, 11, 12, *ids.tolist()]},
    "penalty, greedy": {"repetition_penalty": 3.0, "do_sample": False, "exponential_decay_length_penalty": (2, 1.5)},
    "penalty, typical": {"repetition_penalty": 1.5, "typical_p": 0.6},
    "penalty, warm, eta": {"repetition_penalty": 1.5, "temperature": 1.3, "eta_cutoff": 5e-2},
    "by surprisals, of few": {"top_k": 60, "top_p": 0.95, "typical_p": 0.7, "epsilon_cutoff": 1e-2, "eta_cutoff": 5e-2},
    "by surprisals, cold": {"temperature": 0.6, "typical_p": 0.9, "epsilon_cutoff": 1e-3},
    "top_h of few": {"top_h": 0.6, "top_k": 20, "min_p": 0.05, "epsilon_cutoff": 1e-2},
    "all filters": {"temperature": 0.9, "top_k": 500, "top_p": 0.9, "min_p": 0.002},
    "little mass": {"top_p": 1e-6},
    "no mass": {"top_p": 0.0},
}  # fmt: skip


@pytest.mark.one_of("model")
@pytest.mark.parametrize("name", [*EXACT, *TOGETHER])
def test_same_noise_same_tokens(model: Any, name: str) -> None:
    options = {"do_sample": True, "top_k": None, **SHORT, **(EXACT | TOGETHER)[name]}
    options = {key: value for key, value in options.items() if value is not None} | {"top_k": options["top_k"] or 0}
    expected = model.generate(PROMPTS, custom_generate=dense_with_noise(5), **options)
    head = accelerate(model, method="codes")
    found = model.generate(PROMPTS, headlong_seed=5, **options)
    assert torch.equal(found, expected)
    assert not any("dense" in path for path in head.paths)
    assert sum(head.paths.values()) % len(PROMPTS) == 0


TIED: list[dict[str, Any]] = [{"top_k": 1}, {"top_k": 6, "top_p": 0.8}, {"top_k": 1, "repetition_penalty": 1.4}]


@pytest.mark.parametrize("options", TIED)
def test_top_k_keeps_all_that_tie_at_the_kth_place(plain: Any, options: dict[str, Any]) -> None:
    with torch.no_grad():
        weight = plain.lm_head.weight
        weight.copy_(weight[torch.arange(VOCAB) // 4 * 4])
    options = {"do_sample": True, **SHORT, **options}
    expected = plain.generate(PROMPTS, custom_generate=dense_with_noise(3), **options)
    accelerate(plain, method="codes")
    assert torch.equal(plain.generate(PROMPTS, headlong_seed=3, **options), expected)
    assert (expected[:, PROMPTS.shape[1] :] % 4 > 0).any()  # not the first of four alone


def test_padding_and_returned_sequences_are_transformers_business(plain: Any) -> None:
    mask = torch.ones_like(PROMPTS)
    mask[0, :3] = 0
    options = {**SHORT, "do_sample": True, "num_return_sequences": 2, "repetition_penalty": 1.4, "attention_mask": mask}
    expected = plain.generate(PROMPTS, custom_generate=dense_with_noise(9), **options)
    accelerate(plain, method="codes")
    assert torch.equal(plain.generate(PROMPTS, headlong_seed=9, **options), expected)


def test_draws_have_the_law_of_the_dense_model(plain: Any) -> None:
    prompt = PROMPTS[:1]
    options = {"do_sample": True, "top_k": 6, "temperature": 1.5, "max_new_tokens": 1, "pad_token_id": 0}
    logits = plain(prompt).logits[0, -1].double() / 1.5
    best = logits.topk(6)
    chances = best.values.softmax(0).detach().numpy()
    accelerate(plain, method="codes")
    torch.manual_seed(11)
    rows = prompt.repeat(500, 1)
    drawn = torch.cat([plain.generate(rows, **options)[:, -1] for _ in range(4)])
    counts = np.array([(drawn == token).sum().item() for token in best.indices])
    assert counts.sum() == len(drawn)
    statistic = float(((counts - len(drawn) * chances) ** 2 / (len(drawn) * chances)).sum())
    assert statistic < 20.5  # chi-square with 5 degrees of freedom exceeds this once in a thousand


DENSE: dict[str, dict[str, Any]] = {
    "guidance_scale": {"guidance_scale": 1.5},
    "watermarking_config": {"watermarking_config": WatermarkingConfig(bias=2.5)},
    "temperature beyond 1e-6 to 1e6": {"temperature": math.inf, "do_sample": True, "top_k": 0},
    "num_beams with do_sample": {"num_beams": 2, "do_sample": True},
    "num_beams with renormalize_logits and options that edit scores": {
        "num_beams": 2, "renormalize_logits": True, "suppress_tokens": [7],
    },
    "remove_invalid_values": {"remove_invalid_values": True},
    "output_scores": {"output_scores": True, "return_dict_in_generate": True},
    "a processor of your own": {"logits_processor": LogitsProcessorList([Noise(3)])},
}


@pytest.mark.parametrize("name", DENSE)
def test_what_needs_every_score_takes_the_dense_layer_and_says_so_once(plain: Any, name: str) -> None:
    options = {**SHORT, "do_sample": False, **DENSE[name]}
    torch.manual_seed(2)
    expected = _sequences(plain.generate(PROMPTS, **copy.deepcopy(options)))
    head = accelerate(plain, method="codes")
    torch.manual_seed(2)
    with pytest.warns(RuntimeWarning, match="whole output layer"):
        found = plain.generate(PROMPTS, **copy.deepcopy(options))
    assert torch.equal(_sequences(found), expected)
    assert all("dense" in path for path, rows in head.paths.items() if rows)
    before = sum(head.paths.values())
    assert before > 0
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        plain.generate(PROMPTS, **copy.deepcopy(options))
    assert sum(head.paths.values()) > before


def _sequences(found: Any) -> torch.Tensor:
    sequences: torch.Tensor = getattr(found, "sequences", found)
    return sequences


def test_every_row_of_the_documented_table_is_tested() -> None:
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("| decoding option |") :].split("\n\n")[0].splitlines()[2:]
    rows = {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in table)}
    assert {name for name, way in rows.items() if way == "exact"} == {*EXACT, *ELSEWHERE}
    assert {name for name, way in rows.items() if way == "dense layer, said once"} == set(DENSE)
    assert len(rows) == len(EXACT) + len(ELSEWHERE) + len(DENSE)


@pytest.mark.one_of("model")
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}, {"repetition_penalty": 1.4}, {"do_sample": True, "top_p": 0.9}])
def test_plain_generate_is_what_it_was(model: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(4)
    expected = model.generate(PROMPTS, **{"do_sample": False, **SHORT, **options})
    head = accelerate(model, method="codes", generate=False)
    torch.manual_seed(4)
    assert torch.equal(model.generate(PROMPTS, **{"do_sample": False, **SHORT, **options}), expected)
    assert set(head.paths) == {"dense: a plain call of the model"}


def test_a_row_of_nan_does_not_stop_the_others_where_invalid_values_are_removed(plain: Any) -> None:
    """The model's own loop turns its scores into zeros."""
    with torch.no_grad():
        plain.transformer.wte.weight[5] = 1e30  # a token whose hidden vectors overflow
    prompts = torch.stack([PROMPTS[0], torch.full_like(PROMPTS[0], 5)])
    options = {"do_sample": False, "remove_invalid_values": True, **SHORT}
    expected = plain.generate(prompts, **options)
    accelerate(plain, method="codes")
    with pytest.warns(RuntimeWarning, match="InfNanRemoveLogitsProcessor"):
        assert torch.equal(plain.generate(prompts, **options), expected)


def test_accelerate_sets_generate_and_restore_takes_it_back(model: Any) -> None:
    own, layer, weights = type(model).generate, model.get_output_embeddings(), [part.clone() for part in model.parameters()]
    expected = model.generate(PROMPTS, do_sample=False, **SHORT)
    head = accelerate(model, method="codes")
    assert inspect.signature(model.generate).parameters.keys() == inspect.signature(own).parameters.keys() - {"self"}
    assert torch.equal(model.generate(PROMPTS, do_sample=False, **SHORT), expected)
    assert head.paths and not any("dense" in path for path in head.paths)
    drawn = model.generate(PROMPTS, do_sample=True, **SHORT)
    assert drawn.shape == expected.shape and not any("dense" in path for path in head.paths)
    calls: list[int] = []

    def asked_for(model: Any, input_ids: Any, *_: Any, **__: Any) -> Any:
        calls.append(1)
        return input_ids

    assert torch.equal(model.generate(PROMPTS, custom_generate=asked_for, **SHORT), PROMPTS) and calls == [1]
    made = copy.deepcopy(model)  # whose output layer is plain
    assert made.generate.model is made and torch.equal(made.generate(PROMPTS, do_sample=False, **SHORT), expected)
    assert restore(model) is layer is model.get_output_embeddings()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), weights, strict=True))
    assert model.generate.__func__ is own and "generate" not in vars(model)
    assert torch.equal(model.generate(PROMPTS, do_sample=False, **SHORT), expected)


def test_a_pipeline_is_faster_without_another_line(plain: Any) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    inner = Tokenizer(WordLevel({f"w{number}": number for number in range(VOCAB)}, unk_token="w3"))
    inner.pre_tokenizer = Whitespace()
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="w2", pad_token="w0")
    ask = transformers.pipeline("text-generation", model=plain, tokenizer=words)
    options = {"max_new_tokens": 5, "do_sample": False}
    expected = ask("w5 w9 w11", **options)
    head = accelerate(plain, method="codes")
    assert ask("w5 w9 w11", **options) == expected
    assert sum(head.paths.values()) == 5 and not any("dense" in path for path in head.paths)


def test_links_are_found_by_running_the_model() -> None:
    for name, link in (("gpt2", Affine()), ("gemma2", SoftCap(20.0)), ("granite", Affine(0.25))):
        assert accelerate(made(name)).engine.layer.link == link


def test_a_scale_that_no_configuration_names_is_found_too(plain: Any) -> None:
    forward = type(plain).forward

    class Scaled(type(plain)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            out = forward(self, *args, **kwargs)
            out.logits = self.after(out.logits)
            return out

    plain.__class__ = Scaled
    plain.after = lambda logits: logits * 0.3 + 2
    link = accelerate(plain).engine.layer.link
    assert link.scale == pytest.approx(0.3, rel=1e-5)
    restore(plain)
    plain.after = lambda logits: 12 * torch.tanh(logits / 12)
    assert accelerate(plain).engine.layer.link.cap == pytest.approx(12, rel=1e-4)
    restore(plain)
    plain.after = lambda logits: logits + torch.arange(VOCAB)
    with pytest.raises(InputError, match="not a scale, shift or soft-cap"):
        accelerate(plain)


def test_calibration_takes_tokens_or_vectors(plain: Any) -> None:
    ids = torch.randint(3, VOCAB, (20, 40))
    expected = plain.generate(PROMPTS, do_sample=False, **SHORT)
    head = accelerate(plain, calibration=ids, method="codes")
    assert torch.equal(plain.generate(PROMPTS, do_sample=False, **SHORT), expected)
    restore(plain)
    states = plain(ids, output_hidden_states=True).hidden_states[-1].reshape(-1, 32).detach()
    assert repr(accelerate(plain, calibration=states, method="codes").engine) == repr(head.engine)
    restore(plain)
    with pytest.raises(HeadlongError, match=r"calibration has shape \[20\]"):
        accelerate(plain, calibration=ids[:, 0])


def test_saving_tying_training_and_resizing_go_on_working(plain: Any, tmp_path: Path) -> None:
    before = plain.get_output_embeddings()
    names = set(plain.state_dict())
    loss = plain(PROMPTS, labels=PROMPTS).loss
    head = accelerate(plain)
    assert set(plain.state_dict()) == names
    assert head.weight is plain.get_input_embeddings().weight
    plain.train()
    torch.manual_seed(0)
    plain(PROMPTS, labels=PROMPTS).loss.backward()
    assert head.weight.grad is not None
    plain.eval()
    with torch.enable_grad():
        assert torch.equal(plain(PROMPTS, labels=PROMPTS).loss, loss)
    plain.save_pretrained(tmp_path)
    again = GPT2LMHeadModel.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, head.weight)
    assert restore(plain) is before
    assert plain.get_output_embeddings() is before
    accelerate(plain)
    plain.resize_token_embeddings(VOCAB + 8)
    assert plain.get_output_embeddings().weight.shape[0] == VOCAB + 8


def test_changed_weights_are_not_read_with_an_old_engine(plain: Any) -> None:
    accelerate(plain, method="codes").weight.data.mul_(-1)
    with pytest.warns(RuntimeWarning, match="have changed"):
        found = plain.generate(PROMPTS, do_sample=False, **SHORT)
    restore(plain)
    expected = plain.generate(PROMPTS, do_sample=False, **SHORT)
    assert torch.equal(found, expected)
    accelerate(plain, method="codes")
    assert torch.equal(plain.generate(PROMPTS, do_sample=False, **SHORT), expected)


def fused_step(model: Any) -> None:
    step = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    model(PROMPTS, labels=PROMPTS).loss.backward()
    step.step()


def added(model: Any) -> None:
    weight = model.lm_head.weight
    weight.data += torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)) * 5


def negated(model: Any) -> None:
    model.lm_head.weight.detach().numpy()[:] *= -1


def one_row(model: Any) -> None:
    """A token that nobody expected becomes the likeliest of all."""
    model.lm_head.weight.data[1234] = 40 * model.transformer(PROMPTS).last_hidden_state.detach()[0, -1]


@pytest.mark.parametrize("write", [fused_step, added, negated, one_row])
def test_writes_that_torch_does_not_count_are_seen(write: Callable[[Any], None]) -> None:
    models = [made("gpt2"), made("gpt2")]
    head = accelerate(models[0], method="codes")
    version = head.weight._version
    for model in models:
        write(model)
    assert head.weight._version == version, "torch counts this now: drop it from the test"
    with pytest.warns(RuntimeWarning, match="have changed"):
        found = models[0].generate(PROMPTS, do_sample=False, **SHORT)
    assert torch.equal(found, models[1].generate(PROMPTS, do_sample=False, **SHORT))
    assert head.stale


def test_a_fingerprint_knows_every_row() -> None:
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        for dim in (33, 48):
            weight, bias = torch.randn(1003, dim).to(kind), torch.randn(1003).to(kind)
            seen = Fingerprint(weight, bias)
            assert not seen.differs((weight, bias))
            weight.data[501, 7] += 1
            assert seen.differs((weight, bias))
            seen = Fingerprint(weight, bias)
            bias.data[500] += 1
            assert seen.differs((weight, bias))


def test_no_id_below_zero_is_handed_out(plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of other weights may leave nothing to score; nobody had seen the write."""
    head = accelerate(plain, method="codes")
    topk = head.engine.topk

    def short(*args: Any, **options: Any) -> Any:
        top = topk(*args, **options)
        top.ids[0, -1] = -1
        return top

    monkeypatch.setattr(type(head.engine), "topk", lambda engine, *args, **options: short(*args, **options))
    with pytest.warns(RuntimeWarning, match="have changed"), pytest.raises(InputError, match="while tokens were generated"):
        plain.generate(PROMPTS, do_sample=False, **SHORT)
    assert head.stale


def test_a_copy_and_a_pickle_are_the_plain_model(plain: Any) -> None:
    head = accelerate(plain, method="codes")
    expected = plain.generate(PROMPTS, do_sample=False, **SHORT)
    stored = io.BytesIO()
    torch.save(plain, stored)
    stored.seek(0)
    for one in (copy.deepcopy(plain), torch.load(stored, weights_only=False)):
        assert type(one.lm_head) is torch.nn.Linear and one.lm_head.weight is one.transformer.wte.weight
        assert one.lm_head.weight.data_ptr() != head.weight.data_ptr()
        assert torch.equal(one.generate(PROMPTS, do_sample=False, **SHORT), expected)
        accelerate(one)
    assert plain.get_output_embeddings() is head


def test_refusals_say_what_to_do(plain: Any) -> None:
    with pytest.raises(InputError, match=r"call headlong's accelerate\(model\) first"):
        generate(plain, PROMPTS, **SHORT)
    with pytest.raises(OptionError, match="this is one itself"):
        generate(plain, PROMPTS, custom_generate=print, **SHORT)
    before = plain.lm_head
    assert restore(plain) is before is plain.lm_head
    accelerate(plain)
    with pytest.raises(InputError, match=r"call restore\(model\) first"):
        accelerate(plain)
    restore(plain)
    hook = plain.lm_head.register_forward_hook(lambda *parts: None)
    with pytest.raises(InputError, match="has hooks"):
        accelerate(plain)
    hook.remove()
    hook = plain.lm_head.register_full_backward_hook(lambda *parts: None)
    with pytest.raises(InputError, match="has hooks"):
        accelerate(plain)
    hook.remove()
    for calibration in ([[1, 2], [3]], np.zeros((0, 5), int), [1, 2], torch.ones(2, 3, dtype=torch.bool), [["a"]], [[1] * 200]):
        with pytest.raises(OptionError, match="calibration"):
            accelerate(plain, calibration)
    with pytest.raises(IdError, match=f"token ids from 1 to {VOCAB}; expected 0 to {VOCAB - 1}"):
        accelerate(plain, [[1, VOCAB]])
    head = accelerate(plain)
    assert isinstance(head, FastHead)
    with pytest.raises(InputError, match="leave no token in row 0"):
        plain.generate(PROMPTS, suppress_tokens=list(range(VOCAB)), **SHORT)
    hook = head.register_forward_hook(lambda *parts: None)
    with pytest.raises(InputError, match="has hooks"):
        restore(plain)
    hook.remove()
    assert restore(plain) is before and restore(plain) is before
    with pytest.raises(DtypeError, match="the model is torch.float64; expected float32, float16 or bfloat16"):
        accelerate(plain.double())


def test_parts_frozen_in_evaluation_stay_so(plain: Any) -> None:
    plain.train()
    plain.transformer.drop.eval()
    before = {name: part.training for name, part in plain.transformer.named_modules()}
    accelerate(plain)
    assert {name: part.training for name, part in plain.transformer.named_modules()} == before


@pytest.mark.parametrize(
    ("options", "adapts"),
    [({}, True), ({"seed": 1}, False), ({"method": "full"}, False), ({"adapt": False}, False), ({"calibration": 32}, False)],
    ids=str,
)
def test_an_engine_without_vectors_adapts(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], adapts: bool) -> None:
    model, asked = made("gpt2"), {}
    compiled = headlong.compile

    def kept(layer: Any, *rest: Any, **about: Any) -> Any:
        asked.update(about)
        return compiled(layer, *rest, **about)

    monkeypatch.setattr(headlong, "compile", kept)
    if "calibration" in options:
        options = {"calibration": torch.randn(32, model.get_output_embeddings().in_features)}
    accelerate(model, **options)
    assert asked.get("adapt", False) is adapts


IDS = torch.randint(5, VOCAB, (2, 6), generator=torch.Generator().manual_seed(3))
GREEDY = {"max_new_tokens": 6, "pad_token_id": 0, "do_sample": False}

@functools.cache
def pair(name: str) -> tuple[Any, Any]:
    """The model as it is and an accelerated one with the same weights."""
    plain, fast = made(name), made(name)
    accelerate(fast, method="codes")
    return plain, fast


TOKENS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy without a cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
    "penalties": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2},
    "bans": {"bad_words_ids": [[7], [8, 9]], "min_new_tokens": 4},
    "beams": {"num_beams": 3},
    "beams that have to end": {"num_beams": 3, "forced_eos_token_id": [5, 6]},
    "beams among few": {"num_beams": 3, "prefix_allowed_tokens_fn": lambda row, ids: [0, 11, 12]},
    "two ends forced": {"forced_eos_token_id": [5, 6]},
}
BEAMS: dict[str, dict[str, Any]] = {
    "several answers": {"num_beams": 4, "num_return_sequences": 3, "length_penalty": 0.3},
    "beams, penalty": {"num_beams": 3, "repetition_penalty": 1.5},
    "beams, bans": {"num_beams": 3, "no_repeat_ngram_size": 1, "suppress_tokens": list(range(3, 300))},
    "beams that end early": {"num_beams": 2, "early_stopping": True, "min_new_tokens": 3},
}
"""For two of the models, with and without a bias."""
LAW: dict[str, dict[str, Any]] = {
    "sampling": {"top_k": 0, "temperature": 1.3},
    "top-k": {"top_k": 9},
    "top-p and min-p": {"top_k": 0, "top_p": 0.9, "min_p": 0.001},
    "typical": {"top_k": 0, "typical_p": 0.8},
    "by surprisals": {"top_k": 0, "top_h": 0.7, "typical_p": 0.9, "epsilon_cutoff": 1e-3, "eta_cutoff": 1e-2},
}
SAID: dict[str, dict[str, Any]] = {
    "sampled beams": {"do_sample": True, "num_beams": 2},
    "beams with bans, renormalised": {"num_beams": 3, "bad_words_ids": [[7], [9]], "renormalize_logits": True},
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_same_tokens_and_the_same_law(name: str) -> None:
    plain, fast = pair(name)
    head = fast.get_output_embeddings()
    for way, options in (TOKENS | BEAMS if name in ("gpt2", "phi") else TOKENS).items():
        if "cache_implementation" in options and fast.config.is_encoder_decoder:
            continue  # transformers' own caches of both sides
        expected = plain.generate(IDS, **GREEDY, **options)
        head.paths.clear()
        assert torch.equal(generate(fast, IDS, **GREEDY, **options), expected), way
        assert head.paths and not any("dense" in path for path in head.paths), way
        assert any(path.startswith("beams") for path in head.paths) == ("num_beams" in options), way
    for way, options in LAW.items():
        asked = {**GREEDY, "do_sample": True, **options}
        expected = plain.generate(IDS, custom_generate=dense_with_noise(8), **asked)
        assert torch.equal(generate(fast, IDS, headlong_seed=8, **asked), expected), way


@pytest.mark.filterwarnings("ignore:headlong reads the whole output layer:RuntimeWarning")
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_is_dense_is_the_models_own(name: str) -> None:
    plain, fast = pair(name)
    head = fast.get_output_embeddings()
    for options in SAID.values():
        torch.manual_seed(1)
        expected = plain.generate(IDS, **{**GREEDY, **options})
        head.paths.clear()
        torch.manual_seed(1)
        found = fast.generate(IDS, **{**GREEDY, **options})
        assert torch.equal(found, expected)
        assert all("dense" in path for path, rows in head.paths.items() if rows) and head.paths
    head.paths.clear()
    with torch.no_grad():
        for some in (IDS, IDS[:, :1]):  # one position, too, and nobody said that it decodes
            more = {"decoder_input_ids": some} if fast.config.is_encoder_decoder else {}
            assert torch.equal(fast(some, **more).logits, plain(some, **more).logits)
        assert head.paths == {"dense: a plain call of the model": IDS.numel() + len(IDS)}
        assert abs(fast(IDS, labels=IDS).loss - plain(IDS, labels=IDS).loss) < 1e-6
