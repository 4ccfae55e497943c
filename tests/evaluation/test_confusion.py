"""The confusion matrix against scikit-learn and against sets of pixels."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn import metrics

from messagenet.errors import InputError
from messagenet.evaluation.confusion import (
    SIZE_LIMITS,
    Confusion,
    accuracy_by_size,
    confusion_matrix,
    frequency_weighted_iou,
    iou_per_class,
    mean_iou,
    pixel_accuracy,
    size_matrices,
)

K = 4
VOID = 255


@st.composite
def label_pairs(draw):
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=6))
    predicted = draw(hnp.arrays(np.uint8, shape, elements=st.integers(0, K - 1)))
    target = draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([*range(K), VOID])))
    return predicted, target


def naive_iou(predicted, target):
    """Intersection and union of sets of pixel positions."""
    pixels = [index for index in np.ndindex(target.shape) if target[index] != VOID]
    result = []
    for k in range(K):
        p = {index for index in pixels if predicted[index] == k}
        t = {index for index in pixels if target[index] == k}
        result.append(len(p & t) / len(p | t) if p | t else math.nan)
    return np.array(result)


@settings(max_examples=60, deadline=None)
@given(label_pairs())
def test_matches_sets_of_pixels(pair):
    predicted, target = pair
    matrix = confusion_matrix(predicted, target, K)
    expected = naive_iou(predicted, target)
    np.testing.assert_allclose(iou_per_class(matrix), expected, rtol=1e-14)
    if np.isnan(expected).all():
        assert math.isnan(mean_iou(matrix))
        assert math.isnan(pixel_accuracy(matrix))
        assert math.isnan(frequency_weighted_iou(matrix))
    else:
        assert mean_iou(matrix) == pytest.approx(np.nanmean(expected), rel=1e-14)


def test_matches_scikit_learn():
    generator = np.random.default_rng(0)
    target = generator.integers(0, K, (50, 60))
    predicted = np.where(generator.random((50, 60)) < 0.6, target, generator.integers(0, K, (50, 60)))
    target[generator.random((50, 60)) < 0.1] = VOID
    t, p = target[target != VOID], predicted[target != VOID]
    matrix = confusion_matrix(predicted, target, K)
    np.testing.assert_array_equal(matrix, metrics.confusion_matrix(t, p, labels=range(K)))
    np.testing.assert_allclose(iou_per_class(matrix), metrics.jaccard_score(t, p, average=None))
    assert mean_iou(matrix) == pytest.approx(metrics.jaccard_score(t, p, average="macro"))
    assert frequency_weighted_iou(matrix) == pytest.approx(metrics.jaccard_score(t, p, average="weighted"))
    assert pixel_accuracy(matrix) == pytest.approx(metrics.accuracy_score(t, p))


@settings(max_examples=30, deadline=None)
@given(st.lists(label_pairs(), max_size=4))
def test_pieces_add_up_to_the_whole(pairs):
    first, second = Confusion(K), Confusion(K)
    for index, (predicted, target) in enumerate(pairs):
        (first if index % 2 else second).update(predicted, target)
    flat = [np.concatenate([np.zeros(0, np.int64), *(x[i].ravel() for x in pairs)]) for i in (0, 1)]
    np.testing.assert_array_equal(first.matrix + second.matrix, confusion_matrix(flat[0], flat[1], K))


def test_rows_are_target_and_columns_prediction():
    matrix = confusion_matrix(np.array([2]), np.array([1]), 3)
    assert matrix.dtype == np.int64
    assert matrix[1, 2] == 1
    assert matrix.sum() == 1


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_torch_and_numpy_agree(dtype):
    predicted, target = torch.tensor([[0, 1], [2, 20]]), torch.tensor([[0, 255], [1, 20]])
    from_torch = confusion_matrix(predicted.to(dtype), target.to(dtype), 21)
    np.testing.assert_array_equal(from_torch, confusion_matrix(predicted.numpy(), target.numpy(), 21))
    assert from_torch[20, 20] == 1


def test_void_may_be_a_class_number_and_hides_any_prediction():
    matrix = confusion_matrix(np.array([0, 9, 1]), np.array([1, 0, 1]), 2, void=0)
    np.testing.assert_array_equal(matrix, [[0, 0], [1, 1]])


@pytest.mark.parametrize(
    ("predicted", "target", "num_classes", "says"),
    [
        ([[3]], [[0]], 3, "predicted holds label 3"),
        ([[255]], [[0]], 3, "predicted holds label 255"),
        ([[-1]], [[0]], 3, "predicted holds label -1"),
        ([[0]], [[7]], 3, "target holds label 7"),
        ([[0, 0]], [[0]], 3, "differ in size"),
        ([[0.5]], [[0]], 3, "take the argmax"),
        ([[0]], [[0]], 0, "num_classes is 0"),
    ],
)
def test_bad_input_is_named(predicted, target, num_classes, says):
    with pytest.raises(InputError, match=says) as caught:
        confusion_matrix(np.array(predicted), np.array(target), num_classes)
    assert "\n" not in str(caught.value)


@given(st.integers(0, 10_000))
def test_against_a_count_over_pixels(seed):
    rng = np.random.default_rng(seed)
    target = rng.choice([0, 0, 0, 0, 0, 0, 1, 2, 255], (12, 13))
    target[rng.integers(12), rng.integers(13)] = 3
    predicted = rng.integers(0, K, target.shape)
    expected = np.zeros((len(SIZE_LIMITS), K, K), int)
    for y in range(12):
        for x in range(13):
            if target[y, x] != 255:
                share = (target == target[y, x]).sum() / target.size
                group = min(index for index, limit in enumerate(SIZE_LIMITS) if share <= limit)
                expected[group, target[y, x], predicted[y, x]] += 1
    np.testing.assert_array_equal(size_matrices(predicted, target, K), expected)
    assert expected[0, 3].sum() == 1
    for matrix, accuracy in zip(expected, accuracy_by_size(expected), strict=True):
        each = [row[k] / row.sum() for k, row in enumerate(matrix) if row.sum()]
        np.testing.assert_allclose(accuracy, np.mean(each) if each else np.nan)
