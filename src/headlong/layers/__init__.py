"""Finished output layers: data only, immutable. One file for each kind."""
