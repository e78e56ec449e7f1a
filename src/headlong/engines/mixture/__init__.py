"""Mixtures of softmaxes: K hidden vectors of one matrix read as a batch, then ranked under intervals."""
