"""From a recipe to what the loop runs: a model, three feeds and the figure that counts::

    job = build_job(recipe)          job.model, job.train, job.valid, job.test, job.metric

``MODELS`` has every backbone by name, with the kind of data it reads and its options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from headlong.data import Loaded, load
from headlong.data.images import Images
from headlong.data.text import END, Corpus
from headlong.data.translation import START, Pairs
from headlong.errors import DataError, OptionError
from headlong.heads import build_head
from headlong.models.awd import Awd, AwdOptions
from headlong.models.base import Backbone, Model
from headlong.models.cnn import Cnn, CnnOptions
from headlong.models.feeds import ALONE, Feed, ImageFeed, PairFeed, Share, TextFeed
from headlong.models.gpt import Gpt, GptOptions
from headlong.models.lstm import Lstm, LstmOptions
from headlong.models.recipe import Recipe, options_from
from headlong.models.seq2seq import Seq2Seq, Seq2SeqOptions

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
    def classes(self) -> tuple[str, ...]:
        """The name of each class."""
        content = self.data.content
        if isinstance(content, Corpus):
            return content.vocabulary.words
        return content.target.words if isinstance(content, Pairs) else tuple(content.classes)


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
    backbone = kind.build(options, *sizes)
    head = build_head(recipe.head, backbone.dim, vocab, backbone.tied(), **recipe.head_options)
    feeds = _FEEDS[data.kind](data.content, recipe, share)
    metric = "accuracy" if data.kind == "images" else "perplexity"
    return Job(recipe, data, Model(backbone, head), *feeds, metric)


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


def _text_feeds(corpus: Corpus, recipe: Recipe, share: Share) -> Feeds:
    training = recipe.training
    train = TextFeed(corpus.train, training.batch, training.window, share, seed=training.seed, jitter=training.jitter)
    valid, test = (
        TextFeed(ids, min(EVALUATION_COLUMNS, max(1, len(ids) // (2 * training.window))), training.window)
        for ids in (corpus.valid, corpus.test)
    )
    return train, valid, test


def _pair_feeds(pairs: Pairs, recipe: Recipe, share: Share) -> Feeds:
    training, start = recipe.training, pairs.target.ids[START]
    train = PairFeed(pairs.train, training.batch, start, share, seed=training.seed)
    valid, test = (PairFeed(part, training.batch, start) for part in (pairs.valid, pairs.test))
    return train, valid, test


def _image_feeds(images: Images, recipe: Recipe, share: Share) -> Feeds:
    training = recipe.training
    train = ImageFeed(images.train, training.batch, share, seed=training.seed, bend=training.bend)
    valid, test = (ImageFeed(part, max(training.batch, 256)) for part in (images.valid, images.test))
    return train, valid, test


_FEEDS: dict[str, Callable[..., Feeds]] = {"text": _text_feeds, "pairs": _pair_feeds, "images": _image_feeds}


def sentence_ends(pairs: Pairs) -> tuple[int, int]:
    """The ids that open and close a translation."""
    return pairs.target.ids[START], pairs.target.ids[END]
