"""What a filter is: the matrix of one kernel on one image, never written out.

    A = diag(post) · k · diag(pre)              k(i, j) between all pixels, the diagonal included

The normalisation says which scales stand on either side of the kernel, with d = k·1 its row sums:

| name      | pre   | post  | used by                                                |
|-----------|-------|-------|--------------------------------------------------------|
| symmetric | d^−½  | d^−½  | Krähenbühl & Koltun's second paper (2013), pydensecrf  |
| after     | 1     | 1/d   | weighted means; CRF-RNN                                |
| before    | 1/d   | 1     | the transpose of `after`                               |
| none      | 1     | 1     | Krähenbühl & Koltun 2011 as written                    |
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, Protocol

import torch
from torch import Tensor

Normalisation = Literal["symmetric", "after", "before", "none"]
NORMALISATIONS: tuple[Normalisation, ...] = ("symmetric", "after", "before", "none")
Backend = Literal["auto", "numba", "torch"]
BACKENDS: tuple[Backend, ...] = ("auto", "numba", "torch")


class Filter(Protocol):
    """A linear operator on the pixels of one image, the same for every class."""

    def apply(
        self, values: Tensor, weights: Tensor, out: Tensor, *, add: bool = False, transpose: bool = False
    ) -> None:
        """Sets out = (A·values)·diag(weights), or adds it to what is there.

        Args:
            values: (N, K), contiguous, of the filter's dtype; not `out`.
            weights: (K,) a factor for every class.
            out: (N, K) contiguous, the result.
            add: whether to add to `out` instead of overwriting it.
            transpose: whether to apply Aᵀ.
        """
        ...

    def diagonal(self) -> Tensor:
        """(N,) the diagonal of A: what a pixel sends to itself."""
        ...


def scales(normalisation: Normalisation, sums: Tensor) -> tuple[Tensor, Tensor]:
    """The factors before and after a kernel with these row sums.

    >>> scales("symmetric", torch.tensor([4.0]))
    (tensor([0.5000]), tensor([0.5000]))
    """
    one = torch.ones_like(sums)
    if normalisation == "symmetric":
        root = sums.rsqrt()
        return root, root
    if normalisation == "after":
        return one, sums.reciprocal()
    if normalisation == "before":
        return sums.reciprocal(), one
    return one, one


def uses_numba(backend: Backend, device: torch.device) -> bool:
    """Whether the compiled CPU kernels run: on the CPU, where Numba is installed, unless told otherwise."""
    return backend == "numba" or (
        backend == "auto" and device.type == "cpu" and find_spec("numba") is not None
    )
