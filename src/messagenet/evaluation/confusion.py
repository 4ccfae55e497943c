"""Confusion matrix, and what follows from it: IoU as PASCAL VOC defines it, and accuracy by object size.

    C[t, p] = #{pixels of class t predicted as p}   over the whole set, void pixels excluded

    IoU_k = C[k, k] / (Σ_p C[k, p] + Σ_t C[t, k] − C[k, k]),     mean IoU = mean_k IoU_k

The mean runs over all classes, background included, except those absent from both target and prediction, whose IoU is
nan. Counts are summed over images before any ratio is taken, so a set can be scored in any order and in parts.

Accuracy by size groups pixels by the share of the image that their class covers (void pixels count as image):

    share(p) = #{q : target(q) = target(p)} / #pixels
    accuracy_g = mean_k #{correct pixels of class k in group g} / #{pixels of class k in group g}

Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective", IJCV 2015.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from messagenet.data.classes import VOID
from messagenet.errors import InputError

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Array: TypeAlias = npt.NDArray[Any] | Tensor  # a tensor on any device

SIZE_LIMITS = (0.02, 0.1, 1.0)  # largest share of the image in each size group: small, medium, large


class Confusion:
    """Confusion matrix accumulated over images.

    >>> confusion = Confusion(num_classes=2)
    >>> confusion.update(np.array([0, 1]), np.array([0, 0]))
    >>> confusion.update(np.array([1, 1]), np.array([1, 255]))
    >>> confusion.matrix
    array([[1, 1],
           [0, 1]])
    """

    def __init__(self, num_classes: int, void: int = VOID) -> None:
        self.num_classes, self.void = num_classes, void
        self.matrix: IntArray = np.zeros((num_classes, num_classes), np.int64)

    def update(self, predicted: Array, target: Array) -> None:
        """Adds the pixels of one image or batch."""
        self.matrix += confusion_matrix(predicted, target, self.num_classes, self.void)


def confusion_matrix(predicted: Array, target: Array, num_classes: int, void: int = VOID) -> IntArray:
    """Pixel counts (K, K) by target class (rows) and predicted class (columns); void targets are skipped.

    >>> confusion_matrix(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 255]), num_classes=2)
    array([[1, 1],
           [0, 1]])
    """
    cells, _ = confusion_cells(predicted, target, num_classes, void)
    counts = np.bincount(cells, minlength=num_classes * num_classes).astype(np.int64, copy=False)
    return counts.reshape(num_classes, num_classes)


def iou_per_class(matrix: IntArray) -> FloatArray:
    """IoU of each class, (..., K) from (..., K, K); nan for a class absent from both target and prediction.

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
    return _mean_without_nan(iou_per_class(matrix))


def pixel_accuracy(matrix: IntArray) -> float:
    """Share of scored pixels that are correct; nan without any.

    >>> pixel_accuracy(np.array([[3, 1], [0, 4]]))
    0.875
    """
    return float(ratio(np.trace(matrix), matrix.sum()))


def frequency_weighted_iou(matrix: IntArray) -> float:
    """IoU averaged with each class's share of the target as weight; nan without pixels.

    >>> frequency_weighted_iou(np.array([[2, 2], [0, 4]]))
    0.5833333333333333
    """
    weights = matrix.sum(axis=1)
    iou = np.nan_to_num(iou_per_class(matrix))
    return float(ratio(weights @ iou, weights.sum()))


def size_matrices(predicted: Array, target: Array, num_classes: int, void: int = VOID) -> IntArray:
    """Confusion matrix of each size group of one image, (groups, K, K).

    >>> target = np.zeros((10, 10), int)
    >>> target[0, 0] = 1
    >>> size_matrices(target, target, num_classes=2)[:, 1, 1]
    array([1, 0, 0])
    """
    matrix = confusion_matrix(predicted, target, num_classes, void)
    labels = label_array(target, "target")
    shares = np.bincount(labels[labels != void].ravel(), minlength=num_classes) / max(labels.size, 1)
    groups = np.searchsorted(SIZE_LIMITS, shares).clip(max=len(SIZE_LIMITS) - 1)  # (K,)
    split: IntArray = np.zeros((len(SIZE_LIMITS), *matrix.shape), np.int64)
    split[groups, np.arange(num_classes)] = matrix  # all pixels of a class, a row, are in one group
    return split


def accuracy_by_size(matrices: IntArray) -> list[float]:
    """Mean class accuracy of each size group, from (groups, K, K); nan for a group without pixels."""
    return [_mean_without_nan(ratio(np.diag(matrix), matrix.sum(axis=1))) for matrix in matrices]


def confusion_cells(predicted: Array, target: Array, num_classes: int, void: int = VOID) -> tuple[IntArray, IntArray]:
    """The cell t·K + p of the confusion matrix of each scored pixel, (n,), and the flat index of the pixel, (n,)."""
    if num_classes < 1:
        raise InputError(f"num_classes is {num_classes}; give the number of classes, at least 1")
    p, t = label_array(predicted, "predicted"), label_array(target, "target")
    check_same_size(p.shape, t.shape)
    scored = np.flatnonzero(t != void)
    p, t = p.ravel()[scored], t.ravel()[scored]
    for name, labels in (("predicted", p), ("target", t)):
        if labels.size and not 0 <= labels.min() <= labels.max() < num_classes:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise InputError(
                f"{name} holds label {wrong}, outside 0…{num_classes - 1} (void is {void}); "
                "check num_classes and the ids in the masks"
            )
    return t * num_classes + p, scored


def label_array(labels: Array, name: str) -> IntArray:
    """A label map of any integer type as int64; `name` is what an error calls it.

    >>> label_array(torch.tensor([[1, 255]], dtype=torch.uint8), "target")
    array([[  1, 255]])
    """
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.dtype.kind not in "biu":
        raise InputError(f"{name} must hold integer class ids, not {array.dtype}; take the argmax first")
    return array.astype(np.int64, copy=False)


def marginals_tensor(marginals: Array) -> Tensor:
    """Marginals (K, height, width) as a float32 or float64 tensor; half precision becomes float32."""
    tensor = torch.as_tensor(marginals).detach()
    if tensor.ndim != 3:
        shape = tuple(tensor.shape)
        raise InputError(f"marginals must be (classes, height, width), not {shape}; pass one image at a time")
    if not tensor.is_floating_point():
        raise InputError(f"marginals must be floating point, not {tensor.dtype}; pass labels as predicted=")
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def check_same_size(predicted: tuple[int, ...], target: tuple[int, ...]) -> None:
    """Raises unless prediction and target cover the same pixels."""
    if tuple(predicted) != tuple(target):
        raise InputError(
            f"prediction {tuple(predicted)} and target {tuple(target)} differ in size; "
            "resize the prediction to the original image"
        )


def ratio(numerator: IntArray | FloatArray, denominator: IntArray) -> FloatArray:
    """Quotient, nan where the denominator is zero."""
    top, bottom = np.asarray(numerator, np.float64), np.asarray(denominator, np.float64)
    result: FloatArray = np.divide(top, bottom, out=np.full(top.shape, np.nan), where=bottom > 0)
    return result


def _mean_without_nan(values: FloatArray) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else float("nan")
