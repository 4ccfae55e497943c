"""The sheet: pictures where they belong, enlarged crisply, with a legend of the classes that occur."""

import numpy as np
import pytest
from PIL import Image, ImageFont

from messagenet.data.classes import Classes
from messagenet.errors import InputError
from messagenet.report import images as sheet
from messagenet.report.images import GAP, MARGIN, picture_sheet, shortened

CLASSES = Classes(("sky", "land", "sea"), ((0, 0, 255), (0, 160, 0), (255, 0, 255)))
TOP = MARGIN + 28


def colours_of(picture):
    return {colour for _, colour in picture.getcolors(1 << 20)}


def test_small_pictures_are_enlarged_by_a_whole_factor():
    generator = np.random.default_rng(0)
    image = generator.integers(0, 256, (48, 60, 3), dtype=np.uint8)
    mask = generator.integers(0, 2, (48, 60))
    drawn = picture_sheet([(image, mask)], ("image", "truth"), CLASSES)
    grid = np.asarray(drawn)
    factor = 4
    first = grid[TOP : TOP + 48 * factor, MARGIN : MARGIN + 60 * factor]
    np.testing.assert_array_equal(first, image.repeat(factor, 0).repeat(factor, 1))
    left = MARGIN + 60 * factor + GAP
    second = grid[TOP : TOP + 48 * factor, left : left + 60 * factor]
    painted = np.array(CLASSES.colours, np.uint8)[mask]
    np.testing.assert_array_equal(second, painted.repeat(factor, 0).repeat(factor, 1))
    assert drawn.width == 2 * MARGIN + 2 * 60 * factor + GAP


def test_large_pictures_are_reduced_and_labels_stay_pure():
    mask = np.random.default_rng(1).integers(0, 2, (500, 900))
    drawn = picture_sheet([(mask,)], ("truth",), CLASSES)
    assert drawn.width == 2 * MARGIN + sheet.LARGEST
    cell = drawn.crop((MARGIN, TOP, MARGIN + 360, TOP + 200))
    assert colours_of(cell) == set(CLASSES.colours[:2])


def test_the_legend_lists_what_occurs():
    drawn = picture_sheet([(np.full((50, 200), 1),)], ("truth",), CLASSES)
    below = drawn.crop((0, TOP + 50 + GAP, drawn.width, drawn.height))
    assert CLASSES.colours[1] in colours_of(below)
    assert not {CLASSES.colours[0], CLASSES.colours[2]} & colours_of(below)


def test_void_is_explained():
    drawn = picture_sheet([(np.full((50, 200), 255),)], ("truth",), CLASSES)
    below = drawn.crop((0, TOP + 50 + GAP, drawn.width, drawn.height))
    assert CLASSES.void_colour in colours_of(below)


def test_pictures_alone_need_no_legend():
    plain = picture_sheet([(Image.new("L", (200, 50)),)], ("image",), CLASSES)
    assert plain.height == TOP + 50 + GAP + 4 - GAP + MARGIN


def test_many_classes_wrap_onto_further_lines():
    many = Classes(tuple(f"a long class name {k}" for k in range(20)))
    labels = np.arange(20).repeat(5)[None].repeat(50, 0)
    one, wrapped = (picture_sheet([(mask,)], ("truth",), many) for mask in (labels * 0, labels))
    assert wrapped.width == one.width
    assert wrapped.height > one.height + 100


def test_rows_may_differ_in_size_and_predictions_in_resolution():
    rows = [
        (np.zeros((40, 60, 3), np.uint8), np.ones((10, 15), int)),
        (np.zeros((60, 40, 3), np.uint8), np.ones((15, 10), int)),
    ]
    drawn = np.asarray(picture_sheet(rows, ("image", "coarse"), CLASSES))
    painted = (drawn == CLASSES.colours[1]).all(axis=-1)[: TOP + 400 + GAP].sum()
    assert painted == 2 * 40 * 60 * 4**2


def test_long_titles_are_cut():
    font = ImageFont.load_default(size=16)
    cut = shortened("a title that is far too long for its column", 120, font)
    assert cut.endswith("…")
    assert font.getlength(cut) <= 120
    assert shortened("short", 120, font) == "short"


@pytest.mark.parametrize("rows", [[], [(np.zeros((2, 2), int),)]])
def test_rows_must_match_the_titles(rows):
    with pytest.raises(InputError, match="as many pictures"):
        picture_sheet(rows, ("image", "truth"), CLASSES)
