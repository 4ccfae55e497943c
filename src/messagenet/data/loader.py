"""Which sample comes when: an order given by (seed, epoch), in batches that can be resumed and shared out.

    loader = DataLoader(EpochData(data, augment, seed), batch_sampler=BatchSampler(...), collate_fn=collate)

The global batch number i is `order[i·B·W : (i+1)·B·W]`, of which process r of W takes the r-th part of B. So
a run on two processes with batches of 8 sees what a run on one with batches of 16 sees, and a run that
stopped after i batches goes on with `start_batch=i`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, Sampler

from messagenet.data.dataset import Sample, SegmentationData
from messagenet.data.paste import augmented
from messagenet.data.seeds import random_stream
from messagenet.data.transforms import Augment, generator
from messagenet.errors import InputError


class EpochData(Dataset[Sample]):
    """A data set with the augmentation of the current epoch.

    The epoch is in shared memory, so that workers kept alive between epochs see it change.
    """

    def __init__(self, data: SegmentationData, augment: Augment | None = None, seed: int = 0) -> None:
        self.data = data
        self.augment = augment
        self.seed = seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()

    @property
    def epoch(self) -> int:
        """The epoch whose augmentation is drawn."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Call before each epoch."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Sample:
        if self.augment is None:
            return self.data[index]
        return augmented(self.data, index, self.augment, generator(self.seed, self.epoch, index))


def epoch_order(count: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which an epoch goes through `count` samples: a permutation, another for every epoch.

    >>> sorted(epoch_order(5, seed=0, epoch=0).tolist())
    [0, 1, 2, 3, 4]
    """
    return random_stream("order", seed, epoch).permutation(count)


class BatchSampler(Sampler[list[int]]):
    """One process's batches of an order.

    Args:
        order: Sample indices, such as `epoch_order` gives.
        batch_size: Samples per batch and process.
        start_batch: How many batches to leave out at the beginning, to resume inside an epoch.
        rank: The number of this process.
        world_size: The number of processes.
        fill_last: Whether a short last batch is filled from the beginning of the order, so that all batches
            are full and all processes have equally many (training); otherwise it stays short, and each sample
            comes exactly once (scoring).
    """

    def __init__(
        self,
        order: NDArray[np.int64],
        batch_size: int,
        start_batch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        fill_last: bool = True,
    ) -> None:
        if batch_size < 1:
            raise InputError(f"batch_size is {batch_size}; use at least 1")
        if not 0 <= rank < world_size:
            raise InputError(
                f"rank is {rank} of {world_size} processes; ranks run from 0 to {world_size - 1}"
            )
        if start_batch < 0:
            raise InputError(f"start_batch is {start_batch}; use 0 or a positive number")
        if len(order) == 0:
            raise InputError("there are no samples to put into batches; check the data set's split")
        together = batch_size * world_size
        count = -(-len(order) // together)
        shared = np.resize(order, count * together) if fill_last else order
        starts = range(start_batch * together + rank * batch_size, count * together, together)
        batches = [shared[start : start + batch_size] for start in starts]
        self._batches = [batch.tolist() for batch in batches if len(batch)]

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self._batches)
