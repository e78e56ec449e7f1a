"""The demo's language model: a next-word layer trained with NumPy alone.

::

    hidden = tanh(concat(embedding[w_1], ..., embedding[w_6]) @ mixing + shift)        # the six words before
    p(next word) = softmax(weight @ hidden + bias)

Bengio et al.'s network (2003), trained by Adam on the cross-entropy over the batch's own targets and a draw of shared
negatives, each class's logit less the log of the chance that it was among them, so that the layer estimates the full
softmax. Perplexity is always that of the full softmax over all classes, on files that training never saw.

Not a library of heads: those are PyTorch modules. This one exists so that the demo has a real trained layer, with the
spectrum, the norms and the skewed hidden vectors that training gives, and needs neither torch nor a download.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from headlong.demo.corpus import Corpus, Progress
from headlong.dtypes import Floats

Ids = NDArray[np.int32]


@dataclass(frozen=True)
class Recipe:
    """What decides the layer. Changing any field gives another entry in the cache."""

    vocab: int = 20_000
    dim: int = 256
    context: int = 6
    embedding: int = 64
    batch: int = 512
    negatives: int = 512
    steps: int = 1600
    rate: float = 1e-2
    held_out: int = 4096
    seed: int = 0
    version: int = 1


class Trained(NamedTuple):
    """The finished layer, and hidden vectors of held-out text to read it with.

    ``weight [vocab, dim]`` and ``bias [vocab]`` float32, ``hidden [held_out, dim]`` float32 with the ``contexts
    [held_out, context]`` they come from and the ``target [held_out]`` that followed; perplexities on those targets.
    """

    words: list[str]
    weight: Floats
    bias: Floats
    hidden: Floats
    contexts: Ids
    target: Ids
    perplexity: float
    unigram_perplexity: float


def train(corpus: Corpus, recipe: Recipe, progress: Progress | None = None) -> Trained:
    """Train on ``corpus.train``; the hidden vectors, and both perplexities, are of ``corpus.valid``."""
    rng = np.random.default_rng(recipe.seed)
    contexts, target = windows(corpus.train, recipe.context)
    unigram = (np.bincount(target, minlength=len(corpus.words)) + 1.0) / (len(target) + len(corpus.words))
    network = Network(recipe, unigram, rng)
    for step, rows in enumerate(_batches(len(target), recipe, rng)):
        network.learn(contexts[rows], target[rows], _rate(step, recipe))
        if progress is not None:
            progress(step + 1, recipe.steps)
    contexts, target = windows(corpus.valid, recipe.context)
    held_out = np.linspace(0, len(target) - 1, min(recipe.held_out, len(target))).astype(np.int64)
    contexts, target = contexts[held_out], target[held_out]
    hidden = network.hidden(contexts)
    return Trained(
        words=corpus.words,
        weight=network.weight.value,
        bias=network.bias.value,
        hidden=hidden,
        contexts=contexts,
        target=target,
        perplexity=perplexity(network.weight.value, network.bias.value, hidden, target),
        unigram_perplexity=float(np.exp(-np.log(unigram[target]).mean())),
    )


def windows(stream: Ids, size: int) -> tuple[Ids, Ids]:
    """``contexts[i] = stream[i : i + size], target[i] = stream[i + size]``."""
    views = np.lib.stride_tricks.sliding_window_view(stream, size)[:-1]
    return views, stream[size:]


def perplexity(weight: Floats, bias: Floats, hidden: Floats, target: Ids) -> float:
    """``exp(mean(logsumexp(z) - z[target]))`` with ``z = weight @ hidden + bias`` over all classes."""
    total = 0.0
    for start in range(0, len(hidden), 256):
        z = hidden[start : start + 256] @ weight.T + bias
        top = z.max(1)
        lse = top + np.log(np.exp(z - top[:, None]).sum(1, dtype=np.float64))
        total += float((lse - z[np.arange(len(z)), target[start : start + 256]]).sum())
    return float(np.exp(total / len(hidden)))


class Parameter:
    """An array with its Adam moments; ``rows`` are updated alone, so that a step costs what the batch touches."""

    def __init__(self, value: NDArray[np.floating]) -> None:
        self.value: Floats = np.ascontiguousarray(value, np.float32)
        self.mean = np.zeros_like(self.value)
        self.square = np.zeros_like(self.value)

    def step(self, gradient: Floats, rate: float, rows: NDArray[np.integer] | slice = slice(None)) -> None:
        mean, square = self.mean[rows], self.square[rows]
        mean += np.float32(0.1) * (gradient - mean)
        square += np.float32(0.01) * (gradient * gradient - square)
        self.mean[rows], self.square[rows] = mean, square
        self.value[rows] -= np.float32(rate) * mean / (np.sqrt(square) + np.float32(1e-6))


class Network:
    """``hidden`` and one training step, ``learn``."""

    def __init__(self, recipe: Recipe, unigram: NDArray[np.float64], rng: np.random.Generator) -> None:
        fan_in = recipe.context * recipe.embedding
        self.embedding = Parameter(0.1 * rng.standard_normal((len(unigram), recipe.embedding), np.float32))
        self.mixing = Parameter(rng.standard_normal((fan_in, recipe.dim), np.float32) / np.float32(fan_in**0.5))
        self.shift = Parameter(np.zeros(recipe.dim, np.float32))
        self.weight = Parameter(0.02 * rng.standard_normal((len(unigram), recipe.dim), np.float32))
        self.bias = Parameter(np.log(unigram))
        proposal = unigram**0.75 / (unigram**0.75).sum()
        self._rng, self._negatives, self._cumulative = rng, recipe.negatives, np.cumsum(proposal)
        missed = (1 - unigram) ** recipe.batch * (1 - proposal) ** recipe.negatives
        self._log_chance = np.log1p(-missed).astype(np.float32)

    def hidden(self, contexts: Ids) -> Floats:
        inputs = self.embedding.value[contexts].reshape(len(contexts), -1)
        out: Floats = np.tanh(inputs @ self.mixing.value + self.shift.value)
        return out

    def learn(self, contexts: Ids, target: Ids, rate: float) -> None:
        """One Adam step on ``mean(logsumexp(z[candidates]) - z[target])``."""
        inputs = self.embedding.value[contexts].reshape(len(contexts), -1)
        hidden = np.tanh(inputs @ self.mixing.value + self.shift.value)
        candidates, position = self._candidates(target)
        rows = self.weight.value[candidates]
        residual = _softmax(hidden @ rows.T + (self.bias.value[candidates] - self._log_chance[candidates]))
        residual[np.arange(len(target)), position] -= 1
        residual /= np.float32(len(target))

        back = (residual @ rows) * (1 - hidden * hidden)
        to_inputs = back @ self.mixing.value.T
        self.weight.step(residual.T @ hidden, rate, candidates)
        self.bias.step(residual.sum(0), rate, candidates)
        self.mixing.step(inputs.T @ back, rate)
        self.shift.step(back.sum(0), rate)
        words, gradient = _sum_by_word(contexts.ravel(), to_inputs.reshape(contexts.size, -1))
        self.embedding.step(gradient, rate, words)

    def _candidates(self, target: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The classes of this step, and where each target is among them."""
        drawn = np.searchsorted(self._cumulative, self._rng.random(self._negatives) * self._cumulative[-1])
        classes, position = np.unique(np.concatenate([target, drawn]), return_inverse=True)
        return classes, position[: len(target)]


def _softmax(z: Floats) -> Floats:
    z -= z.max(1, keepdims=True)
    np.exp(z, out=z)
    z /= z.sum(1, keepdims=True)
    return z


def _sum_by_word(words: Ids, gradient: Floats) -> tuple[Ids, Floats]:
    """``sums[u] = gradient[words == u].sum(0)`` for every distinct word u."""
    order = np.argsort(words, kind="stable")
    ranked = words[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    return ranked[starts], np.add.reduceat(gradient[order], starts, axis=0)


def _batches(examples: int, recipe: Recipe, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """``steps`` batches, in a fresh order for every pass over the text."""
    batch = min(recipe.batch, examples)
    order, start = rng.permutation(examples), 0
    for _ in range(recipe.steps):
        if start + batch > examples:
            order, start = rng.permutation(examples), 0
        yield order[start : start + batch]
        start += batch


def _rate(step: int, recipe: Recipe) -> float:
    """Fifty steps of warm-up, then half a cosine down to zero."""
    return recipe.rate * min(1.0, (step + 1) / 50) * 0.5 * (1 + float(np.cos(np.pi * step / recipe.steps)))
