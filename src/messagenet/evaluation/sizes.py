"""Accuracy by size: are small objects found as well as large ones?

Every class that occurs in an image covers a share of it. Pixels are grouped by the share that their true class has in
their image; in each group, every class has the share of its pixels that were recognised, and the group's figure is the
mean over the classes:

    share(p) = |{q : truth(q) = truth(p)}| / pixels,    accuracy_g = mean_k (right pixels of k in g / pixels of k in g)

Shares are of all pixels of the image, void ones too.
"""

from __future__ import annotations

import numpy as np

from messagenet.data.classes import VOID
from messagenet.evaluation.arrays import Array, IntArray, as_labels
from messagenet.evaluation.confusion import confusion_matrix

LIMITS = (0.02, 0.1, 1.0)
"""Largest share of the image in each group: small, medium, large."""


def size_matrices(predicted: Array, truth: Array, num_classes: int, void: int = VOID) -> IntArray:
    """The confusion matrix of each group of sizes, (groups, K, K).

    A class is in one group for the whole image, so each row of the image's matrix goes to one of them.

    >>> truth = np.zeros((10, 10), int)
    >>> truth[0, 0] = 1
    >>> size_matrices(truth, truth, num_classes=2)[:, 1, 1]
    array([1, 0, 0])
    """
    matrix = confusion_matrix(predicted, truth, num_classes, void)
    labels = as_labels(truth, "truth")
    shares = np.bincount(labels[labels != void].ravel(), minlength=num_classes) / max(labels.size, 1)
    groups = np.searchsorted(LIMITS, shares).clip(max=len(LIMITS) - 1)  # of each class
    split: IntArray = np.zeros((len(LIMITS), *matrix.shape), np.int64)
    split[groups, np.arange(num_classes)] = matrix
    return split


def accuracy_by_size(matrices: IntArray) -> list[float]:
    """The mean accuracy over the classes of each group; nan for a group without pixels."""
    found = []
    for matrix in matrices:
        pixels = matrix.sum(1)
        seen = pixels > 0
        found.append(float((np.diag(matrix)[seen] / pixels[seen]).mean()) if seen.any() else float("nan"))
    return found
