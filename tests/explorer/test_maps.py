"""Maps of pixels: the same labels and uncertainty as prediction gives."""

from __future__ import annotations

import io
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from explorer.running import photo
from messagenet.explorer.inference import belief_maps, grey_png, infer, label_map
from messagenet.prediction import Predictor
from messagenet.report import entropy


@pytest.fixture(scope="module")
def inferred(models):
    return infer(models[0].net, [photo()], 10**12)[0]


def test_the_last_map_is_the_prediction(models, inferred):
    predictor = Predictor(models[0].net)
    *_, last = belief_maps(inferred)
    np.testing.assert_array_equal(last.labels, predictor.labels(photo()))
    np.testing.assert_array_equal(label_map(inferred, 2), last.labels)
    expected = 255 * entropy(predictor.marginals(photo()))
    assert abs(last.entropy.astype(float) - expected).max() <= 0.51


def test_shares_and_changes_are_counted(inferred):
    maps = list(belief_maps(inferred))
    assert len(maps) == 3
    assert maps[0].changed == 0
    for before, after in pairwise(maps):
        assert after.changed == np.mean(before.labels != after.labels) > 0
    for each in maps:
        assert each.shares == [np.mean(each.labels == k) for k in range(9)]


def test_a_png_holds_the_values():
    values = photo()[..., 0]
    picture = Image.open(io.BytesIO(grey_png(values)))
    assert picture.mode == "L"
    np.testing.assert_array_equal(np.asarray(picture), values)
