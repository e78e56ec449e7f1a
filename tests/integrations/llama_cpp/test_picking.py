"""The next token beside a dense float64 reference of llama.cpp's order of samplers, and beside those samplers themselves."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats

import headlong as hl
from headlong.engines.edited_row import Noise
from headlong.errors import IdError, InputError, OptionError
from laws import check_law

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install 'headlong[llama]'")

from headlong.integrations.llama_cpp.decoding import Decoder, Progress  # noqa: E402
from headlong.integrations.llama_cpp.head import Head  # noqa: E402
from headlong.integrations.llama_cpp.picking import Row  # noqa: E402
from headlong.integrations.llama_cpp.settings import Settings  # noqa: E402

VOCAB, DIM, DRAWS = 3000, 32, 1000
SHARP, FLAT = 3.0, 0.9
"""How large logits are: a nucleus of some tokens, and of more than the first list has."""
GENERATED = [7, 7, 7, 11, 900, 12, 7, 11]


@pytest.fixture(scope="module")
def head() -> Head:
    weight = np.random.default_rng(0).standard_normal((VOCAB, DIM)).astype(np.float32) / DIM**0.5
    engine = hl.compile(hl.Layer(weight), threads=1)
    return Head(engine.layer, lambda: engine)


def hidden_of(size: float) -> Any:
    return (np.random.default_rng(1).standard_normal((1, DIM)) * size).astype(np.float32)


def noise_of(rng: np.random.Generator, settings: Settings) -> Noise:
    return Noise(int(rng.integers(1 << 63)), 0, settings.temperature)


class Accepting:
    """A grammar that accepts every third token."""

    def accepts(self, ids: Any) -> Any:
        return np.asarray(ids) % 3 == 0


def moved(x: Any, settings: Settings) -> Any:
    """Biases and penalties as llama.cpp states them, of every token."""
    x = x.copy()
    for token, bias in settings.logit_bias.items():
        x[token] += bias
    for token, count in Counter(GENERATED[-settings.last_n :]).items():
        x[token] = x[token] * settings.repeat_penalty if x[token] <= 0 else x[token] / settings.repeat_penalty
        x[token] -= count * settings.frequency_penalty + settings.presence_penalty
    return x


def reference(x: Any, settings: Settings, grammar: Any = None) -> Any:
    """The probability of every token."""
    x = moved(x, settings)
    if grammar is not None:
        x[~grammar.accepts(np.arange(len(x)))] = -np.inf
    order = np.lexsort((np.arange(len(x)), -x))
    kept = order[: settings.top_k] if settings.top_k > 0 else order
    kept = kept[x[kept] > -np.inf]
    if settings.top_p < 1:
        mass = np.exp(x[kept] - np.logaddexp.reduce(x[kept]))
        kept = kept[: 1 + int(np.searchsorted(np.cumsum(mass), settings.top_p))]
    if settings.min_p > 0:
        kept = kept[x[kept] >= x[kept[0]] + math.log(settings.min_p)]
    found = np.zeros(len(x))
    y = x[kept] / settings.temperature
    found[kept] = np.exp(y - np.logaddexp.reduce(y))
    return found


OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
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
}
EDITS: dict[str, dict[str, Any]] = {
    "none": {},
    "penalties": {"repeat_penalty": 1.4, "frequency_penalty": 0.3, "presence_penalty": 0.2},
    "last two": {"presence_penalty": 1.5, "last_n": 2},
    "biases": {"logit_bias": {5: 4.0, 900: -3.0, 12: -math.inf}},
    "all": {"logit_bias": {5: 4.0, 6: 2.0}, "repeat_penalty": 1.2, "presence_penalty": -0.5},
}


@pytest.mark.one_of("edits")
@pytest.mark.parametrize("grammar", [None, Accepting()], ids=["free", "grammar"])
@pytest.mark.parametrize("edits", sorted(EDITS))
@pytest.mark.parametrize("case", sorted(CASES))
@pytest.mark.parametrize("size", [SHARP, FLAT])
def test_draws_have_the_references_distribution(head: Head, size: float, case: str, edits: str, grammar: Any) -> None:
    settings, hidden = Settings(**CASES[case], **EDITS[edits]), hidden_of(size)
    expected = reference(head.engine.layer.weight.astype(np.float64) @ hidden[0], settings, grammar)
    few = grammar is None or settings.top_k > 0  # a grammar that is asked about every token takes its time
    count = DRAWS if few else DRAWS // 5
    row = Row(head, hidden, settings, GENERATED, grammar)
    check_law(lambda rng: row.pick(noise_of(rng, settings)), expected, count)


def counted(verb: Any, asked: list[str]) -> Any:
    return lambda *given, **more: (asked.append(verb.__name__), verb(*given, **more))[1]


@pytest.mark.parametrize("case", [case for case, settings in sorted(CASES.items()) if settings.get("top_k") == 0])
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
    expected = reference(head.engine.layer.weight.astype(np.float64) @ hidden[0], settings)
    assert not drawn[expected == 0].any(), "a token that the filters rule out"
    often = expected * count >= 5
    seen, wanted = (np.append(part[often], part[~often].sum()) for part in (drawn, expected * count))
    full = wanted >= 5
    assert stats.chisquare(seen[full], wanted[full] * seen[full].sum() / wanted[full].sum()).pvalue > 1e-4


@pytest.mark.parametrize("edits", sorted(EDITS))
@pytest.mark.parametrize("grammar", [None, Accepting()], ids=["free", "grammar"])
def test_temperature_0_is_the_best_after_the_edits(head: Head, edits: str, grammar: Any) -> None:
    settings, hidden = Settings(temperature=0.0, **EDITS[edits]), hidden_of(SHARP)
    x = moved(head.engine.layer.weight.astype(np.float64) @ hidden[0], settings)
    if grammar is not None:
        x[~grammar.accepts(np.arange(VOCAB))] = -np.inf
    assert Row(head, hidden, settings, GENERATED, grammar).pick(Noise(0, 0)) == np.argmax(x)


@pytest.mark.parametrize("edits", ["none", "penalties", "last two"])
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_reference_is_llama_cpps_chain(case: str, edits: str) -> None:
    """The same tokens kept, with the same probabilities."""
    settings = Settings(**CASES[case], **EDITS[edits])
    x = np.random.default_rng(3).standard_normal(VOCAB).astype(np.float32) * 3
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    penalties = settings.last_n, settings.repeat_penalty, settings.frequency_penalty, settings.presence_penalty
    samplers = [
        llama_cpp.llama_sampler_init_penalties(VOCAB, *penalties),
        llama_cpp.llama_sampler_init_top_k(settings.top_k), llama_cpp.llama_sampler_init_top_p(settings.top_p, 1),
        llama_cpp.llama_sampler_init_min_p(settings.min_p, 1), llama_cpp.llama_sampler_init_temp(settings.temperature),
    ]  # fmt: skip
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    for token in GENERATED:
        llama_cpp.llama_sampler_accept(chain, token)
    entries = np.zeros(VOCAB, np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    entries["id"], entries["logit"] = np.arange(VOCAB), x
    data = ctypes.cast(entries.ctypes.data, llama_cpp.llama_token_data_p)
    array = llama_cpp.llama_token_data_array(data, VOCAB, -1, False)
    llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
    left = [(array.data[i].id, array.data[i].logit) for i in range(array.size)]
    llama_cpp.llama_sampler_free(chain)
    found = np.zeros(VOCAB)
    logits = np.array([logit for _, logit in left], np.float64)
    found[[token for token, _ in left]] = np.exp(logits - np.logaddexp.reduce(logits))
    expected = reference(x.astype(np.float64), settings)
    assert np.abs(found - expected).max() < 1e-4 and abs((found > 0).sum() - (expected > 0).sum()) <= 1  # in float32


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
