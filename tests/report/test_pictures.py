"""Pictures: the right colour at the right pixel, labels that survive storage, files that are whole."""

import math
import os

import numpy as np
import pytest
import torch
from PIL import Image

from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError, write_atomically
from messagenet.report.images import (
    RAMP,
    as_picture,
    colourise,
    entropy,
    entropy_picture,
    overlay,
    save_palette_png,
)

CLASSES = Classes(("sky", "land"), ((10, 20, 30), (200, 100, 50)), void_colour=(250, 250, 240))
MASK = np.array([[0, 1], [255, 0]], np.uint8)
COLOURS = np.array([[(10, 20, 30), (200, 100, 50)], [(250, 250, 240), (10, 20, 30)]])


@pytest.mark.parametrize("mask", [MASK, MASK.astype(np.int64), torch.from_numpy(MASK)])
def test_labels_take_the_colours_of_their_classes(mask):
    picture = colourise(mask, CLASSES)
    assert picture.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(picture), COLOURS)


def test_overlay_mixes_and_leaves_void_alone():
    image = np.full((2, 2, 3), 100, np.uint8)
    mixed = np.asarray(overlay(image, MASK, CLASSES, opacity=0.6)).astype(float)
    expected = 0.6 * COLOURS + 0.4 * 100
    expected[1, 0] = 100
    np.testing.assert_allclose(mixed, expected, atol=1)
    np.testing.assert_array_equal(overlay(image, MASK, CLASSES, opacity=0), image)


def test_overlay_leaves_the_background_alone():
    image = np.full((2, 2, 3), 100, np.uint8)
    mixed = np.asarray(overlay(image, MASK, Classes(("background", "cat"))))
    np.testing.assert_array_equal((mixed != 100).any(-1), MASK == 1)


def test_entropy_is_a_share_of_the_largest():
    marginals = torch.tensor([[1.0, 1 / 3, 0.5], [0.0, 1 / 3, 0.5], [0.0, 1 / 3, 0.0]])[:, None]  # (3, 1, 3)
    found = entropy(marginals)
    np.testing.assert_allclose(found, [[0, 1, math.log(2) / math.log(3)]], atol=1e-6)
    picture = entropy_picture(marginals)
    assert picture.size == (3, 1)
    assert picture.getpixel((0, 0)) == RAMP[0]
    assert picture.getpixel((1, 0)) == RAMP[-1]


def test_stored_labels_come_back(tmp_path):
    mask = np.append(np.arange(21), 255).reshape(2, 11)
    path = save_palette_png(mask, VOC_CLASSES, tmp_path / "new" / "a.png")
    with Image.open(path) as picture:
        assert picture.mode == "P"
        np.testing.assert_array_equal(np.asarray(picture), mask)
        np.testing.assert_array_equal(np.asarray(picture.convert("RGB")), colourise(mask, VOC_CLASSES))
    assert os.listdir(path.parent) == ["a.png"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "a.bin"
    write_atomically(path, b"old")

    def fail(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left on device"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: colourise(np.array([[2]]), CLASSES), "label 2, outside 0…1"),
        (lambda: colourise(np.zeros((1, 2, 2), int), CLASSES), "one image at a time"),
        (lambda: overlay(np.zeros((3, 3, 3), np.uint8), MASK, CLASSES), "differ in size"),
        (lambda: overlay(np.zeros((2, 2, 3), np.uint8), MASK, CLASSES, opacity=2), "opacity is 2"),
        (lambda: as_picture(np.zeros((2, 2, 3))), "undo its normalisation"),
        (lambda: as_picture(torch.zeros(3, 2, 2, dtype=torch.uint8)), r"uint8 \(height, width, 3\)"),
    ],
)
def test_bad_input_is_named(act, says):
    with pytest.raises(InputError, match=says):
        act()
