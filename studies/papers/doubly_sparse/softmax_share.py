"""The full softmax's share of a model: of the multiplications for one answer, and of its time at batch 1.

::

    softmax     V D                                            a class's row times the hidden vector
    backbone    linear: in * out;  LSTM: 4 (in + D) D a layer and direction;  convolution: in * out * 9 a pixel
    share     = softmax / (softmax + backbone)

Products with weights are counted where the model does them, on the first batch of its test split, and divided by the
answers of that batch: a translator's encoder is shared out among the words of the translation; products with its memory are
left out. Timed is one more word after the others (LSTM, translator) or one picture, beside ``linear``, ``log_softmax`` and
``topk`` of ten, in turns, on one thread: ``time_share`` of the quickest call of each by the thread's own clock, which other
work of the machine disturbs least. Weights do not matter for time: the net is a fresh one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headlong.bench.measure import Contestant, Schedule, contest
from headlong.layers.matrix import Layer

if TYPE_CHECKING:
    from torch import nn

    from studies.models.backbones.base import Batch, Model

SCHEDULE = Schedule(rounds=25, settle=2, calls=8, pause=0.0, seconds=20.0)


def compute(recipe: str, layer: Path) -> dict[str, Any]:
    """Counts and times of the model that the shipped ``recipe`` describes, with the output layer that was harvested."""
    import torch

    from studies.models.jobs import build_job
    from studies.models.recipe import read_recipe

    torch.set_num_threads(1)
    job = build_job(read_recipe(recipe))
    model, batch = job.model.eval(), job.test.batch(0, 0)
    rows = Layer.load(layer)
    softmax, backbone = rows.vocab * rows.dim, multiplications(model.backbone, batch)
    found: dict[str, Any] = {"model": recipe, "softmax": softmax, "backbone": round(backbone)}
    seconds = timed(model, batch, rows)
    found |= {"share": round(softmax / (softmax + backbone), 4), "seconds": seconds}
    return {**found, "time_share": round(seconds["softmax"] / sum(seconds.values()), 4)}


def multiplications(backbone: nn.Module, batch: Batch) -> float:
    """With weights, per hidden vector."""
    import torch
    from torch import nn

    counted = [0]

    def count(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(module, nn.Linear):
            counted[0] += inputs[0].numel() * module.out_features
        elif isinstance(module, nn.Conv2d):
            counted[0] += output.numel() * module.weight[0].numel()
        elif isinstance(module, nn.LSTM):
            tokens = inputs[0].numel() // module.input_size
            counted[0] += tokens * sum(weight.numel() for name, weight in module.named_parameters() if "weight" in name)

    hooks = [module.register_forward_hook(count) for module in backbone.modules()]
    with torch.inference_mode():
        vectors = len(backbone(batch.inputs).hidden)
    for hook in hooks:
        hook.remove()
    return counted[0] / vectors


def timed(model: Model, batch: Batch, rows: Layer) -> dict[str, float]:
    """The quickest call of each, in seconds."""
    import torch

    weight = torch.from_numpy(np.array(rows.weight, np.float32))
    bias = torch.zeros(rows.vocab) if rows.bias is None else torch.from_numpy(np.array(rows.bias, np.float32))
    hidden = torch.randn(1, rows.dim)

    def softmax() -> Any:
        return torch.nn.functional.linear(hidden, weight, bias).log_softmax(-1).topk(10)

    field = {"softmax": softmax, "backbone": one_more(model.backbone, batch)}

    def once(call: Callable[[], Any]) -> Callable[[Any], Any]:
        return lambda _: call()

    with torch.inference_mode():
        everyone = [Contestant(name, once(call)) for name, call in field.items()]
        runs = contest(everyone, np.zeros(1), 1, SCHEDULE, clock=processor)
    return {run.contestant: round(min(run.seconds), 8) for run in runs}


def processor(call: Callable[[Any], Any], block: Any) -> float:
    """The thread's time on a processor."""
    start = time.thread_time()
    call(block)
    return time.thread_time() - start


def one_more(backbone: nn.Module, batch: Batch) -> Callable[[], Any]:
    """What the backbone does for one more answer at batch 1."""
    import torch

    from studies.models.backbones.cnn import Cnn
    from studies.models.backbones.seq2seq import Seq2Seq

    if isinstance(backbone, Cnn):
        return lambda: backbone((batch.inputs[0][:1],))
    with torch.inference_mode():
        if isinstance(backbone, Seq2Seq):
            source, before, _ = batch.inputs
            memory, state = backbone.encode(source[:, :1])
            return lambda: backbone.decode(before[:1, :1], memory, state)
        ids = batch.inputs[0][:1, :1]
        state = backbone((ids,)).state
        return lambda: backbone((ids,), state)
