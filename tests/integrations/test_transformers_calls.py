"""What a user does with an accelerated model beside generating: losses, adapters, resizing, compiling, streaming, drafting."""

from __future__ import annotations

import math
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TextIteratorStreamer, WhisperConfig, WhisperForConditionalGeneration
from transformers.generation.streamers import BaseStreamer

from headlong.errors import InputError, OptionError
from headlong.integrations.generation.fast_head import Gain
from headlong.integrations.transformers import accelerate, generate, headlong_generate, restore
from language_models import SHARP, VOCAB, made

PROMPT = torch.randint(3, VOCAB, (1, 7), generator=torch.Generator().manual_seed(1))
SHORT: dict[str, Any] = {"max_new_tokens": 12, "pad_token_id": 0, "do_sample": False}


@pytest.fixture
def model() -> Any:
    return made("llama")


def said(call: Any) -> tuple[Any, str]:
    """What the call answers, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answer = call()
    return answer, " ".join(str(one.message) for one in caught if one.category is RuntimeWarning)


def test_a_trainer_evaluates_as_before(model: Any, tmp_path: Any) -> None:
    from transformers import Trainer, TrainingArguments

    rows = [{"input_ids": row, "labels": row} for row in torch.randint(3, VOCAB, (6, 8))]
    settings = TrainingArguments(str(tmp_path), report_to=[], use_cpu=True, per_device_eval_batch_size=3)

    def loss() -> float:
        return float(Trainer(model=model, args=settings, eval_dataset=rows).evaluate()["eval_loss"])

    expected = loss()
    accelerate(model, method="codes")
    assert abs(loss() - expected) < 1e-6


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's own
def test_an_adapter_on_the_output_layer_is_seen_and_said(model: Any) -> None:
    peft = pytest.importorskip("peft")
    head = accelerate(model, method="codes", generate=False)
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], r=4))
    with torch.no_grad():
        adapted.base_model.model.lm_head.lora_B["default"].weight.normal_()
    adapted.eval()
    expected = adapted.generate(input_ids=PROMPT, **SHORT)
    found, words = said(lambda: adapted.generate(input_ids=PROMPT, custom_generate=headlong_generate, **SHORT))
    assert torch.equal(found, expected) and "was put around the output layer" in words
    assert sum(rows for path, rows in head.paths.items() if "put around" in path) == 12
    with pytest.raises(InputError, match="put around the output layer; remove it first"):
        restore(model)
    with pytest.raises(InputError, match=r"peft.*merge an adapter first"):
        accelerate(model)


class Around(nn.Linear):
    """A wrapper of anybody's: the layer inside, and something added."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__(inner.in_features, inner.out_features)
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.add(self.inner(hidden), super().forward(hidden))


def test_any_wrapper_and_any_hook_is_seen_and_said(model: Any) -> None:
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    head = accelerate(model, method="codes")
    model.lm_head = Around(head)
    expected = type(model).generate(model, PROMPT, **SHORT)
    found, words = said(lambda: generate(model, PROMPT, **SHORT))
    assert torch.equal(found, expected) and "Around was put around" in words
    model.lm_head = head
    add_hook_to_module(head, ModelHook())
    expected = type(model).generate(model, PROMPT, **SHORT)
    found, words = said(lambda: generate(model, PROMPT, **SHORT))
    assert torch.equal(found, expected) and "hooks on the output layer" in words
    with pytest.raises(InputError, match="has hooks"):
        restore(model)
    remove_hook_from_module(head)
    restore(model)
    add_hook_to_module(model.lm_head, ModelHook())
    with pytest.raises(InputError, match="has hooks"):
        accelerate(model)


def test_a_quantised_output_layer_is_refused_by_name(model: Any) -> None:
    class Int8Linear(nn.Linear):
        pass

    class Int8Numbers(nn.Parameter):
        pass

    plain = model.lm_head
    model.lm_head = Int8Linear(32, VOCAB)
    with pytest.raises(InputError, match=r"Int8Linear; expected torch.nn.Linear"):
        accelerate(model)
    model.lm_head = plain
    model.lm_head.weight = Int8Numbers(plain.weight.detach())
    with pytest.raises(InputError, match="weight is a Int8Numbers; expected plain numbers"):
        accelerate(model)


def test_a_resized_model_is_dense_and_says_so(model: Any) -> None:
    accelerate(model, method="codes")
    model.resize_token_embeddings(VOCAB + 64)
    expected = type(model).generate(model, PROMPT, **SHORT)
    found, words = said(lambda: generate(model, PROMPT, **SHORT))
    assert torch.equal(found, expected) and "was replaced by a torch.nn.modules.linear.Linear since accelerate()" in words
    assert accelerate(model, method="codes").engine.layer.vocab == VOCAB + 64
    assert torch.equal(generate(model, PROMPT, **SHORT), expected)


