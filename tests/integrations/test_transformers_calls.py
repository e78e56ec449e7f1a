"""What a user does with an accelerated model beside generating: losses, adapters, resizing, compiling, streaming, drafting."""

from __future__ import annotations

import ast
import functools
import importlib
import math
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import GenerationMixin, TextIteratorStreamer
from transformers.generation.streamers import BaseStreamer

import headlong
from headlong.errors import InputError, OptionError
from headlong.integrations import transformers as door
from headlong.integrations.generation.decoding import HANDING_ON, _owner, check_generate
from headlong.integrations.generation.fast_head import Gain
from headlong.integrations.generation.inspect_model import MOST
from headlong.integrations.transformers import accelerate, generate, restore
from language_models import OPT, SHARP, VOCAB, made
from models_with_own_generate import OWN, built, made_with_own

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
    head = accelerate(model, method="codes")
    adapted = peft.get_peft_model(model, peft.LoraConfig(target_modules=["lm_head"], r=4))
    with torch.no_grad():
        adapted.base_model.model.lm_head.lora_B["default"].weight.normal_()
    adapted.eval()
    expected = type(model).generate(model, PROMPT, **SHORT)
    found, words = said(lambda: adapted.generate(input_ids=PROMPT, **SHORT))
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
    with pytest.raises(InputError, match="weight is an Int8Numbers; expected plain numbers"):
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


@pytest.mark.parametrize("way", ["generate", "model.generate", "by position"])
def test_a_streamer_is_given_every_token_and_the_end(model: Any, way: str) -> None:
    expected = model.generate(PROMPT, **SHORT)[0, 7:].tolist()
    accelerate(model, method="codes")
    streamer = TextIteratorStreamer(Words(), skip_prompt=True, timeout=120)
    call = functools.partial(generate, model, PROMPT) if way == "generate" else functools.partial(model.generate, PROMPT)
    given, options = ([None] * 6 + [streamer], SHORT) if way == "by position" else ([], {**SHORT, "streamer": streamer})
    thread = threading.Thread(target=call, args=given, kwargs=options)
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
    assert sum(head.paths.values()) == before


DRAFTED: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 0, "temperature": 0.9},
    "penalty and top-p": {"do_sample": True, "top_k": 0, "top_p": 0.8, "repetition_penalty": 1.4},
}


@pytest.mark.parametrize("name", DRAFTED)
@pytest.mark.parametrize("draft", ["accelerated", "plain", "lookup", "model.generate"])
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
    other = accelerate(small, method="codes") if draft in ("accelerated", "model.generate") else None
    head.paths.clear()
    calls = {"prompt_lookup_num_tokens": 3} if draft == "lookup" else {"assistant_model": small}
    if draft == "model.generate":
        found = model.generate(prompt, **calls, **options)
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


@pytest.mark.parametrize("name", OWN)
def test_a_generate_of_the_models_own_decodes_from_candidates(name: str) -> None:
    """Only what the caller gave is passed on: Whisper's asks whether there is an ``assistant_model=``, whatever it is."""
    model, inputs = made_with_own(name)
    ways: list[dict[str, Any]] = [{"do_sample": False}] if name == "csm" else [{"do_sample": False}, {"num_beams": 2}]
    for way in ways:
        expected = model.generate(**inputs, max_new_tokens=6, min_new_tokens=4, **way)
        head = accelerate(model, method="codes")
        found, words = said(lambda way=way: model.generate(**inputs, max_new_tokens=6, min_new_tokens=4, **way))  # type: ignore[misc]
        assert torch.equal(found, expected) and not words
        assert head.paths and not any("dense" in path for path in head.paths)
        restore(model)


