"""Convolutional classifiers for digits, satellite pictures and characters::

    stage(x) = pool(relu(norm(conv(x))) ...)                  3 x 3, ``depth`` times, then halve height and width
    hidden = dropout(relu(linear(stages(pixels))))            [N, dim]

One net for the three; ``widths`` says how many stages and how wide. ``stride`` 2 in the first convolution halves the
picture at once, where its pixels are fine enough.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from headlong.errors import OptionError
from studies.models.backbones.base import DEEPEST, WIDEST, Backbone, Features, State, check_rates, check_sizes


@dataclass(frozen=True)
class CnnOptions:
    """Defaults: the net for MNIST."""

    widths: tuple[int, ...] = (24, 48)
    depth: int = 2
    stride: int = 1
    dim: int = 128
    dropout: float = 0.3


class Cnn(Backbone):
    """``pixels [N, channels, side, side] -> hidden [N, dim]``."""

    def __init__(self, options: CnnOptions, channels: int, side: int) -> None:
        super().__init__()
        check_sizes(options, WIDEST, "dim", "stride")
        check_sizes(options, DEEPEST, "depth")
        check_rates(options, "dropout")
        widths = list(options.widths)
        if not widths or not all(1 <= width <= WIDEST for width in widths):
            raise OptionError(f"model.widths = {widths}; expected the width of each stage, 1 to {WIDEST:,}, such as [24, 48]")
        left = side // options.stride >> len(widths)
        if left < 1:
            raise OptionError(
                f"model.widths = {widths} and model.stride = {options.stride} on {side} x {side} pixels; each of the "
                f"stages halves them: use fewer widths"
            )
        self.dim = options.dim
        layers: list[nn.Module] = []
        before = channels
        for stage, width in enumerate(options.widths):
            for conv in range(options.depth):
                stride = options.stride if stage == conv == 0 else 1
                layers += [nn.Conv2d(before, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
                before = width
            layers.append(nn.MaxPool2d(2))
        self.stages = nn.Sequential(*layers)
        self.join = nn.Sequential(nn.Linear(before * left * left, options.dim), nn.BatchNorm1d(options.dim), nn.ReLU())
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, inputs: tuple[Tensor, ...], state: State = ()) -> Features:
        (pixels,) = inputs
        return Features(self.dropout(self.join(self.stages(pixels).flatten(1))))
