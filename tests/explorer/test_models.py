"""The models on offer and their descriptions; the sample images, and nothing else."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import torch
from PIL import Image

from explorer.running import encoded, photo
from messagenet.bundled import photographs
from messagenet.data import Classes
from messagenet.errors import InputError
from messagenet.explorer.models import ServedModel, find_model, folder_samples, load_models, open_samples
from messagenet.models import SegmentationModel
from messagenet.settings import kinds


def test_what_is_said_about_a_model(models):
    described = models[0].description()
    assert described["id"] == "messages"
    assert described["kind"] == "message"
    assert described["classes"][0] == {"name": "sky", "colour": "#8ecae6"}
    assert len(described["classes"]) == 9
    assert described["relations"] == [{"name": name, "form": "pairwise"} for name in ("surrounding", "above", "below")]
    assert (described["iterations"], described["explainable"], described["stride"]) == (2, True, 4.0)


def test_models_without_messages_do_not_explain(models):
    alone = models[2].description()
    assert (alone["kind"], alone["explainable"], alone["iterations"], alone["relations"]) == ("unary", False, 0, [])


@pytest.mark.parametrize("kind", [kind for kind in kinds("head") if kind not in ("fcn8s", "deconvnet")])
def test_every_head_is_known_by_its_kind(kind):
    torch.manual_seed(0)
    model = ServedModel("x", SegmentationModel("tiny", Classes(("a", "b", "c")), kind))
    assert model.description()["kind"] == kind
    assert (model.head is not None) == (kind == "message")


def test_iterations_are_checked(models):
    assert models[0].resolve_iteration(None) == 2
    assert models[0].resolve_iteration(0) == 0
    for wrong in (-1, 3):
        with pytest.raises(InputError, match=r"model 'messages' has 0 \(before messages\) to 2$"):
            models[0].resolve_iteration(wrong)


def test_models_are_chosen_by_name(models):
    assert find_model(models, None) is models[0]
    assert find_model(models, "boxes") is models[1]
    with pytest.raises(InputError, match="there is no model 'boxs'; did you mean \"boxes\""):
        find_model(models, "boxs")


def test_by_default_the_bundled_model_and_those_of_the_demo(tmp_path, monkeypatch, models):
    monkeypatch.chdir(tmp_path)
    assert [model.id for model in load_models([])] == ["voc"]
    models[0].model.save(tmp_path / "demo" / "messages" / "best")
    assert [model.id for model in load_models([])] == ["voc", "messages"]


def test_a_bundled_model_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [model.id for model in load_models([Path("voc")])] == ["voc"]


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "photos"
    (home / "deeper").mkdir(parents=True)
    content = encoded(photo())
    for name in ("b.png", "a.JPG", "ü <b>.webp", ".hidden.png", "deeper/c.png"):
        (home / name).write_bytes(content)
    (home / "notes.txt").write_text("private")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (home / "link.png").symlink_to(tmp_path / "secret.png")
    (home / "inner.png").symlink_to(home / "b.png")
    return home


def test_only_images_that_are_there(folder):
    assert list(folder_samples(folder)) == ["a.JPG", "b.png", "inner.png", "ü <b>.webp"]
    sample = folder_samples(folder)["a.JPG"]
    assert (sample.content(), sample.media_type) == (encoded(photo()), "image/jpeg")


def test_names_that_are_no_text_are_left_aside(folder):
    (folder / os.fsdecode(b"\xff.png")).write_bytes(b"")
    assert list(folder_samples(folder)) == ["a.JPG", "b.png", "inner.png", "ü <b>.webp"]


def test_a_file_that_becomes_a_link_out_of_the_folder_is_gone(folder):
    samples = folder_samples(folder)
    (folder / "b.png").unlink()
    assert samples["b.png"].content() is None
    (folder / "b.png").symlink_to(folder.parent / "secret.png")
    assert samples["b.png"].content() is None


def test_a_folder_without_images(tmp_path):
    with pytest.raises(InputError, match="no images in"):
        folder_samples(tmp_path)
    with pytest.raises(InputError, match="is not a folder; give a folder of images with --samples"):
        folder_samples(tmp_path / "nowhere")


def test_photographs_and_scenes_by_default():
    samples = open_samples(None)
    assert list(samples)[-4:] == ["scene-1.png", "scene-2.png", "scene-3.png", "scene-4.png"]
    assert list(samples)[:-4] == [path.name for path in photographs()]
    contents = {name: sample.content() for name, sample in samples.items()}
    assert len(set(contents.values())) == len(samples)
    sizes = {name: Image.open(io.BytesIO(content)).size for name, content in contents.items()}
    assert {size for name, size in sizes.items() if name.startswith("scene")} == {(256, 256)}
    assert sizes.get("astronaut.png", (512, 512)) == (512, 512)
