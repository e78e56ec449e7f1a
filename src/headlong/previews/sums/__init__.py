"""Normalisers of layers of few coordinates by sums over the nodes of a tree: how it is built, and where it is worth it."""
