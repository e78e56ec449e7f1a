"""A plan executed in NumPy, one query at a time: the readable twin of ``csrc/executor``."""
