"""Which samples an epoch contains, and in which order.

With f_c the share of images that contain class c, `balanced_indices` repeats an image in proportion to

    r = max over its classes of (1 / f_c)^power

(repeat factor sampling, Gupta, Dollár & Girshick, LVIS, arXiv 1908.03195, without its threshold). With power 0 every
image occurs once; with power 1 every class occurs about equally often. Random streams are keyed by what is drawn, so
results do not depend on access order, number of workers or resuming.
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
    """The images of an epoch, each at least once, those of rare classes repeated; reads every mask once."""
    indices: list[int] = repeat_indices(repeat_factors(class_presence(data), power), seed).tolist()
    return indices


def class_presence(data: SegmentationData) -> NDArray[np.bool_]:
    """Whether each image contains each class, (images, K)."""
    presence = np.zeros((len(data), data.classes.num_classes), bool)
    for index, row in enumerate(presence):
        labels = data.read_labels(index)
        if labels is not None:
            row[np.setdiff1d(labels, [VOID])] = True
    return presence


def repeat_factors(presence: NDArray[np.bool_], power: float) -> NDArray[np.float64]:
    """How often to repeat each image; 1 for images of the most common classes only and for images without labels.

    >>> repeat_factors(np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], bool), power=0.5)
    array([1., 1., 1., 2.])
    """
    share = presence.mean(0)
    rarity = np.where(share > 0, share, 1.0) ** -power
    rarest = np.where(presence, rarity, 0.0).max(1)  # (images,)
    factors: NDArray[np.float64] = np.maximum(rarest / rarest[rarest > 0].min(initial=np.inf), 1.0)
    return factors


def repeat_indices(factors: NDArray[np.float64], seed: int) -> NDArray[np.int64]:
    """Each index repeated by its factor, rounded up or down at random such that the total is right.

    >>> repeat_indices(np.array([1.0, 1.5, 1.5]), seed=0).tolist()
    [0, 1, 2, 2]
    """
    rng = random_stream("balance", seed)
    order = rng.permutation(len(factors))
    ends = np.floor(np.cumsum(factors[order]) + rng.random()).astype(int)
    times = np.empty(len(factors), int)
    times[order] = np.diff(ends, prepend=0)
    return np.repeat(np.arange(len(factors)), times)


def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order of `count` samples in an epoch: a permutation, different for every epoch.

    >>> sorted(epoch_order(5, seed=0, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    return random_stream("order", seed, epoch).permutation(count)
