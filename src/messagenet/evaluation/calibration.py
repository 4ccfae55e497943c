"""Calibration: are pixels predicted with confidence c correct a fraction c of the time?

Let c = max_k P(k) be a pixel's confidence, and B_i the pixels whose confidence lies in the i-th of M equal bins (lower
end excluded, upper end included). Over the n pixels that are not void,

    ECE   = Σ_i |B_i| / n · | accuracy(B_i) − mean confidence(B_i) |
    NLL   = − 1/n Σ log P(target)                   (P floored at the smallest normal float32)
    Brier =   1/n Σ Σ_k (P(k) − [k = target])²

Guo, Pleiss, Sun, Weinberger, "On calibration of modern neural networks", ICML 2017.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from messagenet.data.classes import VOID
from messagenet.errors import InputError
from messagenet.evaluation.confusion import Array, FloatArray, check_same_size, label_array, marginals_tensor, ratio

BINS = 15  # default number of confidence bins
SUM_TOLERANCE = 1e-2  # of a pixel's marginals summing to one; half precision reaches about 4e-3


@dataclass(frozen=True)
class Reliability:
    """Reliability histogram: sums over pixels, from which every calibration figure follows. Disjoint sets add up."""

    counts: tuple[int, ...]  # pixels per confidence bin
    confidence: tuple[float, ...]  # sum of the confidences per bin
    correct: tuple[int, ...]  # correctly predicted pixels per bin
    log_loss: float  # sum of −log P(target)
    squared_error: float  # sum of squared errors of the marginals

    def __post_init__(self) -> None:
        if not len(self.counts) == len(self.confidence) == len(self.correct) >= 1:
            raise InputError("a reliability histogram needs counts, confidence and correct for the same bins")

    @classmethod
    def empty(cls, bins: int = BINS) -> Reliability:
        """The histogram of no pixels, the neutral element of addition."""
        if bins < 1:
            raise InputError(f"bins is {bins}; give at least one confidence bin, such as {BINS}")
        return cls((0,) * bins, (0.0,) * bins, (0,) * bins, 0.0, 0.0)

    def __add__(self, other: Reliability) -> Reliability:
        if len(self.counts) != len(other.counts):
            raise InputError(
                f"cannot add histograms of {len(self.counts)} and {len(other.counts)} bins; "
                "score both with the same bins"
            )
        return Reliability(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)),
            tuple(a + b for a, b in zip(self.confidence, other.confidence, strict=True)),
            tuple(a + b for a, b in zip(self.correct, other.correct, strict=True)),
            self.log_loss + other.log_loss,
            self.squared_error + other.squared_error,
        )

    @property
    def pixels(self) -> int:
        """Pixels counted."""
        return sum(self.counts)

    @property
    def mean_confidence(self) -> FloatArray:
        """Mean confidence per bin; nan for an empty bin."""
        return self._per_bin(self.confidence)

    @property
    def accuracy(self) -> FloatArray:
        """Share of correct pixels per bin; nan for an empty bin."""
        return self._per_bin(self.correct)

    @property
    def expected_calibration_error(self) -> float:
        """The ECE, in [0, 1]; nan without pixels."""
        gaps = np.abs(np.subtract(self.correct, self.confidence, dtype=np.float64))
        return self._per_pixel(float(gaps.sum()))

    @property
    def negative_log_likelihood(self) -> float:
        """Mean −log P(target) in nats; nan without pixels."""
        return self._per_pixel(self.log_loss)

    @property
    def brier_score(self) -> float:
        """Mean squared error of the marginals, in [0, 2]; nan without pixels."""
        return self._per_pixel(self.squared_error)

    def _per_bin(self, sums: tuple[float, ...]) -> FloatArray:
        return ratio(np.asarray(sums, np.float64), np.asarray(self.counts))

    def _per_pixel(self, total: float) -> float:
        return total / self.pixels if self.pixels else float("nan")


def reliability(marginals: Array, target: Array, bins: int = BINS, void: int = VOID) -> Reliability:
    """Reliability histogram of one image, from marginals (K, height, width) and target labels (height, width).

    >>> marginals = torch.tensor([[[0.9, 0.4]], [[0.1, 0.6]]])
    >>> histogram = reliability(marginals, torch.tensor([[0, 0]]), bins=2)
    >>> histogram.counts, histogram.correct, round(histogram.expected_calibration_error, 3)
    ((0, 2), (0, 1), 0.25)
    """
    empty = Reliability.empty(bins)
    p = marginals_tensor(marginals)
    labels = label_array(target, "target")
    check_same_size(tuple(p.shape[1:]), labels.shape)
    t = torch.from_numpy(labels).to(p.device)
    scored = t != void
    t = t[scored]
    if t.numel() == 0:
        return empty
    if not 0 <= int(t.min()) <= int(t.max()) < p.shape[0]:
        raise InputError(
            f"target holds labels outside 0…{p.shape[0] - 1} (void is {void}); "
            "check that marginals and masks share their classes"
        )
    # Reducing over the classes before selecting the scored pixels is several times faster.
    lowest, totals = p.amin(dim=0)[scored], p.sum(dim=0)[scored]  # (n,)
    if not (bool(lowest.min() >= 0) and bool((totals - 1).abs().max() <= SUM_TOLERANCE)):
        raise InputError("marginals must be ≥ 0 and sum to one over the classes; apply softmax to logits")
    highest = p.max(dim=0)
    confidence, correct = highest.values[scored].double(), highest.indices[scored] == t
    squares = p.square().sum(dim=0)[scored].double()
    of_target = p.flatten(1)[t, scored.flatten().nonzero()[:, 0]].double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64, device=p.device)
    bin_of = torch.bucketize(confidence, edges[1:-1])
    return Reliability(
        tuple(torch.bincount(bin_of, minlength=bins).tolist()),
        tuple(torch.bincount(bin_of, weights=confidence, minlength=bins).tolist()),
        tuple(torch.bincount(bin_of[correct], minlength=bins).tolist()),
        -float(of_target.clamp_min(torch.finfo(torch.float32).tiny).log().sum()),
        float((squares - 2 * of_target + 1).sum()),
    )
