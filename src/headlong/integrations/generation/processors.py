"""Which of ``generate``'s score processors candidates can answer, and what those do to the distribution.

A processor that *edits* moves or forbids a few classes; which ones and by how much is asked of the processor itself, on a
vector in which only the classes it may look at hold their scores. *Filters* (temperature, top-k, top-p, min-p) act on the
whole distribution and are the engine's business; those by surprisals are in ``surprisal_filters.py``. Everything else
needs every score: the dense path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.generation import logits_process as hf

from headlong.dtypes import Ids
from headlong.engines.edited_row import joined
from headlong.integrations.generation.surprisal_filters import Surprisals

Scores = Callable[[list[Ids]], list[NDArray[np.float64]]]
Outweighs = Callable[[list[Ids], int], tuple[list[bool], Ids]]
"""``(banned, first)``: of each row, whether the classes from ``first`` on have more mass together than the best one below it,
and the best class of the side that has; -1: not seen."""

ADDING: tuple[type[Any], ...] = (
    hf.SequenceBiasLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.EncoderNoRepeatNGramLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.PrefixConstrainedLogitsProcessor,
)
"""What they do does not depend on the scores."""
BANNING: dict[type[Any], Callable[[Any, int], Any]] = {
    hf.MinLengthLogitsProcessor: lambda it, length: it.eos_token_id if length < it.min_length else (),
    hf.MinNewTokensLengthLogitsProcessor: lambda it, length: (
        it.eos_token_id if length - it.prompt_length_to_skip < it.min_new_tokens else ()
    ),
    hf.SuppressTokensLogitsProcessor: lambda it, length: it.suppress_tokens,
    hf.SuppressTokensAtBeginLogitsProcessor: lambda it, length: it.begin_suppress_tokens if length == it.begin_index else (),
}
"""Of those, which forbid the same few classes in every row of a length: no vector of all scores is needed to ask them."""
LOOKING: dict[type[Any], Callable[[Any, Tensor], Tensor]] = {
    hf.RepetitionPenaltyLogitsProcessor: lambda processor, ids: ids,
    hf.EncoderRepetitionPenaltyLogitsProcessor: lambda processor, ids: _repeated(processor.encoder_input_ids, len(ids)),
    hf.ExponentialDecayLengthPenalty: lambda processor, ids: processor.eos_token_id.reshape(1, -1).expand(len(ids), -1),
    hf.ForcedBOSTokenLogitsProcessor: lambda processor, ids: _forced(processor.bos_token_id, ids, 1),
    hf.ForcedEOSTokenLogitsProcessor: lambda processor, ids: _forced(processor.eos_token_id, ids, processor.max_length - 1),
}
"""These read or replace the scores of some classes, and at most rule out others: which ones."""
FILTERS: tuple[tuple[type[Any], str, str], ...] = (
    (hf.TemperatureLogitsWarper, "temperature", "temperature"),
    (getattr(hf, "TopHLogitsWarper", type(None)), "top_h", "top_h"),  # 4.57 has none
    (hf.TopKLogitsWarper, "top_k", "top_k"),
    (hf.TopPLogitsWarper, "top_p", "top_p"),
    (hf.MinPLogitsWarper, "min_p", "min_p"),
    (hf.TypicalLogitsWarper, "mass", "typical_p"),
    (hf.EpsilonLogitsWarper, "epsilon", "epsilon"),
    (hf.EtaLogitsWarper, "epsilon", "eta"),
)
"""In ``generate``'s order: the processor, its attribute, the argument of ``Engine.sample`` or the field of ``Surprisals``."""

TIMESTAMPS = hf.WhisperTimeStampLogitsProcessor
"""Rules out by what was said before, and then all text where the timestamps together outweigh its best token."""
LOW = -1e4
"""A score of timestamps beside which text is 0: they do not outweigh it."""

LITTLE = 1e-12
"""A nucleus of this mass, or of none, is the likeliest class alone."""
COLDEST, HOTTEST = 1e-6, 1e6
"""Temperatures that the engines take; the others are left to torch."""


