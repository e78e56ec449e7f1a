"""AdaptiveSoftmax: top-k from adaptively sampled coordinates, with failure probability delta."""
