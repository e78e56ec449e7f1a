"""Layers that are more than one matrix, ``hl.structured``: what their heads make and their engines read."""

from headlong.layers.bands import BandsLayer
from headlong.layers.differentiated import BlocksLayer
from headlong.layers.experts import ExpertsLayer
from headlong.layers.mixture import MixtureLayer
from headlong.layers.structured import StructuredLayer, load_layer
from headlong.layers.tree import TreeLayer

__all__ = [
    "BandsLayer",
    "BlocksLayer",
    "ExpertsLayer",
    "MixtureLayer",
    "StructuredLayer",
    "TreeLayer",
    "load_layer",
]
