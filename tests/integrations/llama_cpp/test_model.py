"""``Model`` in the place of ``llama_cpp.Llama``: the same calls, the same dictionaries, tokens as a dense head picks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_gguf
from headlong import progress
from headlong.errors import AbsentError, IdError, OptionError, StoreError, UnsupportedError

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model, calibration, head  # noqa: E402
from headlong.integrations.llama_cpp.body import Body  # noqa: E402
from headlong.integrations.llama_cpp.text import TextBuilder  # noqa: E402

PROMPTS = [[17, 301, 42], [999 - 3, 5, 77, 640, 3, 250], [8], [300, 301, 302, 303]]
MESSAGES = [{"role": "system", "content": "Say little."}, {"role": "user", "content": "Hello"}]

@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("models") / "model.gguf", "qwen3", head="Q8_0")


@pytest.fixture(scope="module")
def model(path: Path) -> Any:
    with Model(path, cache=path.parent, n_ctx=256, n_threads=1, sequences=4, eps=1e-4) as found:
        yield found


@pytest.fixture(scope="module")
def stock(path: Path) -> Any:
    found = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False, logits_all=True)
    yield found
    found.close()


def test_greedy_tokens_are_those_of_a_dense_head(model: Model, stock: Any) -> None:
    """Along the model's own text: each token is the best of the logits of llama.cpp, but for near ties in its int8 products."""
    made = model.generate(PROMPTS[1], 40, temperature=0, logprobs=0)
    stock.reset()
    stock.eval([*PROMPTS[1], *made.ids])
    logits = stock.scores[len(PROMPTS[1]) - 1 : len(PROMPTS[1]) + len(made.ids) - 1].astype(np.float64)
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    own = log_probs[np.arange(len(made.ids)), made.ids]
    assert len(made.ids) > 10 and (own > log_probs.max(axis=1) - 0.05).all()
    np.testing.assert_allclose(made.log_probs, own, atol=0.05)
    assert max(made.errors) <= 1e-4


def test_a_prompt_that_goes_on_is_decoded_from_where_it_parts(model: Model) -> None:
    model.reset()
    first = model.generate(PROMPTS[1], 8, temperature=0)
    longer = [*PROMPTS[1], *first.ids, 9, 10]
    again = model.generate(longer, 8, temperature=0)
    model.reset()
    assert model.generate(longer, 8, temperature=0) == again
    other = [*PROMPTS[1][:3], 400, 401]
    parted = model.generate(other, 8, temperature=0)
    model.reset()
    assert model.generate(other, 8, temperature=0) == parted


