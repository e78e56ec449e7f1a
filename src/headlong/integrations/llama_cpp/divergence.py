"""How far a quantised model is from another of the same tokens: the divergence of their next-token distributions, in full.

::

    kl[t] = sum over tokens v of p(v) (log p(v) - log q(v))         p, q: of the base and of the other, after tokens[:t]

Both bodies read the text a window at a time; every logit of both output layers is a product in float64 with the stored weights,
a block of the vocabulary at a time, so nothing of the vocabulary's size is kept and each number is right to float64's rounding.
(Many tokens are asked at once: a product is sooner done than candidates are found, and a tail has no error to bound.) Of the
base a folder keeps the hidden vectors, 2.3 kB a token at 576 dimensions, where llama.cpp's files have 2 bytes a token and
class, and of each comparison what it found: it goes on where it ended. Windows and summary are those of llama.cpp's
``perplexity --kl-divergence``: the second half of each window is scored.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headlong.dtypes import Doubles, Ids
from headlong.errors import InputError, OptionError
from headlong.integrations.llama_cpp.body import Singles
from headlong.integrations.llama_cpp.model import Model
from headlong.layers.matrix import Layer
from headlong.links import Link
from headlong.number_checks import whole
from headlong.store import open_file, write_file

BLOCK, AT_ONCE = 2048, 2
"""Classes whose logits are held, and windows that are multiplied with them at a time."""
BASE, FOUND = "headlong hidden vectors", "headlong divergence"


class Compared(NamedTuple):
    """``[n]`` each, of the scored tokens: the divergence, log-probabilities of the text's own token, whether both have one
    likeliest token."""

    kl: Doubles
    base: Doubles
    other: Doubles
    same: Doubles


class Summary(NamedTuple):
    """Each with its standard error over tokens, and 0 where there is none."""

    mean: tuple[float, float]
    median: tuple[float, float]
    percentile_99: tuple[float, float]
    largest: tuple[float, float]
    same_top: tuple[float, float]
    base_perplexity: tuple[float, float]
    other_perplexity: tuple[float, float]
    log_ratio: tuple[float, float]
    """The log of the ratio of the perplexities, other to base."""
    tokens: int


def kld(
    base: Model,
    other: Model,
    text: str,
    *,
    context: int = 512,
    tokens: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Compared:
    """The divergence of ``other`` from ``base`` on ``text``, of its first ``tokens`` (None: all).

    ``context``   tokens of a window, fewer than the models' ``n_ctx``; a rest that is no whole window is left out
    ``folder``    keeps hidden vectors and what was found, for another call and for other models; None: nothing
    ``progress``  called with the windows that are done and all
    """
    whole(context, "context", 4, min(base.n_ctx(), other.n_ctx()) - 1)
    ids = base.tokenize(text.encode(), add_bos=False)
    if other.n_vocab() != base.n_vocab() or other.tokenize(text.encode(), add_bos=False) != ids:
        raise InputError("both models have to make the same tokens of the text; these are of two vocabularies")
    ids = ids[: whole(tokens, "tokens", 1, 2**62) if tokens is not None else None]
    windows = [ids[at : at + context] for at in range(0, len(ids) - context + 1, context)]
    if not windows:
        raise OptionError(f"the text has {len(ids):,} tokens; expected {context} or more, or a smaller context")
    for window in windows:  # as llama.cpp has it: where a text begins with a token of its own, each window does
        window[:1] = base.tokenize(b"", add_bos=True) or window[:1]
    place = None if folder is None else Path(folder)
    if place is not None:
        place.mkdir(parents=True, exist_ok=True)
    found = []
    for number, at in enumerate(range(0, len(windows), AT_ONCE)):
        some = windows[at : at + AT_ONCE]
        found.append(_shard(base, other, some, place, number))
        if progress is not None:
            progress(at + len(some), len(windows))
    return Compared(*(np.concatenate(column) for column in zip(*found, strict=True)))


def summary(found: Compared) -> Summary:
    """As llama.cpp's tool sums up; the errors of median and percentile from the order of the values (binomial, one sigma)."""
    count, ratio = len(found.kl), found.base - found.other
    agree = float(found.same.mean())
    base, other = (_error_of_exp(*_mean(-values)) for values in (found.base, found.other))
    return Summary(
        _mean(found.kl), _quantile(found.kl, 0.5), _quantile(found.kl, 0.99), (float(found.kl.max()), 0.0),
        (agree, math.sqrt(agree * (1 - agree) / max(1, count - 1))), base, other, _mean(ratio), count,
    )  # fmt: skip


