"""Randomness that depends on what is drawn, never on when or where it is drawn.

Every random choice in this package comes from a stream of its own, keyed by what it is for: (purpose, seed,
key…). So the order of access, the number of worker processes and a resumed run change nothing.
"""

from __future__ import annotations

import zlib

import numpy as np

from messagenet.errors import InputError


def random_stream(purpose: str, seed: int, *key: int) -> np.random.Generator:
    """An independent generator for one purpose and key.

    >>> random_stream("order", 0, 5).random() == random_stream("order", 0, 5).random()
    True
    >>> random_stream("order", 0, 5).random() == random_stream("scene", 0, 5).random()
    False
    """
    if seed < 0:
        raise InputError(f"seed is {seed}; use 0 or a positive number")
    sequence = np.random.SeedSequence(seed, spawn_key=(zlib.crc32(purpose.encode()), *key))
    return np.random.Generator(np.random.PCG64(sequence))
