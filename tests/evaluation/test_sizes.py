"""Accuracy by size against a count over pixels."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from messagenet.data import Classes
from messagenet.evaluation import Evaluator, Scores
from messagenet.evaluation.confusion import LIMITS, accuracy_by_size, size_matrices

K = 4


@given(st.integers(0, 10_000))
def test_against_a_count_over_pixels(seed):
    rng = np.random.default_rng(seed)
    truth = rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 255], (12, 13))
    truth[rng.integers(12), rng.integers(13)] = 3
    predicted = rng.integers(0, K, truth.shape)
    expected = np.zeros((len(LIMITS), K, K), int)
    for y in range(12):
        for x in range(13):
            if truth[y, x] != 255:
                share = (truth == truth[y, x]).sum() / truth.size
                group = min(index for index, limit in enumerate(LIMITS) if share <= limit)
                expected[group, truth[y, x], predicted[y, x]] += 1
    np.testing.assert_array_equal(size_matrices(predicted, truth, K), expected)
    assert expected[0, 3].sum() == 1
    for matrix, accuracy in zip(expected, accuracy_by_size(expected), strict=True):
        each = [row[k] / row.sum() for k, row in enumerate(matrix) if row.sum()]
        np.testing.assert_allclose(accuracy, np.mean(each) if each else np.nan)


def test_collected_over_images_and_kept_in_the_file():
    classes = Classes(("ground", "cat"))
    truth = np.zeros((10, 10), int)
    truth[0, 0] = 1
    first, second = Evaluator(classes), Evaluator(classes)
    first.add("found", None, truth, predicted=truth)
    second.add("missed", None, truth, predicted=np.zeros_like(truth))
    scores = (first + second).scores()
    assert [group.accuracy for group in scores.sizes] == [0.5, None, 1.0]
    assert Scores.from_dict(scores.to_dict()) == scores
