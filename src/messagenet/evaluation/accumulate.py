"""Scores a set of images one at a time.

An `Evaluator` holds counts only (a few K×K matrices, a histogram and one number per image), so its memory
does not grow with the size of the images. Evaluators of disjoint parts of a set can be added.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from messagenet.data.classes import VOID, Classes
from messagenet.errors import InputError
from messagenet.evaluation.arrays import Array, IntArray, as_labels, as_marginals
from messagenet.evaluation.boundary import WIDTHS, check_widths, trimap_iou, trimap_matrices
from messagenet.evaluation.calibration import BINS, Reliability, reliability
from messagenet.evaluation.confusion import confusion_matrix, mean_iou
from messagenet.evaluation.sizes import LIMITS, accuracy_by_size, size_matrices
from messagenet.evaluation.summary import Band, ImageScore, Scores, SizeGroup, number


class Evaluator:
    """Collects every score of one method over a set of images.

    Args:
        classes: What the labels mean.
        widths: Widths in pixels of the bands around boundaries; may be empty.
        bins: Number of confidence bins.
        void: Label of the pixels that are not scored.

    >>> evaluator = Evaluator(Classes(names=("sky", "sea"), colours=((90, 160, 220), (20, 60, 120))))
    >>> evaluator.add("beach", None, np.array([[0, 0, 1, 1]]), predicted=np.array([[0, 1, 1, 1]])).name
    'beach'
    >>> evaluator.scores().class_iou
    (0.5, 0.6666666666666666)
    """

    def __init__(
        self, classes: Classes, widths: Sequence[int] = WIDTHS, bins: int = BINS, void: int = VOID
    ) -> None:
        size = classes.num_classes
        self.classes = classes
        self.widths = check_widths(widths)
        self.bins = bins
        self.void = void
        self._confusion: IntArray = np.zeros((size, size), np.int64)
        self._bands: IntArray = np.zeros((len(self.widths), size, size), np.int64)
        self._sizes: IntArray = np.zeros((len(LIMITS), size, size), np.int64)
        self._reliability = Reliability.empty(bins)
        self._soft: set[bool] = set()
        self._images: dict[str, float | None] = {}

    def add(
        self, name: str, marginals: Array | None, truth: Array, *, predicted: Array | None = None
    ) -> ImageScore:
        """Scores one image; when it raises, nothing was counted.

        Args:
            name: Identifies the image in the per-image scores; must be new.
            marginals: (K, height, width) probabilities, or None when only labels were predicted.
            truth: (height, width) labels.
            predicted: (height, width) labels. With marginals it may be left out (their argmax is taken);
                given beside them, IoU is that of the labels and calibration that of the marginals.
        """
        if name in self._images:
            raise InputError(f'image "{name}" was scored before; give each image a name of its own')
        soft = marginals is not None
        if self._soft - {soft}:
            raise InputError(f'give marginals for all images or for none; "{name}" differs from those before')
        answer = as_labels(truth, "truth")
        added = Reliability.empty(self.bins)
        if marginals is not None:
            probabilities = as_marginals(marginals)
            self._check_classes(name, probabilities.shape[0])
            added = reliability(probabilities, answer, self.bins, self.void)
            predicted = probabilities.max(dim=0).indices if predicted is None else predicted
        if predicted is None:
            raise InputError(f'image "{name}" has no prediction; give marginals or predicted=')
        labels = as_labels(predicted, "predicted")
        matrix = confusion_matrix(labels, answer, self.classes.num_classes, self.void)
        bands = trimap_matrices(labels, answer, self.classes.num_classes, self.widths, self.void)
        sizes = size_matrices(labels, answer, self.classes.num_classes, self.void)

        self._confusion += matrix
        self._bands += bands
        self._sizes += sizes
        self._reliability += added
        self._soft.add(soft)
        self._images[name] = number(mean_iou(matrix))
        return ImageScore(name, self._images[name])

    def scores(self) -> Scores:
        """Everything found so far."""
        curve = zip(self.widths, trimap_iou(self._bands), strict=True)
        return Scores(
            class_names=tuple(self.classes.names),
            confusion=tuple(tuple(row) for row in self._confusion.tolist()),
            bands=tuple(Band(width, number(iou)) for width, iou in curve),
            sizes=tuple(
                SizeGroup(limit, number(accuracy))
                for limit, accuracy in zip(LIMITS, accuracy_by_size(self._sizes), strict=True)
            ),
            images=tuple(ImageScore(name, iou) for name, iou in self._images.items()),
            reliability=self._reliability if True in self._soft else None,
        )

    def __add__(self, other: Evaluator) -> Evaluator:
        ours = (self.classes, self.widths, self.bins, self.void)
        if ours != (other.classes, other.widths, other.bins, other.void):
            raise InputError("cannot add evaluators of different classes, widths or bins; build both alike")
        if twice := self._images.keys() & other._images.keys():
            raise InputError(f'image "{min(twice)}" is in both evaluators; score each image once')
        if len(self._soft | other._soft) > 1:
            raise InputError("cannot add scores with and without marginals; give marginals for all or none")
        both = Evaluator(self.classes, self.widths, self.bins, self.void)
        both._confusion = self._confusion + other._confusion
        both._bands = self._bands + other._bands
        both._sizes = self._sizes + other._sizes
        both._reliability = self._reliability + other._reliability
        both._soft = self._soft | other._soft
        both._images = self._images | other._images
        return both

    def _check_classes(self, name: str, found: int) -> None:
        if found != self.classes.num_classes:
            raise InputError(
                f'marginals of "{name}" have {found} classes, not {self.classes.num_classes}; '
                "score with the classes the model was trained on"
            )
