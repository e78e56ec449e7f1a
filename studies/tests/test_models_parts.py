"""Feeds and recipes: functions of where a run stands, and nothing else."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from headlong.errors import OptionError
from studies.data.translation import Split as Sentences
from studies.models.feeds import PairFeed, TextFeed
from studies.models.jobs import MODELS
from studies.models.recipe import options_from, read_recipe

IDS = np.arange(1000, dtype=np.int32)


def test_every_token_but_the_columns_first_is_a_target_once() -> None:
    feed = TextFeed(IDS, 10, 7)
    seen = [feed.batch(0, step) for step in range(feed.steps(0))]
    targets = torch.cat([batch.target for batch in seen])
    assert sorted(targets.tolist()) == sorted(set(range(1000)) - set(range(0, 1000, 100)))
    for batch in seen:
        assert torch.equal(batch.inputs[0].flatten() + 1, batch.target)


def sentences() -> Sentences:
    random = np.random.default_rng(0)
    sides = [[random.integers(3, 20, random.integers(2, 6)).astype(np.int32) for _ in range(40)] for _ in range(2)]
    return Sentences(sides[0], sides[1], [""] * 40)


def test_pairs_come_in_batches_of_one_source_length() -> None:
    given = sentences()
    feed = PairFeed(given, 6, start=1, seed=2)
    assert sorted(np.concatenate(feed.groups(0)).tolist()) == list(range(40))
    for step, rows in enumerate(feed.groups(0)):
        source, before, real = feed.batch(0, step).inputs
        assert source.shape == (len(given.source[rows[0]]), len(rows))
        wanted = torch.cat([torch.from_numpy(given.target[row]) for row in rows]).sort().values
        assert torch.equal(feed.batch(0, step).target.sort().values, wanted.long())
        assert bool((before[0] == 1).all())
        for column, row in enumerate(rows):
            length = len(given.target[row])
            assert before[1:length, column].tolist() == given.target[row][:-1].tolist()
            assert int(real[:, column].sum()) == length
    assert [list(rows) for rows in feed.groups(0)] != [list(rows) for rows in feed.groups(1)]


def test_a_typo_is_no_default() -> None:
    for overrides, fault in [
        ({"training.epoch": 3}, r"training\.epoch is not known"),
        ({"training.epochs": "3"}, r"training\.epochs = '3'; expected int"),
        ({"training.optimiser": "rmsprop"}, "expected one of adam, sgd"),
        ({"training.epochs": 0}, r"training\.epochs = 0; expected a number from 1"),
        ({"model": "lstm"}, "model = 'lstm'; expected a table, such as model.KEY=VALUE"),
        ({"training.clip": math.nan}, r"training\.clip = nan"),
        ({"training.rate": math.inf}, "a finite rate above 0"),
        ({"model.kind": 3}, "names no model"),
    ]:
        with pytest.raises(OptionError, match=fault):
            read_recipe("ptb-lstm", overrides)
    with pytest.raises(OptionError, match="there are .*ptb-lstm"):
        read_recipe("ptb")
    with pytest.raises(OptionError, match=r"model\.dims is not known"):
        options_from(MODELS["lstm"].options, {"dims": 3}, "model")
