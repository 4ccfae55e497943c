"""A cluster writes what one process writes, byte by byte. Needs `ray`, which the `dev` extra leaves out."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from messagenet import InputError, surrounding
from messagenet.models import MessageNet
from messagenet.prediction import PredictOptions, Predictor, predict_files
from messagenet.prediction.ray import predict_dataset

KINDS = ("mask", "overlay", "entropy", "probs")


@pytest.fixture
def predictor():
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, [surrounding(cells=3)], hidden=8)
    return Predictor(net, PredictOptions(flip=True))


@pytest.fixture
def images(tmp_path):
    for number, name in enumerate(("a/one.png", "a/two.png", "b/one.png")):
        path = tmp_path / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (20 + number, 31, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    (tmp_path / "images" / "b" / "words.jpg").write_text("words")
    return tmp_path / "images"


@pytest.fixture(scope="module")
def ray():
    module = pytest.importorskip("ray", reason='needs Ray: pip install "messagenet[ray]"')
    module.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield module
    module.shutdown()


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_outputs_are_those_of_one_process(ray, predictor, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # relative names mean the same files to the workers, and are told as given
    plain = predict_files(predictor, ["images"], "plain", KINDS)
    seen = []
    shared = predict_dataset(
        predictor, "images", "shared", KINDS, workers=2, progress=lambda *figures: seen.append(figures)
    )
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert set(shared.written) == set(plain.written)
    assert shared.failed == plain.failed
    assert [file.name for file in shared.failed] == ["words.jpg"]
    found = contents(tmp_path / "shared")
    lines = [json.loads(line) for line in found.pop("manifest.jsonl").decode().splitlines()]
    assert found == contents(tmp_path / "plain")
    assert len(found) == 3 * len(KINDS)
    assert [line["image"] for line in lines] == sorted(line["image"] for line in lines)
    assert [len(line.get("files", ())) for line in lines] == [4, 4, 4, 0]
    assert "words.jpg is not an image" in lines[3]["error"]


def test_a_ray_data_set_names_the_images(ray, predictor, images, tmp_path):
    rows = [{"file": str(path), "year": 2024} for path in sorted(images.glob("a/*.png"))]
    source = ray.data.from_items(rows)
    done = predict_dataset(predictor, source, tmp_path / "out", ["mask"], column="file", workers=1)
    assert {file.name for file in done.files} == {"one.png", "two.png"}
    with pytest.raises(InputError, match='no column "fil"; did you mean "file"'):
        predict_dataset(predictor, source, tmp_path / "out", ["mask"], column="fil")


def test_a_folder_that_cannot_be_written_is_one_line(ray, predictor, images, tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match=r"^cannot write .*out"):
        predict_dataset(predictor, images / "a", tmp_path / "out", workers=1)


def test_without_ray_the_error_names_the_extra(predictor, images, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r'pip install "messagenet\[ray\]"'):
        predict_dataset(predictor, images, tmp_path / "out")
