"""SVD-softmax and hierarchical softmax against the full softmax."""
