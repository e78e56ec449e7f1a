"""How often a token asks the engine: each question is a scan of the codes. Normalisers are asked for where a draw needs one."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import headlong as hl
from headlong.integrations.generation import beams as beam_scores
from headlong.integrations.generation.beams import MOST_BY_ROWS, BeamScores
from headlong.integrations.generation.fast_head import FastHead
from headlong.integrations.generation.picking import Row
from headlong.integrations.generation.processors import Edits
from headlong.integrations.generation.surprisal_filters import Surprisals

VOCAB, DIM, TOKENS = 6000, 32, 200


class Counting:
    """An engine that counts what it is asked."""

    def __init__(self, engine: Any, asked: Counter[str] | None = None) -> None:
        self.engine, self.asked = engine, Counter[str]() if asked is None else asked

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.engine, name)
        if name == "at_temperature":
            return lambda value: Counting(found(value), self.asked)
        if name in ("topk", "lse", "sample", "entropy", "log_prob"):
            self.asked[name] += 1
        return found


@pytest.fixture(scope="module")
def engine() -> Any:
    weight = np.random.default_rng(0).standard_normal((VOCAB, DIM)).astype(np.float32) * 1.2
    return hl.compile(hl.Layer(weight), "codes", threads=1)


FILTERS: dict[str, tuple[dict[str, Any], float]] = {
    "none": ({"temperature": 0.8}, 1.0),
    "top_k": ({"top_k": 20, "temperature": 0.8}, 1.0),
    "top_k, top_p": ({"top_k": 20, "top_p": 0.9}, 1.0),
    "top_p": ({"top_p": 0.9}, 2.3),
    "top_p, colder": ({"top_p": 0.95, "temperature": 0.7}, 2.3),
    "min_p": ({"min_p": 0.05}, 2.3),
}
"""Filters of an edited row, and how many questions a token may take: the draw, and the best beside it; a normaliser seldom."""


@pytest.mark.parametrize("name", FILTERS)
def test_an_edited_row_asks_for_a_normaliser_seldom(engine: Any, name: str) -> None:
    filters, most = FILTERS[name]
    counting, rng = Counting(engine), np.random.default_rng(1)
    recipe: Any = SimpleNamespace(filters=filters, surprisals=None)
    edits = Edits([np.array([5, 6])], [np.array([7, 9])], [np.array([4.0, 1.0])])
    logits = engine.layer.weight.astype(np.float64)
    for place in range(TOKENS):
        hidden = torch.from_numpy(rng.standard_normal((1, DIM)).astype(np.float32))
        token = Row(counting, hidden, edits, 0, recipe).next(3, place)
        if place % 10 == 0:  # the same noise over every class
            x = logits @ hidden[0].numpy().astype(np.float64)
            x[[7, 9]], x[[5, 6]] = (4.0, 1.0), -np.inf
            assert token == dense(x, filters, place)
    assert sum(counting.asked.values()) <= most * TOKENS, counting.asked


def dense(x: Any, filters: dict[str, Any], place: int) -> int:
    from headlong.engines.reference.gumbel import gumbels

    x = x / filters.get("temperature", 1.0)
    order = np.argsort(-x, kind="stable")
    kept = order[: filters.get("top_k", VOCAB)]
    if "top_p" in filters:
        mass = np.exp(x[kept] - np.logaddexp.reduce(x[kept]))
        kept = kept[np.cumsum(mass) - mass < filters["top_p"]]
    if "min_p" in filters:
        kept = kept[x[kept] >= x[order[0]] + np.log(filters["min_p"])]
    keys = x[kept] + gumbels(3, place, 0, kept)
    return int(kept[np.argmax(keys)])


def test_filters_by_surprisal_are_left_as_they_were(engine: Any) -> None:
    recipe: Any = SimpleNamespace(filters={}, surprisals=Surprisals(typical_p=0.5))
    edits = Edits([np.empty(0, np.int64)], [np.array([7])], [np.array([4.0])])
    hidden = torch.from_numpy(np.random.default_rng(1).standard_normal((1, DIM)).astype(np.float32))
    assert 0 <= Row(engine, hidden, edits, 0, recipe).next(3, 0) < VOCAB


CHAINS: dict[str, tuple[dict[str, Any], float]] = {
    "greedy": ({"temperature": 0.0}, 1.0),
    "temperature": ({"temperature": 0.7, "top_k": 0, "top_p": 1.0, "min_p": 0.0}, 1.0),
    "top_p": ({"temperature": 1.0, "top_k": 0, "top_p": 0.9, "min_p": 0.0}, 1.0),
    "top_p, min_p": ({"temperature": 1.0, "top_k": 0}, 1.0),
    "llama.cpp's defaults": ({}, 1.0),
    "min_p, hotter": ({"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.1}, 1.3),
    "top_p, colder": ({"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0}, 2.3),
}
"""Where the temperature comes after the nucleus, and is not 1, a draw of all tokens and the best of them are two questions."""


@pytest.mark.parametrize("name", CHAINS)
def test_llama_cpps_chains_ask_once_a_token_where_one_question_can_tell(engine: Any, name: str) -> None:
    pytest.importorskip("llama_cpp")
    from headlong.integrations.llama_cpp.decoding import Decoder, Progress
    from headlong.integrations.llama_cpp.head import Head
    from headlong.integrations.llama_cpp.settings import Settings

    settings, most = CHAINS[name]
    counting, rng = Counting(engine), np.random.default_rng(1)
    decoder = Decoder(SimpleNamespace(lock=None), None, Head(engine.layer, lambda: counting), 1)  # type: ignore[arg-type]
    row = Progress([1], 0, 10**6, None)
    pick = decoder.picker([row], Settings(seed=3, **settings))
    for _ in range(TOKENS):
        (token,) = pick([row], rng.standard_normal((1, DIM)).astype(np.float32))
        row.take(token)
    assert TOKENS <= sum(counting.asked.values()) <= most * TOKENS, counting.asked


ASKED: dict[str, tuple[dict[str, Any], str]] = {
    "greedy": ({"do_sample": False}, "by_ids"),
    "draws of all": ({"do_sample": True, "top_k": 0}, "by_ids"),
    "top_k, top_p": ({"do_sample": True, "top_k": 7, "top_p": 0.8}, "by_ids"),
    "min_p": ({"do_sample": True, "top_k": 0, "min_p": 0.1}, "by_ids"),
    "a penalty": ({"do_sample": False, "repetition_penalty": 1.5}, "by_ids"),
    "top_p": ({"do_sample": True, "top_k": 0, "top_p": 0.8}, "engine"),
    "typical": ({"do_sample": True, "top_k": 0, "typical_p": 0.8}, "engine"),
}
"""Options of ``generate``, and which of a head's engines a step asks."""


