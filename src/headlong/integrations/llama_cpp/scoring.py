"""Log-probabilities of the ends of many texts, whose beginnings are decoded once.

::

    score = sum over t >= start of log p(tokens[t] | tokens[:t])

Texts are taken in the order of their tokens, so that those that begin alike follow one another, and as many at a time as there
are sequences: what they have in common is decoded in one of these, copied to the others, and the rest of all is one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import Doubles
from headlong.integrations.llama_cpp.body import Singles
from headlong.integrations.llama_cpp.decoding import Decoder, parts, same

SLACK = 8
"""Tokens that texts at a time may have in common beyond what all of them have: these are decoded more than once."""
Place = tuple[int, int, int]


class Scored(NamedTuple):
    """For each token from ``start`` on its log-probability, how far that can be off, and whether it is the likeliest."""

    log_probs: Doubles
    errors: Doubles
    likeliest: Any


class _Prefix(NamedTuple):
    """What is decoded of some texts: all but their last token; ``first``: the first hidden vector that any of them needs."""

    tokens: tuple[int, ...]
    first: int
    texts: tuple[int, ...]


def scored(decoder: Decoder, texts: Sequence[tuple[Sequence[int], int]]) -> Iterator[tuple[int, Scored]]:
    """``(place, scores)`` of each text ``(tokens, start)``, ``start`` 1 or more, in the order in which they are decoded."""
    by_tokens: dict[tuple[int, ...], list[int]] = {}
    for place, (tokens, _) in enumerate(texts):
        by_tokens.setdefault(tuple(tokens[:-1]), []).append(place)
    prefixes = [
        _Prefix(tokens, min(texts[place][1] for place in places) - 1, tuple(places))
        for tokens, places in sorted(by_tokens.items())
    ]
    while prefixes:
        some = _alike(prefixes, len(decoder.held))
        del prefixes[: len(some)]
        with decoder.at_work():
            hidden = _decoded(decoder, some)
            wanted = [(row, prefix, place) for row, prefix in enumerate(some) for place in prefix.texts]
            places = [_rows(texts[place], hidden.starts[row], hidden.common, prefix) for row, prefix, place in wanted]
            ids = np.concatenate([np.asarray(texts[place][0][texts[place][1] :], np.int64) for _, _, place in wanted])
            with decoder.body.team:
                found = Scored(*decoder.head.scores(hidden.vectors, np.concatenate(places), ids))
        at = 0
        for (_, _, place), rows in zip(wanted, places, strict=True):
            yield place, Scored(*(part[at : at + len(rows)] for part in found))
            at += len(rows)


class _Hidden(NamedTuple):
    """Those from ``common[0]`` on that all prefixes share, then each prefix's own, whose rows begin at ``starts``."""

    vectors: Singles
    common: tuple[int, int]
    starts: list[int]


def _rows(text: tuple[Sequence[int], int], start: int, common: tuple[int, int], prefix: _Prefix) -> Any:
    """Where the hidden vectors before a text's scored tokens are."""
    places = np.arange(text[1] - 1, len(prefix.tokens))
    own = start + places - max(common[1], prefix.first)
    return np.where(places < common[1], places - common[0], own)


def _alike(prefixes: Sequence[_Prefix], most: int) -> list[_Prefix]:
    """The first ones, as long as neighbours have about as much in common as all of them."""
    some, least = [prefixes[0]], None
    for prefix in prefixes[1:most]:
        common = same(some[-1].tokens, prefix.tokens)
        if least is not None and abs(common - least) > SLACK:
            break
        least = common if least is None else min(least, common)
        some.append(prefix)
    return some


def _decoded(decoder: Decoder, some: Sequence[_Prefix]) -> _Hidden:
    shared, first = some[0].tokens, min(prefix.first for prefix in some)
    for prefix in some[1:]:
        shared = shared[: same(shared, prefix.tokens)]
    source = max(range(len(decoder.held)), key=lambda number: same(decoder.held[number], shared))
    numbers = [source, *(number for number in range(len(decoder.held)) if number != source)][: len(some)]
    for number in numbers:
        decoder.leave(number)
    decoder.keep(source, min(same(decoder.held[source], shared), first))
    trunk = _vectors(decoder, [(shared[at], at, source) for at in range(len(decoder.held[source]), len(shared))], first)
    for number in numbers[1:]:
        decoder.copy(source, number)
    ends: list[Place] = []
    starts, rows = [], len(trunk)
    for number, prefix in zip(numbers, some, strict=True):
        ends += [(prefix.tokens[at], at, number) for at in range(len(shared), len(prefix.tokens))]
        starts.append(rows)
        rows += len(prefix.tokens) - max(len(shared), prefix.first)
    first_of = {number: prefix.first for number, prefix in zip(numbers, some, strict=True)}
    own = _vectors(decoder, ends, first_of)
    return _Hidden(np.concatenate([trunk, own]), (min(first, len(shared)), len(shared)), starts)


def _vectors(decoder: Decoder, places: Sequence[Place], first: int | dict[int, int]) -> Singles:
    """The hidden vectors of the places from ``first`` on, one number or one for each sequence."""
    found = [np.empty((0, decoder.body.dim), np.float32)]
    for part in parts(list(places), decoder.body.largest_batch):
        vectors = decoder.decoded(part)
        wanted = [at >= (first if isinstance(first, int) else first[number]) for _, at, number in part]
        found.append(vectors[np.array(wanted)])
    return np.concatenate(found)
