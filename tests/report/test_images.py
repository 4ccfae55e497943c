"""Images: the right colour at the right pixel, labels that survive storage, sheets laid out as documented."""

import math
import os

import numpy as np
import pytest
import torch
from PIL import Image, ImageFont

from messagenet.data import FolderData, Subset, SyntheticScenes
from messagenet.data.classes import VOC_CLASSES, Classes
from messagenet.errors import InputError
from messagenet.report.images import (
    MAX_SIDE,
    RAMP,
    SHEET_GAP,
    SHEET_MARGIN,
    as_image,
    colourise,
    contact_sheet,
    entropy,
    entropy_image,
    image_sheet,
    overlay,
    palette_image,
    save_png,
    truncate_text,
)

CLASSES = Classes(("sky", "land"), ((10, 20, 30), (200, 100, 50)), void_colour=(250, 250, 240))
MASK = np.array([[0, 1], [255, 0]], np.uint8)
COLOURS = np.array([[(10, 20, 30), (200, 100, 50)], [(250, 250, 240), (10, 20, 30)]])
SHEET_CLASSES = Classes(("sky", "land", "sea"), ((0, 0, 255), (0, 160, 0), (255, 0, 255)))
TOP = SHEET_MARGIN + 28


@pytest.mark.parametrize("mask", [MASK, MASK.astype(np.int64), torch.from_numpy(MASK)])
def test_labels_take_the_colours_of_their_classes(mask):
    image = colourise(mask, CLASSES)
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image), COLOURS)


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
    values = entropy(marginals)
    np.testing.assert_allclose(values, [[0, 1, math.log(2) / math.log(3)]], atol=1e-6)
    image = entropy_image(marginals)
    assert image.size == (3, 1)
    assert image.getpixel((0, 0)) == RAMP[0]
    assert image.getpixel((1, 0)) == RAMP[-1]


def test_stored_labels_come_back(tmp_path):
    mask = np.append(np.arange(21), 255).reshape(2, 11)
    path = save_png(palette_image(mask, VOC_CLASSES), tmp_path / "new" / "a.png")
    with Image.open(path) as image:
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), mask)
        np.testing.assert_array_equal(np.asarray(image.convert("RGB")), colourise(mask, VOC_CLASSES))
    assert os.listdir(path.parent) == ["a.png"]


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: colourise(np.array([[2]]), CLASSES), "label 2, outside 0…1"),
        (lambda: colourise(np.zeros((1, 2, 2), int), CLASSES), "one image at a time"),
        (lambda: overlay(np.zeros((3, 3, 3), np.uint8), MASK, CLASSES), "differ in size"),
        (lambda: overlay(np.zeros((2, 2, 3), np.uint8), MASK, CLASSES, opacity=2), "opacity is 2"),
        (lambda: as_image(np.zeros((2, 2, 3))), "undo its normalisation"),
        (lambda: as_image(torch.zeros(3, 2, 2, dtype=torch.uint8)), r"uint8 \(height, width, 3\)"),
    ],
)
def test_bad_input_is_named(act, says):
    with pytest.raises(InputError, match=says):
        act()


def colours_of(image):
    return {colour for _, colour in image.getcolors(1 << 20)}


def test_small_images_are_enlarged_by_a_whole_factor():
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (48, 60, 3), dtype=np.uint8)
    mask = generator.integers(0, 2, (48, 60))
    drawn = image_sheet([(image, mask)], ("image", "target"), SHEET_CLASSES)
    grid = np.asarray(drawn)
    factor = 4
    first = grid[TOP : TOP + 48 * factor, SHEET_MARGIN : SHEET_MARGIN + 60 * factor]
    np.testing.assert_array_equal(first, image.repeat(factor, 0).repeat(factor, 1))
    left = SHEET_MARGIN + 60 * factor + SHEET_GAP
    second = grid[TOP : TOP + 48 * factor, left : left + 60 * factor]
    painted = np.array(SHEET_CLASSES.colours, np.uint8)[mask]
    np.testing.assert_array_equal(second, painted.repeat(factor, 0).repeat(factor, 1))
    assert drawn.width == 2 * SHEET_MARGIN + 2 * 60 * factor + SHEET_GAP


def test_large_images_are_reduced_and_labels_stay_pure():
    mask = np.random.default_rng(1).integers(0, 2, (500, 900))
    drawn = image_sheet([(mask,)], ("target",), SHEET_CLASSES)
    assert drawn.width == 2 * SHEET_MARGIN + MAX_SIDE
    cell = drawn.crop((SHEET_MARGIN, TOP, SHEET_MARGIN + 360, TOP + 200))
    assert colours_of(cell) == set(SHEET_CLASSES.colours[:2])


