"""The next token: its law is that of llama.cpp's own chain of samplers over all logits, and penalties are its own."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import headlong as hl
import tiny_gguf
from headlong.engines.edited_row import Noise, exponents
from headlong.errors import IdError, InputError, OptionError, UnsupportedError
from laws import chance, check_law

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp import Model  # noqa: E402
from headlong.integrations.llama_cpp.chain import Breakers, Mirostat, Repeats  # noqa: E402
from headlong.integrations.llama_cpp.chained import ChainedRow  # noqa: E402
from headlong.integrations.llama_cpp.decoding import Decoder, Progress  # noqa: E402
from headlong.integrations.llama_cpp.head import Head  # noqa: E402
from headlong.integrations.llama_cpp.picking import Row  # noqa: E402
from headlong.integrations.llama_cpp.settings import Settings  # noqa: E402

VOCAB, DIM, DRAWS = 3000, 32, 1000
SHARP, FLAT = 3.0, 0.9
"""How large logits are: a nucleus of some tokens, and of more than the first list has."""
GENERATED = [7, 7, 7, 11, 900, 12, 7, 11]
OFF: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def head_of(link: Any = None) -> Head:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((VOCAB, DIM)).astype(np.float32) / DIM**0.5
    bias = rng.standard_normal(VOCAB).astype(np.float32) / 4
    engine = hl.compile(hl.Layer(weight, bias, link=link), threads=1)
    return Head(engine.layer, lambda: engine)


@pytest.fixture(scope="module")
def head() -> Head:
    return head_of()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tiny_gguf.write(tmp_path_factory.mktemp("models") / "model.gguf", "qwen3", head="Q8_0")
    with Model(path, cache=path.parent, n_ctx=256, n_threads=1, eps=1e-4, sequences=4) as found:
        yield found


def every(head: Head, hidden: Any) -> Any:
    return exponents(head.engine, hidden, np.arange(head.vocab))


def noise(rng: np.random.Generator, settings: Settings) -> Noise:
    return Noise(int(rng.integers(1 << 63)), 0, settings.temperature)


def hidden_of(size: float) -> Any:
    return (np.random.default_rng(1).standard_normal((1, DIM)) * size).astype(np.float32)


def left(logits: Any, *samplers: Any) -> dict[int, float]:
    """The tokens that llama.cpp's samplers leave, and their logits then."""
    entries = np.zeros(len(logits), ENTRY)
    entries["id"], entries["logit"] = np.arange(len(logits)), logits
    data = ctypes.cast(entries.ctypes.data, llama_cpp.llama_token_data_p)
    array = llama_cpp.llama_token_data_array(data, len(logits), -1, False)
    for sampler in samplers:
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
        llama_cpp.llama_sampler_free(sampler)
    found = ((array.data[place].id, array.data[place].logit) for place in range(array.size))
    return {token: logit for token, logit in found if logit > -np.inf}


def edited(logits: Any, settings: Settings) -> Any:
    """After biases and llama.cpp's penalties."""
    penalties = llama_cpp.llama_sampler_init_penalties(
        VOCAB, settings.last_n, settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
    )
    for token in GENERATED:
        llama_cpp.llama_sampler_accept(penalties, token)
    biased = np.asarray(logits, np.float64).copy()
    for token, bias in settings.logit_bias.items():
        biased[token] += bias
    moved = np.full(VOCAB, -np.inf)
    for token, logit in left(biased, penalties).items():
        moved[token] = logit
    return moved


