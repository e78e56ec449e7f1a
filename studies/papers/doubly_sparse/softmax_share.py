"""The full softmax's share of a model's multiplications for one answer.

::

    softmax     V D                                       a class's row times the hidden vector
    backbone    linear: in * out;  LSTM: 4 (in + D) D a layer and direction
    share     = softmax / (softmax + backbone)

Products with weights are counted where the model does them, on the first batch of its test split, and divided by the answers
of that batch: a translator's encoder is shared out among the words of the translation; products with its memory are left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headlong import Layer

if TYPE_CHECKING:
    from torch import nn

    from studies.models.backbones.base import Batch


def compute(recipe: str, layer: Path) -> dict[str, Any]:
    """Counts of the model that the shipped ``recipe`` describes, with the output layer that was harvested."""
    from studies.models.jobs import build_job
    from studies.models.recipe import read_recipe

    job, rows = build_job(read_recipe(recipe)), Layer.load(layer)
    softmax, backbone = rows.vocab * rows.dim, multiplications(job.model.backbone.eval(), job.test.batch(0, 0))
    share = round(softmax / (softmax + backbone), 4)
    return {"model": recipe, "softmax": softmax, "backbone": round(backbone), "share": share}


def multiplications(backbone: nn.Module, batch: Batch) -> float:
    """With weights, per hidden vector."""
    import torch
    from torch import nn

    counted = [0]

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            counted[0] += inputs[0].numel() * module.out_features
        elif isinstance(module, nn.LSTM):
            tokens = inputs[0].numel() // module.input_size
            counted[0] += tokens * sum(weight.numel() for name, weight in module.named_parameters() if "weight" in name)

    hooks = [module.register_forward_hook(count) for module in backbone.modules()]
    with torch.inference_mode():
        vectors = len(backbone(batch.inputs).hidden)
    for hook in hooks:
        hook.remove()
    return counted[0] / vectors
