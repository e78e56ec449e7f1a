"""Modules for PyTorch models: ``headlong.torch.OutputLayer`` in place of ``nn.Linear``, and torch's adaptive softmax.

Importing this imports torch; ``import headlong`` does not.
"""

from headlong.integrations.torch_adaptive_softmax import AdaptiveLogSoftmaxWithLoss as AdaptiveLogSoftmaxWithLoss
from headlong.integrations.torch_output_layer import OutputLayer as OutputLayer

__all__ = ["AdaptiveLogSoftmaxWithLoss", "OutputLayer"]