def test_after_an_interrupted_step_nothing_stale_is_held(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model.reset()
    whole = model.generate(PROMPTS[1], 8, temperature=0)
    decode, steps = model._body.decode, iter(range(4))

    def interrupted(*arguments: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(model._body, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.generate(PROMPTS[1], 8, temperature=0)
    monkeypatch.undo()
    assert model.generate([*PROMPTS[1], *whole.ids[:4]], 4, temperature=0).ids == whole.ids[4:]


def without_names(answer: Any) -> Any:
    return {key: value for key, value in answer.items() if key not in ("id", "created")}


@pytest.mark.parametrize("prompt", ["Hello ab", PROMPTS[1]], ids=["text", "tokens"])
def test_a_completion_is_the_stock_ones_dictionary(model: Model, stock: Any, prompt: Any) -> None:
    ours = model.create_completion(prompt, max_tokens=6, temperature=0.0)
    theirs = stock.create_completion(prompt, max_tokens=6, temperature=0.0)
    assert without_names(ours).keys() == without_names(theirs).keys() and ours["usage"] == theirs["usage"]
    assert ours["choices"][0].keys() == theirs["choices"][0].keys() and ours["model"] == theirs["model"]
    assert ours["choices"][0]["finish_reason"] == theirs["choices"][0]["finish_reason"] == "length"
    chunks = list(model.create_completion(prompt, max_tokens=6, temperature=0.0, stream=True))
    assert "".join(one["choices"][0]["text"] for one in chunks) == ours["choices"][0]["text"]
    assert [one["choices"][0]["finish_reason"] for one in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert model(prompt, max_tokens=6, temperature=0.0)["choices"] == ours["choices"]


def test_an_empty_prompt_is_the_token_that_texts_begin_with(model: Model) -> None:
    assert model.generate("", 6, temperature=0) == model.generate([model.token_bos()], 6, temperature=0)


def test_log_probabilities_as_the_api_lists_them(model: Model, stock: Any) -> None:
    ours = model.create_completion("Hello", max_tokens=5, temperature=0.0, logprobs=3)["choices"][0]["logprobs"]
    theirs = stock.create_completion("Hello", max_tokens=5, temperature=0.0, logprobs=3)["choices"][0]["logprobs"]
    assert ours.keys() == theirs.keys() and len(ours["tokens"]) == 5
    np.testing.assert_allclose(ours["token_logprobs"][0], theirs["token_logprobs"][0], atol=0.05)
    assert all(len(one) in (3, 4) for one in ours["top_logprobs"])
    assert ours["tokens"][0] in ours["top_logprobs"][0]


def listed(answers: Any, **options: Any) -> dict[str, list[Any]]:
    """The log-probabilities of a completion, or of all its chunks."""
    found = answers.create_completion(max_tokens=5, temperature=0.0, logprobs=2, **options)
    parts = [part["choices"][0]["logprobs"] for part in ([found] if isinstance(found, dict) else found)]
    return {name: [one for part in parts if part for one in part[name]] for name in parts[0]}


ASKED: list[tuple[Any, dict[str, Any]]] = [
    *((prompt, {**options}) for prompt in ("Hello ab", "\u00e9\u4e16") for options in ({}, {"echo": True}, {"stream": True})),
    *(([40, 41, 42, 43], options) for options in ({}, {"stream": True})),  # a list of tokens is not echoed
]


@pytest.mark.parametrize(("prompt", "options"), ASKED, ids=str)
def test_text_offsets_count_from_the_prompts_beginning(model: Model, stock: Any, prompt: Any, options: dict[str, Any]) -> None:
    ours, theirs = listed(model, prompt=prompt, **options), listed(stock, prompt=prompt, **options)
    first = ours["text_offset"][0]
    assert first == (0 if "echo" in options else len(prompt))
    if ours["tokens"] == theirs["tokens"] and "stream" not in options:  # greedy ties may part
        assert ours["text_offset"] == theirs["text_offset"]
    if "echo" in options:
        read, error = model.log_probs(model.words.prompt(prompt))
        count = len(model.words.prompt(prompt)) - (model.words.prompt(prompt)[0] == model.token_bos())
        assert ours["token_logprobs"][0] is None and ours["top_logprobs"][0] is None
        np.testing.assert_allclose(ours["token_logprobs"][1:count], read[len(read) + 1 - count :], atol=2 * error.max())
        assert len(ours["tokens"]) == count + 5 and all(len(one) in (2, 3) for one in ours["top_logprobs"][1:])


def test_the_prompts_tokens_and_each_that_was_drawn_are_listed(model: Model) -> None:
    """``max_tokens=0`` scores a prompt; a token that ends the text is listed where the prompt is, too."""
    read, _ = model.log_probs("Hello ab")
    scored = model.create_completion("Hello ab", max_tokens=0, echo=True, logprobs=1, temperature=0)
    listed = scored["choices"][0]["logprobs"]
    assert scored["choices"][0]["text"] == "Hello ab" and scored["usage"]["completion_tokens"] == 0
    np.testing.assert_allclose(listed["token_logprobs"][1:], read[-len(listed["tokens"]) + 1 :], atol=2e-4)
    end = {"logit_bias": {model.token_eos(): 1e3}, "temperature": 0}
    ended = model.create_completion("Hello ab", max_tokens=1, echo=True, logprobs=1, **end)["choices"][0]
    assert ended["finish_reason"] == "stop" and ended["text"] == "Hello ab"
    assert len(ended["logprobs"]["tokens"]) == len(listed["tokens"]) + 1 == len(ended["logprobs"]["token_logprobs"])
    alone = model.create_completion("Hello ab", max_tokens=1, logprobs=1, **end)["choices"][0]["logprobs"]
    assert alone["tokens"] == []


def test_no_two_tokens_have_one_name(model: Model) -> None:
    names = [model.words.name(token) for token in range(model.n_vocab())]
    assert len(set(names)) == len(names) and "bytes:\\xe4" in names and all(names)


def test_chat_uses_the_files_template(model: Model, stock: Any) -> None:
    ours = model.create_chat_completion(MESSAGES, max_tokens=6, temperature=0.0)
    theirs = stock.create_chat_completion(MESSAGES, max_tokens=6, temperature=0.0)
    assert ours.keys() == theirs.keys() and ours["choices"][0].keys() == theirs["choices"][0].keys()
    assert ours["usage"]["prompt_tokens"] == theirs["usage"]["prompt_tokens"]
    text = ours["choices"][0]["message"]["content"]
    chunks = list(model.create_chat_completion(MESSAGES, max_tokens=6, temperature=0.0, stream=True))
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in chunks) == text
    prompt = "system:Say little.\nuser:Hello\nassistant:"
    assert model.generate(MESSAGES, 6, temperature=0).text == text == model.generate(prompt, 6, temperature=0).text
    assert [one.text for one in model.generate([MESSAGES, MESSAGES], 6, temperature=0)] == [text, text]
    with_logprobs = model.create_chat_completion(MESSAGES, max_tokens=2, temperature=0.0, logprobs=True, top_logprobs=2)
    assert len(with_logprobs["choices"][0]["logprobs"]["content"]) == 2


def test_grammars(model: Model) -> None:
    digits = model.generate("x", 6, grammar="root ::= [0-9] [0-9] [0-9] [0-9] [0-9] [0-9] [0-9]", seed=1)
    assert digits.text.isdigit() and len(digits.ids) == 6
    for settings in ({"temperature": 0}, {"top_k": 0, "top_p": 0.5}, {"top_k": 0, "min_p": 0.0, "top_p": 1.0}):
        assert model.generate("x", 4, grammar="root ::= [a-f]+", seed=1, **settings).text.strip("abcdef") == ""
    ended = model.generate("x", 20, grammar='root ::= "yes"', temperature=0)
    assert (ended.text, ended.finish_reason) == ("yes", "stop")
    grammar = llama_cpp.LlamaGrammar.from_string("root ::= [0-9]", verbose=False)
    assert model.create_completion("x", max_tokens=9, grammar=grammar)["choices"][0]["text"].isdigit()
    answer = model.create_chat_completion(MESSAGES, max_tokens=30, response_format={"type": "json_object"}, seed=1)
    assert answer["choices"][0]["message"]["content"].lstrip().startswith("{")
    with pytest.raises(OptionError, match="cannot parse the grammar"):
        model.generate("x", 4, grammar="root ::= [")
    with pytest.raises(OptionError, match="grammar is an int; expected GBNF"):
        model.generate("x", 4, grammar=3)


def test_texts_stop_where_they_are_told_to(model: Model) -> None:
    whole = model.generate("Hello", 20, temperature=0)
    word = whole.text[5:8]
    cut = model.generate("Hello", 20, temperature=0, stop=[word])
    assert cut.text == whole.text[: whole.text.index(word)] and cut.finish_reason == "stop"
    streamed = list(model.stream("Hello", 20, temperature=0, stop=word))
    assert "".join(one.text for one in streamed) == cut.text
    assert sum(len(one.tokens) for one in streamed) == len(cut.ids) and streamed[-1].tokens[-1].body > 0
    biased = model.generate("Hello", 20, temperature=0, logit_bias={model.token_eos(): 1e3})
    assert (biased.text, biased.ids, biased.finish_reason) == ("", (), "stop")


def test_text_is_shown_in_whole_characters_and_never_a_stop_word() -> None:
    builder = TextBuilder(["END", "##"])
    assert builder.add("ß".encode()[:1]) == "" and builder.add("ß".encode()[1:]) == "ß"
    assert builder.add(b"a E") == "a " and builder.add(b"N") == "" and builder.add(b"X") == "ENX"
    assert builder.add(b"b#") == "b" and builder.add(b"#c") == "" and builder.stopped and builder.end() == ""
    assert builder.text == "ßa ENXb"
    open_ended = TextBuilder(["END"])
    assert open_ended.add(b"E") == "" and open_ended.end() == "E"


def test_log_probs_of_a_text_add_up(model: Model, stock: Any) -> None:
    tokens = list(np.random.default_rng(0).integers(0, 990, 60))
    found, error = model.log_probs([int(token) for token in tokens])
    stock.reset()
    stock.eval([int(token) for token in tokens])
    logits = stock.scores[:60].astype(np.float64)
    expected = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))[np.arange(59), tokens[1:]]
    assert found.shape == error.shape == (59,) and error.max() <= 1e-4
    np.testing.assert_allclose(found, expected, atol=0.1)


def test_what_is_not_had_is_a_sentence(model: Model, path: Path) -> None:
    for options in ({"suffix": "x"}, {"tfs_z": 0.5}, {"adaptive_target": 0.5}, {"logits_processor": [print]}):
        with pytest.raises(UnsupportedError, match=f"{next(iter(options))} is .* is not supported: .*llama_cpp.Llama"):
            model.create_completion("x", **options)
    for options in ({"n_gpu_layers": 3}, {"lora_base": "x"}, {"embedding": True}, {"draft_model": object()}):
        with pytest.raises(UnsupportedError, match=f"{next(iter(options))} is .* is not supported"):
            Model(path, cache=path.parent, **options)
    with pytest.raises(OptionError, match="tempurature is no option"):
        model.generate("x", 3, tempurature=1.0)
    with pytest.raises(OptionError, match="n_contexts is no option"):
        Model(path, cache=path.parent, n_contexts=3)
    with pytest.raises(AbsentError, match="Model has no create_embedding; llama_cpp.Llama"):
        model.create_embedding("x")
    with pytest.raises(AttributeError):
        model.nothing  # noqa: B018
    with pytest.raises(OptionError, match="got 5 prompts; expected 1 to 4"):
        model.generate(["x"] * 5, 3)
    with pytest.raises(OptionError, match=r"Requested tokens \(300\) exceed context window of 256"):
        model.generate([5] * 300, 3)
    for token in (-1, 1000, 2**40):
        with pytest.raises(IdError, match="outside 0 to 999"):
            model.generate([5, token], 3)


@pytest.mark.parametrize("seed", [-1, 2**32 - 1, None])
def test_llama_cpps_random_seeds_are_random(model: Model, path: Path, seed: Any) -> None:
    settings = {"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert len({model.generate(PROMPTS[1], 12, seed=seed, **settings).ids for _ in range(3)}) == 3
    texts = {model.create_completion(PROMPTS[1], seed=seed, **settings)["choices"][0]["text"] for _ in range(3)}
    assert len(texts) == 3
    model.set_seed(seed)
    assert len({model.generate(PROMPTS[1], 12, **settings).ids for _ in range(3)}) == 3
    model.set_seed(3)
    assert model.generate(PROMPTS[1], 12, **settings) == model.generate(PROMPTS[1], 12, seed=3, **settings)
    model.set_seed(None)
    if seed == -1:
        with Model(path, cache=path.parent, n_ctx=64, n_threads=1, eps=1e-4, seed=-1) as other:
            assert len({other.generate(PROMPTS[1], 12, **settings).ids for _ in range(3)}) == 3


def test_seeds_below_zero_are_those_of_32_bits(model: Model) -> None:
    for settings in ({"top_k": 0}, {"top_k": 0, "temperature": 1.0}, {}):
        assert model.generate(PROMPTS[1], 9, seed=-2, **settings) == model.generate(PROMPTS[1], 9, seed=2**32 - 2, **settings)
    for seed in (1.5, "7", True, 2**63, -(2**31) - 1):
        with pytest.raises(OptionError, match="seed is .*; expected a whole number .*None or -1 for a random one"):
            model.generate(PROMPTS[1], 3, seed=seed)
        with pytest.raises(OptionError, match="seed is"):
            model.set_seed(seed)
    with pytest.raises(OptionError, match="seed is 'x'"):
        Model(model.model_path, seed="x")


def test_biases_are_token_ids_and_numbers(model: Model) -> None:
    """JSON has names for keys; a word is not a token, and pairs are the HTTP server's."""
    ask = {"max_tokens": 4, "temperature": 0.0}
    plain = model.create_completion("Hello", **ask)["choices"]
    assert model.create_completion("Hello", logit_bias=None, **ask)["choices"] == plain
    assert model.create_completion("Hello", logit_bias={}, **ask)["choices"] == plain
    biased = model.create_completion("Hello", logit_bias={300: 1e3}, **ask)["choices"]
    assert biased != plain and model.create_completion("Hello", logit_bias={"300": "1000"}, **ask)["choices"] == biased
    assert model.create_completion("Hello", logit_bias={300.0: 1000, "301": -np.inf}, **ask)["choices"] == biased
    for bias in ([[300, 1.0]], [(300, 1.0)], "Hello", 3):
        with pytest.raises(OptionError, match=f"logit_bias is an? {type(bias).__name__}; expected a dictionary"):
            model.create_completion("Hello", logit_bias=bias)
    for bias in ({"Hello": 1.0}, {300: None}, {300: "x"}, {300.5: 1}, {None: 1}, {300: np.nan}, {300: np.inf}, {300: [1]}):
        with pytest.raises(OptionError, match="expected a token's id .* and a number"):
            model.generate("Hello", 3, logit_bias=bias)
    with pytest.raises(IdError, match="logit_bias names the token -1"):
        model.generate("Hello", 3, logit_bias={-1: 1.0})


def test_a_prompt_is_text_or_whole_numbers(model: Model) -> None:
    expected = model.generate([40, 41, 42], 5, temperature=0)
    for prompt in ((40, 41, 42), np.array([40, 41, 42]), np.array([40, 41, 42], np.uint16), range(40, 43)):
        assert model.generate(prompt, 5, temperature=0) == expected
    for prompt in (b"Hello", bytearray(b"Hello"), memoryview(b"Hello")):
        for ask in (model.generate, model.create_completion, model.log_probs, model.hidden, model.stream):
            with pytest.raises(OptionError, match=r"prompt is a \w+; expected text, .*decode\(\) makes text of bytes"):
                ask(prompt)
    for prompt in (None, 5, {"prompt": "x"}, {40, 41}, iter([40])):
        with pytest.raises(OptionError, match=r"prompt is an? \w+; expected text, or a list of token ids"):
            model.create_completion(prompt)
    for prompt in ([40.0, 41], [True, 41], np.array([[40, 41]]), np.array([4.5]), [None]):
        with pytest.raises(OptionError, match=r"prompt\[0\] is .*; expected a whole number"):
            model.create_completion(prompt)
    for prompt in (["Hello", "ab"], [[40, 41]], ["Hello"], [b"Hello"]):
        with pytest.raises(OptionError, match="a completion has one: generate"):
            model.create_completion(prompt)


def test_other_options_of_another_type_are_a_sentence(model: Model) -> None:
    for stop in (b"x", 5, [5], [b"x"], {"x": 1}):
        with pytest.raises(OptionError, match="stop is .*; expected text, or a list of texts"):
            model.create_completion("Hello", stop=stop)
    for name, value in (("max_tokens", 2.5), ("max_tokens", "5"), ("logprobs", -1), ("logprobs", "2"), ("logprobs", True)):
        with pytest.raises(OptionError, match=f"{name} is .*; expected a whole number"):
            model.create_completion("Hello", **{name: value})
        with pytest.raises(OptionError, match=f"{name} is .*; expected a whole number"):
            list(model.stream("Hello", **{name: value}))
    assert model.create_completion("Hello", stop=None, max_tokens=3, logprobs=None)["usage"]["completion_tokens"] <= 3


def test_the_context_ends_a_text(model: Model) -> None:
    made = model.generate([5] * 250, None, temperature=0)
    assert made.finish_reason == "length" and len(made.ids) == 6


def test_names_that_others_call(model: Model, stock: Any) -> None:
    for name in ("n_embd", "n_vocab", "n_ctx", "token_bos", "token_eos"):
        assert getattr(model, name)() == getattr(stock, name)()
    assert model.tokenize(b"Hello ab") == stock.tokenize(b"Hello ab") and model.metadata == stock.metadata
    assert model.detokenize([40, 41]) == stock.detokenize([40, 41]) and model.chat_format == stock.chat_format
    parts = model.memory()
    assert parts["body, mapped"] < parts["original, mapped"] and "sequences=4" in repr(model)
    assert parts["head, written out"] == 0


def test_the_engine_is_compiled_once(path: Path, model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import headlong as hl

    monkeypatch.setattr(hl, "compile", lambda *_, **__: pytest.fail("compiled again"))
    with Model(path, cache=path.parent, n_ctx=64, n_threads=1, eps=1e-4) as again:
        assert again.generate(PROMPTS[1], 8, temperature=0) == model.generate(PROMPTS[1], 8, temperature=0)


def test_large_heads_have_codes_by_hidden_vectors_of_their_own(
    path: Path, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "LEAST_DIM", 64)
    monkeypatch.setattr(head, "LEAST_WEIGHTS", 0)
    with Model(path, cache=tmp_path, n_ctx=64, n_threads=1, eps=1e-4) as found:
        assert found.engine.name == "codes" and found.engine.promise.eps == 1e-4
        expected = model.generate(PROMPTS[1], 20, temperature=0, logprobs=0)
        made = found.generate(PROMPTS[1], 20, temperature=0, logprobs=0)
        assert made.ids == expected.ids and max(made.errors) <= 1e-4
        np.testing.assert_allclose(made.log_probs, expected.log_probs, atol=2e-4)
        sampled = {"seed": 3, "temperature": 0.7, "top_k": 0}
        assert found.generate(PROMPTS[1], 20, **sampled).ids == model.generate([PROMPTS[1]], 20, **sampled)[0].ids
    with Model(path, cache=tmp_path, n_ctx=64, n_threads=1, delta=0) as proved:
        assert proved.engine.name != "codes" and proved.engine.promise.delta == 0


def test_a_first_load_says_where_it_is_and_leaves_nothing_half_written_where_it_is_stopped(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(head, "LEAST_DIM", 64)
    monkeypatch.setattr(head, "LEAST_WEIGHTS", 0)
    told: list[tuple[str, int, int]] = []

    def load(stage: Any) -> None:
        with progress.shown(stage), Model(path, cache=tmp_path, n_ctx=64, n_threads=1):
            pass

    def telling(label: str) -> Any:
        return lambda done, total: told.append((label, done, total))

    def stopping(at: int) -> Any:
        def moved(done: int, total: int) -> None:
            told.append(("", done, total))
            if len(told) == at:
                raise KeyboardInterrupt

        return lambda _: moved

    for at in (1, 9, 17):  # among the hidden vectors, and at the end of the codes
        told.clear()
        with pytest.raises(KeyboardInterrupt):
            load(stopping(at))
        assert [one.name.endswith(".body.gguf") for one in tmp_path.iterdir()] == [True]
    told.clear()
    load(telling)
    labels = list(dict.fromkeys(label for label, *_ in told))
    assert labels == ["hidden vectors of the model's own", "codes of 1,000 rows"]
    assert all(done == total for label in labels for _, done, total in [[one for one in told if one[0] == label][-1]])
    told.clear()
    load(telling)
    assert not told, "the second load has nothing to make"
    with caplog.at_level("INFO", "headlong"), Model(path, cache=tmp_path / "other", n_ctx=64, n_threads=1):
        assert [record.message.partition(":")[0] for record in caplog.records][::2] == labels


def test_passages_are_read_by_the_team_that_is_sooner(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other programs that is one thread: a team waits for each of its own at every step."""
    monkeypatch.setattr(head, "LEAST_DIM", 64)
    monkeypatch.setattr(head, "LEAST_WEIGHTS", 0)
    decode, clock = Body.decode, [0.0]
    for slow in (1, 2):
        by: list[int] = []

        def decoded(self: Any, rows: Any, *where: Any, by: list[int] = by, slow: int = slow) -> Any:
            by.append(self.threads)
            clock[0] += 9 if by[-1] == slow else 1
            return decode(self, rows, *where)

        monkeypatch.setattr(Body, "decode", decoded)
        monkeypatch.setattr(calibration.time, "perf_counter", lambda: clock[0])
        with Model(path, cache=tmp_path / str(slow), n_ctx=64, n_threads=2) as found:
            assert by[:4] == [1, 1, 2, 3 - slow] and set(by[4:]) == {3 - slow}  # the first is of the check
            assert found._body.threads == 2


@pytest.mark.parametrize("dim", [256, 576, 640, 1024, 2048, 4096, 300])
def test_segments_of_codes_follow_one_another(dim: int) -> None:
    found = head.segments(dim)
    assert [0, *(stop for _, stop, _ in found)] == [*(start for start, _, _ in found), dim]
    assert all(stop - start >= head.BLOCK and (stop % head.BLOCK == 0 or stop == dim) for start, stop, _ in found)
    assert [bits for *_, bits in found] == [8, *[3] * (len(found) - 1)]


def adapter(path: Path, tensors: dict[str, tuple[int, int]]) -> Path:
    """A LoRA adapter of rank 2 of matrices ``[out, in]``."""
    rng, parts = np.random.default_rng(5), {}
    for name, (out, into) in tensors.items():
        parts[f"{name}.lora_a"] = rng.standard_normal((2, into)).astype(np.float32) / 4
        parts[f"{name}.lora_b"] = rng.standard_normal((out, 2)).astype(np.float32) / 4
    facts = {"general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 4.0}
    return tiny_gguf.gguf_file(path, "qwen3", parts, facts)


def test_an_adapter_of_the_body_is_llama_cpps(path: Path, model: Model, tmp_path: Path) -> None:
    """With it log-probabilities are those of the stock class with it; one that changes the output layer is refused."""
    lora = adapter(tmp_path / "lora.gguf", {"blk.0.attn_q.weight": (64, 64), "blk.1.ffn_down.weight": (64, 96)})
    with_it = {"lora_path": str(lora), "lora_scale": 0.5}
    stock = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, verbose=False, logits_all=True, **with_it)
    stock.eval(PROMPTS[1])
    logits = stock.scores[: len(PROMPTS[1]) - 1].astype(np.float64)
    expected = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))[np.arange(len(logits)), PROMPTS[1][1:]]
    stock.close()
    with Model(path, cache=path.parent, n_ctx=256, n_threads=1, eps=1e-4, **with_it) as adapted:
        np.testing.assert_allclose(adapted.log_probs(PROMPTS[1])[0], expected, atol=0.05)
    assert np.abs(model.log_probs(PROMPTS[1])[0] - expected).max() > 0.2
    for name in ("output.weight", "token_embd.weight"):
        with pytest.raises(UnsupportedError, match=f"changes {name}; .*merge it into the model"):
            Model(path, cache=path.parent, n_threads=1, lora_path=adapter(tmp_path / f"{name}.gguf", {name: (1000, 64)}))
    foreign = adapter(tmp_path / "other.gguf", {"blk.7.attn_q.weight": (64, 64)})
    with pytest.raises(StoreError, match="llama.cpp cannot load the adapter"):
        Model(path, cache=path.parent, n_threads=1, lora_path=foreign)
