"""Confusion matrix and intersection over union, as PASCAL VOC defines them.

One matrix C counts pixels over the whole set, C[t, p] = #{pixels of true class t predicted as p}, and

    IoU_k = C[k, k] / (Σ_p C[k, p] + Σ_t C[t, k] − C[k, k]),     mean IoU = mean of IoU_k.

Void pixels are not counted. The mean runs over all classes, background included; a class that occurs neither
in the truth nor in the prediction has no IoU (nan) and is left out of it. Averaging is over the set, not
over images: matrices are added first, so `Confusion` can be filled in any order and in pieces.

Everingham et al., "The PASCAL Visual Object Classes Challenge: A Retrospective", IJCV 2015.

Label maps and marginals at the border of the package: torch or numpy in, one checked kind out.

Scores are counts over pixels, so labels become NumPy int64 arrays (on the CPU, after the class axis is gone)
and marginals stay a torch tensor on whatever device produced them.

Accuracy by size: are small objects found as well as large ones?

Every class that occurs in an image covers a share of it. Pixels are grouped by the share that their true class has in
their image; in each group, every class has the share of its pixels that were recognised, and the group's figure is the
mean over the classes:

    share(p) = |{q : truth(q) = truth(p)}| / pixels,    accuracy_g = mean_k (right pixels of k in g / pixels of k in g)

Shares are of all pixels of the image, void ones too.
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
