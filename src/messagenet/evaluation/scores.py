"""Evaluator and scores: counts accumulated image by image, and every figure derived from them.

`Scores` derives its figures from counts, so a saved file is consistent. An undefined figure (the IoU of a class that
never occurs, the calibration of a method without marginals) is None, null in JSON.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from messagenet.data.classes import VOID, Classes
from messagenet.errors import InputError, nearest
from messagenet.evaluation.boundary import WIDTHS, check_widths, trimap_iou, trimap_matrices
from messagenet.evaluation.calibration import BINS, Reliability, reliability
from messagenet.evaluation.confusion import (
    SIZE_LIMITS,
    Array,
    IntArray,
    accuracy_by_size,
    frequency_weighted_iou,
    iou_per_class,
    label_array,
    marginals_tensor,
    mean_iou,
    pixel_accuracy,
    size_matrices,
)

if TYPE_CHECKING:
    from rich.table import Table


class Evaluator:
    """Scores one method image by image. Evaluators of disjoint parts of a set add up.

    Args:
        classes: The classes of the labels.
        widths: Widths in pixels of the bands around boundaries; may be empty.
        bins: Number of confidence bins.
        void: Label of the pixels that are not scored.

    >>> evaluator = Evaluator(Classes(names=("sky", "sea"), colours=((90, 160, 220), (20, 60, 120))))
    >>> evaluator.add("beach", None, np.array([[0, 0, 1, 1]]), predicted=np.array([[0, 1, 1, 1]])).name
    'beach'
    >>> evaluator.scores().class_iou
    (0.5, 0.6666666666666666)
    """

    def __init__(self, classes: Classes, widths: Sequence[int] = WIDTHS, bins: int = BINS, void: int = VOID) -> None:
        self.classes, self.widths, self.bins, self.void = classes, check_widths(widths), bins, void
        shape = (classes.num_classes, classes.num_classes)
        self._bands: IntArray = np.zeros((len(self.widths), *shape), np.int64)
        self._sizes: IntArray = np.zeros((len(SIZE_LIMITS), *shape), np.int64)
        self._reliability = Reliability.empty(bins)
        self._with_marginals: set[bool] = set()
        self._images: dict[str, float | None] = {}

    def add(self, name: str, marginals: Array | None, target: Array, *, predicted: Array | None = None) -> ImageScore:
        """Scores one image. If it raises, nothing was counted.

        Args:
            name: Identifies the image in the per-image scores; must be new.
            marginals: (K, height, width) probabilities, or None if the method predicts labels only.
            target: (height, width) labels.
            predicted: (height, width) labels for the IoU. Default: argmax of the marginals. Calibration uses marginals.
        """
        if name in self._images:
            raise InputError(f'image "{name}" was scored before; give every image its own name')
        has_marginals = marginals is not None
        if self._with_marginals - {has_marginals}:
            raise InputError(f'give marginals for all images or for none; "{name}" differs from the images before it')
        num_classes = self.classes.num_classes
        target = label_array(target, "target")
        histogram = Reliability.empty(self.bins)
        if marginals is not None:
            p = marginals_tensor(marginals)
            if p.shape[0] != num_classes:
                raise InputError(
                    f'marginals of "{name}" have {p.shape[0]} classes, not {num_classes}; '
                    "score with the classes the model was trained on"
                )
            histogram = reliability(p, target, self.bins, self.void)
            predicted = p.max(dim=0).indices if predicted is None else predicted
        if predicted is None:
            raise InputError(f'image "{name}" has no prediction; give marginals or predicted=')
        labels = label_array(predicted, "predicted")
        bands = trimap_matrices(labels, target, num_classes, self.widths, self.void)
        sizes = size_matrices(labels, target, num_classes, self.void)
        self._bands += bands
        self._sizes += sizes
        self._reliability += histogram
        self._with_marginals.add(has_marginals)
        self._images[name] = _none_if_nan(mean_iou(sizes.sum(0)))
        return ImageScore(name, self._images[name])

    def scores(self) -> Scores:
        """The scores of all images added so far."""
        bands = zip(self.widths, trimap_iou(self._bands), strict=True)
        sizes = zip(SIZE_LIMITS, accuracy_by_size(self._sizes), strict=True)
        return Scores(
            class_names=tuple(self.classes.names),
            confusion=tuple(tuple(row) for row in self._sizes.sum(0).tolist()),
            bands=tuple(Band(width, _none_if_nan(iou)) for width, iou in bands),
            sizes=tuple(SizeGroup(limit, _none_if_nan(accuracy)) for limit, accuracy in sizes),
            images=tuple(ImageScore(name, iou) for name, iou in self._images.items()),
            reliability=self._reliability if True in self._with_marginals else None,
        )

    def __add__(self, other: Evaluator) -> Evaluator:
        ours = (self.classes, self.widths, self.bins, self.void)
        if ours != (other.classes, other.widths, other.bins, other.void):
            raise InputError("cannot add evaluators of different classes, widths or bins; build both alike")
        if twice := self._images.keys() & other._images.keys():
            raise InputError(f'image "{min(twice)}" is in both evaluators; score each image once')
        if len(self._with_marginals | other._with_marginals) > 1:
            raise InputError("cannot add scores with and without marginals; give marginals for all or none")
        total = Evaluator(*ours)
        total._bands = self._bands + other._bands
        total._sizes = self._sizes + other._sizes
        total._reliability = self._reliability + other._reliability
        total._with_marginals = self._with_marginals | other._with_marginals
        total._images = self._images | other._images
        return total


@dataclass(frozen=True)
class ImageScore:
    """Name of an image and its mean IoU over the classes that occur in it (None if the image is all void)."""

    name: str
    mean_iou: float | None


@dataclass(frozen=True)
class Band:
    """Trimap IoU at one width."""

    width: int
    mean_iou: float | None


@dataclass(frozen=True)
class SizeGroup:
    """Mean accuracy of the classes that cover at most this share of their image, and more than the group before."""

    largest_share: float
    accuracy: float | None


@dataclass(frozen=True)
class Scores:
    """All scores of one method on one set of images.

    Attributes:
        class_names: One name per class.
        confusion: Pixel counts, target classes as rows, predicted classes as columns.
        bands: Mean IoU near boundaries, by width of the band.
        images: Per-image scores in the order of evaluation.
        reliability: Confidence histogram; None if only labels were scored.
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
        """IoU of each class; None for a class absent from target and prediction."""
        return tuple(_none_if_nan(iou) for iou in iou_per_class(self.matrix))

    @property
    def mean_iou(self) -> float | None:
        """Mean IoU over the classes that occur, as VOC defines it."""
        return _none_if_nan(mean_iou(self.matrix))

    @property
    def pixel_accuracy(self) -> float | None:
        """Share of scored pixels that are correct."""
        return _none_if_nan(pixel_accuracy(self.matrix))

    @property
    def frequency_weighted_iou(self) -> float | None:
        """IoU weighted by each class's share of the target."""
        return _none_if_nan(frequency_weighted_iou(self.matrix))

    @property
    def expected_calibration_error(self) -> float | None:
        """ECE of the marginals."""
        return _none_if_nan(self.reliability.expected_calibration_error) if self.reliability else None

    @property
    def negative_log_likelihood(self) -> float | None:
        """Mean −log P(target) in nats."""
        return _none_if_nan(self.reliability.negative_log_likelihood) if self.reliability else None

    @property
    def brier_score(self) -> float | None:
        """Mean squared error of the marginals."""
        return _none_if_nan(self.reliability.brier_score) if self.reliability else None

    def ranked_images(self) -> tuple[ImageScore, ...]:
        """The images from worst to best, without those that have no score."""
        scored = [(image.mean_iou, image) for image in self.images if image.mean_iou is not None]
        return tuple(image for _, image in sorted(scored, key=lambda pair: pair[0]))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values. `summary` holds the derived figures, for people who read the file."""
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
        fields: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))  # tuples become lists
        return {"summary": summary} | fields

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Scores:
        """Inverse of `to_dict`. Ignores `summary`, which follows from the counts."""
        given = {key: value for key, value in values.items() if key != "summary"}
        names = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in names:
                raise InputError(f'scores have no entry "{key}"; {nearest(key, names)}')
        try:
            histogram: dict[str, Any] | None = given.get("reliability")
            if histogram is not None:
                histogram = {key: tuple(v) if isinstance(v, list) else v for key, v in histogram.items()}
            return cls(
                class_names=tuple(given["class_names"]),
                confusion=tuple(tuple(int(count) for count in row) for row in given["confusion"]),
                bands=tuple(Band(**band) for band in given.get("bands", ())),
                sizes=tuple(SizeGroup(**group) for group in given.get("sizes", ())),
                images=tuple(ImageScore(**image) for image in given.get("images", ())),
                reliability=None if histogram is None else Reliability(**histogram),
            )
        except KeyError as missing:
            raise InputError(f"scores lack the entry {missing}; write them with Scores.to_dict") from None
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError) as wrong:
            raise InputError(f"scores cannot be read ({wrong}); write them with Scores.to_dict") from None


@dataclass(frozen=True)
class ScoreRow:
    """One figure of a comparison, with its value for each method."""

    label: str
    values: tuple[float | None, ...]  # one per method; None where a method does not have it
    form: str = ".1%"  # format specification of a value
    mode: str = "max"  # which value is best: "max", "min", or "" if none is

    @property
    def cells(self) -> tuple[str, ...]:
        """The values as text, an en dash for None."""
        return tuple("–" if value is None else format(value, self.form) for value in self.values)

    @property
    def is_best(self) -> tuple[bool, ...]:
        """Which cells show the best value; none if all cells show the same."""
        cells = self.cells
        present = {cell: value for cell, value in zip(cells, self.values, strict=True) if value is not None}
        if not self.mode or len(present) < 2:
            return (False,) * len(cells)
        best = (max if self.mode == "max" else min)(present, key=lambda cell: present[cell])
        return tuple(cell == best for cell in cells)


def scores_table(scores: Scores | Mapping[str, Scores], title: str = "") -> Table:
    """A table for the terminal: class IoU and the summary, the best of several methods in bold."""
    from rich.table import Table
    from rich.text import Text

    methods = by_method(scores)
    table = Table(title=title or None, title_justify="left")
    table.add_column("")
    for name in methods:
        table.add_column(Text(name), justify="right")
    for rows in (class_rows(methods), summary_rows(methods)):
        for row in rows:
            cells = zip(row.cells, row.is_best, strict=True)
            table.add_row(Text(row.label), *(Text(cell, style="bold" if best else "") for cell, best in cells))
        table.add_section()
    return table


def scores_json(scores: Scores | Mapping[str, Scores]) -> str:
    """Every figure of every method as JSON."""
    return json.dumps({name: each.to_dict() for name, each in by_method(scores).items()}, indent=2) + "\n"


def scores_csv(scores: Scores | Mapping[str, Scores]) -> str:
    """One line for each method: its name, mean IoU, and the IoU of each class, in percent; empty where undefined.

    >>> print(scores_csv({"mine": Scores(("sky", "sea"), ((3, 1), (0, 4)))}), end="")
    method,mean,sky,sea
    mine,77.50,75.00,80.00
    """
    methods = by_method(scores)
    columns = [_mean_row(methods), *class_rows(methods)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "mean", *shared_classes(methods)])
    for i, name in enumerate(methods):
        writer.writerow([name, *("" if (v := column.values[i]) is None else f"{100 * v:.2f}" for column in columns)])
    return text.getvalue()


def scores_latex(scores: Scores | Mapping[str, Scores]) -> str:
    """The same as rows of a LaTeX table, the best of each column in bold; a comment names the columns."""
    methods = by_method(scores)
    columns = [_mean_row(methods), *class_rows(methods)]
    lines = ["% " + " & ".join(["method", "mean", *map(_latex, shared_classes(methods))])]
    for i, name in enumerate(methods):
        cells = [column.cells[i].replace("%", "").replace("–", "--") for column in columns]
        bold = [column.is_best[i] for column in columns]
        row = [rf"\textbf{{{cell}}}" if best else cell for cell, best in zip(cells, bold, strict=True)]
        lines.append(" & ".join([_latex(name), *row]) + r" \\")
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    """The text with LaTeX's special characters escaped.

    >>> _latex("traffic_sign & 50%")
    'traffic\\\\_sign \\\\& 50\\\\%'
    """
    marks = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(marks.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)


def _mean_row(methods: Mapping[str, Scores]) -> ScoreRow:
    return ScoreRow("Mean IoU", tuple(scores.mean_iou for scores in methods.values()))


def class_rows(methods: Mapping[str, Scores]) -> tuple[ScoreRow, ...]:
    """IoU of each class, one column per method."""
    columns = [scores.class_iou for scores in methods.values()]
    return tuple(
        ScoreRow(name, tuple(column[k] for column in columns)) for k, name in enumerate(shared_classes(methods))
    )


def summary_rows(methods: Mapping[str, Scores]) -> tuple[ScoreRow, ...]:
    """The figures of the whole set, one column per method, without those that no method has."""
    columns = tuple(methods.values())
    bands = [{band.width: band.mean_iou for band in scores.bands} for scores in columns]
    sizes = [{group.largest_share: group.accuracy for group in scores.sizes} for scores in columns]
    widths = sorted({width for band in bands for width in band})
    limits = sorted({limit for group in sizes for limit in group})
    rows = [
        _mean_row(methods),
        ScoreRow("Pixel accuracy", tuple(s.pixel_accuracy for s in columns)),
        ScoreRow("Frequency-weighted IoU", tuple(s.frequency_weighted_iou for s in columns)),
        *(ScoreRow(f"Trimap IoU, {width} px", tuple(b.get(width) for b in bands)) for width in widths),
        *(
            ScoreRow(f"Class accuracy, {_size_range(low, high)}", tuple(s.get(high) for s in sizes))
            for low, high in zip([0.0, *limits], limits, strict=False)
        ),
        ScoreRow("Calibration error (ECE)", tuple(s.expected_calibration_error for s in columns), mode="min"),
        ScoreRow("Negative log-likelihood", tuple(s.negative_log_likelihood for s in columns), ".4f", "min"),
        ScoreRow("Brier score", tuple(s.brier_score for s in columns), ".4f", "min"),
        ScoreRow("Images", tuple(len(s.images) for s in columns), ",", ""),
    ]
    return tuple(row for row in rows if any(value is not None for value in row.values))


def by_method(scores: Scores | Mapping[str, Scores]) -> Mapping[str, Scores]:
    """Scores by method name; a single `Scores` is a comparison of one. At least one is needed."""
    methods = {"score": scores} if isinstance(scores, Scores) else scores
    if not methods:
        raise InputError("there are no scores to show; give at least one method")
    return methods


def shared_classes(methods: Mapping[str, Scores]) -> tuple[str, ...]:
    """The class names of all methods; raises if they differ."""
    different = {scores.class_names for scores in methods.values()}
    if len(different) != 1:
        raise InputError("the methods were scored on different classes; compare scores of one data set")
    return different.pop()


def _size_range(low: float, high: float) -> str:
    """The shares of the image in a size group.

    >>> _size_range(0.0, 0.02), _size_range(0.02, 0.1), _size_range(0.1, 1.0)
    ('up to 2% of the image', '2–10%', 'above 10%')
    """
    if low == 0:
        return f"up to {high:.0%} of the image"
    return f"above {low:.0%}" if high == 1 else f"{100 * low:.0f}–{high:.0%}"


def _none_if_nan(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
