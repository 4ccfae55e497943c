"""Which images each step sees, on every process, from any step on.

A step sees G = batch_size · accumulate · processes consecutive samples of the epoch's order (an epoch's last step is
filled up from its beginning). They are divided by batch, then by process, so that runs with the same G see the same
images in the same steps. One loader serves all epochs: its keys are (epoch, index), which alone determine a sample.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from messagenet.data import Augment, Sample, SegmentationData, augment_sample, epoch_order, generator
from messagenet.errors import InputError
from messagenet.training.config import RunConfig

T = TypeVar("T")
Key = tuple[int, int]
PREFETCH = 4


@dataclass(frozen=True)
class Plan:
    """How the samples are divided into steps."""

    samples: int  # number of samples
    batch_size: int  # samples per batch and process
    accumulate: int  # batches per step and process
    processes: int
    total_steps: int
    seed: int  # of the orders

    @classmethod
    def of(cls, config: RunConfig, samples: int, processes: int) -> Plan:
        """The plan of a run."""
        together = config.batch_size * config.accumulate * processes
        total = config.steps or config.epochs * -(-samples // together)
        return cls(samples, config.batch_size, config.accumulate, processes, total, config.seed)

    @property
    def global_batch(self) -> int:
        """G, samples per step over all processes."""
        return self.batch_size * self.accumulate * self.processes

    @property
    def steps_per_epoch(self) -> int:
        """Steps that see every sample once."""
        return -(-self.samples // self.global_batch)

    def batches(self, rank: int, start_step: int = 0) -> Iterator[list[Key]]:
        """The batches of one process from a step on.

        >>> plan = Plan(samples=5, batch_size=1, accumulate=2, processes=2, total_steps=2, seed=0)
        >>> [[index for _, index in batch] for batch in plan.batches(rank=0)]
        [[3], [2], [1], [4]]
        """
        order, epoch_now = np.empty(0, np.int64), -1
        for step in range(start_step, self.total_steps):
            epoch, place = divmod(step, self.steps_per_epoch)
            if epoch != epoch_now:
                order = np.resize(epoch_order(self.samples, self.seed, epoch), self.steps_per_epoch * self.global_batch)
                epoch_now = epoch
            stretch = order[place * self.global_batch : (place + 1) * self.global_batch]
            for batch in stretch.reshape(self.accumulate, self.processes, self.batch_size)[:, rank]:
                yield [(epoch, int(index)) for index in batch]


class AugmentedData(Dataset[Sample]):
    """Samples by (epoch, index), augmented anew in every epoch."""

    def __init__(self, data: SegmentationData, augment: Augment, seed: int) -> None:
        self.data, self.augment, self.seed = data, augment, seed

    def __getitem__(self, key: Key) -> Sample:
        epoch, index = key
        return augment_sample(self.data, index, self.augment, generator(self.seed, epoch, index))


class RepeatedData(Dataset[T]):
    """Samples by (epoch, position in a list of indices), where an index may be repeated."""

    def __init__(self, samples: Any, indices: Sequence[int]) -> None:
        self.samples, self.indices = samples, indices

    def __getitem__(self, key: Key) -> T:
        epoch, place = key
        sample: T = self.samples[epoch, self.indices[place]]
        return sample


def make_loader(
    data: Any,
    batches: Iterable[Sequence[Any]],
    collate: Callable[[list[Any]], T],
    workers: int,
    pin_memory: bool = False,
) -> Iterator[T]:
    """The samples under each batch's keys; workers use one thread each and prefetch a few batches.

    Input errors of workers are raised without their traceback.
    """
    loader: DataLoader[T] = DataLoader(
        data,
        batch_sampler=batches,  # type: ignore[arg-type]
        collate_fn=collate,
        num_workers=workers,
        pin_memory=pin_memory,
        worker_init_fn=_begin_worker if workers else None,
        prefetch_factor=PREFETCH if workers else None,
    )
    try:
        yield from loader
    except InputError as error:
        raise InputError(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None


def only(samples: list[T]) -> T:
    """Collates a batch of one."""
    return samples[0]


def default_workers(processes: int = 1) -> int:
    """Half of this process's share of the cores, from 1 to 8: decoding needs less than the network does."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, max(1, cores // processes // 2))


def _begin_worker(_: int) -> None:
    """One thread; Ctrl-C, which reaches workers as well, is left to the main process. On Linux they die with it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # a killed parent cannot end workers, which may wait for it to take their batches
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
