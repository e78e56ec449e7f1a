"""Hierarchical softmax: a class of words and then the word, or a binary decision at every node of a tree::

    two levels   log p(w | h) = log_softmax(h @ U.T + c)[class(w)] + log_softmax(h @ W_class(w).T + b_class(w))[w]
    binary tree  log p(w | h) = sum over w's path of log sigmoid(sign * (h @ theta_node + beta_node))

Goodman (2001) and Mikolov et al. (2011); Morin and Bengio (2005), Mnih and Hinton (2008). The path loss is vectorised: the
paths of a batch are one gather and one batched product (as in Jiang et al., IJCAI 2017). Which classes share a node decides
what a tree is worth; ``classes.py`` and ``trees.py`` build them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from headlong.errors import OptionError
from headlong.heads import trees
from headlong.heads.base import Head, HeadOutput, widened
from headlong.heads.classes import ASSIGNMENTS, assigned
from headlong.heads.frequency import places
from headlong.heads.grouped import grouped_log_prob
from headlong.layers.tree import TreeLayer
from headlong.number_checks import flag

PIECE = 1 << 20
"""Log-probabilities of a tree that are worked on at once, where no gradient is kept."""


class TwoLevelHead(Head):
    """``class_weight [classes, dim]`` chooses a class, ``word_weight [vocab, dim]`` a word in it.

    ``classes``  ``[vocab]``, the class of each word; or "frequency" (by the square root of ``counts``), "random"
    ``count``    how many classes, for the latter two; None: the square root of ``vocab``
    """

    order: Tensor
    place: Tensor
    group: Tensor
    starts: Tensor

    def __init__(
        self,
        dim: int,
        vocab: int,
        weight: Tensor | None = None,
        *,
        classes: str | ArrayLike = "frequency",
        count: int | None = None,
        counts: ArrayLike | None = None,
        seed: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, vocab)
        self.refuse_tied(weight)
        if isinstance(classes, str) and classes not in ASSIGNMENTS:
            raise OptionError(f"classes is {classes!r}; expected {', '.join(ASSIGNMENTS)}, or the class of each word")
        group = assigned(classes, vocab, count, counts, seed)
        self.has_bias = bias = flag(bias, "bias")
        sizes = np.bincount(group)
        order = torch.from_numpy(np.argsort(group, kind="stable"))
        self.register_buffer("order", order)
        self.register_buffer("place", places(order))
        self.register_buffer("group", torch.from_numpy(group))
        self.register_buffer("starts", torch.from_numpy(np.concatenate([[0], np.cumsum(sizes)])))
        self.class_weight = nn.Parameter(torch.empty(len(sizes), dim).uniform_(-0.1, 0.1))
        self.class_bias = nn.Parameter(torch.zeros(len(sizes)), requires_grad=bias)
        self.word_weight = nn.Parameter(torch.empty(vocab, dim).uniform_(-0.1, 0.1))
        self.word_bias = nn.Parameter(torch.zeros(vocab), requires_grad=bias)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        group = self.group[target]
        place = self.place[target] - self.starts[group]
        chosen = -functional.cross_entropy(self._classes(hidden), group, reduction="none")
        total = chosen + grouped_log_prob(hidden, group, place, self.word_weight, self.word_bias, self.starts)
        return HeadOutput(-total.mean(), total)

    def _classes(self, hidden: Tensor) -> Tensor:
        return widened(functional.linear(hidden.to(self.class_weight.dtype), self.class_weight, self.class_bias))

    def log_prob(self, hidden: Tensor) -> Tensor:
        z = widened(functional.linear(hidden.to(self.word_weight.dtype), self.word_weight, self.word_bias))
        owner = self.group[self.order]
        with torch.no_grad():
            lowest = z.new_full((len(z), len(self.class_weight)), -torch.inf)
            peak = lowest.scatter_reduce(1, owner.expand_as(z), z, "amax")
        mass = torch.zeros_like(peak).index_add(1, owner, (z - peak[:, owner]).exp())
        above = self._classes(hidden).log_softmax(-1) - peak - mass.log()
        return (z + above[:, owner])[:, self.place]

    def to_layer(self) -> TreeLayer:
        """The root has a branch for each class; node ``1 + c`` has those of class ``c``."""
        count = len(self.class_weight)
        weight = torch.cat([self.class_weight, self.word_weight]).detach().cpu()
        bias = torch.cat([self.class_bias, self.word_bias]).detach().cpu() if self.has_bias else None
        children = np.concatenate([np.arange(1, count + 1), ~self.order.cpu().numpy()])
        starts = np.concatenate([[0], count + self.starts.cpu().numpy()])
        return TreeLayer(weight, bias, children, starts)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, classes={len(self.class_weight)}"


class TreeHead(Head):
    """``weight [vocab - 1, dim]``, one row for each node of a binary tree.

    ``tree``    "balanced" (halves of the classes by falling frequency), "huffman", or ``children [vocab - 1, 2]``: a node's
                number, or ``~class``; node 0 is the root, the first branch has the sigmoid's probability
    ``counts``  how often each class occurs; None: ids are in that order already, by Zipf's law
    """

    branches: Tensor
    nodes: Tensor
    signs: Tensor

    def __init__(
        self,
        dim: int,
        vocab: int,
        weight: Tensor | None = None,
        *,
        tree: str | ArrayLike = "huffman",
        counts: ArrayLike | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, vocab)
        self.refuse_tied(weight)
        children = trees.built(tree, vocab, counts)
        paths = trees.paths(children)
        self.has_bias = bias = flag(bias, "bias")
        self.register_buffer("branches", torch.from_numpy(children))
        self.register_buffer("nodes", torch.from_numpy(paths.nodes))
        self.register_buffer("signs", torch.from_numpy(paths.signs))
        self.weight = nn.Parameter(torch.empty(vocab - 1, dim).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(vocab - 1), requires_grad=bias)

    def score(self, hidden: Tensor, target: Tensor) -> HeadOutput:
        nodes, signs = self.nodes[target], self.signs[target]
        rows = functional.embedding(nodes, self.weight)
        scores = torch.einsum("nld,nd->nl", rows, hidden.to(rows.dtype))
        total = self._along(widened(scores) + self.bias[nodes], signs).sum(-1)
        return HeadOutput(-total.mean(), total)

    @staticmethod
    def _along(scores: Tensor, signs: Tensor) -> Tensor:
        """Beyond the end of a path the sign is 0, and so is what it adds."""
        return functional.logsigmoid(scores * signs) * signs.abs()

    def log_prob(self, hidden: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return self._every(hidden)
        out = hidden.new_empty(len(hidden), self.vocab, dtype=torch.promote_types(self.weight.dtype, torch.float32))
        for some in torch.split(torch.arange(len(hidden)), max(1, PIECE // self.vocab)):
            out[some] = self._every(hidden[some])
        return out

    def _every(self, hidden: Tensor) -> Tensor:
        scores = widened(functional.linear(hidden.to(self.weight.dtype), self.weight, self.bias))
        total = scores.new_zeros(len(hidden), self.vocab)
        for nodes, signs in zip(self.nodes.T, self.signs.T, strict=True):
            total = total + self._along(scores[:, nodes], signs)
        return total

    def to_layer(self) -> TreeLayer:
        bias = self.bias.detach().cpu().clone() if self.has_bias else None
        return TreeLayer(self.weight.detach().cpu().clone(), bias, self.branches.cpu().numpy())

    def extra_repr(self) -> str:
        depth = self.signs.ne(0).sum(1).float()
        return f"{super().extra_repr()}, depth {depth.mean():.1f} on average, {int(depth.max())} at most"
