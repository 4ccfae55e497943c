"""Plots: what they draw is read back from the figure objects."""

import ast
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest

from messagenet.errors import InputError
from messagenet.evaluation.calibration import Reliability
from messagenet.evaluation.scores import Band, Scores
from messagenet.report import plots
from messagenet.report.plots import (
    INK,
    class_iou_plot,
    confusion_plot,
    figure_png,
    figure_svg,
    reliability_plot,
    trimap_plot,
)

NAMES = ("<sky> & $sea$", "land", "never")
SOFT = Scores(
    NAMES,
    ((3, 1, 0), (0, 4, 0), (0, 0, 0)),
    bands=(Band(1, 0.25), Band(2, 0.5), Band(4, None)),
    reliability=Reliability((0, 2, 6), (0.0, 1.2, 5.1), (0, 1, 6), 2.0, 1.0),
)
HARD = Scores(NAMES, ((2, 2, 0), (2, 2, 0), (0, 0, 0)))
BOTH = {"hard": HARD, "soft": SOFT}


def test_confusion_rows_are_divided_by_their_sum():
    (axes,) = confusion_plot(SOFT).axes
    shares = axes.collections[0].get_array()
    np.testing.assert_allclose(shares[:2], [[0.75, 0.25, 0], [0, 1, 0]])
    assert np.ma.getmaskarray(shares)[2].all()
    assert axes.yaxis_inverted()
    assert {text.get_text() for text in axes.texts} == {"75", "25", "100"}


def test_reliability_shows_accuracy_against_confidence():
    axes = reliability_plot(BOTH).axes[0]
    points = np.ma.filled(axes.collections[0].get_offsets(), np.nan)
    np.testing.assert_allclose(points, [[np.nan, np.nan], [0.6, 0.5], [0.85, 1.0]])
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["soft, ECE 13.8%"]


def test_trimap_shows_iou_against_width():
    line = trimap_plot(BOTH).axes[0].lines[1]
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 4])
    np.testing.assert_array_equal(line.get_ydata(), [25, 50, np.nan])


def test_bars_show_the_iou_of_each_class():
    axes = class_iou_plot(BOTH).axes[0]
    hard, soft = axes.containers
    np.testing.assert_allclose([bar.get_width() for bar in hard], [100 / 3, 100 / 3, 0])
    np.testing.assert_allclose([bar.get_width() for bar in soft], [75, 80, 0])
    assert [text.get_text() for text in axes.texts].count("absent") == 2


def test_svg_follows_the_page_and_keeps_names():
    svg = figure_svg(class_iou_plot(BOTH), "first")
    root = ElementTree.fromstring(svg)
    assert "".join(root.itertext()).count("<sky> & $sea$") == 1
    assert "currentColor" in svg
    assert INK not in svg
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert ids
    assert all(name.startswith("first-") for name in ids)
    assert figure_svg(class_iou_plot(BOTH), "first") == svg


def test_png_is_a_png():
    assert figure_png(trimap_plot(SOFT), dots_per_inch=40).startswith(b"\x89PNG")


def test_nothing_to_plot_is_named():
    with pytest.raises(InputError, match="score with marginals"):
        reliability_plot(HARD)
    with pytest.raises(InputError, match="no method has trimap bands"):
        trimap_plot(HARD)


def test_matplotlib_waits_for_the_first_plot_and_pyplot_is_never_loaded():
    """Read from the source: a module-level import outside `if TYPE_CHECKING` would load it at once."""
    files = sorted(Path(plots.__file__).parent.glob("*.py"))
    assert len(files) == 5
    for file in files:
        source = file.read_text(encoding="utf-8")
        top = [node for node in ast.parse(source).body if isinstance(node, (ast.Import, ast.ImportFrom))]
        assert not [node for node in top if "matplotlib" in ast.unparse(node)]
        assert "matplotlib.pyplot" not in source
