"""The readable twins of native code, in NumPy: every logit in float64, rotated codes, trees and bands, noise, nuclei."""