def _mean(values: Doubles) -> tuple[float, float]:
    return float(values.mean()), float(values.std()) / math.sqrt(max(1, len(values) - 1))


def _error_of_exp(value: float, error: float) -> tuple[float, float]:
    return math.exp(value), math.exp(value) * error


def _quantile(values: Doubles, share: float) -> tuple[float, float]:
    reach = math.sqrt(share * (1 - share) / len(values))
    low, middle, high = np.quantile(values, [max(0.0, share - reach), share, min(1.0, share + reach)])
    return float(middle), float(high - low) / 2


def _shard(base: Model, other: Model, windows: Sequence[Sequence[int]], folder: Path | None, number: int) -> Compared:
    """Some windows, from the folder where it has them."""
    if folder is None:
        return _compared(base, other, windows, _hidden(base, windows))
    text = hashlib.sha256(np.array(windows, np.int64).tobytes()).hexdigest()
    about = {"format": BASE, "base": base.fingerprint, "text": text}
    path = folder / f"base-{number:05d}.safetensors"
    against = folder / f"{other.fingerprint}-{number:05d}.safetensors"
    if against.exists():
        tensors = _read(against, {**about, "format": FOUND, "other": other.fingerprint})
        return Compared(*(tensors[name] for name in Compared._fields))
    if not path.exists():
        write_file(path, {"hidden": _hidden(base, windows)}, about)
    found = _compared(base, other, windows, _read(path, about)["hidden"])
    write_file(against, found._asdict(), {**about, "format": FOUND, "other": other.fingerprint})
    return found


def _read(path: Path, about: dict[str, str]) -> dict[str, Any]:
    file = open_file(path)
    file.check_call(about)
    return {name: np.asarray(file.read(name)) for name in file.tensors}


def _hidden(model: Model, windows: Sequence[Sequence[int]]) -> Singles:
    """Hidden vectors of the tokens before the scored ones ``[windows * (context - context // 2 - 1), dim]``."""
    return np.concatenate([model.hidden(window)[len(window) // 2 : -1] for window in windows])


def _compared(base: Model, other: Model, windows: Sequence[Sequence[int]], hidden: Singles) -> Compared:
    after = np.concatenate([np.array(window[len(window) // 2 + 1 :], np.int64) for window in windows])
    return compared(base.layer, hidden, other.layer, _hidden(other, windows), after)


def compared(base_layer: Layer, base: Singles, other_layer: Layer, other: Singles, after: Ids) -> Compared:
    """Both models compared by hidden vectors ``[n, dim]`` of each and the token after: one pass over both layers."""
    count = len(base)
    rows = np.arange(count)
    most, sums, likeliest = np.full((2, count), -np.inf), np.zeros((2, count)), np.zeros((2, count), np.int64)
    cross, own = np.zeros(count), np.zeros((2, count))  # of exp(x - most) (x - y); logits of the tokens that came
    for start, pair in _blocks((base_layer, base.astype(np.float64)), (other_layer, other.astype(np.float64))):
        for side, logits in enumerate(pair):
            best = logits.argmax(axis=1)
            better = logits[rows, best] > most[side]
            likeliest[side][better] = start + best[better]
            shift = np.maximum(most[side], logits[rows, best])
            lower = np.exp(most[side] - shift)
            mass = np.exp(logits - shift[:, None])
            sums[side] = sums[side] * lower + mass.sum(axis=1)
            most[side] = shift
            if side == 0:
                cross = cross * lower + (mass * (pair[0] - pair[1])).sum(axis=1)
            here = (after >= start) & (after < start + logits.shape[1])
            own[side][here] = logits[here, after[here] - start]
    lse = most + np.log(sums)
    kl = np.maximum(cross / sums[0] - lse[0] + lse[1], 0.0)
    return Compared(kl, own[0] - lse[0], own[1] - lse[1], (likeliest[0] == likeliest[1]).astype(np.float64))


def _blocks(*sides: tuple[Any, Doubles]) -> Iterator[tuple[int, list[Doubles]]]:
    """The logits of all classes after the link, a block at a time."""
    for start in range(0, sides[0][0].vocab, BLOCK):
        yield start, [_logits(layer, hidden, start) for layer, hidden in sides]


def _logits(layer: Layer, hidden: Doubles, start: int) -> Doubles:
    link: Link = layer.link
    found = hidden @ np.asarray(layer.weight[start : start + BLOCK], np.float64).T
    if layer.bias is not None:
        found += np.asarray(layer.bias[start : start + BLOCK], np.float64)
    return np.asarray(link(found), np.float64)
