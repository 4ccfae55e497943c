"""Calibration figures against loops over pixels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from messagenet.errors import InputError
from messagenet.evaluation.calibration import Reliability, reliability

VOID = 255


def an_image(seed, num_classes=4, height=5, width=7, void=0.2):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(num_classes, height, width, generator=generator, dtype=torch.float64)
    target = torch.randint(0, num_classes, (height, width), generator=generator)
    target[torch.rand(height, width, generator=generator) < void] = VOID
    return logits.softmax(dim=0), target


def naive(marginals, target, bins):
    """ECE, negative log-likelihood and Brier score, one pixel at a time."""
    members = [[] for _ in range(bins)]
    losses, errors = [], []
    for y, x in np.ndindex(tuple(target.shape)):
        label = int(target[y, x])
        if label == VOID:
            continue
        p = marginals[:, y, x].numpy()
        confidence, right = p.max(), p.argmax() == label
        index = next(i for i in range(bins) if i / bins < confidence <= (i + 1) / bins)
        members[index].append((confidence, right))
        losses.append(-math.log(p[label]))
        errors.append(sum((p[k] - (k == label)) ** 2 for k in range(len(p))))
    count = len(losses)
    ece = sum(
        len(pixels) / count * abs(np.mean([r for _, r in pixels]) - np.mean([c for c, _ in pixels]))
        for pixels in members
        if pixels
    )
    return ece, np.mean(losses), np.mean(errors), [len(pixels) for pixels in members]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.integers(2, 6))
def test_matches_a_loop_over_pixels(seed, bins, num_classes):
    marginals, target = an_image(seed, num_classes)
    histogram = reliability(marginals, target, bins)
    ece, nll, brier, counts = naive(marginals, target, bins)
    assert histogram.counts == tuple(counts)
    assert histogram.expected_calibration_error == pytest.approx(ece, rel=1e-12, abs=1e-15)
    assert histogram.negative_log_likelihood == pytest.approx(nll, rel=1e-12)
    assert histogram.brier_score == pytest.approx(brier, rel=1e-12)


def test_pieces_add_up_to_the_whole():
    marginals, target = an_image(3, height=12)
    halves = [reliability(marginals[:, rows], target[rows]) for rows in (slice(0, 5), slice(5, 12))]
    whole, total = reliability(marginals, target), halves[0] + halves[1]
    assert total.counts == whole.counts
    assert total.correct == whole.correct
    assert total.expected_calibration_error == pytest.approx(whole.expected_calibration_error, rel=1e-12)
    assert total.brier_score == pytest.approx(whole.brier_score, rel=1e-12)


def test_labels_drawn_from_the_marginals_are_calibrated():
    marginals, _ = an_image(4, height=150, width=150)
    flat = marginals.permute(1, 2, 0).reshape(-1, 4)
    drawn = torch.multinomial(flat, 1, generator=torch.Generator().manual_seed(5)).reshape(150, 150)

    def gaps_in_deviations(p):
        """How far each bin is from calibrated, in standard deviations of a sum of coin flips."""
        histogram = reliability(p, drawn, bins=10)
        confidence = p.amax(dim=0).flatten()
        bin_of = torch.bucketize(confidence, torch.linspace(0, 1, 11, dtype=torch.float64)[1:-1])
        variance = torch.bincount(bin_of, weights=confidence * (1 - confidence), minlength=10).numpy()
        gaps = np.abs(np.subtract(histogram.correct, histogram.confidence))
        return gaps[variance > 1] / np.sqrt(variance[variance > 1])

    assert gaps_in_deviations(marginals).max() < 5
    assert gaps_in_deviations((marginals**2) / (marginals**2).sum(dim=0)).max() > 10


def test_certain_and_right_is_perfect_and_certain_and_wrong_is_finite():
    target = torch.tensor([[0, 1]])
    certain = torch.nn.functional.one_hot(target, 2).permute(2, 0, 1).double()
    right, wrong = reliability(certain, target), reliability(certain, 1 - target)
    assert (right.expected_calibration_error, right.negative_log_likelihood, right.brier_score) == (0, 0, 0)
    assert right.counts[-1] == 2
    assert (wrong.expected_calibration_error, wrong.brier_score) == (1, 2)
    assert 80 < wrong.negative_log_likelihood < 100


def test_a_bin_holds_its_upper_end_and_not_its_lower():
    marginals = torch.tensor([[[0.5, 0.75, 1.0]], [[0.5, 0.25, 0.0]]], dtype=torch.float64)
    histogram = reliability(marginals, torch.zeros(1, 3, dtype=torch.long), bins=4)
    assert histogram.counts == (0, 1, 1, 1)


def test_half_precision_and_numpy_are_accepted():
    marginals, target = an_image(6, num_classes=21)
    exact = reliability(marginals, target)
    assert reliability(marginals.numpy(), target.numpy()) == exact
    half = reliability(marginals.to(torch.bfloat16), target)
    assert half.brier_score == pytest.approx(exact.brier_score, rel=0.02)


def test_only_void_leaves_nothing():
    empty = reliability(torch.full((2, 1, 1), 0.5), torch.tensor([[VOID]]))
    assert empty == Reliability.empty()
    assert math.isnan(empty.expected_calibration_error)
    assert np.isnan(empty.accuracy).all()
    assert np.isnan(empty.mean_confidence).all()


@pytest.mark.parametrize(
    ("marginals", "target", "says"),
    [
        (torch.randn(3, 4, 4) * 5, torch.zeros(4, 4, dtype=torch.long), "apply softmax"),
        (torch.full((3, 2, 2), math.nan), torch.zeros(2, 2, dtype=torch.long), "apply softmax"),
        (torch.full((3, 2, 2), 1 / 3), torch.full((2, 2), 3), "outside 0…2"),
        (torch.full((3, 2, 2), 1 / 3), torch.zeros(4, 4, dtype=torch.long), "differ in size"),
        (torch.full((1, 3, 2, 2), 1 / 3), torch.zeros(2, 2, dtype=torch.long), "one image at a time"),
        (torch.ones(1, 2, 2, dtype=torch.long), torch.zeros(2, 2, dtype=torch.long), "floating point"),
    ],
)
def test_bad_input_is_named(marginals, target, says):
    with pytest.raises(InputError, match=says):
        reliability(marginals, target)


def test_bins_must_agree():
    with pytest.raises(InputError, match="at least one confidence bin"):
        Reliability.empty(0)
    with pytest.raises(InputError, match="3 and 4 bins"):
        Reliability.empty(3) + Reliability.empty(4)
