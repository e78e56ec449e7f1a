"""Hierarchical heads trained to the end on stored hidden vectors, every decision by itself::

    log p(w | h) = sum over the decisions d on the way to w of log p_d(branch | h)
    d sees the rows whose target lies below it and no others, and shares no weight with another decision

So the head's likelihood is a sum of problems that have nothing in common, and training them one after the other minimises
the same loss as training them together, in a small part of the time: a decision's rows lie side by side. Two levels: one
softmax over the classes and one in each class. A binary tree: its top ``DEEP`` levels are a problem, and so is every subtree
that hangs from them, and so on. Bands: the short list with its tokens, and each band behind its projection.

Every problem is solved in whitened coordinates (:mod:`whitening`) by Adam, at a rate that falls to nothing over the last two
passes. Two more passes branch off before it falls: how far their weights are from the others says if training was long enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headlong.heads import BandsHead, DenseHead, Head, TreeHead, TwoLevelHead
from studies.models.optimisers import product_type
from studies.models.preconditioning import turn_of, turned_back

Tensors = list[Tensor]
Gradient = Callable[[Tensors, Tensor], Tensors]
"""``gradient(weights, rows)``: of the mean loss over some rows."""
DEEP = 4
FALL, MORE = 2, 2
"""Passes over which the rate falls, and passes more of the longer training."""
FORGET = (0.9, 0.999)


class AdamSettings(NamedTuple):
    """``passes`` over the rows; Adam's ``rate``; at most ``batch`` rows a step, fewer where a pass had no ``steps`` then."""

    passes: int = 6
    rate: float = 2e-3
    batch: int = 512
    steps: int = 10
    least: int = 16


class Rows(NamedTuple):
    """``hidden [N, dim]`` in front of ``target [N]``."""

    hidden: Tensor
    target: Tensor


def solved(weights: Tensors, gradient: Gradient, count: int, plan: AdamSettings) -> tuple[Tensors, Tensors]:
    """The weights after ``plan.passes`` and after ``MORE`` passes more."""
    adam = _Adam([weight.clone() for weight in weights], gradient, count, plan)
    adam.run(max(0, plan.passes - FALL))
    branch = adam.copy()
    branch.run(FALL, falls=True)
    adam.run(MORE)
    adam.run(FALL, falls=True)
    return branch.weights, adam.weights


