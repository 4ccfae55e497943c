"""The report: one file, well formed, complete, without a single address outside itself."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from messagenet.data.classes import Classes
from messagenet.errors import InputError
from messagenet.evaluation.scores import Evaluator
from messagenet.report.images import colourise, entropy
from messagenet.report.scores_page import ReportExample, write_report

CLASSES = Classes(("sky", "<b>land</b>", "sea"))
VOID_ELEMENTS = {"meta", "img", "br", "hr", "link", "input"}


class Page(HTMLParser):
    """Collects elements and checks that they nest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.text = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def evaluated(count):
    """Images of growing quality: image i has i rows right."""
    generator = torch.Generator().manual_seed(0)
    evaluators = {"un<ary": Evaluator(CLASSES), "messages": Evaluator(CLASSES)}
    examples = []
    for index in range(count):
        target = torch.arange(3).repeat_interleave(4)[:, None].repeat(1, 10)
        logits = torch.randn(3, 12, 10, generator=generator)
        logits.scatter_(0, target[None], -9.0)
        logits[:, : index + 1].scatter_(0, target[None, : index + 1], 9.0)
        marginals = logits.softmax(dim=0)
        name = f"image-{index:02d}"
        for evaluator in evaluators.values():
            evaluator.add(name, marginals, target)
        image = np.full((12, 10, 3), index, np.uint8)
        labels = marginals.argmax(dim=0)
        predictions = dict.fromkeys(evaluators, labels)
        examples.append(ReportExample(name, image, target, predictions, entropy(marginals)))
    return {name: evaluator.scores() for name, evaluator in evaluators.items()}, examples


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    named, examples = evaluated(7)
    folder = tmp_path_factory.mktemp("report")
    path = write_report(named, examples[::-1], folder / "report.html", classes=CLASSES, title="Test & report", shown=2)
    assert [file.name for file in folder.iterdir()] == ["report.html"]
    return named, examples, path.read_text(encoding="utf-8")


def test_it_is_well_formed_and_needs_nothing_else(report):
    _, _, text = report
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>")
    assert page.named("html") == [{"lang": "en"}]
    for _, attributes in page.elements:
        for key in ("src", "href", "xlink:href", "srcset", "action"):
            assert attributes.get(key, "#").startswith(("#", "data:"))
    assert not re.search(r"@import|url\((?!#)", text)
    assert not page.named("script")
    assert "prefers-color-scheme: dark" in text


def test_ids_are_unique(report):
    ids = [attributes["id"] for _, attributes in Page(report[2]).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_names_are_escaped(report):
    _, _, text = report
    assert "<b>land</b>" not in text
    assert "&lt;b&gt;land&lt;/b&gt;" in text
    assert "un<ary" not in text
    assert "<title>Test &amp; report</title>" in text


def test_every_image_and_plot_is_described(report):
    page = Page(report[2])
    assert all(image["alt"] for image in page.named("img"))
    drawings = [attributes for attributes in page.named("div") if attributes.get("role") == "img"]
    assert len(drawings) == len(page.named("svg")) == 5
    assert all(drawing["aria-label"] for drawing in drawings)
    assert all(cell.get("scope") in ("row", "col") for cell in page.named("th"))


def test_the_tables_hold_the_scores(report):
    named, _, text = report
    value = f"{named['messages'].mean_iou:.1%}"
    assert re.search(rf'<th scope="row">Mean IoU</th><td>{value}</td><td>{value}</td>', text)
    assert f"7 images, 3 classes, mean IoU {value} (messages)" in text


def test_worst_and_best_are_ranked_by_score(report):
    _, _, text = report
    worst, best = text.split("<h2>Worst images</h2>")[1].split("<h2>Best images</h2>")
    assert re.findall(r"<figcaption>(image-\d+), mean IoU", worst) == ["image-00", "image-01"]
    assert re.findall(r"<figcaption>(image-\d+), mean IoU", best) == ["image-06", "image-05"]


def test_embedded_images_are_the_examples(report):
    _, examples, text = report
    images = {image["alt"]: image["src"] for image in Page(text).named("img")}

    def embedded(alt):
        return Image.open(io.BytesIO(base64.b64decode(images[alt].split(",")[1]))).convert("RGB")

    example = examples[6]
    np.testing.assert_array_equal(embedded("image of image-06"), example.image)
    np.testing.assert_array_equal(embedded("target of image-06"), colourise(example.target, CLASSES))
    predicted = colourise(example.predictions["messages"], CLASSES)
    np.testing.assert_array_equal(embedded("messages of image-06"), predicted)
    assert embedded("entropy (messages) of image-06").size == (10, 12)


def test_one_method_with_hard_predictions_and_no_examples(tmp_path):
    evaluator = Evaluator(CLASSES, widths=())
    evaluator.add("one", None, np.zeros((2, 2), int), predicted=np.zeros((2, 2), int))
    text = write_report(evaluator.scores(), [], tmp_path / "a.html", classes=CLASSES).read_text(encoding="utf-8")
    assert len(Page(text).named("svg")) == 2
    assert "images</h2>" not in text


def test_large_photographs_are_reduced(tmp_path):
    evaluator = Evaluator(CLASSES, widths=())
    target = np.zeros((600, 900), np.uint8)
    evaluator.add("one", None, target, predicted=target)
    example = ReportExample("one", np.zeros((600, 900, 3), np.uint8), target, {"prediction": target})
    path = write_report(evaluator.scores(), [example], tmp_path / "a.html", classes=CLASSES)
    photograph, mask, _ = Page(path.read_text(encoding="utf-8")).named("img")
    assert (photograph["width"], photograph["height"]) == ("480", "320")
    assert photograph["src"].startswith("data:image/jpeg")
    assert mask["src"].startswith("data:image/png")


def test_images_are_there_before_anyone_scrolls_or_prints(report):
    assert "loading=" not in report[2]


def test_colours_are_explained_beside_the_images(report):
    assert report[2].count('<p class="legend">') == 2
    assert "black is certain" in report[2]
    assert "entropy (messages)" in report[2]


@pytest.mark.parametrize(("classes", "wide"), [(9, 0), (21, 1)])
def test_a_large_matrix_has_the_whole_width(tmp_path, classes, wide):
    many = Classes(tuple(f"class {index}" for index in range(classes)))
    evaluator = Evaluator(many)
    target = np.arange(classes).repeat(4).reshape(4, -1)
    evaluator.add("a", None, target, predicted=target)
    path = write_report(evaluator.scores(), [], tmp_path / "report.html", classes=many)
    assert path.read_text(encoding="utf-8").count('<figure class="wide">') == wide


def test_mismatches_are_named(tmp_path):
    named, examples = evaluated(1)
    with pytest.raises(InputError, match="other classes"):
        write_report(named, examples, tmp_path / "a.html", classes=Classes(("x", "y", "z")))
    stranger = ReportExample("stranger", examples[0].image, examples[0].target, {})
    with pytest.raises(InputError, match="none of the examples was scored"):
        write_report(named, [stranger], tmp_path / "a.html", classes=CLASSES)
    assert list(tmp_path.iterdir()) == []
