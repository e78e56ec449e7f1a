"""Engines in a GPU's memory, in PyTorch operations and eight Triton kernels; the only files that know torch and Triton."""
