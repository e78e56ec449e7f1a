"""From a recipe to what the loop runs: a model and three feeds::

    job = build_job(recipe)          job.model, job.train, job.valid, job.test

``MODELS`` has every backbone by name, with the kind of data it reads and its options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headlong.errors import DataError, OptionError
from headlong.heads import build_head
from studies.data import Loaded, load
from studies.data.text import END, Corpus
from studies.data.translation import START, Pairs
from studies.models.backbones.base import Backbone, Model
from studies.models.backbones.lstm import Lstm, LstmOptions
from studies.models.backbones.seq2seq import Seq2Seq, Seq2SeqOptions
from studies.models.feeds import Feed, PairFeed, TextFeed
from studies.models.recipe import Recipe, Training, options_from

EVALUATION_COLUMNS = 10
"""A language model is measured in ten columns, as published word-level models are."""


class Kind(NamedTuple):
    """A backbone, the kind of data that it reads, and its options."""

    data: str
    options: type[Any]
    build: Callable[..., Backbone]


MODELS: dict[str, Kind] = {
    "lstm": Kind("text", LstmOptions, Lstm),
    "seq2seq": Kind("pairs", Seq2SeqOptions, Seq2Seq),
}


@dataclass(frozen=True)
class Job:
    """A model and what it is trained and measured on."""

    recipe: Recipe
    data: Loaded
    model: Model
    train: Feed
    valid: Feed
    test: Feed

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        content = self.data.content
        words: tuple[str, ...] = (content.vocabulary if isinstance(content, Corpus) else content.target).words
        return words


def build_job(recipe: Recipe, data: Loaded | None = None) -> Job:
    """Reads the data, builds model and head from the recipe's seed, and the feeds."""
    if recipe.model not in MODELS:
        raise OptionError(f"no model is called {recipe.model!r}; there are {', '.join(sorted(MODELS))}")
    kind = MODELS[recipe.model]
    data = load(recipe.data) if data is None else data
    training = recipe.training
    if data.kind != kind.data:
        raise OptionError(f"the model {recipe.model} reads {kind.data}, {data.name} is {data.kind}; choose another of them")
    if data.kind != "text" and (training.words or training.measured):
        raise OptionError(f"training.words and training.measured cut a text; {data.name} is {data.kind}: leave them out")
    if training.words:
        data = data._replace(content=data.content.of(training.words))
    options = options_from(kind.options, recipe.model_options, "model")
    torch.manual_seed(training.seed)
    sizes, vocab = _sizes(data.content)
    backbone = kind.build(options, *sizes)
    model = Model(backbone, build_head(recipe.head, backbone.dim, vocab, backbone.tied(), **recipe.head_options))
    train = _training_feed(data.content, training)
    valid, test = (measured_feed(data.content, split, training) for split in ("valid", "test"))
    return Job(recipe, data, model, train, valid, test)


def _sizes(content: Any) -> tuple[tuple[int, ...], int]:
    """What a backbone has to know of the data, and the number of classes."""
    if isinstance(content, Corpus):
        return (len(content.vocabulary),), len(content.vocabulary)
    return (len(content.source), len(content.target)), len(content.target)


def _training_feed(content: Any, training: Training) -> Feed:
    if isinstance(content, Corpus):
        return TextFeed(content.train, training.batch, training.window)
    return PairFeed(content.train, training.batch, content.target.ids[START], seed=training.seed)


def measured_feed(content: Any, split: str, training: Training) -> Feed:
    """A split in its own order: what is measured and harvested."""
    if split not in ("train", "valid", "test"):
        raise OptionError(f"split={split!r}; expected train, valid or test")
    part = getattr(content, split)
    if isinstance(content, Corpus):
        part = part[: (training.measured if split != "train" else 0) or None]
        columns = max(1, min(EVALUATION_COLUMNS, len(part) // (2 * training.window)))
        try:
            return TextFeed(part, columns, training.window)
        except DataError as error:
            raise DataError(f"the {split} split: {error}") from error
    return PairFeed(part, training.batch, content.target.ids[START])


def harvested_feed(content: Any, split: str, training: Training) -> Feed:
    """As ``measured_feed``; sentence pairs, which come in order of their length, are shuffled, so that some stand for all."""
    if isinstance(content, Pairs):
        return PairFeed(getattr(content, split), training.batch, content.target.ids[START], seed=training.seed)
    return measured_feed(content, split, training)


def sentence_ends(pairs: Pairs) -> tuple[int, int]:
    """The ids that open and close a translation."""
    return pairs.target.ids[START], pairs.target.ids[END]
