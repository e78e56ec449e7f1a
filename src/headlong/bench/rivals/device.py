"""Rivals in a GPU's memory, in bfloat16: plain torch functions, to be timed as they are, compiled, or captured in a graph.

::

    z = linear(hidden, weight, bias) ;  ids = topk(link(z)) ;  log_probs = link(z)[ids] - logsumexp(link(z))
    p = softmax(link(z) / T) ;  sorted ;  cut where the sum before reaches top_p ;  one draw by multinomial
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headlong.bench.rivals.dense import linked
from headlong.layers.matrix import Layer

Tensor = Any


class TorchLayer:
    """The layer's weight and bias in bfloat16 on a device; what it answers is not proved, and its link is torch's."""

    def __init__(self, layer: Layer, weight: Tensor) -> None:
        """``weight`` is the layer's, on the device, in any type."""
        import torch

        self.layer, self.torch = layer, torch
        self.weight = weight.to(torch.bfloat16)
        bias = None if layer.bias is None else torch.from_numpy(np.array(layer.bias))
        self.bias = None if bias is None else bias.to(weight.device, torch.bfloat16)

    def logits(self, hidden: Tensor) -> Tensor:
        return linked(self.layer, self.torch.nn.functional.linear(hidden, self.weight, self.bias), self.torch.tanh)

    def topk(self, k: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        """``hidden -> (ids, log_probs)``"""

        def call(hidden: Tensor) -> tuple[Tensor, Tensor]:
            z = self.logits(hidden)
            values, ids = z.topk(k)
            return ids, values - z.logsumexp(1, keepdim=True)

        return call

    def step(self, temperature: float, top_p: float = 1.0) -> Callable[[Tensor], Tensor]:
        """``hidden -> ids [batch, 1]``: one draw, after top_p where it is below 1."""

        def call(hidden: Tensor) -> Tensor:
            probabilities = (self.logits(hidden).float() / temperature).softmax(-1)
            if top_p >= 1:
                return probabilities.multinomial(1)
            ranked, order = probabilities.sort(-1, descending=True)
            kept = ranked.masked_fill(ranked.cumsum(-1) - ranked >= top_p, 0.0)
            return order.gather(-1, kept.multinomial(1))

        return call