def law(logits: Any, settings: Settings) -> Any:
    """The probability of every token by llama.cpp's own chain over all logits."""
    moved = edited(logits, settings)
    shares = {0.0: 1 - settings.xtc_probability, 1.0: settings.xtc_probability} if settings.xtc else {0.0: 1.0}
    found = np.zeros(VOCAB)
    for certain, share in shares.items():
        some = np.flatnonzero(moved > -np.inf)  # what is ruled out is none of llama.cpp's candidates
        sigma = left(moved[some], llama_cpp.llama_sampler_init_top_n_sigma(settings.top_n_sigma))
        some = some[[*sigma]]  # nor what is masked: how many there are counts
        last = left(
            np.array([*sigma.values()]),
            llama_cpp.llama_sampler_init_top_k(settings.top_k),
            llama_cpp.llama_sampler_init_typical(settings.typical_p, 1),
            llama_cpp.llama_sampler_init_top_p(settings.top_p, 1),
            llama_cpp.llama_sampler_init_min_p(settings.min_p, 1),
            llama_cpp.llama_sampler_init_xtc(certain, settings.xtc_threshold, 1, 0),
            llama_cpp.llama_sampler_init_temp_ext(settings.temperature, settings.dynatemp_range, settings.dynatemp_exponent),
        )
        ids, values = some[[*last]], np.array([*last.values()], np.float64)
        found[ids] += share * np.exp(values - np.logaddexp.reduce(values))
    return found


