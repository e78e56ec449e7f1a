"""A training run as data: plain values, or the name of some that are here::

    {"data": "penn-treebank", "model": {"kind": "lstm", "dim": 200}, "head": {"kind": "dense"}, "training": {"epochs": 6, ...}}

Unknown keys and values of the wrong type are refused: a typo is no default.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from headlong.errors import OptionError

Options = TypeVar("Options")
OPTIMISERS = ("adam", "sgd")


@dataclasses.dataclass(frozen=True)
class Training:
    """How a model is trained: all settings but those of the data, the model and the head.

    ``optimiser``   "adam" or "sgd"
    ``epoch_steps`` steps of an epoch, for data of which a part is enough; 0: once through all of it
    ``bf16``        autocast in training, on a processor with such products; figures are always measured in float32
    ``words``       of a text: its most frequent words, each other one ``<unk>``; 0: all
    ``measured``    of a text: tokens of validation and of test that are measured, from the start; 0: all
    """

    epochs: int = 6
    epoch_steps: int = 0
    batch: int = 20
    window: int = 35
    seed: int = 1
    optimiser: str = "adam"
    rate: float = 2e-3
    clip: float = 0.25
    bf16: bool = False
    words: int = 0
    measured: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "window"):
            if not 1 <= getattr(self, name) < 2**31:
                raise OptionError(f"training.{name} = {getattr(self, name)}; expected a number from 1 up to 2^31")
        if not 0 < self.rate < math.inf:
            raise OptionError(f"training.rate = {self.rate}; expected a finite rate above 0")
        for name in ("seed", "clip", "epoch_steps", "words", "measured"):
            if not 0 <= getattr(self, name) < 2**31:
                raise OptionError(f"training.{name} = {getattr(self, name)}; expected a number from 0 up to 2^31")
        if self.optimiser not in OPTIMISERS:
            raise OptionError(f"training.optimiser = {self.optimiser!r}; expected one of {', '.join(OPTIMISERS)}")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A run: what to learn, with which model and head, and how."""

    name: str
    data: str
    model: str
    head: str = "dense"
    model_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    head_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    training: Training = Training()

    def as_dict(self) -> dict[str, Any]:
        """Plain data, the inverse of :func:`from_dict`."""
        return {
            "data": self.data,
            "model": {"kind": self.model, **self.model_options},
            "head": {"kind": self.head, **self.head_options},
            "training": dataclasses.asdict(self.training),
        }


WORDS = {"batch": 20, "window": 35, "optimiser": "sgd", "rate": 20.0, "bf16": True}
RECIPES: dict[str, dict[str, Any]] = {
    # six epochs: the published word-language-model example reaches test perplexity 110.44 in as many
    "ptb-lstm": {
        "data": "penn-treebank", "model": {"kind": "lstm", "dim": 200, "layers": 2, "dropout": 0.2},
        "training": {"epochs": 6, **WORDS},
    },
    # four epochs are few enough for little dropout
    "wikitext2-lstm": {
        "data": "wikitext-2", "model": {"kind": "lstm", "dim": 200, "layers": 2, "dropout": 0.1},
        "training": {"epochs": 4, **WORDS},
    },
    # English to German with attention; BLEU on test_2016_flickr
    "multi30k-seq2seq": {
        "data": "multi30k", "model": {"kind": "seq2seq", "dim": 256, "layers": 1, "dropout": 0.3},
        "training": {"epochs": 7, "batch": 64, "rate": 2e-3, "clip": 1.0, "bf16": True},
    },
}  # fmt: skip


def read_recipe(name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """One of ``RECIPES``; ``overrides`` are dotted keys: ``{"training.epochs": 1}``."""
    if name not in RECIPES:
        raise OptionError(f"{name!r} is no recipe; there are {', '.join(sorted(RECIPES))}")
    return from_dict(RECIPES[name], name, overrides)


def from_dict(data: Mapping[str, Any], name: str, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from plain values; OptionError names the first thing that is off."""
    tables: dict[str, Any] = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    for key, value in (overrides or {}).items():
        table, _, field = key.partition(".")
        if not field:
            tables[table] = value
        elif isinstance(tables.setdefault(table, {}), dict):
            tables[table][field] = value
    for table in ("model", "head", "training"):
        if not isinstance(tables.setdefault(table, {}), dict):
            raise OptionError(f"recipe {name}: {table} = {tables[table]!r}; expected a table, such as {table}.KEY=VALUE")
    extra = tables.keys() - {"data", "model", "head", "training"}
    if extra or not isinstance(tables.get("data"), str):
        found = f"data = {tables.get('data')!r}" if not extra else f"{sorted(extra)}"
        raise OptionError(f'recipe {name}: {found}; expected data = "..." (a name, a folder or a file), model, head, training')
    model, head = dict(tables["model"]), dict(tables["head"])
    kind = model.pop("kind", None)
    if not isinstance(kind, str):
        raise OptionError(f"recipe {name} names no model; expected model.kind=lstm, say")
    training = options_from(Training, tables["training"], "training")
    return Recipe(name, tables["data"], kind, str(head.pop("kind", "dense")), model, head, training)


def options_from(kind: type[Options], values: Mapping[str, Any], where: str) -> Options:
    """``kind(**values)``, each value checked against the field's type; integers pass for floats, lists for tuples."""
    hints = get_type_hints(kind)
    taken = {}
    for key, value in values.items():
        if key not in hints:
            raise OptionError(f"{where}.{key} is not known; expected one of {', '.join(sorted(hints))}")
        taken[key] = _typed(value, hints[key], f"{where}.{key}")
    return kind(**taken)


def _typed(value: Any, hint: Any, where: str) -> Any:
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_typed(item, get_args(hint)[0], where) for item in value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise OptionError(f"{where} = {value!r}; expected {getattr(hint, '__name__', hint)}")
    return value