@pytest.mark.parametrize("name", ASKED)
def test_the_plan_for_normalisers_is_asked_for_nuclei_of_all_classes_alone(name: str) -> None:
    from headlong.integrations.transformers import accelerate
    from language_models import made

    options, expected = ASKED[name]
    model = made("gpt2")
    vectors = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    head: Any = accelerate(model, calibration=vectors, method="codes")
    assert not head.by_ids.promise.eps < np.inf and head.engine.promise.eps < np.inf
    counting = {which: Counting(getattr(head, which)) for which in ("engine", "by_ids", "by_rows")}
    for which, one in counting.items():
        setattr(head, which, one)
    model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, min_new_tokens=4, pad_token_id=0, **options)
    assert {which for which, one in counting.items() if one.asked} == {expected}
    assert expected == "engine" or sum(counting[expected].asked.values()) == (8 if name == "a penalty" else 4)


def test_beams_ask_all_rows_at_once_for_a_while_where_codes_left_most_normalisers_too_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, asked = np.random.default_rng(0), Counter[str]()
    weight = rng.standard_normal((VOCAB, DIM)).astype(np.float32)
    head = FastHead(torch.nn.Linear(DIM, VOCAB, bias=False), hl.compile(hl.Layer(weight), "codes", threads=1))
    head.engine, head.by_rows = Counting(head.engine, asked), Counting(head.by_rows, rows := Counter[str]())  # type: ignore[assignment]
    beams = BeamScores(SimpleNamespace(head=head), 4)  # type: ignore[arg-type]
    peaked, flat = (torch.from_numpy(size * weight[:3]) for size in (1.0, 0.2))
    best = np.asarray(head.engine.engine.lse(peaked, eps=1e-9).lse)
    for _ in range(5):
        assert np.abs(np.asarray(beams.likeliest(peaked, 4).lse) - best).max() <= 1e-4
    assert (asked["topk"], rows["topk"]) == (5, 0)
    monkeypatch.setattr(beam_scores, "EPS", 1e-9)
    for _ in range(100):
        beams.likeliest(flat, 4)
    assert (asked["topk"], rows["topk"]) == (5 + 7, 1 + 2 + 4 + 8 + 16 + 2 * MOST_BY_ROWS - 2)
    beams.likeliest(flat, 4), beams.likeliest(flat, 4)
    monkeypatch.undo()
    beams.likeliest(peaked, 4)
    monkeypatch.setattr(beam_scores, "EPS", 1e-9)
    beams.likeliest(flat, 4), beams.likeliest(flat, 4), beams.likeliest(flat, 4)
    assert (asked["topk"], rows["topk"]) == (5 + 7 + 3, 100 - 7 + 3)
    promised_nothing = hl.compile(hl.Layer(weight), "codes", delta=1.0, threads=1)
    head.engine, before = Counting(promised_nothing, asked), rows["topk"]  # type: ignore[assignment]
    BeamScores(SimpleNamespace(head=head), 4).likeliest(peaked, 4)  # type: ignore[arg-type]
    assert rows["topk"] == before + 1


def test_one_engine_is_enough_where_its_bits_or_ids_alone_were_asked_for() -> None:
    from headlong.integrations.transformers import accelerate
    from language_models import made

    for options in ({"log_probs": False}, {"segments": ((0, 32, 8),)}, {"method": "full"}):
        head = accelerate(made("gpt2"), **{"method": "codes", **options})
        assert head.by_ids is head.engine
