"""What mean field on a dense graph answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from messagenet.inference.dense.filters import uses_numba
from messagenet.inference.dense.softmax import softmax


@dataclass(frozen=True, eq=False)
class DenseResult:
    """Beliefs of every pixel; each form of them is computed when first asked for.

    Attributes:
        logits: (B, K, H, W), or (K, H, W) for one image: log-marginals up to a number per pixel.
        iterations: how many were run.
    """

    logits: Tensor
    iterations: int
    compute_log_z: Callable[[], Tensor] = field(repr=False)

    @cached_property
    def log_marginals(self) -> Tensor:
        """(B, K, H, W) normalised logs."""
        return self.logits.log_softmax(-3)

    @cached_property
    def marginals(self) -> Tensor:
        """(B, K, H, W) probabilities."""
        compiled = uses_numba("auto", self.logits.device)
        return softmax(self.logits.movedim(-3, -1), compiled=compiled).movedim(-1, -3)

    @property
    def map_state(self) -> Tensor:
        """(B, H, W) each pixel's most probable class."""
        return self.logits.argmax(-3)

    @cached_property
    def log_z(self) -> Tensor:
        """(B,) mean-field lower bound on log Z: see `mean_field`."""
        return self.compute_log_z()
