"""Trimap IoU: how good the prediction is near object boundaries.

    d(p) = min { ‖p − q‖₂ : label(q) ≠ label(p) },     band_w = { p : d(p) ≤ w, p not void }

and the trimap IoU of width w is the mean IoU over the pixels of band_w alone, one confusion matrix per width
over the whole set. Width 1 is one pixel on either side of every boundary; as w grows it becomes the ordinary
IoU (of the images that have a boundary).

Void is a label here like any other: the border between an object and void counts as a boundary, void pixels
themselves are never scored. In PASCAL VOC, where objects are outlined in void, the band is then the one of
DeepLab (a strip around the void labels); in data without void it is the one of Kohli et al. (a strip around
the boundaries of the objects). The frame of the image is no boundary.

d is computed exactly in O(pixels) by the separable distance transform of Felzenszwalb and Huttenlocher: down
the columns, then a lower envelope of parabolas along each row. Each run of one label in a row is an envelope
of its own, between two zeros where the run ends, which makes one pass serve all labels at once.

Kohli, Ladický, Torr, "Robust higher order potentials for enforcing label consistency", IJCV 2009.
Chen et al., "Semantic image segmentation with deep convolutional nets and fully connected CRFs", ICLR 2015.
Felzenszwalb, Huttenlocher, "Distance transforms of sampled functions", Theory of Computing 2012.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numba
import numpy as np

from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.evaluation.confusion import Array, FloatArray, IntArray, as_labels, mean_iou, scored_pairs

WIDTHS = (1, 2, 4, 8, 16, 32)
"""Band widths in pixels scored unless told otherwise."""


def boundary_distance(labels: Array) -> FloatArray:
    """Euclidean distance from each pixel to the nearest one with another label; inf if there is none.

    >>> boundary_distance(np.array([[0, 0, 0, 1, 1]]))
    array([[3., 2., 1., 1., 2.]])
    """
    array = as_labels(labels, "labels")
    if array.ndim != 2:
        raise InputError(f"labels must be (height, width), not {array.shape}; pass one image at a time")
    squared: FloatArray = _along_rows(array, _along_columns(array))
    return np.sqrt(squared)


def trimap_matrices(
    predicted: Array, truth: Array, num_classes: int, widths: Sequence[int] = WIDTHS, void: int = VOID
) -> IntArray:
    """Confusion matrix inside the band of each width, (widths, K, K).

    >>> truth = np.array([[0, 0, 0, 1, 1, 1]])
    >>> trimap_matrices(np.array([[0, 0, 1, 1, 1, 1]]), truth, num_classes=2, widths=(1, 2))
    array([[[0, 1],
            [0, 1]],
           [[1, 1],
            [0, 2]]])
    """
    bands = check_widths(widths)
    cells, scored = scored_pairs(predicted, truth, num_classes, void)
    distance = boundary_distance(truth).ravel()[scored]
    narrowest = np.searchsorted(bands, distance)  # index of the first band that holds the pixel
    inside = narrowest < len(bands)
    size = num_classes * num_classes
    counts = np.bincount(narrowest[inside] * size + cells[inside], minlength=len(bands) * size)
    rings = counts.reshape(len(bands), num_classes, num_classes)
    return np.cumsum(rings, axis=0, dtype=np.int64)


def trimap_iou(matrices: IntArray) -> FloatArray:
    """Mean IoU of each band, (widths,); nan for a band without pixels."""
    return np.array([mean_iou(matrix) for matrix in matrices], np.float64)


def check_widths(widths: Sequence[int]) -> tuple[int, ...]:
    """Raises unless the widths are positive and increasing."""
    bands = tuple(int(width) for width in widths)
    if any(width < 1 for width in bands) or any(a >= b for a, b in pairwise(bands)):
        raise InputError(f"band widths {bands} must be positive and increasing, such as 1, 2, 4, 8")
    return bands


@numba.njit(cache=True, nogil=True)
def _along_columns(labels: IntArray) -> FloatArray:
    """Squared distance to the nearest other label in the same column."""
    height, width = labels.shape
    near = np.full((height, width), np.inf)
    for y in range(1, height):
        for x in range(width):
            near[y, x] = 1.0 if labels[y, x] != labels[y - 1, x] else near[y - 1, x] + 1.0
    for y in range(height - 2, -1, -1):
        for x in range(width):
            back = 1.0 if labels[y, x] != labels[y + 1, x] else near[y + 1, x] + 1.0
            near[y, x] = min(near[y, x], back)
    squared: FloatArray = near * near
    return squared


@numba.njit(cache=True, nogil=True)
def _along_rows(labels: IntArray, height_squared: FloatArray) -> FloatArray:
    """Lower envelope of the parabolas (x − v)² + h(v) over each run of equal labels in each row.

    `vertex` holds the x of the parabolas on the envelope, `since` the x from which each is the lowest.
    """
    rows, columns = labels.shape
    result = np.empty((rows, columns))
    vertex = np.empty(columns + 2, np.int64)
    lift = np.empty(columns + 2)
    since = np.empty(columns + 2)
    for y in range(rows):
        start = 0
        while start < columns:
            stop = start
            while stop < columns and labels[y, stop] == labels[y, start]:
                stop += 1
            last = -1
            for v in range(max(start - 1, 0), min(stop + 1, columns)):
                h = height_squared[y, v] if start <= v < stop else 0.0
                if h == np.inf:
                    continue
                cross = -np.inf
                while last >= 0:
                    u = vertex[last]
                    cross = ((h + v * v) - (lift[last] + u * u)) / (2.0 * (v - u))
                    if cross > since[last]:
                        break
                    last -= 1
                    cross = -np.inf
                last += 1
                vertex[last], lift[last], since[last] = v, h, cross
            if last < 0:
                result[y, start:stop] = np.inf
            else:
                lowest = 0
                for x in range(start, stop):
                    while lowest < last and since[lowest + 1] < x:
                        lowest += 1
                    result[y, x] = (x - vertex[lowest]) ** 2 + lift[lowest]
            start = stop
    return result