CASES: dict[str, dict[str, Any]] = {
    "llama.cpp's defaults": {},
    "nothing": {**OFF, "temperature": 1.0},
    "temperature": {**OFF, "temperature": 0.6},
    "top_p": {**OFF, "top_p": 0.9, "temperature": 1.0},
    "top_p, colder": {**OFF, "top_p": 0.9, "temperature": 0.7},
    "top_p, hotter": {**OFF, "top_p": 0.8, "temperature": 1.6},
    "min_p, hotter": {**OFF, "min_p": 0.1, "temperature": 1.5},
    "top_p and min_p": {**OFF, "top_p": 0.95, "min_p": 0.02, "temperature": 0.8},
    "top_k": {**OFF, "top_k": 5, "temperature": 1.2},
    "top_k and top_p": {**OFF, "top_k": 20, "top_p": 0.7},
    "sigma": {**OFF, "top_n_sigma": 1.0},
    "sigma, wide": {**OFF, "top_n_sigma": 2.5, "temperature": 1.3},
    "sigma and the defaults": {"top_n_sigma": 1.5},
    "typical": {**OFF, "typical_p": 0.6},
    "typical after top_k": {"typical_p": 0.7, "temperature": 1.5},
    "xtc": {**OFF, "xtc_probability": 0.6, "xtc_threshold": 0.02},
    "xtc after filters": {"xtc_probability": 0.5, "xtc_threshold": 0.08, "temperature": 1.2},
    "xtc after a nucleus": {**OFF, "top_p": 0.8, "xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 1.0},
    "dynatemp": {"dynatemp_range": 0.5, "dynatemp_exponent": 1.5, "temperature": 1.0},
    "dynatemp, no filter": {**OFF, "dynatemp_range": 0.6},
    "dynatemp after min_p": {**OFF, "min_p": 0.05, "dynatemp_range": 0.7, "temperature": 0.9},
    "all": {"top_n_sigma": 2.0, "typical_p": 0.9, "xtc_probability": 0.4, "xtc_threshold": 0.1, "dynatemp_range": 0.3},
}
CHAINED = [case for case, settings in CASES.items() if Settings(**settings).chained]
EDITS: dict[str, dict[str, Any]] = {
    "none": {},
    "penalties": {"repeat_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "last two": {"presence_penalty": 1.5, "last_n": 2},
    "biases": {"logit_bias": {5: 4.0, 900: -3.0, 12: -math.inf}},
    "edited": {"repeat_penalty": 1.4, "presence_penalty": 0.2, "logit_bias": {5: 4.0, 900: -3.0, 12: -np.inf}},
    "all": {"logit_bias": {5: 4.0, 6: 2.0}, "repeat_penalty": 1.2, "presence_penalty": -0.5},
}


class Accepting:
    """A grammar that accepts every third token."""

    def accepts(self, ids: Any) -> Any:
        return np.asarray(ids) % 3 == 0


GRAMMARS = pytest.mark.parametrize("grammar", [None, Accepting()], ids=["free", "grammar"])


def row_of(head: Head, hidden: Any, settings: Settings, grammar: Any = None) -> Any:
    """What picks the token: all of the chain, or the usual filters alone."""
    return (ChainedRow if settings.chained else Row)(head, hidden, settings, GENERATED, grammar)


def accepted(head: Head, hidden: Any, grammar: Any) -> Any:
    logits = every(head, hidden)
    return logits if grammar is None else np.where(grammar.accepts(np.arange(VOCAB)), logits, -np.inf)


@pytest.mark.one_of("edits")
@GRAMMARS
@pytest.mark.parametrize("edits", sorted(EDITS))
@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("size", [SHARP, FLAT])
def test_draws_have_the_law_of_llama_cpps_chain_over_all_logits(
    head: Head, size: float, case: str, edits: str, grammar: Any
) -> None:
    settings, hidden = Settings(**CASES[case], **EDITS[edits]), hidden_of(size)
    count = DRAWS if grammar is None else DRAWS // 4  # a grammar that is asked about every token takes its time
    row = row_of(head, hidden, settings, grammar)
    fresh = lambda: row_of(head, hidden, settings, grammar) if settings.chained else row  # noqa: E731
    expected = law(accepted(head, hidden, grammar), settings)
    check_law(lambda rng: fresh().pick(noise(rng, settings)), expected, count)


@pytest.mark.parametrize("edits", sorted(EDITS))
@GRAMMARS
def test_temperature_0_is_the_best_after_the_edits(head: Head, edits: str, grammar: Any) -> None:
    settings, hidden = Settings(temperature=0.0, **EDITS[edits]), hidden_of(SHARP)
    best = np.argmax(edited(accepted(head, hidden, grammar), settings))
    assert row_of(head, hidden, settings, grammar).pick(Noise(0, 0)) == best


def counted(verb: Any, asked: list[str]) -> Any:
    return lambda *given, **more: (asked.append(verb.__name__), verb(*given, **more))[1]


@pytest.mark.parametrize("case", [case for case in sorted(CASES) if CASES[case].get("top_k") == 0 and case not in CHAINED])
@pytest.mark.parametrize("size", [SHARP, FLAT])
def test_a_step_without_edits_is_one_question_whatever_the_temperature(
    head: Head, size: float, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Filters by temperature 1 and the draw at another are found together."""
    settings, hidden = Settings(**CASES[case], seed=4), hidden_of(size)
    asked: list[str] = []
    for verb in ("topk", "lse", "log_prob", "sample"):
        monkeypatch.setattr(head.engine, verb, counted(getattr(head.engine, verb), asked))
    count = 4 * DRAWS
    decoder = Decoder(SimpleNamespace(lock=nullcontext()), None, head, count)  # type: ignore[arg-type]
    rows = [Progress([1], number, 1, None) for number in range(count)]
    drawn = np.bincount(decoder.picker(rows, settings)(rows, np.repeat(hidden, count, axis=0)), minlength=VOCAB)
    assert asked == ["sample"]
    assert chance(drawn, law(every(head, hidden), settings)) > 1e-4


def test_what_leaves_nothing_or_makes_no_sense_is_refused(head: Head) -> None:
    hidden = hidden_of(SHARP)
    everything = dict.fromkeys(range(VOCAB), -math.inf)
    for settings in (Settings(temperature=0, logit_bias=everything), Settings(top_k=0, logit_bias=everything)):
        with pytest.raises(InputError, match="no token is left"):
            Row(head, hidden, settings, []).pick(Noise(0, 0))
    with pytest.raises(IdError, match="logit_bias names the token 3000; expected 0 to 2999"):
        Row(head, hidden, Settings(logit_bias={3000: 1.0}), [])
    with pytest.raises(OptionError, match="expected a token's id .*, or -inf"):
        Row(head, hidden, Settings(logit_bias={3: math.nan}), [])
    for name, value in {"temperature": -1.0, "repeat_penalty": 0.0, "top_k": 1.5, "top_p": math.nan, "min_p": 2.0}.items():
        with pytest.raises(OptionError, match=f"{name} is "):
            Settings(**{name: value})


def test_under_a_soft_cap_sigma_is_that_of_the_capped_logits() -> None:
    head, settings, hidden = head_of(hl.SoftCap(3.0)), Settings(**CASES["sigma"], **EDITS["edited"]), hidden_of(SHARP)
    pick = lambda rng: ChainedRow(head, hidden, settings, GENERATED).pick(noise(rng, settings))  # noqa: E731
    check_law(pick, law(every(head, hidden), settings), 200)


def test_moments_are_those_of_all_logits(head: Head) -> None:
    for head_, hidden in ((head, hidden_of(SHARP)), (head_of(hl.Affine(0.3, -2.0)), hidden_of(SHARP))):
        x = every(head_, hidden)
        np.testing.assert_allclose(head_.moments(hidden), (x.sum(), (x**2).sum()), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("tau", [0.5, 2.0, 5.0])
def test_mirostat_keeps_what_llama_cpp_keeps_and_moves_mu_as_it_does(head: Head, tau: float) -> None:
    rng, mirostat, settings = np.random.default_rng(3), Mirostat(tau, 0.3), Settings(mirostat_mode=2)
    hidden = [hidden_of(size) for size in (SHARP, FLAT, 2.0, SHARP, FLAT)] * 3
    for one in hidden:
        surprise = -(every(head, one) - np.logaddexp.reduce(every(head, one))) / np.log(2)
        kept = np.flatnonzero(surprise <= mirostat.mu)
        kept = kept if len(kept) else [int(surprise.argmin())]
        share = np.exp2(-surprise[kept])
        before = mirostat.mu
        token = ChainedRow(head, one, settings, [], mirostat=mirostat).pick(noise(rng, settings))
        assert token in kept
        own = -np.log2(share[list(kept).index(token)] / share.sum())
        assert mirostat.mu == pytest.approx(before - 0.3 * (own - tau), abs=1e-7)
        first = Mirostat(tau, 0.3)
        theirs = left(every(head, one), llama_cpp.llama_sampler_init_mirostat_v2(0, tau, 0.3))
        assert len(theirs) == max(1, np.count_nonzero(surprise <= first.mu))
    fixed = hidden_of(FLAT)
    surprise = -(every(head, fixed) - np.logaddexp.reduce(every(head, fixed))) / np.log(2)
    expected = np.where(surprise <= 2 * tau, np.exp2(-surprise), 0.0)
    if expected.any():
        pick = lambda rng: ChainedRow(head, fixed, settings, [], mirostat=Mirostat(tau, 0.3)).pick(noise(rng, settings))  # noqa: E731
        check_law(pick, expected / expected.sum(), DRAWS)


HISTORIES = [
    [5, 6, 7, 8, 9, 5, 6, 7, 8],
    [3] * 12,
    [1, 2, 3, 1, 2, 4, 1, 2, 3, 1, 2],
    [10, 11, 10, 11, 12, 10, 11],
    list(range(50)),
    [*np.random.default_rng(0).integers(0, 4, 200)],
    [*np.random.default_rng(1).integers(0, 30, 200)],
]
DRY: list[dict[str, Any]] = [
    {"dry_multiplier": 0.8},
    {"dry_multiplier": 1.5, "dry_base": 1.2, "dry_allowed_length": 0},
    {"dry_multiplier": 0.8, "dry_allowed_length": 4, "dry_penalty_last_n": 40},
    {"dry_multiplier": 0.5, "dry_base": 1.0, "dry_sequence_breakers": ["ab", "one", "b", "a t"]},
    {"dry_multiplier": 2.0, "dry_base": 4.0, "dry_allowed_length": 1, "dry_sequence_breakers": []},
]


@pytest.mark.parametrize("asked", DRY, ids=str)
def test_repeats_have_llama_cpps_penalties(model: Model, asked: dict[str, Any]) -> None:
    settings, context = Settings(**asked), 128
    tokenize = partial(model.tokenize, add_bos=False)
    breakers = Breakers(model.words.spelled(), settings.dry_sequence_breakers, tokenize)
    words = [one.encode() for one in settings.dry_sequence_breakers]
    made = ("ab one ab one two ab one", "one: two* one: two* one:", "a tab a tab a")
    texts = [tokenize(text.encode()) for text in made]
    for history in [*HISTORIES, *texts]:
        last = context if settings.dry_penalty_last_n < 0 else settings.dry_penalty_last_n
        sampler = llama_cpp.llama_sampler_init_dry(
            model.words.pointer, settings.dry_multiplier, settings.dry_base, settings.dry_allowed_length, last,
            (ctypes.c_char_p * len(words))(*words), len(words),
        )  # fmt: skip
        for token in history:
            llama_cpp.llama_sampler_accept(sampler, int(token))
        theirs = left(np.zeros(model.n_vocab(), np.float32), sampler)
        expected = {token: -logit for token, logit in theirs.items() if logit}
        found = Repeats(settings, breakers, context)([int(token) for token in history])
        assert found.keys() == expected.keys(), history
        np.testing.assert_allclose([found[token] for token in expected], [*expected.values()], rtol=1e-5)


def test_a_text_is_that_of_the_chain_over_all_logits(model: Model) -> None:
    """Greedy with DRY: each token is the best of all logits less llama.cpp's penalties; the prompt counts."""
    prompt = [5, 6, 7, 8, 9, 5, 6, 7]
    settings = {"dry_multiplier": 5.0, "dry_allowed_length": 1}
    made = model.generate(prompt, 20, temperature=0, **settings).ids
    assert made != model.generate(prompt, 20, temperature=0).ids
    breakers = Breakers(model.words.spelled(), Settings().dry_sequence_breakers, model.tokenize)
    repeats = Repeats(Settings(**settings), breakers, 512)
    hidden = model.hidden([*prompt, *made])
    for place, token in enumerate(made):
        x = every(model._decoder.head, hidden[len(prompt) - 1 + place : len(prompt) + place])
        for name, penalty in repeats([*prompt, *made[:place]]).items():
            x[name] -= penalty
        assert x[token] > x.max() - 1e-3


TEXTS: dict[str, dict[str, Any]] = {
    **CASES, "greedy": {"temperature": 0.0}, "mirostat": {"mirostat_mode": 2, "mirostat_tau": 3.0},
    "dry": {"dry_multiplier": 0.8}, "edited": {"temperature": 0.9, "repeat_penalty": 1.3, "logit_bias": {300: 2.0}},
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_texts_at_once_are_those_one_by_one(model: Model, case: str) -> None:
    asked = {"seed": 3, **TEXTS[case]}
    prompts = [[17, 301, 42], [5, 77, 640, 3], [8], [300, 301, 302, 303]]
    found = model.generate(prompts, 12, **asked)
    assert model.generate(prompts, 12, **asked) == found and len({one.ids for one in found}) > 1
    assert model.generate(prompts[:1], 12, **asked)[0].ids == found[0].ids, "whichever others are there"
    assert (model.generate(prompts, 12, **asked | {"seed": 4}) == found) == (case == "greedy")
    for prompt, one in zip(prompts, found, strict=True) if case == "greedy" else ():
        assert model.generate(prompt, 12, **asked).ids == one.ids
    stream = [token.id for piece in model.stream(prompts[0], 12, **asked) for token in piece.tokens]
    assert tuple(stream) == found[0].ids
    text = model.create_completion(prompts[0], max_tokens=12, **asked)["choices"][0]["text"]
    assert text == found[0].text


def test_what_is_not_supported_is_a_sentence(model: Model) -> None:
    for asked, why in (
        ({"adaptive_target": 0.5}, "adaptive-p, which moves every token's logit"),
        ({"guidance_scale": 1.5}, "guidance, which needs the logits of two texts"),
        ({"suffix": "x"}, "infilling"),
        ({"mirostat_mode": 1}, "mirostat_mode is 1"),
    ):
        for ask in (model.generate, model.create_completion):
            with pytest.raises(UnsupportedError, match=why):
                ask("Hello", **asked)
    wrong: list[dict[str, Any]] = [{"xtc_probability": 2}, {"typical_p": -1}, {"dry_sequence_breakers": 5}]
    for asked in (*wrong, {"top_n_sigma": "x"}, {"mirostat_mode": 3}):
        with pytest.raises(OptionError, match=f"{next(iter(asked))} is"):
            model.generate("Hello", 3, **asked)
