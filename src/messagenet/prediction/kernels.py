"""CPU kernel of the most probable class at every pixel, compiled by Numba on first use and cached on disk.

    E_k(i, x)   = (1 − t_x) L_k(i, j_x) + t_x L_k(i, j_x + 1)                a row of nodes at the pixels' columns
    label(y, x) = argmax_k  (1 − t_y) E_k(i_y, x) + t_y E_k(i_y + 1, x)

with the nodes before and after a pixel on each axis, clamped to the map. A row E is computed once for all pixel rows
between two rows of nodes, so no upsampled map of all classes is ever in memory.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import numpy as np
from numba import njit, uint64

_compiled = njit(nogil=True, cache=True, error_model="numpy")


@_compiled
def _enlarge(logits, node_row, before, weights, out):
    classes, _, nodes = logits.shape
    width = before.size
    for k in range(classes):
        for x in range(width):
            left = logits[k, node_row, before[x]]
            right = logits[k, node_row, min(before[x] + 1, nodes - 1)]
            out[uint64(k * width + x)] = left + (right - left) * weights[x]


@_compiled
def label_rows(logits, above, down, before, across, out, first, last):
    """Sets the rows first ≤ y < last of `out` (H, W) to the class with the largest logit, the first of equals.

    logits (K, h, w); `above` (H,) and `before` (W,) are the nodes before each pixel, `down` and `across` the weights of
    the nodes after them.
    """
    classes, height, _ = logits.shape
    width = before.size
    upper, lower = np.empty(classes * width, logits.dtype), np.empty(classes * width, logits.dtype)
    best, label = np.empty(width, logits.dtype), np.empty(width, np.int32)
    current = -1
    for y in range(first, last):
        if above[y] != current:
            current = above[y]
            _enlarge(logits, current, before, across, upper)
            _enlarge(logits, min(current + 1, height - 1), before, across, lower)
        t = down[y]
        for x in range(width):
            best[uint64(x)] = upper[uint64(x)] + (lower[uint64(x)] - upper[uint64(x)]) * t
            label[uint64(x)] = 0
        for k in range(1, classes):
            at = k * width
            for x in range(width):
                value = upper[uint64(at + x)] + (lower[uint64(at + x)] - upper[uint64(at + x)]) * t
                better = value > best[uint64(x)]
                best[uint64(x)] = value if better else best[uint64(x)]
                label[uint64(x)] = k if better else label[uint64(x)]
        for x in range(width):
            out[y, x] = label[x]
