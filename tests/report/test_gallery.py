"""A page of segmentations: every image, well escaped, and what was found in it."""

from __future__ import annotations

import numpy as np
from PIL import Image

from messagenet.data import Classes
from messagenet.prediction import files as written
from messagenet.prediction.files import Outcome, Predicted
from messagenet.report import Segmented, found_text, save_palette_png, write_gallery

CLASSES = Classes(("background", "<cat>"))
LABELS = np.eye(4, 6, dtype=np.uint8)


def test_names_are_escaped_and_pictures_embedded(tmp_path):
    image = np.zeros((4, 6, 3), np.uint8)
    unsure = Image.new("RGB", (6, 4))
    shown = [Segmented("<a>.png", image, LABELS, unsure), Segmented("b.png", image, LABELS)]
    page = write_gallery(shown, tmp_path / "page.html", classes=CLASSES, title="A & B").read_text()
    assert "&lt;a&gt;.png: background 83%, &lt;cat&gt; 17%" in page
    assert "<h1>A &amp; B</h1>" in page
    assert "<cat>" not in page
    assert page.count("<img") == 5
    assert "entropy: black is certain" in page
    assert "http" not in page


def test_traces_are_not_called_found():
    labels = np.zeros((100, 100), int)
    labels[0, :40] = 1
    assert found_text(labels, CLASSES) == "background 100%"


def test_very_many_images_are_not_all_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(written, "MOST_SHOWN", 2)
    predicted = Predicted(CLASSES, ("mask",))
    for name in "abc":
        Image.new("RGB", (6, 4)).save(tmp_path / f"{name}.png")
        mask = save_palette_png(LABELS, CLASSES, tmp_path / "out" / f"{name}.png")
        predicted.add(Outcome(tmp_path / f"{name}.png", (mask,), None))
    page = written.write_predictions_page(predicted, tmp_path / "page.html").read_text()
    assert "the first 2 of 3" in page
    assert page.count('class="example"') == 2