@pytest.mark.parametrize("both", [False, True])
def test_a_draft_for_whisper(both: bool) -> None:
    """Whisper has no ``logits_to_keep``: transformers verifies over the dense layer."""
    (model, inputs), (small, _) = made_with_own("whisper"), made_with_own("whisper")
    settings = {"max_new_tokens": 8, "do_sample": False}
    expected = model.generate(**inputs, assistant_model=small, **settings)
    accelerate(model, method="codes")
    drafts = accelerate(small, method="codes") if both else None
    found, words = said(lambda: model.generate(**inputs, assistant_model=small, **settings))
    assert torch.equal(found, expected) and "drafts to a model without logits_to_keep" in words
    assert drafts is None or drafts.paths


def own_generates() -> list[tuple[str, str]]:
    """Module and class of everything in transformers that has a ``generate`` of its own, read from its sources."""
    found = []
    for path in sorted(Path(transformers.__file__).parent.glob("models/*/*.py")):
        text = path.read_text(encoding="utf-8")
        if path.name.startswith("modular_") or "def generate(" not in text:
            continue
        kinds = [part for part in ast.parse(text).body if isinstance(part, ast.ClassDef)]
        own = [kind for kind in kinds if "generate" in [getattr(part, "name", "") for part in kind.body]]
        found += [(f"transformers.models.{path.parent.name}.{path.stem}", kind.name) for kind in own]
    return found


def test_every_generate_of_transformers_own_is_tried_here_or_refused() -> None:
    """RAG mixes documents, MusicGen codebooks; BLIP asks a model inside, whose class is GenerationMixin itself."""
    owners = own_generates()
    assert len(owners) > 30 and {name for _, name in owners} >= HANDING_ON
    assert {_owner(made_with_own(name)[0]).__name__ for name in OWN} == HANDING_ON
    refused = [getattr(importlib.import_module(module), name) for module, name in owners if name not in HANDING_ON]
    refused = [kind for kind in refused if issubclass(kind, GenerationMixin)]
    for kind in refused:
        model = kind.__new__(kind)
        with pytest.raises(InputError, match=f"{kind.__name__} has a generate of its own, which no custom_generate reaches"):
            check_generate(model)
    assert {"MusicgenForConditionalGeneration", "RagTokenForGeneration", "MoshiForConditionalGeneration"} <= {
        kind.__name__ for kind in refused
    }


def blip_2() -> Any:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    eyes = {**sizes, "image_size": 16, "patch_size": 8}
    return built(
        "Blip2ForConditionalGeneration",
        vision_config=eyes,
        qformer_config={**sizes, "encoder_hidden_size": 32},
        text_config={"model_type": "opt", "vocab_size": VOCAB, **OPT},
        num_query_tokens=2,
        image_token_index=VOCAB - 1,
    ).eval()


def test_a_model_inside_another_is_accelerated_for_both() -> None:
    torch.manual_seed(0)
    model = blip_2()
    model.language_model.lm_head.weight.data.mul_(SHARP)
    ids = torch.tensor([[VOCAB - 1, VOCAB - 1, 5, 6]])
    picture = {"pixel_values": torch.randn(1, 3, 16, 16), "input_ids": ids}
    expected = model.generate(**picture, **SHORT)
    with pytest.raises(InputError, match="accelerate the part that writes the tokens"):
        accelerate(model)
    head = accelerate(model.language_model, method="codes")
    assert torch.equal(model.generate(**picture, **SHORT), expected)
    assert head.paths and not any("dense" in path for path in head.paths)


def test_a_generate_that_hands_nothing_on_is_seen_and_said(model: Any) -> None:
    """Classes of anybody's: whether the loop was reached is seen afterwards; one that takes no keywords is refused."""

    class Forgetting(type(model)):  # type: ignore[misc]
        def generate(self, inputs: Any, custom_generate: Any = None, **options: Any) -> Any:
            return super().generate(inputs, **options)

    class Few(type(model)):  # type: ignore[misc]
        def generate(self, inputs: Any) -> Any:
            return super().generate(inputs, **SHORT)

    expected, kind = model.generate(PROMPT, **SHORT), type(model)
    model.__class__ = Forgetting
    accelerate(model, method="codes")
    found, words = said(lambda: model.generate(PROMPT, **SHORT))
    assert torch.equal(found, expected) and "Forgetting.generate, which does not hand custom_generate on" in words
    restore(model)
    model.__class__ = Few
    with pytest.raises(InputError, match="Few has a generate of its own"):
        accelerate(model)
    assert accelerate(model, generate=False).engine.layer.vocab == VOCAB
    restore(model)
    model.__class__ = kind
    model.generate = functools.partial(kind.generate, model)  # as transformers sets that of a repository
    with pytest.raises(InputError, match="that was set on this model"):
        accelerate(model)


