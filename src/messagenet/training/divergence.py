"""Training that has gone wrong: a loss or a weight that is no number any more.

On a GPU, looking at a loss waits for it, so losses are kept and looked at now and then; on a CPU at every step,
before the weights are changed. Either way nothing is written to disk in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from messagenet.errors import InputError

NAMES_SHOWN = 8


class Watch:
    """Remembers the losses of the last steps and the files they are from."""

    def __init__(self, lr: float, immediate: bool) -> None:
        self.lr = lr
        self.immediate = immediate
        self._recent: list[tuple[int, Tensor, Sequence[str]]] = []
        self._last: tuple[int, Sequence[str]] = (-1, ())

    def record(self, step: int, loss: Tensor, names: Sequence[str]) -> None:
        """Takes note of a step; raises at once if that costs nothing."""
        self._recent.append((step, loss, names))
        self._last = (step, names)
        if self.immediate:
            self.check()

    def check(self, net: nn.Module | None = None) -> None:
        """Raises if a recent loss, or a weight of the network, is not finite."""
        recent, self._recent = self._recent, []
        losses = torch.stack([loss for _, loss, _ in recent]).tolist() if recent else []
        for value, (step, _, names) in zip(losses, recent, strict=True):
            if not math.isfinite(value):
                raise self._error(f"the loss became {value}", step, names)
        if net is not None and not all(bool(torch.isfinite(values).all()) for values in net.parameters()):
            raise self._error("a weight became infinite or NaN", *self._last)

    def _error(self, what: str, step: int, names: Sequence[str]) -> InputError:
        more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
        return InputError(
            f"{what} in step {step + 1} with optimiser.lr = {self.lr:g}, on {', '.join(names[:NAMES_SHOWN])}{more}; "
            f"try a lower rate, such as {self.lr / 10:g}, or look at these images (nothing was overwritten)"
        )