class Edits(NamedTuple):
    """For each row: the classes that are ruled out, those whose score ``f(z)`` is another now, and the best class if it was
    seen on the way."""

    banned: list[Ids]
    ids: list[Ids]
    scores: list[NDArray[np.float64]]
    best: Ids | None = None


class ProcessorRecipe(NamedTuple):
    """``edits`` in their order, the arguments of ``Engine.sample``, whether scores are made log-probabilities again, and
    filters by surprisals.
    """

    edits: tuple[Any, ...]
    filters: dict[str, Any]
    renormalised: bool
    surprisals: Surprisals | None = None

    @property
    def by_mass(self) -> bool:
        """Whether filters ask for the mass of all classes; after top-k it is that of few."""
        return "top_p" in self.filters and "top_k" not in self.filters


def recipe(processors: Sequence[Any], vocab: int) -> ProcessorRecipe | str:
    """How to answer ``processors`` from candidates, or the name of the first one that needs every score."""
    edits, filters, place = list[Any](), dict[str, Any](), 0
    for processor in processors:
        kind = type(processor)
        names = [entry[0] for entry in FILTERS]
        if kind is hf.LogitNormalization:  # no law changes, and what comes after it would have to be looked at
            place = len(FILTERS)
        elif kind in names and names.index(kind) >= place:
            place = names.index(kind) + 1
            _, attribute, argument = FILTERS[place - 1]
            filters[argument] = getattr(processor, attribute)
            if getattr(processor, "min_tokens_to_keep", 1) != 1 or getattr(processor, "filter_value", -np.inf) != -np.inf:
                return f"{kind.__name__} with settings of its own"
            if argument == "temperature" and not COLDEST <= filters[argument] <= HOTTEST:
                return f"a temperature of {filters[argument]:g}"
        elif not place and _joins(kind, [type(one) for one in edits]):
            edits.append(processor)
        else:
            late = kind in (*ADDING, *LOOKING, TIMESTAMPS, *names)
            return kind.__name__ + (" after a filter" if late and place else " with other edits" if late else "")
    if "top_k" in filters:
        filters["top_k"] = min(int(filters["top_k"]), vocab)
    if "top_p" in filters:
        filters["top_p"] = max(float(filters["top_p"]), LITTLE)
    renormalised = any(type(processor) is hf.LogitNormalization for processor in processors)
    of_surprisals = {name: float(filters.pop(name)) for name in Surprisals._fields if name in filters}
    return ProcessorRecipe(tuple(edits), filters, renormalised, Surprisals(**of_surprisals) if of_surprisals else None)


def _joins(kind: type[Any], before: list[type[Any]]) -> bool:
    """Whether an edit can follow those ``before``: Whisper's rule on timestamps comes after bans alone, and last."""
    if kind is TIMESTAMPS:
        return all(one in ADDING[1:] for one in before)
    return (kind in ADDING or kind in LOOKING) and TIMESTAMPS not in before


def edited(edits: Sequence[Any], input_ids: Tensor, vocab: int, scores: Scores, outweighs: Outweighs) -> Edits:
    """What ``edits`` do to the next token of each row of ``input_ids [batch, length]``; ``scores(ids)`` are asked for."""
    if edits and type(edits[-1]) is TIMESTAMPS:
        found = edited(edits[:-1], input_ids, vocab, scores, outweighs)
        return _by_timestamps(edits[-1], input_ids, found, vocab, outweighs)
    rows = len(input_ids)
    if not edits:
        return Edits([_NONE] * rows, [_NONE] * rows, [np.empty(0)] * rows)
    if all(type(one) in BANNING for one in edits):
        out = [np.asarray(BANNING[type(one)](one, input_ids.shape[1]), np.int64).reshape(-1) for one in edits]
        banned = np.unique(np.concatenate(out))
        return Edits([banned[(banned >= 0) & (banned < vocab)]] * rows, [_NONE] * rows, [np.empty(0)] * rows)
    looking = [LOOKING[type(one)](one, input_ids) for one in edits if type(one) in LOOKING]
    blank = torch.zeros(rows, vocab, dtype=torch.float64)
    if not looking:
        added = _read(_applied(edits, input_ids, blank))
        return added._replace(scores=[old + more for old, more in zip(scores(added.ids), added.scores, strict=True)])
    moved = [_NONE] * rows if len(looking) == len(edits) else _read(_applied(edits, input_ids, blank)).ids
    touched = [_distinct([part[row] for part in looking], moved[row], vocab) for row in range(rows)]
    for row, (ids, values) in enumerate(zip(touched, scores(touched), strict=True)):
        blank[row, torch.from_numpy(ids)] = torch.from_numpy(values)
    return _read(_applied(edits, input_ids, blank), touched)


