"""Showing images of rare classes more often.

A score that averages over classes counts a class that is in few images as much as one that is in many. With f_c the
share of images that class c is in, an image is shown in proportion to

    r = max over its classes of (1 / f_c)^power

(Gupta, Dollár & Girshick, LVIS, arXiv 1908.03195, repeat factor sampling, without its threshold). Power 0 leaves
everything as it is; 1 shows every class about equally often, and the images of the rarest again and again.

Randomness that depends on what is drawn, never on when or where it is drawn.

Every random choice in this package comes from a stream of its own, keyed by what it is for: (purpose, seed,
key…). So the order of access, the number of worker processes and a resumed run change nothing.

The order of samples in an epoch, which depends on (seed, epoch) alone.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from messagenet.data.classes import VOID
from messagenet.data.dataset import SegmentationData
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


def balanced_indices(data: SegmentationData, power: float, seed: int = 0) -> list[int]:
    """Which images an epoch shows, those of rare classes repeatedly; reads every mask once.

    Each image is there at least once. Whether an image that is due 2.4 times comes twice or three times is drawn.
    """
    indices: list[int] = repeated(repeat_factors(class_presence(data), power), seed).tolist()
    return indices


def class_presence(data: SegmentationData) -> NDArray[np.bool_]:
    """Says which classes are in which image, (images, K)."""
    presence = np.zeros((len(data), data.classes.num_classes), bool)
    for index, row in enumerate(presence):
        labels = data.read_labels(index)
        if labels is not None:
            row[np.setdiff1d(labels, [VOID])] = True
    return presence


def repeat_factors(presence: NDArray[np.bool_], power: float) -> NDArray[np.float64]:
    """How often each image is due; 1 for those of the most common kind, and for those without any class.

    >>> repeat_factors(np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], bool), power=0.5)
    array([1., 1., 1., 2.])
    """
    share = presence.mean(0)
    rarity = np.where(share > 0, share, 1.0) ** -power
    due = np.where(presence, rarity, 0.0).max(1)
    least = due[due > 0].min(initial=np.inf)
    factors: NDArray[np.float64] = np.maximum(due / least, 1.0)
    return factors


def repeated(factors: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Indices repeated as often as they are due, rounded up or down at random but right in total.

    >>> repeated(np.array([1.0, 1.5, 1.5]), seed=0).tolist()
    [0, 1, 2, 2]
    """
    rng = random_stream("balance", seed)
    order = rng.permutation(len(factors))
    ends = np.floor(np.cumsum(factors[order]) + rng.random()).astype(int)
    times = np.empty(len(factors), int)
    times[order] = np.diff(ends, prepend=0)
    return np.repeat(np.arange(len(factors)), times)


def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which an epoch goes through `count` samples: a permutation, another for every epoch.

    >>> sorted(epoch_order(5, seed=0, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    return random_stream("order", seed, epoch).permutation(count)
