"""What a trainer and a server rely on, on a language model's head where its data are at hand, else on a made layer.

All rows, which takes some minutes, and says what it counted (results/serving.log)::

    HEADLONG_DATA=FOLDER HEADLONG_ROWS=all pytest -q -s -n 0 --timeout 0 tests/engines/test_serving.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy.stats import chisquare

import headlong as hl
from headlong.bench import real_layers
from headlong.encode.basis import basis_for, energy
from headlong.encode.segments import lead, led_by_eight
from headlong.encode.tiles import codes_of
from headlong.engines.base import Engine
from headlong.errors import DataError, MissingPackageError
from oracle import kept, logsumexp

ALL = os.environ.get("HEADLONG_ROWS") == "all"
FILTERS: dict[str, dict[str, float]] = {
    "top_k": {"top_k": 40}, "top_p": {"top_p": 0.9}, "min_p": {"min_p": 0.03},
    "temperature, top_p": {"temperature": 0.7, "top_p": 0.95},
    "all": {"temperature": 1.3, "top_k": 200, "top_p": 0.9, "min_p": 0.01},
}  # fmt: skip


class Asked(NamedTuple):
    name: str
    layer: hl.Layer
    rows: np.ndarray
    calibration: np.ndarray


def many(whole: int, few: int) -> int:
    return whole if ALL else few


@cache
def asked() -> Asked:
    try:
        one = real_layers.load("smollm2")
        return Asked(one.name, one.layer, one.valid, one.train)
    except (DataError, MissingPackageError):
        rng = np.random.default_rng(0)
        weight = (rng.standard_normal((9000, 96)) * np.geomspace(1, 0.2, 96)).astype(np.float32)
        rows = (rng.standard_normal((600, 96)) * rng.uniform(0.2, 1.2, (600, 1))).astype(np.float32)
        return Asked("made", hl.Layer(weight), rows[:300], rows[300:])


@cache
def coded(threads: int) -> Engine:
    """By rotated codes whatever the clock says: other machines are to see the same."""
    layer, calibration = asked().layer, asked().calibration.astype(np.float64)
    basis = basis_for(layer, calibration)
    codes = codes_of(layer, basis, led_by_eight(lead(energy(layer, basis, calibration)), [(layer.dim, 8)]), 0)
    plain = hl.compile(layer, "codes", threads=threads)
    return plain.with_plan(plain.plan._replace(codes=codes), plain.promise, "rotated codes")


def logits(rows: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """``place, logits [vocab]`` in float64, row by row; a layer without a bias and a link."""
    weight = np.asarray(asked().layer.weight, np.float64)
    for start in range(0, len(rows), 128):
        yield from enumerate(rows[start : start + 128].astype(np.float64) @ weight.T, start)


def say(what: str) -> None:
    if ALL:
        sys.stdout.write(f"{asked().name}: {what}\n")


def fields(answer: Any) -> dict[str, np.ndarray]:
    named = answer._asdict()
    return {name: part for name, part in named.items() if isinstance(part, np.ndarray)}


def every_answer(engine: Engine, rows: np.ndarray, places: np.ndarray) -> dict[str, np.ndarray]:
    ids = (places[:, None] * 31 + np.arange(3)) % engine.layer.vocab
    mixed = {
        "temperature": 0.6 + places % 3 / 2,
        "top_k": 20 + places % 90,
        "top_p": 1 - places % 4 / 10,
        "min_p": places % 2 / 50,
    }
    answers = {
        "topk": engine.topk(rows, 10), "lse": engine.lse(rows), "log_prob": engine.log_prob(rows, ids),
        "entropy": engine.entropy(rows),
        "sample": engine.sample(rows, 2, seed=7, position=places),
        "filtered": engine.sample(rows, seed=places + 3, position=places, **mixed),
    }  # fmt: skip
    return {f"{verb} {name}": part for verb, answer in answers.items() for name, part in fields(answer).items()}


def test_every_field_of_a_row_is_the_same_in_any_batch_on_any_number_of_threads() -> None:
    rows = asked().rows[: many(1000, 40)]
    rng = np.random.default_rng(5)
    first = [every_answer(coded(1), rows[i : i + 1], np.array([i])) for i in range(len(rows))]
    alone = {name: np.concatenate([one[name] for one in first]) for name in first[0]}
    sizes = []
    for turn in range(many(50, 6)):
        order, size = rng.permutation(len(rows)), int(rng.choice([2, 3, 8, 16, 17, 64, 100, 333, 1000]))
        sizes.append(size)
        for start in range(0, len(rows), size):
            some = order[start : start + size]
            for name, part in every_answer(coded(1 + turn % 2), rows[some], some).items():
                np.testing.assert_array_equal(part, alone[name][some], err_msg=f"{name} in batches of {size}")
    say(f"{len(rows)} rows in {len(sizes)} compositions of batches of {min(sizes)} to {max(sizes)}, on 1 and 2 threads:")
    say(f"    equal to the bit: {', '.join(alone)}")


def test_draws_of_one_mixed_call_follow_their_own_distributions() -> None:
    rows = asked().rows[: many(32, 6)]
    count, places = len(rows), np.arange(len(rows))
    rules = {
        "temperature": np.array([0.7, 1.0, 1.5, 1.0])[places % 4], "top_k": np.array([50, 10**9, 400, 10**9])[places % 4],
        "top_p": np.array([0.9, 0.95, 1.0, 1.0])[places % 4], "min_p": np.array([0.0, 0.01, 0.0, 0.02])[places % 4],
    }  # fmt: skip
    ids = coded(2).sample(rows, many(4000, 500), seed=100 + places, position=places * 9, eps=0.05, **rules).ids
    values = []
    for place, z in logits(rows):
        temperature, k, p, least = (rule[place].item() for rule in rules.values())
        exponents = z / temperature
        among = kept(z, exponents, k if k < len(z) else 0, p, least)
        expected = np.exp(exponents[among] - logsumexp(exponents[among][None])) * ids.shape[1]
        came = np.bincount(np.searchsorted(np.sort(among), ids[place]), minlength=len(among))[np.argsort(np.argsort(among))]
        assert np.isin(ids[place], among).all()
        often = expected >= 5
        awaited = np.append(expected[often], expected[~often].sum())
        seen = np.append(came[often], came[~often].sum())
        full = awaited > 1e-9
        if full.sum() > 1:
            values.append(chisquare(seen[full], awaited[full] * seen.sum() / awaited[full].sum()).pvalue)
    assert min(values) > 1e-6 and (np.array(values) < 0.01).mean() < 0.2
    say(f"{count} rows of one call, each by its own rules, {ids.shape[1]} draws: least p-value {min(values):.2g}")


def test_entropies_are_within_their_bound_of_float64() -> None:
    rows = asked().rows[: many(4096, 60)]
    found = coded(2).entropy(rows)
    off = np.empty(len(rows))
    for place, z in logits(rows):
        log_probs = z - logsumexp(z[None])
        off[place] = abs(found.entropy[place] + (np.exp(log_probs) * log_probs).sum())
    assert (off <= found.error).all() and (found.error <= 0.01).all()
    full, most = found.cost.dense.mean(), found.error.max()
    say(f"entropies of {len(rows)} rows: off by {off.max():.2g} at most, errors up to {most:.2g}; full scans {full:.2%}")


def test_rankings_are_the_sorted_order() -> None:
    rows, depth = asked().rows[: many(64, 8)], 1000
    found = np.stack([ids for _, (ids, _) in zip(range(depth), coded(2).ranked(rows), strict=False)], axis=1)
    for place, z in logits(rows):
        order = np.lexsort((np.arange(len(z)), -z))[:depth]
        np.testing.assert_array_equal(found[place], order)
    say(f"{len(rows)} rows ranked to depth {depth}: the sorted order")


@pytest.mark.parametrize("name", FILTERS)
def test_kept_mass_and_support_are_those_of_float64(name: str) -> None:
    rows = asked().rows[: many(2000, 25)]
    rules = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | FILTERS[name]
    found = coded(2).sample(rows, seed=1, support=True, **FILTERS[name])
    off, bounds = np.empty(len(rows)), found.support.offsets
    for place, z in logits(rows):
        exponents = z / rules["temperature"]
        among = kept(z, exponents, int(rules["top_k"]), rules["top_p"], rules["min_p"])
        np.testing.assert_array_equal(found.support.ids[bounds[place] : bounds[place + 1]], np.sort(among))
        off[place] = abs(found.kept[place] - (logsumexp(exponents[among][None]) - logsumexp(exponents[None]))[0])
    assert (off <= found.error).all() and (found.error <= 0.01 + 1e-9).all()
    most = found.error.max()
    say(f"{name}: support of {len(rows)} rows equal, kept mass off by {off.max():.2g} at most, errors up to {most:.2g}")
