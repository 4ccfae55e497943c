"""All scores of one method on one set of images, as a value that can be stored and compared.

`Scores` keeps the counts (confusion matrices, reliability histogram) and derives every figure from them, so a
stored file cannot contradict itself. A figure that does not exist (the IoU of a class that never occurs, the
calibration of a method without marginals) is None, which is also what strict JSON can hold.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from messagenet.errors import InputError, nearest
from messagenet.evaluation.arrays import IntArray
from messagenet.evaluation.calibration import Reliability
from messagenet.evaluation.confusion import frequency_weighted_iou, iou_per_class, mean_iou, pixel_accuracy


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
