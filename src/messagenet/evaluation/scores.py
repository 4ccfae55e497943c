"""Scores a set of images one at a time.

An `Evaluator` holds counts only (a few K×K matrices, a histogram and one number per image), so its memory
does not grow with the size of the images. Evaluators of disjoint parts of a set can be added.

All scores of one method on one set of images, as a value that can be stored and compared.

`Scores` keeps the counts (confusion matrices, reliability histogram) and derives every figure from them, so a
stored file cannot contradict itself. A figure that does not exist (the IoU of a class that never occurs, the
calibration of a method without marginals) is None, which is also what strict JSON can hold.

Scores as rows of a comparison (one column per method) and as a table for the terminal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from messagenet.data.classes import VOID, Classes
from messagenet.errors import InputError, nearest
from messagenet.evaluation.boundary import WIDTHS, check_widths, trimap_iou, trimap_matrices
from messagenet.evaluation.calibration import BINS, Reliability, reliability
from messagenet.evaluation.confusion import (
    LIMITS,
    Array,
    IntArray,
    accuracy_by_size,
    as_labels,
    as_marginals,
    confusion_matrix,
    frequency_weighted_iou,
    iou_per_class,
    mean_iou,
    pixel_accuracy,
    size_matrices,
)


@dataclass(frozen=True)
class ImageScore:
    """One image: its name and the mean IoU over the classes that occur in it (None if all of it is void)."""

    name: str
    mean_iou: float | None


@dataclass(frozen=True)
class Band:
    """The trimap IoU at one width."""

    width: int
    mean_iou: float | None


@dataclass(frozen=True)
class SizeGroup:
    """Mean class accuracy where the true class covers at most this share of the image, and more than the one before."""

    largest_share: float
    accuracy: float | None


@dataclass(frozen=True)
class Scores:
    """What an evaluation found.

    Attributes:
        class_names: One name per class.
        confusion: Pixel counts, rows truth, columns prediction.
        bands: Mean IoU near boundaries, by width of the band.
        images: Each image in the order it was scored.
        reliability: Confidence histogram; None when only hard predictions were scored.
        sizes: Accuracy by the share of the image that a class covers.
    """

    class_names: tuple[str, ...]
    confusion: tuple[tuple[int, ...], ...]
    bands: tuple[Band, ...] = ()
    images: tuple[ImageScore, ...] = ()
    reliability: Reliability | None = None
    sizes: tuple[SizeGroup, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.class_names)
        if len(self.confusion) != size or any(len(row) != size for row in self.confusion):
            raise InputError(f"scores of {size} classes need a {size}×{size} confusion matrix")

    @property
    def matrix(self) -> IntArray:
        """The confusion matrix as an array, (K, K)."""
        return np.asarray(self.confusion, np.int64)

    @property
    def class_iou(self) -> tuple[float | None, ...]:
        """IoU of each class; None for a class absent from truth and prediction."""
        return tuple(number(value) for value in iou_per_class(self.matrix))

    @property
    def mean_iou(self) -> float | None:
        """Mean IoU over the classes that occur, as VOC defines it."""
        return number(mean_iou(self.matrix))

    @property
    def pixel_accuracy(self) -> float | None:
        """Share of scored pixels that are right."""
        return number(pixel_accuracy(self.matrix))

    @property
    def frequency_weighted_iou(self) -> float | None:
        """IoU weighted by the true share of each class."""
        return number(frequency_weighted_iou(self.matrix))

    @property
    def expected_calibration_error(self) -> float | None:
        """ECE of the marginals."""
        return number(self.reliability.expected_calibration_error) if self.reliability else None

    @property
    def negative_log_likelihood(self) -> float | None:
        """Mean −log P(true class) in nats."""
        return number(self.reliability.negative_log_likelihood) if self.reliability else None

    @property
    def brier_score(self) -> float | None:
        """Mean squared error of the marginals."""
        return number(self.reliability.brier_score) if self.reliability else None

    def ranked(self) -> tuple[ImageScore, ...]:
        """The images from worst to best; those without a score are left out."""
        scored = [(image.mean_iou, image) for image in self.images if image.mean_iou is not None]
        return tuple(image for _, image in sorted(scored, key=lambda pair: pair[0]))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `summary` repeats the derived figures for whoever reads the file."""
        summary = {
            "mean_iou": self.mean_iou,
            "pixel_accuracy": self.pixel_accuracy,
            "frequency_weighted_iou": self.frequency_weighted_iou,
            "class_iou": dict(zip(self.class_names, self.class_iou, strict=True)),
            "expected_calibration_error": self.expected_calibration_error,
            "negative_log_likelihood": self.negative_log_likelihood,
            "brier_score": self.brier_score,
            "images": len(self.images),
        }
        fields: dict[str, Any] = _listed(dataclasses.asdict(self))
        return {"summary": summary} | fields

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scores:
        """Reads what `to_dict` wrote; `summary` is recomputed, not trusted."""
        given = {key: value for key, value in values.items() if key != "summary"}
        names = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in names:
                raise InputError(f'scores have no entry "{key}"; {nearest(key, names)}')
        try:
            histogram = given.get("reliability")
            return cls(
                class_names=tuple(given["class_names"]),
                confusion=tuple(tuple(int(count) for count in row) for row in given["confusion"]),
                bands=tuple(Band(**band) for band in given.get("bands", ())),
                sizes=tuple(SizeGroup(**group) for group in given.get("sizes", ())),
                images=tuple(ImageScore(**image) for image in given.get("images", ())),
                reliability=None if histogram is None else _histogram(histogram),
            )
        except KeyError as missing:
            raise InputError(f"scores lack the entry {missing}; write them with Scores.to_dict") from None
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError) as wrong:
            raise InputError(f"scores cannot be read ({wrong}); write them with Scores.to_dict") from None


