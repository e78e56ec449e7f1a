"""Bounds on neighbouring classes: boxes, their records, and whether they answer sooner than a scan of all classes."""
