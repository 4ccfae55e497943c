"""The distance transform and the bands against their definition, over all pairs of pixels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import ndimage

from messagenet.errors import InputError
from messagenet.evaluation.boundary import boundary_distance, trimap_iou, trimap_matrices
from messagenet.evaluation.confusion import confusion_matrix, mean_iou

K = 3
VOID = 255
label_maps = hnp.arrays(
    np.uint8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=9), elements=st.sampled_from([0, 0, 0, 1, 2, VOID])
)


def naive_distance(labels):
    """Distance to the nearest pixel of another label, over all pairs."""
    at = np.argwhere(np.ones(labels.shape, bool))  # (N, 2)
    between = np.sqrt(((at[:, None] - at[None]) ** 2).sum(-1))
    between[labels.ravel()[:, None] == labels.ravel()[None]] = np.inf
    return between.min(axis=1).reshape(labels.shape)


@settings(max_examples=150, deadline=None)
@given(label_maps)
def test_distance_is_exact(labels):
    np.testing.assert_array_equal(boundary_distance(labels), naive_distance(labels))


def test_distance_is_exact_on_a_larger_map_of_blobs():
    noise = np.random.default_rng(1).random((3, 48, 70))
    labels = ndimage.gaussian_filter(noise, (0, 3, 5)).argmax(axis=0)
    assert len(np.unique(labels)) == 3
    np.testing.assert_array_equal(boundary_distance(labels), naive_distance(labels))


@settings(max_examples=60, deadline=None)
@given(label_maps, st.randoms(use_true_random=False))
def test_bands_hold_exactly_the_pixels_within_their_width(target, random):
    predicted = np.array([[random.randrange(K) for _ in row] for row in target])
    widths = (1, 2, 3, 5)
    distance = naive_distance(target)
    expected = [confusion_matrix(predicted, np.where(distance <= width, target, VOID), K) for width in widths]
    matrices = trimap_matrices(predicted, target, K, widths)
    np.testing.assert_array_equal(matrices, expected)
    np.testing.assert_array_equal(trimap_iou(matrices), [mean_iou(matrix) for matrix in expected])


def test_width_one_is_the_pixel_on_either_side():
    target = np.repeat([[0, 0, 0, 1, 1, 1]], 4, axis=0)
    assert trimap_matrices(target, target, 2, widths=(1,)).sum() == 2 * 4


def test_an_outline_of_void_is_a_boundary_but_is_not_scored():
    target = np.array([[0, 0, 0, VOID, VOID, 1, 1, 1]])
    matrix = trimap_matrices(np.zeros_like(target), target, 2, widths=(1,))[0]
    np.testing.assert_array_equal(matrix, [[1, 0], [1, 0]])


def test_wide_bands_reach_the_ordinary_iou():
    generator = np.random.default_rng(2)
    target, predicted = generator.integers(0, K, (2, 20, 20))
    matrices = trimap_matrices(predicted, target, K, widths=(100,))
    np.testing.assert_array_equal(matrices[0], confusion_matrix(predicted, target, K))


def test_an_image_without_boundary_has_no_band():
    flat = np.zeros((4, 5), np.uint8)
    assert np.isinf(boundary_distance(flat)).all()
    matrices = trimap_matrices(flat, flat, K)
    assert matrices.sum() == 0
    assert all(math.isnan(iou) for iou in trimap_iou(matrices))


@pytest.mark.parametrize("widths", [(0, 1), (2, 2), (4, 1)])
def test_bad_widths_are_named(widths):
    with pytest.raises(InputError, match="positive and increasing"):
        trimap_matrices(np.zeros((2, 2), int), np.zeros((2, 2), int), K, widths)


def test_batches_are_refused():
    with pytest.raises(InputError, match="one image at a time"):
        boundary_distance(np.zeros((1, 2, 2), int))
