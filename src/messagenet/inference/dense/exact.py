"""The filter by its definition, every pixel against every pixel: the reference for the fast ones.

    (A v)_i = post_i Σ_j exp(−|f_i − f_j|² / 2) pre_j v_j

O(N²) time; rows of the kernel are computed a block at a time and forgotten, so memory is bounded.
"""

from __future__ import annotations

import torch
from torch import Tensor

from messagenet.inference.dense.filters import Normalisation, scales

ENTRIES = 1 << 22  # of the kernel, in memory at once


class ExactFilter:
    """One kernel on one image; features are (N, d).

    >>> line = ExactFilter(torch.tensor([[0.0], [2.0]]), "none")
    >>> line.apply(torch.eye(2), torch.ones(2), out := torch.empty(2, 2))
    >>> out
    tensor([[1.0000, 0.1353],
            [0.1353, 1.0000]])
    """

    def __init__(self, features: Tensor, normalisation: Normalisation) -> None:
        self.features = features
        ones = features.new_ones(len(features), 1)
        self.pre = self.post = ones[:, 0]
        sums = torch.empty_like(ones)
        self.apply(ones, ones[0], sums)
        self.pre, self.post = scales(normalisation, sums[:, 0])

    def apply(
        self, values: Tensor, weights: Tensor, out: Tensor, *, add: bool = False, transpose: bool = False
    ) -> None:
        """See `Filter.apply`."""
        pre, post = (self.post, self.pre) if transpose else (self.pre, self.post)
        weighted = values * pre[:, None] * weights  # (N, K)
        rows = max(1, ENTRIES // len(values))
        for start in range(0, len(values), rows):
            block = slice(start, start + rows)
            distance = torch.cdist(
                self.features[block], self.features, compute_mode="donot_use_mm_for_euclid_dist"
            )
            part = (-0.5 * distance.square()).exp() @ weighted * post[block, None]
            out[block] = out[block] + part if add else part

    def diagonal(self) -> Tensor:
        """See `Filter.diagonal`."""
        return self.pre * self.post
