"""Bounds on neighbouring classes: boxes or rays, their records, and whether they answer sooner than a look at all classes."""
