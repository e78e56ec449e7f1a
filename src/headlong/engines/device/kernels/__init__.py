"""Kernels in Triton, a file for each pass; only they import it, and they are imported by name where one is launched."""
