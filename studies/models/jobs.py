"""From a recipe to what the loop runs: a model, three feeds and the figure that counts::

    job = build_job(recipe)          job.model, job.train, job.valid, job.test, job.metric

``MODELS`` has every backbone by name, with the kind of data it reads and its options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from headlong.errors import DataError, OptionError
from headlong.heads import build_head
from studies.data import Loaded, load
from studies.data.identity import Words, checksum_of, words_of
from studies.data.images import Images
from studies.data.images import Split as Pictures
from studies.data.text import END, Corpus
from studies.data.translation import START, Pairs
from studies.models.backbones.awd import Awd, AwdOptions
from studies.models.backbones.base import Backbone, Model
from studies.models.backbones.cnn import Cnn, CnnOptions
from studies.models.backbones.gpt import Gpt, GptOptions
from studies.models.backbones.lstm import Lstm, LstmOptions
from studies.models.backbones.seq2seq import Seq2Seq, Seq2SeqOptions
from studies.models.feeds import ALONE, Feed, ImageFeed, PairFeed, Share, TextFeed
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
    "awd": Kind("text", AwdOptions, Awd),
    "gpt": Kind("text", GptOptions, Gpt),
    "seq2seq": Kind("pairs", Seq2SeqOptions, Seq2Seq),
    "cnn": Kind("images", CnnOptions, Cnn),
}


@dataclass(frozen=True)
class Job:
    """``metric``: "perplexity" (smaller is better) or "accuracy" (in percent)."""

    recipe: Recipe
    data: Loaded
    model: Model
    train: Feed
    valid: Feed
    test: Feed
    metric: str

    @property
    def words(self) -> Words:
        """What the numbers mean that the model reads and answers with."""
        return words_of(self.data.content)

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        return self.words[-1]

    @cached_property
    def checksum(self) -> str:
        """Of everything that the model is trained and measured on."""
        return checksum_of(self.data.content)


def build_job(recipe: Recipe, share: Share = ALONE, data: Loaded | None = None) -> Job:
    """Reads the data, builds model and head from the recipe's seed, and the feeds."""
    if recipe.model not in MODELS:
        raise OptionError(f"no model is called {recipe.model!r}; there are {', '.join(sorted(MODELS))}")
    kind = MODELS[recipe.model]
    data = load(recipe.data) if data is None else data
    if data.kind != kind.data:
        raise OptionError(f"the model {recipe.model} reads {kind.data}, {data.name} is {data.kind}; choose another of them")
    options = options_from(kind.options, recipe.model_options, "model")
    torch.manual_seed(recipe.training.seed)
    sizes, vocab = _sizes(data.content)
    if vocab < 2:
        raise DataError(f"{data.name} has a vocabulary of {vocab}; expected two classes or more: there is nothing to learn")
    try:
        backbone = kind.build(options, *sizes)
        model = Model(backbone, build_head(recipe.head, backbone.dim, vocab, backbone.tied(), **recipe.head_options))
    except (RuntimeError, MemoryError) as error:
        if "memory" not in f"{type(error).__name__} {error}".lower():
            raise
        raise OptionError(f"a model of {dict(recipe.model_options)} does not fit into memory; make it smaller") from error
    feeds = _feeds(data.content, recipe, share)
    metric = "accuracy" if data.kind == "images" else "perplexity"
    return Job(recipe, data, model, *feeds, metric)


def _sizes(content: Any) -> tuple[tuple[int, ...], int]:
    """What a backbone has to know of the data, and the number of classes."""
    if isinstance(content, Corpus):
        return (len(content.vocabulary),), len(content.vocabulary)
    if isinstance(content, Pairs):
        return (len(content.source), len(content.target)), len(content.target)
    _, height, width, channels = content.train.pixels.shape
    if height != width:
        raise DataError(f"pictures of {height} x {width} pixels; expected squares")
    return (channels, height), len(content.classes)


Feeds = tuple[Feed, Feed, Feed]


def _feeds(content: Any, recipe: Recipe, share: Share) -> Feeds:
    valid, test = (measured_feed(content, split, recipe.training) for split in ("valid", "test"))
    return _training_feed(content, recipe.training, share), valid, test


def _training_feed(content: Any, training: Training, share: Share) -> Feed:
    batch, seed = training.batch, training.seed
    if isinstance(content, Corpus):
        return TextFeed(content.train, batch, training.window, share, seed=seed, jitter=training.jitter)
    if isinstance(content, Pairs):
        return PairFeed(content.train, batch, content.target.ids[START], share, seed=seed)
    return ImageFeed(content.train, batch, share, seed=seed, bend=training.bend)


def measured_feed(content: Any, split: str, training: Training) -> Feed:
    """A split in its own order, nothing bent or left out: what is measured and harvested."""
    if split not in ("train", "valid", "test"):
        raise OptionError(f"split={split!r}; expected train, valid or test")
    part = getattr(content, split)
    if isinstance(content, Corpus):
        columns = max(1, min(EVALUATION_COLUMNS, len(part) // (2 * training.window)))
        try:
            return TextFeed(part, columns, training.window)
        except DataError as error:
            raise DataError(f"the {split} split: {error}") from error
    if isinstance(content, Pairs):
        return PairFeed(part, training.batch, content.target.ids[START])
    return ImageFeed(part, max(training.batch, 256))


def harvested_feed(content: Any, split: str, training: Training, rows: int) -> Feed:
    """As ``measured_feed``, but such that its first ``rows`` rows stand for all: pictures come in order of their class
    and pairs in order of their length, so of pictures every so manieth is taken, and pairs come shuffled."""
    part = getattr(content, split)
    if isinstance(content, Pairs):
        return PairFeed(part, training.batch, content.target.ids[START], seed=training.seed)
    if isinstance(content, Images) and 0 < rows < len(part.labels):
        chosen = np.linspace(0, len(part.labels), rows, endpoint=False).astype(np.int64)
        return ImageFeed(Pictures(part.pixels[chosen], part.labels[chosen]), max(training.batch, 256))
    return measured_feed(content, split, training)


def size_of(content: Any, split: str) -> int:
    """How many rows a split has at most: words, or pictures."""
    part = getattr(content, split)
    if isinstance(content, Corpus):
        return len(part)
    return sum(map(len, part.target)) if isinstance(content, Pairs) else len(part.labels)


def sentence_ends(pairs: Pairs) -> tuple[int, int]:
    """The ids that open and close a translation."""
    return pairs.target.ids[START], pairs.target.ids[END]
