"""Label maps and marginals at the border of the package: torch or numpy in, one checked kind out.

Scores are counts over pixels, so labels become NumPy int64 arrays (on the CPU, after the class axis is gone)
and marginals stay a torch tensor on whatever device produced them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from messagenet.errors import InputError

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Array: TypeAlias = npt.NDArray[Any] | Tensor
"""What callers may pass: NumPy or torch, any device."""


def as_labels(labels: Array, name: str) -> IntArray:
    """Turns a label map of any integer type into int64; `name` is how an error calls it.

    >>> as_labels(torch.tensor([[1, 255]], dtype=torch.uint8), "truth")
    array([[  1, 255]])
    """
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind not in "biu":
        raise InputError(f"{name} must hold whole class numbers, not {array.dtype}; take the argmax first")
    return array.astype(np.int64, copy=False)


def as_marginals(marginals: Array) -> Tensor:
    """Checks the shape (K, height, width) and lifts half precision to float32, where sums are safe."""
    tensor = torch.as_tensor(marginals).detach()
    if tensor.ndim != 3:
        shape = tuple(tensor.shape)
        raise InputError(f"marginals must be (classes, height, width), not {shape}; pass one image at a time")
    if not tensor.is_floating_point():
        raise InputError(f"marginals must be floating point, not {tensor.dtype}; pass labels as predicted=")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def same_shape(predicted: tuple[int, ...], truth: tuple[int, ...]) -> None:
    """Raises when a prediction does not cover the same pixels as the truth."""
    if tuple(predicted) != tuple(truth):
        raise InputError(
            f"prediction {tuple(predicted)} and truth {tuple(truth)} differ in size; "
            "resize the prediction to the original image"
        )
