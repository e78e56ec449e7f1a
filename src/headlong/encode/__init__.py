"""Rotated codes: from a matrix and calibration vectors to a basis, segments, and the tiles that a scan reads."""
