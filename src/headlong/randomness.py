"""Randomness of our own: streams that no generator of a caller's gives, whatever its seed.

    stream(purpose, seed, ...) = SFC64 seeded by blake2b("headlong", purpose, seed, ...)

A promise rests on rotations and draws that are independent of the layer and the queries, and these are often made by somebody's
generator with seed 0. The hash keeps the streams of two purposes apart, too.
"""

from __future__ import annotations

import hashlib

import numpy as np

NOISE = 0x676E6F6C64616568
"""Joins the key of the counter-based noise of draws (``csrc/kernels/common/philox.inl``): others run the same generator."""


def stream(purpose: str, *facts: int | str) -> np.random.Generator:
    """The generator of what is drawn for ``purpose`` with these facts: a seed, a number, a digest."""
    words = hashlib.blake2b(repr(("headlong", purpose, *facts)).encode(), digest_size=32).digest()
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(int.from_bytes(words, "little"))))
