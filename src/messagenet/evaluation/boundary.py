"""Trimap IoU: accuracy near object boundaries.

    d(p) = min { ‖p − q‖₂ : label(q) ≠ label(p) },     band_w = { p : d(p) ≤ w, p not void }

The trimap IoU of width w is the mean IoU over band_w, from one confusion matrix per width over the whole set. Void
counts as a label in d but is never scored: where objects are outlined in void (PASCAL VOC) the band is DeepLab's,
elsewhere it is that of Kohli et al. The image frame is not a boundary.

d is exact and takes O(pixels): the separable distance transform of Felzenszwalb and Huttenlocher, first down the
columns, then a lower envelope of parabolas along each run of equal labels in a row, bounded by zeros at both ends.

Kohli, Ladický, Torr, "Robust higher order potentials for enforcing label consistency", IJCV 2009.
Chen et al., "Semantic image segmentation with deep convolutional nets and fully connected CRFs", ICLR 2015.
Felzenszwalb, Huttenlocher, "Distance transforms of sampled functions", Theory of Computing 2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.evaluation.confusion import Array, FloatArray, IntArray, confusion_cells, label_array, mean_iou

WIDTHS = (1, 2, 4, 8, 16, 32)  # default band widths in pixels


def boundary_distance(labels: Array) -> FloatArray:
    """Euclidean distance from each pixel of (height, width) to the nearest with another label; inf if there is none.

    >>> boundary_distance(np.array([[0, 0, 0, 1, 1]]))
    array([[3., 2., 1., 1., 2.]])
    """
    from messagenet.evaluation.kernels import column_distance_squared, distance_squared

    array = label_array(labels, "labels")
    if array.ndim != 2:
        raise InputError(f"labels must be (height, width), not {array.shape}; pass one image at a time")
    squared: FloatArray = distance_squared(array, column_distance_squared(array))
    return np.sqrt(squared)


def trimap_matrices(
    predicted: Array, target: Array, num_classes: int, widths: Sequence[int] = WIDTHS, void: int = VOID
) -> IntArray:
    """Confusion matrix inside the band of each width, (widths, K, K).

    >>> target = np.array([[0, 0, 0, 1, 1, 1]])
    >>> trimap_matrices(np.array([[0, 0, 1, 1, 1, 1]]), target, num_classes=2, widths=(1, 2))
    array([[[0, 1],
            [0, 1]],
           [[1, 1],
            [0, 2]]])
    """
    bands = check_widths(widths)
    cells, scored = confusion_cells(predicted, target, num_classes, void)
    distance = boundary_distance(target).ravel()[scored]
    narrowest = np.searchsorted(bands, distance)  # index of the first band that holds the pixel
    inside = narrowest < len(bands)
    size = num_classes * num_classes
    counts = np.bincount(narrowest[inside] * size + cells[inside], minlength=len(bands) * size)
    rings = counts.reshape(len(bands), num_classes, num_classes)
    return np.cumsum(rings, axis=0, dtype=np.int64)


def trimap_iou(matrices: IntArray) -> FloatArray:
    """Mean IoU of each band, (widths,), from (widths, K, K); nan for a band without pixels."""
    return np.array([mean_iou(matrix) for matrix in matrices], np.float64)


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths as a tuple; raises unless they are positive and increasing."""
    bands = tuple(int(width) for width in widths)
    if any(width < 1 for width in bands) or any(a >= b for a, b in pairwise(bands)):
        raise InputError(f"band widths {bands} must be positive and increasing, such as 1, 2, 4, 8")
    return bands
