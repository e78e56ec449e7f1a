"""Gradients that can be differentiated again, for operations whose own backward pass is written by hand.

::

    grads = d sum(upstream * function(*inputs)) / d inputs            with a graph, as create_graph=True asks for

The function is computed once more in plain PyTorch: a penalty on gradients costs the memory of that, and is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def wanted() -> bool:
    """Inside a backward pass: whether its results will be differentiated again."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor | None], upstream: Tensor) -> list[Tensor | None]:
    """One for each of ``inputs``; None for what asks for none."""
    with torch.enable_grad():
        # views: where one input was made from another (a tied embedding), each gets its own part alone
        views = [None if given is None else given.view_as(given) for given in inputs]
        out = function(*views)
        asked = [view for view in views if view is not None and view.requires_grad]
        found = iter(torch.autograd.grad(out, asked, upstream.to(out.dtype), create_graph=True, allow_unused=True))
    return [next(found) if view is not None and view.requires_grad else None for view in views]
