"""Confusion matrix and intersection over union, as PASCAL VOC defines them.

One matrix C counts pixels over the whole set, C[t, p] = #{pixels of true class t predicted as p}, and

    IoU_k = C[k, k] / (Σ_p C[k, p] + Σ_t C[t, k] − C[k, k]),     mean IoU = mean of IoU_k.

Void pixels are not counted. The mean runs over all classes, background included; a class that occurs neither
in the truth nor in the prediction has no IoU (nan) and is left out of it. Averaging is over the set, not
over images: matrices are added first, so `Confusion` can be filled in any order and in pieces.

Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective", IJCV 2015.
"""

from __future__ import annotations

import numpy as np

from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.evaluation.arrays import Array, FloatArray, IntArray, as_labels, same_shape


def scored_pairs(
    predicted: Array, truth: Array, num_classes: int, void: int = VOID
) -> tuple[IntArray, IntArray]:
    """Numbers each scored pixel by its cell t·K + p of the confusion matrix.

    Returns:
        The cell numbers, and the flat positions of the pixels they belong to (those that are not void).
    """
    if num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; give the number of classes, at least 1")
    p, t = as_labels(predicted, "predicted"), as_labels(truth, "truth")
    same_shape(p.shape, t.shape)
    scored = np.flatnonzero(t != void)
    p, t = p.ravel()[scored], t.ravel()[scored]
    for name, labels in (("predicted", p), ("truth", t)):
        if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise InputError(
                f"{name} holds label {wrong}, outside 0…{num_classes - 1} (void is {void}); "
                "check num_classes and how the masks are numbered"
            )
    return t * num_classes + p, scored


def confusion_matrix(predicted: Array, truth: Array, num_classes: int, void: int = VOID) -> IntArray:
    """Counts pixels by true class (rows) and predicted class (columns); void pixels are left out.

    >>> confusion_matrix(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 255]), num_classes=2)
    array([[1, 1],
           [0, 1]])
    """
    cells, _ = scored_pairs(predicted, truth, num_classes, void)
    counts = np.bincount(cells, minlength=num_classes * num_classes).astype(np.int64, copy=False)
    return counts.reshape(num_classes, num_classes)


def iou_per_class(matrix: IntArray) -> FloatArray:
    """Intersection over union of each class; nan for a class absent from both truth and prediction.

    Leading axes are kept, so a stack (..., K, K) of matrices gives (..., K).

    >>> iou_per_class(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]]))
    array([0.5, 0.5, nan])
    """
    intersection = np.diagonal(matrix, axis1=-2, axis2=-1)  # (..., K)
    union = matrix.sum(axis=-1) + matrix.sum(axis=-2) - intersection
    return ratio(intersection, union)


def mean_iou(matrix: IntArray) -> float:
    """Mean over the classes that have an IoU; nan when none has.

    >>> mean_iou(np.array([[1, 1, 0], [0, 1, 0], [0, 0, 0]]))
    0.5
    """
    iou = iou_per_class(matrix)
    present = iou[~np.isnan(iou)]
    return float(present.mean()) if present.size else float("nan")


def pixel_accuracy(matrix: IntArray) -> float:
    """Share of scored pixels that are right; nan without any.

    >>> pixel_accuracy(np.array([[3, 1], [0, 4]]))
    0.875
    """
    return float(ratio(np.trace(matrix), matrix.sum()))


def frequency_weighted_iou(matrix: IntArray) -> float:
    """IoU averaged with the true share of each class as weight; nan without pixels.

    >>> frequency_weighted_iou(np.array([[2, 2], [0, 4]]))
    0.5833333333333333
    """
    weights = matrix.sum(axis=1)
    iou = np.nan_to_num(iou_per_class(matrix))
    return float(ratio(weights @ iou, weights.sum()))


def ratio(top: IntArray | FloatArray, bottom: IntArray) -> FloatArray:
    """Quotient, nan where the denominator is zero."""
    numerator, denominator = np.asarray(top, np.float64), np.asarray(bottom, np.float64)
    absent = np.full(numerator.shape, np.nan)
    result: FloatArray = np.divide(numerator, denominator, out=absent, where=denominator > 0)
    return result


class Confusion:
    """A confusion matrix that grows image by image.

    >>> whole = Confusion(num_classes=2)
    >>> whole.update(np.array([0, 1]), np.array([0, 0]))
    >>> whole.update(np.array([1, 1]), np.array([1, 255]))
    >>> whole.matrix
    array([[1, 1],
           [0, 1]])
    """

    def __init__(self, num_classes: int, void: int = VOID) -> None:
        self.num_classes = num_classes
        self.void = void
        self.matrix: IntArray = np.zeros((num_classes, num_classes), np.int64)

    def update(self, predicted: Array, truth: Array) -> None:
        """Adds the pixels of one image or batch."""
        self.matrix += confusion_matrix(predicted, truth, self.num_classes, self.void)

    def __add__(self, other: Confusion) -> Confusion:
        if self.num_classes != other.num_classes:
            raise InputError(
                f"cannot add confusions of {self.num_classes} and {other.num_classes} classes; "
                "score both with the same classes"
            )
        total = Confusion(self.num_classes, self.void)
        total.matrix = self.matrix + other.matrix
        return total
