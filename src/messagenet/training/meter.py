"""What a line of the log says about the steps since the line before."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from messagenet.training.learner import StepLoss, TrainBatch


class Fetch:
    """The next batch on the device, and how long the steps have waited for theirs."""

    def __init__(self, batches: Iterator[TrainBatch], device: torch.device) -> None:
        self.batches, self.device = batches, device
        self.waited = 0.0

    def __call__(self) -> TrainBatch:
        """Waits for a batch."""
        before = time.perf_counter()
        batch = next(self.batches)
        self.waited += time.perf_counter() - before
        return batch.to(self.device, non_blocking=True)


class Meter:
    """Mean loss and speed of the steps since the last reading; time outside steps is not counted.

    Args:
        sums: Loss and nodes of steps before, when a run resumes between two lines of its log.
        like: A tensor of the type and device of the losses to come.
    """

    def __init__(self, sums: Sequence[float], like: Tensor) -> None:
        self._sums = like.new_tensor(sums)
        self._busy, self._steps = 0.0, 0

    def timed(self, step: Callable[[], StepLoss]) -> StepLoss:
        """Takes a step and measures it."""
        before = time.perf_counter()
        loss = step()
        self._sums += loss.sums[:2]
        self._steps += 1
        self._busy += time.perf_counter() - before
        return loss

    def sums(self) -> list[float]:
        """Loss and nodes since the last reading."""
        values: list[float] = self._sums.tolist()
        return values

    def read(self, images_per_step: int, fetch: Fetch) -> dict[str, Any]:
        """Mean loss, images per second, and the share of the time spent waiting for data; then starts over."""
        before = time.perf_counter()
        total, nodes = self.sums()
        busy = self._busy + time.perf_counter() - before  # on a GPU the steps are finished only here
        record = {
            "loss": total / max(nodes, 1),
            "images_per_second": self._steps * images_per_step / busy,
            "waiting": fetch.waited / busy,
        }
        self._sums.zero_()
        self._busy, self._steps, fetch.waited = 0.0, 0, 0.0
        return record
