"""Beliefs of nodes to maps of pixels: the label and the uncertainty of every pixel, for every iteration.

Logits are brought to the pixels as in prediction (bilinear); a label is the largest of them, the uncertainty the
entropy of their softmax, from 0 to 255 for log K.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from messagenet.data.images import ImageArray, LabelArray
from messagenet.prediction.enlarge import most_probable, pixel_strips
from messagenet.report import entropy
from messagenet.serving.infer import Inferred


@dataclass(frozen=True, eq=False)
class BeliefMap:
    """What pixels show after an iteration.

    Attributes:
        labels: The most probable class, (H, W).
        entropy: 0, certain, to 255, a guess among all classes, (H, W).
        shares: The share of pixels of each class.
        changed: The share of pixels whose label is another one than an iteration ago.
    """

    labels: LabelArray
    entropy: ImageArray
    shares: list[float]
    changed: float


def belief_maps(inferred: Inferred) -> Iterator[BeliefMap]:
    """The maps of t = 0 … T."""
    before: LabelArray | None = None
    for logits in inferred.logits:
        labels, uncertainty = _pixels(logits, inferred)
        counts = np.bincount(labels.ravel(), minlength=len(logits))
        changed = 0.0 if before is None else float((labels != before).mean())
        yield BeliefMap(labels, uncertainty, (counts / labels.size).tolist(), changed)
        before = labels


def label_map(inferred: Inferred, iteration: int) -> LabelArray:
    """The labels after an iteration, (H, W)."""
    strips = pixel_strips(inferred.logits[iteration], inferred.size, inferred.stride)
    return np.concatenate([most_probable(strip) for strip in strips])


def _pixels(logits: Tensor, inferred: Inferred) -> tuple[LabelArray, ImageArray]:
    labels, uncertainty = [], []
    for strip in pixel_strips(logits, inferred.size, inferred.stride):  # (K, rows, W)
        labels.append(most_probable(strip))
        uncertainty.append(np.rint(255 * entropy(torch.softmax(strip, 0))).astype(np.uint8))
    return np.concatenate(labels), np.concatenate(uncertainty)


def grey_png(values: ImageArray) -> bytes:
    """Values (H, W) as the content of an 8-bit greyscale PNG file; quick rather than small."""
    content = io.BytesIO()
    Image.fromarray(values).save(content, format="PNG", compress_level=3)
    return content.getvalue()
