"""The gallery: every image, names escaped, and the share of each class."""

from __future__ import annotations

import numpy as np
from PIL import Image

from messagenet.data import Classes
from messagenet.models import UnaryNet
from messagenet.prediction import Predictor, files
from messagenet.report import GalleryImage, class_shares_text, gallery_figure, write_gallery

CLASSES = Classes(("background", "<cat>"))
LABELS = np.eye(4, 6, dtype=np.uint8)


def test_names_are_escaped_and_images_embedded(tmp_path):
    image = np.zeros((4, 6, 3), np.uint8)
    unsure = Image.new("RGB", (6, 4))
    shown = [GalleryImage("<a>.png", image, LABELS, unsure), GalleryImage("b.png", image, LABELS)]
    figures = [gallery_figure(each, CLASSES) for each in shown]
    path = write_gallery(figures, tmp_path / "page.html", classes=CLASSES, title="A & B", entropy=True)
    page = path.read_text()
    assert "&lt;a&gt;.png: background 83%, &lt;cat&gt; 17%" in page
    assert "<h1>A &amp; B</h1>" in page
    assert "<cat>" not in page
    assert page.count("<img") == 5
    assert "entropy: black is certain" in page
    assert "http" not in page


def test_tiny_shares_are_not_listed():
    labels = np.zeros((100, 100), int)
    labels[0, :40] = 1
    assert class_shares_text(labels, CLASSES) == "background 100%"


def test_very_many_images_are_not_all_shown(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_SHOWN", 2)
    for name in "abc":
        Image.new("RGB", (16, 12)).save(tmp_path / f"{name}.png")
    predictor = Predictor(UnaryNet("tiny", CLASSES, hidden=8))
    predicted = files.predict_files(predictor, [tmp_path], tmp_path / "out", ("mask",), show=True)
    page = predicted.write_page(tmp_path / "page.html").read_text()
    assert "the first 2 of 3" in page
    assert page.count('class="example"') == 2