def test_the_legend_lists_what_occurs():
    drawn = image_sheet([(np.full((50, 200), 1),)], ("target",), SHEET_CLASSES)
    below = drawn.crop((0, TOP + 50 + SHEET_GAP, drawn.width, drawn.height))
    assert SHEET_CLASSES.colours[1] in colours_of(below)
    assert not {SHEET_CLASSES.colours[0], SHEET_CLASSES.colours[2]} & colours_of(below)


def test_void_is_explained():
    drawn = image_sheet([(np.full((50, 200), 255),)], ("target",), SHEET_CLASSES)
    below = drawn.crop((0, TOP + 50 + SHEET_GAP, drawn.width, drawn.height))
    assert SHEET_CLASSES.void_colour in colours_of(below)


def test_images_alone_need_no_legend():
    plain = image_sheet([(Image.new("L", (200, 50)),)], ("image",), SHEET_CLASSES)
    assert plain.height == TOP + 50 + SHEET_GAP + 4 - SHEET_GAP + SHEET_MARGIN


def test_many_classes_wrap_onto_further_lines():
    many = Classes(tuple(f"a long class name {k}" for k in range(20)))
    labels = np.arange(20).repeat(5)[None].repeat(50, 0)
    one, wrapped = (image_sheet([(mask,)], ("target",), many) for mask in (labels * 0, labels))
    assert wrapped.width == one.width
    assert wrapped.height > one.height + 100


def test_rows_may_differ_in_size_and_predictions_in_resolution():
    rows = [
        (np.zeros((40, 60, 3), np.uint8), np.ones((10, 15), int)),
        (np.zeros((60, 40, 3), np.uint8), np.ones((15, 10), int)),
    ]
    drawn = np.asarray(image_sheet(rows, ("image", "coarse"), SHEET_CLASSES))
    painted = (drawn == SHEET_CLASSES.colours[1]).all(axis=-1)[: TOP + 400 + SHEET_GAP].sum()
    assert painted == 2 * 40 * 60 * 4**2


def test_long_titles_are_cut():
    font = ImageFont.load_default(size=16)
    cut = truncate_text("a title that is far too long for its column", 120, font)
    assert cut.endswith("…")
    assert font.getlength(cut) <= 120
    assert truncate_text("short", 120, font) == "short"


@pytest.mark.parametrize("rows", [[], [(np.zeros((2, 2), int),)]])
def test_rows_must_match_the_titles(rows):
    with pytest.raises(InputError, match="as many images"):
        image_sheet(rows, ("image", "target"), SHEET_CLASSES)


def test_contact_sheet_shows_images_and_legend():
    data = SyntheticScenes(8, size=32)
    sheet = contact_sheet(data, count=6, columns=3, cell=64, opacity=1.0)
    assert sheet.width == 3 * (64 + 10) + 10
    assert sheet.height > 2 * (64 + 18)
    shown = set(map(tuple, np.asarray(sheet).reshape(-1, 3).tolist()))
    assert set(data.classes.colours) <= shown


def test_contact_sheet_spreads_over_the_data():
    asked = []

    class Watched(SyntheticScenes):
        def load(self, index):
            asked.append(index)
            return super().load(index)

    contact_sheet(Watched(100, size=32), count=4)
    assert asked == [0, 25, 50, 75]


def test_unreadable_and_unlabelled_samples(folder):
    (folder / "images" / "0.jpg").write_bytes(b"")
    sheet = np.asarray(contact_sheet(FolderData(folder), count=2))
    assert ((sheet[:, :, 0] > 150) & (sheet[:, :, 1] < 60)).any(), "the words in red"
    (folder / "masks").rename(folder / "unused")
    contact_sheet(FolderData(folder), count=2)


def test_long_names_are_truncate_text(folder):
    (folder / "images" / "0.jpg").rename(folder / "images" / ("n" * 90 + ".jpg"))
    (folder / "masks" / "0.png").rename(folder / "masks" / ("n" * 90 + ".png"))
    assert contact_sheet(FolderData(folder), count=10, columns=5, cell=60).width == 5 * 70 + 10


def test_nothing_to_show():
    with pytest.raises(InputError, match="no samples to show"):
        contact_sheet(Subset(SyntheticScenes(3), []))