GONE: dict[str, tuple[dict[str, Any], str]] = {
    "penalty_alpha": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive-search"),
    "dola_layers": ({"dola_layers": "high"}, "dola"),
    "num_beam_groups": ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, "group-beam-search"),
    "constraints or force_words_ids": ({"num_beams": 4, "force_words_ids": [[5]]}, "constrained-beam-search"),
}


@pytest.mark.parametrize("name", GONE)
def test_what_transformers_has_no_more_is_refused_by_the_option_that_asks_for_it(model: Any, name: str) -> None:
    options, repository = GONE[name]
    accelerate(model, method="codes")
    for ask in (model.generate, functools.partial(generate, model)):
        with pytest.raises(OptionError, match=f"^{name} asks for .*leave it out, or pass custom_generate='.*/{repository}'"):
            ask(PROMPT, **{**SHORT, **options})


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
    said = capsys.readouterr().err
    assert "calibration" in said and f"codes of {VOCAB:,} rows" in said, "what follows the text takes as long"
    assert head.gain is not None and head.gain.product > 0 and head.gain.look > 0 and head.gain.rest > 0
    assert "a greedy step" in repr(head) and "from candidates" in repr(head)
    restore(model)
    with pytest.raises(OptionError, match="pass tokenizer="):
        accelerate(model, text=pieces)
    with pytest.raises(OptionError, match="expected one of them"):
        accelerate(model, [[1, 2]], text=pieces, tokenizer=words)
    with pytest.raises(OptionError, match="no token in them"):
        accelerate(model, text=[""], tokenizer=words)


def test_text_is_read_in_windows_that_a_model_has_positions_for(words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = transformers.GPT2Config(vocab_size=VOCAB, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    text = " ".join(f"w{3 + token % (VOCAB - 3)}" for token in range(100))
    read: list[Any] = []
    monkeypatch.setattr(door.ModuleHost, "read", lambda host, ids, own=door.ModuleHost.read: read.append(ids) or own(host, ids))
    accelerate(model, text=[text, text], tokenizer=words, method="codes")
    sizes = [ids.shape[1] for ids in read]
    assert max(sizes) == 16 and sum(sizes[: sizes.index(1)] if 1 in sizes else sizes) == 2 * len(words(text)["input_ids"])
    restore(model)
    read.clear()
    accelerate(model, text=" ".join([text] * 20), tokenizer=words, method="codes")
    assert len([ids for ids in read if ids.shape[1] > 1]) == MOST
    restore(model)


def test_what_is_timed_was_held_back_or_nothing_is_said(model: Any, words: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine is faster on the vectors that it was fitted to than on those to come."""
    compiled, fitted, timed = headlong.compile, [], []

    def kept(layer: Any, **options: Any) -> Any:
        fitted.append(options["calibration"])
        return compiled(layer, **options)

    monkeypatch.setattr(headlong, "compile", kept)
    monkeypatch.setattr(door, "_least", lambda call, rows: timed.append(rows) or 1.0)
    hidden = torch.randn(door.ENOUGH, 32)
    assert accelerate(model, hidden, method="codes").gain is not None
    assert torch.equal(torch.cat([fitted[0], timed[0]]), hidden) and timed[0] is timed[1] and len(timed[0]) == door.REPEATS
    restore(model)
    head = accelerate(model, text="w300 w301 w302 w303", tokenizer=words, method="codes")
    assert head.gain is None and " ms" not in repr(head) and len(fitted[1]) > 4 and len(timed) == 2
