"""Bounds on neighbouring classes: boxes or rays, their records, and whether they answer sooner than a scan of all classes."""