class _Adam:
    """Adam over the rows of one problem, shuffled anew in every pass."""

    def __init__(self, weights: Tensors, gradient: Gradient, count: int, plan: AdamSettings) -> None:
        self.weights, self.gradient, self.count, self.plan = weights, gradient, count, plan
        self.first, self.second = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        self.at, self.passed = 0, 0

    def copy(self) -> _Adam:
        other = _Adam([weight.clone() for weight in self.weights], self.gradient, self.count, self.plan)
        other.first, other.second = ([part.clone() for part in parts] for parts in (self.first, self.second))
        other.at, other.passed = self.at, self.passed
        return other

    def run(self, passes: int, falls: bool = False) -> None:
        plan = self.plan
        batch = min(plan.batch, max(plan.least, self.count // plan.steps))
        steps = -(-self.count // batch)
        for number in range(passes):
            order = torch.randperm(self.count, generator=torch.Generator().manual_seed(self.passed))
            self.passed += 1
            for step in range(steps):
                share = 1 - (number * steps + step) / (passes * steps) if falls else 1.0
                self._step(order[step * batch : (step + 1) * batch], plan.rate * share)

    def _step(self, rows: Tensor, rate: float) -> None:
        self.at += 1
        gradients = self.gradient(self.weights, rows)
        low, high = FORGET
        for weight, grad, first, second in zip(self.weights, gradients, self.first, self.second, strict=True):
            first.lerp_(grad, 1 - low)
            second.mul_(high).addcmul_(grad, grad, value=1 - high)
            scale = (second / (1 - high**self.at)).sqrt_().add_(1e-8)
            weight.addcdiv_(first, scale, value=-rate / (1 - low**self.at))


def softmax_problem(hidden: Tensor, target: Tensor, classes: int, plan: AdamSettings) -> tuple[Tensors, Tensors]:
    """``[weight, bias]`` of one softmax; the bias starts at the classes' frequencies, the weight at 0."""
    start = [hidden.new_zeros(classes, hidden.shape[1], dtype=torch.float32), _frequencies(target, classes)]
    return solved(
        start, lambda weights, rows: _softmax_gradient(weights, hidden[rows].float(), target[rows]), len(target), plan
    )


def _softmax_gradient(weights: Tensors, x: Tensor, y: Tensor) -> Tensors:
    weight, bias = weights
    error = torch.addmm(bias, x, weight.T).softmax(1)
    error[torch.arange(len(y)), y] -= 1
    error /= len(y)
    return [error.T @ x, error.sum(0)]


def band_problem(hidden: Tensor, target: Tensor, classes: int, width: int, plan: AdamSettings) -> tuple[Tensors, Tensors]:
    """``[weight, bias, projection]`` of a softmax behind a projection."""
    dim, seed = hidden.shape[1], torch.Generator().manual_seed(0)
    start = [
        0.05 * torch.randn(classes, width, generator=seed), _frequencies(target, classes),
        torch.randn(width, dim, generator=seed) / dim**0.5,
    ]  # fmt: skip

    def gradient(weights: Tensors, rows: Tensor) -> Tensors:
        weight, bias, projection = weights
        x, y = hidden[rows].float(), target[rows]
        narrow = x @ projection.T
        error = torch.addmm(bias, narrow, weight.T).softmax(1)
        error[torch.arange(len(y)), y] -= 1
        error /= len(y)
        return [error.T @ narrow, error.sum(0), (error @ weight).T @ x]

    return solved(start, gradient, len(target), plan)


def sign_problem(hidden: Tensor, way: Tensor, signs: Tensor, plan: AdamSettings) -> tuple[Tensors, Tensors]:
    """``[weight, bias]`` of some binary decisions: ``signs [ways, decisions]`` are 1, -1, or 0 where the way has none."""
    taken = torch.bincount(way, minlength=len(signs)).float()
    left, right = (taken @ (signs == side).float() + 0.5 for side in (1, -1))
    start = [hidden.new_zeros(signs.shape[1], hidden.shape[1], dtype=torch.float32), (left / right).log()]

    def gradient(weights: Tensors, rows: Tensor) -> Tensors:
        weight, bias = weights
        x, sign = hidden[rows].float(), signs[way[rows]]
        error = -sign * torch.sigmoid(-sign * torch.addmm(bias, x, weight.T)) / len(rows)
        return [error.T @ x, error.sum(0)]

    return solved(start, gradient, len(way), plan)


def _frequencies(target: Tensor, classes: int) -> Tensor:
    counts = torch.bincount(target, minlength=classes).float() + 0.5
    return (counts / counts.sum()).log()


Both = tuple[Any, Any]


def fit(head: Head, rows: Rows, plan: AdamSettings) -> Iterator[int]:
    """Trains ``head`` in place to ``plan.passes``; yields 1, then, the head holding the weights of ``MORE`` passes, 2."""
    turn = turn_of(rows.hidden)
    found = _FITS[type(head)](head, Rows(turn.of(rows.hidden), rows.target), plan)
    for number in (0, 1):
        with torch.no_grad():
            for parameter, pair in found:
                parameter.copy_(pair[number])
        turned_back(head, turn)
        yield number + 1


def tuned(head: DenseHead, rows: Rows, plan: AdamSettings) -> None:
    """``MORE`` passes of a full softmax that is trained already, at a falling rate; products in bfloat16 if they can."""

    def gradient(weights: Tensors, part: Tensor) -> Tensors:
        weight, bias = weights
        x, y = rows.hidden[part].to(product_type()), rows.target[part]
        error = ((x @ weight.to(x.dtype).T).float() + bias).softmax(1)
        error[torch.arange(len(y)), y] -= 1
        error /= len(y)
        return [(error.to(x.dtype).T @ x).float(), error.sum(0)]

    with torch.no_grad():
        adam = _Adam([head.weight.detach(), head.bias.detach()], gradient, len(rows.target), plan)  # type: ignore[union-attr]
        adam.run(MORE, falls=True)


def _full(head: DenseHead, rows: Rows, plan: AdamSettings) -> list[tuple[Tensor, Both]]:
    short, long = softmax_problem(rows.hidden, rows.target, head.vocab, plan)
    return list(zip([head.weight, head.bias], zip(short, long, strict=True), strict=True))  # type: ignore[list-item]


def _two_level(head: TwoLevelHead, rows: Rows, plan: AdamSettings) -> list[tuple[Tensor, Both]]:
    group = head.group[rows.target]
    short, long = softmax_problem(rows.hidden, group, len(head.class_weight), plan)
    words = [[head.word_weight.detach().clone(), head.word_bias.detach().clone()] for _ in range(2)]
    order = torch.argsort(group, stable=True)
    ends = torch.bincount(group, minlength=len(head.class_weight)).cumsum(0).tolist()
    for number, (first, last) in enumerate(zip([0, *ends], ends, strict=False)):
        start, stop = head.starts[number : number + 2].tolist()
        mine = order[first:last]
        solutions = softmax_problem(rows.hidden[mine], head.place[rows.target[mine]] - start, stop - start, plan)
        for into, found in zip(words, solutions, strict=True):
            for whole, part in zip(into, found, strict=True):
                whole[start:stop] = part
    pairs = [*zip(short, long, strict=True), *zip(*words, strict=True)]
    return list(zip([head.class_weight, head.class_bias, head.word_weight, head.word_bias], pairs, strict=True))


def _bands(head: BandsHead, rows: Rows, plan: AdamSettings) -> list[tuple[Tensor, Both]]:
    band, within = head.band[rows.target], head.within[rows.target]
    entry = torch.where(band < 0, within, head.short + band)
    short, long = softmax_problem(rows.hidden, entry, len(head.head_weight), plan)
    found: list[tuple[Tensor, Both]] = list(zip([head.head_weight, head.head_bias], zip(short, long, strict=True), strict=True))
    for number, parts in enumerate(zip(head.weights, head.biases, head.projections, strict=True)):
        mine = (band == number).nonzero()[:, 0]
        solutions = band_problem(rows.hidden[mine], within[mine], head.sizes[number], head.widths[number], plan)
        found += list(zip(parts, zip(*solutions, strict=True), strict=True))
    return found


def _tree(head: TreeHead, rows: Rows, plan: AdamSettings) -> list[tuple[Tensor, Both]]:
    into = [[head.weight.detach().clone(), head.bias.detach().clone()] for _ in range(2)]
    for nodes, signs, mine, way in subtrees(head.branches.numpy(), rows.target.numpy()):
        solutions = sign_problem(rows.hidden[torch.from_numpy(mine)], torch.from_numpy(way), torch.from_numpy(signs), plan)
        for whole, (weight, bias) in zip(into, solutions, strict=True):
            whole[0][nodes], whole[1][nodes] = weight, bias
    return list(zip([head.weight, head.bias], zip(*into, strict=True), strict=True))


_FITS: dict[type[Head], Callable[..., list[tuple[Tensor, Both]]]] = {
    DenseHead: _full, TwoLevelHead: _two_level, BandsHead: _bands, TreeHead: _tree,
}  # fmt: skip

Ids = NDArray[np.int64]
Way = tuple[int, dict[int, float]]
"""Where it leads, and the branch it takes at each of a cut's nodes that it passes."""
Subtree = tuple[Ids, NDArray[np.float32], Ids, Ids]


def subtrees(branches: Ids, target: Ids) -> Iterator[Subtree]:
    """``nodes, signs [ways, nodes], rows, way [rows]`` of the top of a tree and of all that hangs from it, cut by cut.

    ``rows`` are those whose target lies below; a way leads out of the cut, to a class or to the next cut.
    """
    first, last, place = leaf_ranges(branches)
    order = np.argsort(place[target], kind="stable")
    sorted_places = place[target][order]
    waiting = [0]
    while waiting:
        root = waiting.pop()
        nodes, signs, exits = _cut(branches, root)
        starts = np.array([place[~way] if way < 0 else first[way] for way in exits])
        low, high = np.searchsorted(sorted_places, [first[root], last[root]])
        turn = np.argsort(starts)
        way = turn[np.searchsorted(starts[turn], sorted_places[low:high], side="right") - 1]
        yield np.array(nodes), signs, order[low:high], way
        waiting += [one for one in exits if one >= 0]
    assert len(branches) + 1 == int(last[0])


def _cut(branches: Ids, root: int) -> tuple[list[int], NDArray[np.float32], list[int]]:
    """The nodes of the top ``DEEP`` levels below ``root``, and the ways out of them: a node further down, or ``~class``."""
    nodes: list[int] = []
    level: list[Way] = [(root, {})]
    exits: list[Way] = []
    for _ in range(DEEP):
        below: list[Way] = []
        for node, path in level:
            index = len(nodes)
            nodes.append(node)
            for child, sign in zip(branches[node].tolist(), (1.0, -1.0), strict=True):
                (below if child >= 0 else exits).append((child, {**path, index: sign}))
        level = below
    exits += level
    signs = np.zeros((len(exits), len(nodes)), np.float32)
    for row, (_, path) in enumerate(exits):
        for index, sign in path.items():
            signs[row, index] = sign
    return nodes, signs, [way for way, _ in exits]


def leaf_ranges(branches: Ids) -> tuple[Ids, Ids, Ids]:
    """``first, last [nodes]``: the classes below a node are those in places ``first`` to ``last``; ``place [classes]``."""
    count = len(branches)
    first, last, place = np.zeros(count, np.int64), np.zeros(count, np.int64), np.zeros(count + 1, np.int64)
    waiting, seen = [0], 0
    opened = np.zeros(count, bool)
    while waiting:
        node = waiting.pop()
        if node < 0:
            place[~node] = seen
            seen += 1
        elif opened[node]:
            last[node] = seen
        else:
            opened[node], first[node] = True, seen
            waiting += [node, int(branches[node, 1]), int(branches[node, 0])]
    return first, last, place
