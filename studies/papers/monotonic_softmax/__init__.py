"""Learnable monotonic functions against the softmax bottleneck: PLIF, monotone networks, SigSoftmax, mixtures."""