def test_a_compiled_model_is_one_graph(model: Any) -> None:
    from torch._dynamo.testing import CompileCounter

    ids = PROMPT.repeat(2, 1)
    with torch.no_grad():
        expected = model(ids).logits
        accelerate(model, method="codes")
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=False)
        for _ in range(3):
            assert torch.allclose(compiled(ids).logits, expected, atol=1e-4)  # type: ignore[no-untyped-call]
    assert counter.frame_count == 1


def test_a_compiled_forward_still_decodes_from_candidates() -> None:
    model, short = made("gpt2", n_layer=1), {**SHORT, "max_new_tokens": 4}
    expected = model.generate(PROMPT, **short)
    head = accelerate(model, method="codes")
    torch._dynamo.reset()
    model.forward = torch.compile(model.forward, backend="eager", fullgraph=True, dynamic=True)
    assert torch.equal(generate(model, PROMPT, **short), expected)
    assert not any("dense" in path for path in head.paths)


class Words:
    """A tokenizer of numbers: token 12 is "12 "."""

    eos_token_id = 2

    def decode(self, tokens: Any, **options: Any) -> str:
        return "".join(f"{int(token)} " for token in torch.as_tensor(tokens).reshape(-1))

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [int(word) for word in text.split()]}


@pytest.mark.parametrize("way", ["generate", "custom_generate"])
def test_a_streamer_is_given_every_token_and_the_end(model: Any, way: str) -> None:
    expected = model.generate(PROMPT, **SHORT)[0, 7:].tolist()
    accelerate(model, method="codes")
    streamer = TextIteratorStreamer(Words(), skip_prompt=True, timeout=120)
    call = generate if way == "generate" else type(model).generate
    options = {} if way == "generate" else {"custom_generate": headlong_generate}
    thread = threading.Thread(target=call, args=(model, PROMPT), kwargs={**SHORT, **options, "streamer": streamer})
    thread.start()
    assert [int(word) for word in "".join(streamer).split()] == expected
    thread.join(120)
    with pytest.raises(InputError, match="a streamer was given"):
        generate(model, PROMPT, streamer=Heard(), num_beams=2, **SHORT)


class Heard(BaseStreamer):  # type: ignore[misc]
    def put(self, value: torch.Tensor) -> None: ...

    def end(self) -> None: ...


@pytest.fixture(scope="module")
def words() -> Any:
    """A real tokenizer: the 256 bytes, and then numbered words that only generated text has."""
    tokenizers = pytest.importorskip("tokenizers")
    from transformers import PreTrainedTokenizerFast

    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {word: token for token, word in enumerate([*letters, *(f"w{token}" for token in range(256, VOCAB))])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, merges=[]))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner)


def test_stop_strings_stop_or_are_refused_before_the_first_token(model: Any, words: Any) -> None:
    full = model.generate(PROMPT, **SHORT)[0, 7:].tolist()
    stop = words.decode([next(token for token in full[4:] if token > 255)])
    expected = model.generate(PROMPT, tokenizer=words, stop_strings=[stop], **SHORT)
    assert expected.shape[1] < 7 + len(full)
    head = accelerate(model, method="codes")
    assert torch.equal(generate(model, PROMPT, tokenizer=words, stop_strings=[stop], **SHORT), expected)
    model.generation_config.stop_strings = [stop]
    assert torch.equal(generate(model, PROMPT, tokenizer=words, **SHORT), expected)
    before = sum(head.paths.values())
    with pytest.raises(OptionError, match="pass tokenizer= as well"):
        generate(model, PROMPT, **SHORT)
    with pytest.raises(ValueError, match="tokenizer"):
        model.generate(PROMPT, custom_generate=headlong_generate, tokenizer=words, **SHORT)
    assert sum(head.paths.values()) == before


DRAFTED: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 0, "temperature": 0.9},
    "penalty and top-p": {"do_sample": True, "top_k": 0, "top_p": 0.8, "repetition_penalty": 1.4},
}


