"""AdaptiveSoftmax (coordinates sampled until the best classes are known): as published, and one that keeps its promise."""
