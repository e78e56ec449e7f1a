"""Trainable output layers: ``base`` is the contract, then one file per head. ``HEADS`` has them by name."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor

from headlong.errors import OptionError
from headlong.heads.bands import BandsHead as BandsHead
from headlong.heads.base import Head as Head
from headlong.heads.base import HeadOutput as HeadOutput
from headlong.heads.dense import DenseHead as DenseHead
from headlong.heads.differentiated import DifferentiatedHead as DifferentiatedHead
from headlong.heads.experts import ExpertsHead as ExpertsHead
from headlong.heads.hierarchical import TreeHead as TreeHead
from headlong.heads.hierarchical import TwoLevelHead as TwoLevelHead
from headlong.heads.links import GssHead, LinkHead, MonotoneHead, PlifHead, SigSoftmaxHead, SoftCapHead, TemperatureHead
from headlong.heads.mixture import MixedContextsHead, MixtureHead

LINK_HEADS: tuple[type[LinkHead], ...] = (TemperatureHead, SoftCapHead, SigSoftmaxHead, GssHead, MonotoneHead, PlifHead)
HEADS: dict[str, type[Head]] = {
    "dense": DenseHead,
    "bands": BandsHead,
    "differentiated": DifferentiatedHead,
    "tree": TreeHead,
    "two-level": TwoLevelHead,
    "experts": ExpertsHead,
    "moc": MixedContextsHead,
    "mos": MixtureHead,
    **{head.name: head for head in LINK_HEADS},
}


def build_head(kind: str, dim: int, vocab: int, weight: Tensor | None = None, **options: Any) -> Head:
    """``HEADS[kind](dim, vocab, weight, **options)``, with an error that lists what there is."""
    if not isinstance(kind, str) or kind not in HEADS:
        raise OptionError(f"no head is called {kind!r}; there are {', '.join(sorted(HEADS))}")
    try:
        return HEADS[kind](dim, vocab, weight, **options)  # type: ignore[call-arg]  # each head's own constructor
    except TypeError as error:
        taken = inspect.signature(HEADS[kind]).parameters
        known = [name for name, one in taken.items() if one.kind is one.KEYWORD_ONLY]
        others = [] if any(one.kind is one.VAR_KEYWORD for one in taken.values()) else sorted(options.keys() - set(known))
        what = ", ".join(others or (f"{name}={value!r}" for name, value in options.items()))
        takes = ", ".join(f"{name}={taken[name].default!r}" for name in known)
        raise OptionError(f"the {kind} head does not take these options: {what}; expected such as {takes}") from error