def _by_timestamps(rule: Any, input_ids: Tensor, found: Edits, vocab: int, outweighs: Outweighs) -> Edits:
    first = rule.timestamp_begin
    banned = [joined(vocab, old, new) for old, new in zip(found.banned, _ruled_out(rule, input_ids, vocab), strict=True)]
    if not rule._detect_timestamp_from_logprob:  # noqa: SLF001  # its only switch
        return found._replace(banned=banned)
    outweighed, best = outweighs(banned, first)
    text = np.arange(first)
    banned = [joined(vocab, out, text) if more else out for out, more in zip(banned, outweighed, strict=True)]
    return found._replace(banned=banned, best=best)


def _ruled_out(rule: Any, input_ids: Tensor, vocab: int) -> list[Ids]:
    """What the rule bans by what was said before, asked of a copy of it to which all text it does not name is one class."""
    small, text = copy.copy(rule), 0
    named = {name: getattr(rule, name) for name in ("eos_token_id", "no_timestamps_token_id", "timestamp_begin")}
    if all(isinstance(token, int) for token in named.values()):
        text = max(0, min(named.values()) - 1)
        vars(small).update({name: token - text for name, token in named.items()})
    blank = torch.zeros(len(input_ids), vocab - text, dtype=torch.float64)
    blank[:, small.timestamp_begin :] = LOW
    found = _read(small((input_ids - text).clamp(min=0), blank)).banned
    return [np.append(np.arange(text), ids + text) if 0 in ids else ids + text for ids in found]


_NONE: Ids = np.empty(0, np.int64)
_BANNED = float(torch.finfo(torch.float32).min)


def _applied(edits: Sequence[Any], input_ids: Tensor, scores: Tensor) -> Tensor:
    for one in edits:
        scores = one(input_ids, scores)
    return scores


def _read(scores: Tensor, touched: Sequence[Ids] | None = None) -> Edits:
    """Banned where nothing finite is left; changed where ``touched``, or, after an addition to zeros, not zero."""
    values = scores.numpy()
    found = Edits([], [], [])
    for row, line in enumerate(values):
        gone = line <= _BANNED
        changed = np.flatnonzero(line) if touched is None else touched[row]
        changed = changed[~gone[changed]]
        found.banned.append(np.flatnonzero(gone))
        found.ids.append(changed)
        found.scores.append(line[changed])
    return found


def _distinct(parts: Sequence[Tensor], more: Any, vocab: int) -> Ids:
    ids = np.unique(np.concatenate([*(part.numpy().reshape(-1) for part in parts), np.asarray(more, np.int64)]))
    return np.asarray(ids[(ids >= 0) & (ids < vocab)], np.int64)


def _repeated(ids: Tensor, rows: int) -> Tensor:
    return ids.repeat_interleave(rows // len(ids), dim=0) if rows > len(ids) else ids


def _forced(classes: int | Tensor, ids: Tensor, length: int) -> Tensor:
    """``classes`` for each row at this length of the text, where their scores become 0; otherwise none."""
    forced = torch.as_tensor(classes).reshape(1, -1).expand(len(ids), -1)
    return forced if ids.shape[1] == length else forced[:, :0]
