"""Engines of structured layers: trees, bands, blocks, experts and screens, by the verbs of their parts."""
