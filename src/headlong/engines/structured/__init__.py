"""Engines of structured layers: trees, bands, blocks and experts, by the verbs of their parts."""