def number(value: float) -> float | None:
    """A float, or None for nan."""
    return None if math.isnan(value) else float(value)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, (tuple, list)) else value


def _histogram(values: Mapping[str, Any]) -> Reliability:
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Reliability(**fields)


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


@dataclass(frozen=True)
class Row:
    """One line of a comparison: a figure, its value for each method and how to show it.

    Attributes:
        label: What the figure is.
        values: One per method; None where a method lacks it.
        form: Format of a value, as `format` takes it.
        best: Which end is better: "highest", "lowest" or neither ("").
    """

    label: str
    values: tuple[float | None, ...]
    form: str = ".1%"
    best: str = "highest"

    @property
    def cells(self) -> tuple[str, ...]:
        """The values as text, an en dash for None."""
        return tuple("–" if value is None else format(value, self.form) for value in self.values)

    @property
    def winners(self) -> tuple[bool, ...]:
        """Which methods show the best value; none when there is nothing to compare."""
        cells = self.cells
        present = {cell: value for cell, value in zip(cells, self.values, strict=True) if value is not None}
        if not self.best or len(present) < 2:
            return (False,) * len(cells)
        winner = (max if self.best == "highest" else min)(present, key=lambda cell: present[cell])
        return tuple(cell == winner for cell in cells)


def class_rows(named: Mapping[str, Scores]) -> tuple[Row, ...]:
    """The IoU of each class, one column per method."""
    names = shared_classes(named)
    columns = [scores.class_iou for scores in named.values()]
    return tuple(Row(name, tuple(c[k] for c in columns)) for k, name in enumerate(names))


def summary_rows(named: Mapping[str, Scores]) -> tuple[Row, ...]:
    """The figures of the whole set, one column per method; those that no method has are left out."""
    methods = tuple(named.values())
    widths = sorted({band.width for scores in methods for band in scores.bands})
    bands = [{band.width: band.mean_iou for band in scores.bands} for scores in methods]
    limits = sorted({group.largest_share for scores in methods for group in scores.sizes})
    sizes = [{group.largest_share: group.accuracy for group in scores.sizes} for scores in methods]
    rows = [
        Row("Mean IoU", tuple(s.mean_iou for s in methods)),
        Row("Pixel accuracy", tuple(s.pixel_accuracy for s in methods)),
        Row("Frequency-weighted IoU", tuple(s.frequency_weighted_iou for s in methods)),
        *(Row(f"Trimap IoU, {w} px", tuple(b.get(w) for b in bands)) for w in widths),
        *(
            Row(f"Class accuracy, {_span(low, high)}", tuple(s.get(high) for s in sizes))
            for low, high in zip([0.0, *limits], limits, strict=False)
        ),
        Row("Calibration error (ECE)", tuple(s.expected_calibration_error for s in methods), best="lowest"),
        Row("Negative log-likelihood", tuple(s.negative_log_likelihood for s in methods), ".4f", "lowest"),
        Row("Brier score", tuple(s.brier_score for s in methods), ".4f", "lowest"),
        Row("Images", tuple(len(s.images) for s in methods), ",", ""),
    ]
    return tuple(row for row in rows if any(value is not None for value in row.values))


def _span(low: float, high: float) -> str:
    """Which sizes a group holds.

    >>> _span(0.0, 0.02), _span(0.02, 0.1), _span(0.1, 1.0)
    ('up to 2% of the image', '2–10%', 'above 10%')
    """
    if low == 0:
        return f"up to {high:.0%} of the image"
    return f"above {low:.0%}" if high == 1 else f"{100 * low:.0f}–{high:.0%}"


def scores_table(scores: Scores | Mapping[str, Scores], title: str = "") -> Table:
    """A table for the terminal: class IoU and the figures of the set, the best of several methods in bold."""
    named = as_named(scores)
    table = Table(title=title or None, title_justify="left")
    table.add_column("")
    for name in named:
        table.add_column(Text(name), justify="right")
    for rows in (class_rows(named), summary_rows(named)):
        for row in rows:
            cells = zip(row.cells, row.winners, strict=True)
            table.add_row(Text(row.label), *(Text(cell, style="bold" if won else "") for cell, won in cells))
        table.add_section()
    return table


def as_named(scores: Scores | Mapping[str, Scores]) -> Mapping[str, Scores]:
    """One `Scores` becomes a comparison of one; an empty comparison is an error."""
    named = {"score": scores} if isinstance(scores, Scores) else scores
    if not named:
        raise InputError("there are no scores to show; give at least one method")
    return named


def shared_classes(named: Mapping[str, Scores]) -> tuple[str, ...]:
    """The class names all methods have; comparing different ones is an error."""
    different = {scores.class_names for scores in named.values()}
    if len(different) != 1:
        raise InputError("the methods were scored on different classes; compare scores of one data set")
    return different.pop()