@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize("draft", ["accelerated", "plain", "lookup", "custom_generate"])
def test_drafts_change_no_token(model: Any, name: str, draft: str) -> None:
    options = {**SHORT, **DRAFTED[name], "headlong_seed": 4, "max_new_tokens": 20}
    prompt = torch.cat([PROMPT, PROMPT], dim=1)  # a lookup finds something
    head = accelerate(model, method="codes")
    expected = generate(model, prompt, **options)
    if name == "greedy":
        assert torch.equal(type(model).generate(model, prompt, **{**SHORT, "max_new_tokens": 20}), expected)
    small = made("llama", num_hidden_layers=1)
    small.model.embed_tokens, small.lm_head = model.model.embed_tokens, nn.Linear(32, VOCAB, bias=False)
    small.lm_head.weight = model.lm_head.weight
    other = accelerate(small, method="codes") if draft in ("accelerated", "custom_generate") else None
    head.paths.clear()
    calls = {"prompt_lookup_num_tokens": 3} if draft == "lookup" else {"assistant_model": small}
    if draft == "custom_generate":
        found = model.generate(prompt, custom_generate=headlong_generate, **calls, **options)
    else:
        found = generate(model, prompt, **calls, **options)
    assert torch.equal(found, expected)
    assert not any("dense" in path for path in head.paths)
    if draft != "lookup":
        assert sum(head.paths.values()) >= 20
    if other is not None:
        assert sum(other.paths.values()) > 0 and not any("dense" in path for path in other.paths)


def test_a_draft_that_is_the_target_agrees_with_it(model: Any) -> None:
    """The same noise at the same place: sampling accepts every token of an equal model, and takes fewer calls."""
    accelerate(model, method="codes")
    twin = made("llama")
    accelerate(twin, method="codes")
    twin.generation_config.num_assistant_tokens_schedule = "constant"
    twin.generation_config.num_assistant_tokens, twin.generation_config.assistant_confidence_threshold = 5, 0.0
    calls = []
    model.register_forward_pre_hook(lambda *parts: calls.append(1))
    options = {**SHORT, "do_sample": True, "top_k": 0, "max_new_tokens": 24, "headlong_seed": 3}
    expected = generate(model, PROMPT, **options)
    alone = len(calls)
    calls.clear()
    assert torch.equal(generate(model, PROMPT, assistant_model=twin, **options), expected)
    assert alone == 24 and len(calls) == 4


def whisper() -> Any:
    sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2, "num_mel_bins": 8}
    sizes |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_source_positions": 20}
    ends = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    return WhisperForConditionalGeneration(WhisperConfig(vocab_size=VOCAB, max_target_positions=64, **sizes, **ends))


def test_whisper_is_read_through_its_decoder() -> None:
    torch.manual_seed(0)
    model = whisper().eval()
    model.proj_out.weight.data.mul_(SHARP)
    sound = torch.randn(1, 8, 40)
    settings = {"max_new_tokens": 8, "do_sample": False, "return_timestamps": False}
    expected = model.generate(sound, **settings)
    head = accelerate(model, method="codes")
    found = model.generate(sound, custom_generate=headlong_generate, **settings)
    assert torch.equal(found, expected)
    assert sum(head.paths.values()) > 0


@pytest.mark.parametrize("kind", ["marian", "bart", "mbart"])
def test_a_bias_that_the_model_adds_is_folded_in(kind: str) -> None:
    model = made(kind)
    model.final_logits_bias.copy_(torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2)) * 3)
    expected = model.generate(PROMPT, **SHORT)
    head = accelerate(model, method="codes")
    assert torch.equal(torch.tensor(head.engine.layer.bias), model.final_logits_bias[0])
    found, words = said(lambda: generate(model, PROMPT, **SHORT))
    assert torch.equal(found, expected) and not words
    model.final_logits_bias.neg_()
    expected = type(model).generate(model, PROMPT, **SHORT)
    found, words = said(lambda: generate(model, PROMPT, **SHORT))
    assert torch.equal(found, expected) and "have changed" in words


def test_what_a_model_gains_is_said_in_words() -> None:
    assert str(Gain(4.0, 1.0, 5.0)).startswith("output layer 1 ms instead of 4, a greedy step 1.5x as fast from")
    assert str(Gain(0.0131, 0.0462, 1.0)).startswith("output layer 0.0462 ms instead of 0.0131, a greedy step no faster from")
    assert str(Gain(4.0, 1.0, math.nan)) == "output layer 1 ms instead of 4"


def test_text_calibrates_with_a_bar_and_says_what_to_expect(model: Any, words: Any, capsys: Any) -> None:
    pieces = [" ".join(f"w{int(token)}" for token in torch.randint(3, VOCAB, (30,))) for _ in range(40)]
    head = accelerate(model, text=pieces, tokenizer=words, method="codes")
    assert "calibration" in capsys.readouterr().err
    assert head.gain is not None and head.gain.product > 0 and head.gain.look > 0 and head.gain.rest > 0
    assert "a greedy step" in repr(head) and "from candidates" in repr(head)
    restore(model)
    with pytest.raises(OptionError, match="pass tokenizer="):
        accelerate(model, text=pieces)
    with pytest.raises(OptionError, match="expected one of them"):
        accelerate(model, [[1, 2]], text=pieces, tokenizer=words)
    with pytest.raises(OptionError, match="no token in them"):
        accelerate(model, text=[""], tokenizer=words)
