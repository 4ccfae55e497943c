"""The command as a user meets it: results on disk, one-line errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from command import run
from messagenet.data import SCENE_CLASSES, SyntheticScenes
from messagenet.message_passing import grid as field
from messagenet.models import MessageNet, UnaryNet
from messagenet.prediction import Predictor


@pytest.fixture
def model(tmp_path):
    torch.manual_seed(0)
    return MessageNet("tiny", SCENE_CLASSES, hidden=8).save(tmp_path / "model")


@pytest.fixture
def street(tmp_path):
    """A data set in a folder, as a newcomer would have it."""
    root = tmp_path / "street"
    (root / "images").mkdir(parents=True)
    (root / "masks").mkdir()
    (root / "classes.txt").write_text("road\nsky\ncar\n")
    for i in range(6):
        rng = np.random.default_rng(i)
        mask = np.zeros((24, 32), np.uint8)
        mask[:12] = 1
        mask[14:20, 4 + 2 * i : 12 + 2 * i] = 2
        image = np.array([[90, 90, 90], [120, 180, 250], [200, 30, 30]], np.uint8)[mask]
        image = np.clip(image + rng.normal(0, 8, image.shape), 0, 255).astype(np.uint8)
        Image.fromarray(image).save(root / "images" / f"{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
    return root


def test_train_predict_evaluate_on_a_folder(street, tmp_path, capsys):
    out = tmp_path / "run"
    tiny = ["--preset", "tiny", "--set", "run.workers=0", "--set", "model.hidden=8"]
    assert run("train", "--data", f"folder:{street}", "--out", out, *tiny, "--epochs", 2) == 0
    assert (out / "best" / "model.safetensors").is_file()
    assert (out / "config.yaml").is_file()
    assert run("predict", street / "images", "--model", out / "best", "--out", tmp_path / "p") == 0
    assert Image.open(tmp_path / "p" / "3.png").size == (32, 24)
    assert (tmp_path / "p" / "3.overlay.png").is_file()
    scores, report = tmp_path / "scores.json", tmp_path / "report.html"
    arguments = ["--model", out / "best", "--data", f"folder:{street}", "--json", scores, "--report", report]
    assert run("evaluate", *arguments) == 0
    assert 0 <= json.loads(scores.read_text())["run"]["summary"]["mean_iou"] <= 1
    assert "<html" in report.read_text()
    assert "Mean IoU" in capsys.readouterr().out


def test_data_check_counts_and_fails_on_problems(street, tmp_path, capsys):
    assert run("data", "check", f"folder:{street}", "--sheet", tmp_path / "sheet.png") == 0
    assert (tmp_path / "sheet.png").is_file()
    (street / "masks" / "2.png").unlink()
    Image.fromarray(np.full((24, 32), 77, np.uint8)).save(street / "masks" / "4.png")
    assert run("data", "check", f"folder:{street}") == 2
    text = capsys.readouterr().out
    assert "77 (768 pixels)" in text
    assert "2.png" in text
    for i in (0, 1, 3, 5):
        Image.fromarray(np.full((24, 32), 78, np.uint8)).save(street / "masks" / f"{i}.png")
    assert run("data", "check", f"folder:{street}") == 2
    assert capsys.readouterr().out.count("holds ids outside") == 1
    assert run("data", "check", f"folder:{street}", "--all") == 2
    assert capsys.readouterr().out.count("holds ids outside") == 5


def test_a_run_that_is_complete_says_so(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    small = ["--set", "run.workers=0", "--set", "model.hidden=8", "--set", "run.steps=1"]
    assert run("train", "--data", "synthetic:8", "--out", out, *small) == 0
    assert "messagenet predict IMAGES" in capsys.readouterr().out
    assert run("train", "--out", out, "--resume") == 0
    text = capsys.readouterr().out
    assert "this run is complete" in text
    assert "--epochs N" in text
    assert "going on" not in text
    monkeypatch.setattr("messagenet.training.distributed.is_first_process", lambda: False)
    assert run("train", "--out", out, "--resume") == 0
    assert "messagenet predict IMAGES" not in capsys.readouterr().out


def test_void_values_of_the_training_are_those_of_the_evaluation(street, tmp_path, capsys):
    for i in range(6):
        mask = np.array(Image.open(street / "masks" / f"{i}.png"))
        mask[:3] = 11
        Image.fromarray(mask).save(street / "masks" / f"{i}.png")
    data = ["--data", f"folder:{street}"]
    tiny = ["--preset", "tiny", "--set", "run.workers=0", "--set", "model.hidden=8", "--epochs", 1]
    assert run("train", *data, "--void", 11, "--out", tmp_path / "run", *tiny) == 0
    assert run("evaluate", *data, "--model", tmp_path / "run" / "best") == 0
    assert run("evaluate", *data, "--model", tmp_path / "run" / "best", "--void", 12) == 2
    assert "holds ids outside 0..2: 11" in capsys.readouterr().err
    MessageNet("tiny", ["road", "sky", "car"], hidden=8).save(tmp_path / "other")
    both = ["--model", tmp_path / "run" / "best", "--model", tmp_path / "other"]
    assert run("evaluate", *data, *both) == 2
    assert "different void values (run: 11; other: none); give --void" in capsys.readouterr().err
    assert run("evaluate", *data, *both, "--void", 11) == 0
    assert run("evaluate", *data, *both, "--void", 70000) == 2
    assert "void value 70000" in capsys.readouterr().err


def test_predict_goes_on_after_a_bad_file_and_names_it(model, tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    for i in range(3):
        Image.fromarray(SyntheticScenes(3)[i].image).save(photos / f"{i}.png")
    whole = (photos / "1.png").read_bytes()
    (photos / "1.png").write_bytes(whole[: len(whole) // 2])
    (photos / "odd[red].jpg").write_text("words")
    out = tmp_path / "out"
    assert run("predict", photos, "--model", model, "--out", out) == 2
    text = capsys.readouterr()
    assert f"4 files of 2 images written to {out}" in text.out.replace("\n", "")
    assert "error: 2 of 4 images could not be predicted:" in text.err
    assert "1.png is damaged" in text.err
    assert "odd[red].jpg is not an image" in text.err
    assert {file.name for file in out.iterdir()} == {
        f"{i}{end}.png" for i in (0, 2) for end in ("", ".overlay")
    }
    assert run("predict", photos / "0.png", "--model", model, "--out", out, "--workers", 2) == 2
    assert "--ray" in capsys.readouterr().err


def damaged(street: Path, kind: str) -> None:
    match kind:
        case "not an image":
            (street / "images" / "0.png").write_text("words")
        case "empty folder":
            for file in (street / "images").iterdir():
                file.unlink()
        case "id too large":
            for i in range(6):
                Image.fromarray(np.full((24, 32), 9, np.uint8)).save(street / "masks" / f"{i}.png")
        case "size mismatch":
            for i in range(6):
                Image.fromarray(np.zeros((20, 32), np.uint8)).save(street / "masks" / f"{i}.png")
        case "one class":
            (street / "classes.txt").write_text("road\n")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("not an image", "0.png"),
        ("empty folder", "images"),
        ("id too large", "--void 9"),
        ("size mismatch", "32x20"),
        ("one class", "at least 2"),
    ],
)
def test_bad_data_is_one_line_and_exit_code_2(street, tmp_path, capsys, kind, words):
    damaged(street, kind)
    out = tmp_path / "run"
    tiny = ["--preset", "tiny", "--set", "run.workers=0", "--set", "model.hidden=8"]
    assert run("train", "--data", f"folder:{street}", "--out", out, *tiny) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "--data"),
        (["train", "--data", "folder:/nowhere"], "/nowhere"),
        (["train", "--data", "synthetic:8", "--set", "run.epoch=3"], 'did you mean "run.epochs"'),
        (["train", "--data", "synthetic:8", "--preset", "tinny"], 'did you mean "tiny"'),
        (["train", "--data", "synthetic:8", "--set", "model.relations=[surrounding:0.01]"], "surrounding"),
        (
            ["train", "--data", "synthetic:8", "--set", "model.relations=[{name: a, offsets: []}]"],
            "at least one",
        ),
        (["train", "--data", "synthetic:8", "--resume"], "no run to resume"),
        (["predict", "x.jpg", "--model", "nowhere"], "config.json"),
        (["evaluate", "--model", "nowhere"], "config.json"),
        (["data", "check", "folder:nowhere"], "nowhere"),
    ],
)
def test_bad_arguments_name_the_fix(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert words in error
    assert not list(tmp_path.rglob("*.safetensors"))


def test_predict_refuses_what_is_no_image_and_writes_nothing(model, tmp_path, capsys):
    (tmp_path / "words.jpg").write_text("words")
    assert run("predict", tmp_path / "words.jpg", "--model", model, "--out", tmp_path / "out") == 2
    assert "words.jpg" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("predict", tmp_path / "empty", "--model", model, "--out", tmp_path / "out") == 2
    assert run("predict", tmp_path, "--model", model, "--scales", "big") == 2
    assert not (tmp_path / "out").exists()


def test_a_tiny_picture_is_predicted_with_a_note(model, tmp_path, capsys):
    field._warn_empty.cache_clear()  # told once in a process
    Image.new("RGB", (3, 3)).save(tmp_path / "dot.png")
    assert run("predict", tmp_path / "dot.png", "--model", model, "--out", tmp_path / "out") == 0
    said = capsys.readouterr().err
    assert said.startswith("note: on an image this small (1×1 nodes) no message comes from 'surrounding'")
    assert "Warning" not in said


def test_only_notes_are_shortened(model, tmp_path, monkeypatch, capsys):
    def odd(self, image):
        warnings.warn("odd", stacklevel=1)
        return np.zeros(image.shape[:2], np.uint8)

    monkeypatch.setattr(Predictor, "labels", odd)
    picture = tmp_path / "a.png"
    Image.new("RGB", (64, 64)).save(picture)
    with pytest.warns(UserWarning, match="odd"):
        run("predict", picture, "--model", model, "--out", tmp_path / "out", "--save", "mask")
    assert "note:" not in capsys.readouterr().err


def test_odd_names_and_places_are_shown_as_they_are(model, tmp_path, capsys):
    (tmp_path / "odd[red].jpg").write_text("words")
    assert run("predict", tmp_path / "odd[red].jpg", "--model", model, "--out", tmp_path / "out") == 2
    assert "odd[red].jpg" in capsys.readouterr().err
    Image.fromarray(SyntheticScenes(1)[0].image).save(tmp_path / "a.png")
    assert run("predict", tmp_path / "a.png", "--model", model, "--out", tmp_path / "a.png") == 2
    assert run("predict", tmp_path / "a.png", "--model", model, "--scales", "nan") == 2
    assert run("predict", tmp_path / "a.png", "--model", model, "--save", "") == 2
    assert run("predict", tmp_path / "a.png", "--model", tmp_path) == 2
    assert capsys.readouterr().err.count("error: ") == 4


def test_a_bad_file_met_by_a_worker_is_one_line_and_the_run_can_be_repeated(street, tmp_path, capsys):
    mask = Image.open(street / "masks" / "0.png").copy()
    for i in range(6):
        Image.fromarray(np.full((24, 32), 9, np.uint8)).save(street / "masks" / f"{i}.png")
    tiny = ["--preset", "tiny", "--set", "run.workers=1", "--set", "model.hidden=8", "--epochs", 1]
    arguments = ["train", "--data", f"folder:{street}", "--out", tmp_path / "run", *tiny]
    assert run(*arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    for i in range(6):
        mask.save(street / "masks" / f"{i}.png")
    assert run(*arguments) == 0


def test_settings_are_explained_before_training(capsys):
    assert run("settings", "fast") == 0
    text = capsys.readouterr().out
    assert "# How often to go through the training images." in text
    assert "efficientnet_lite0" in text


def test_evaluate_compares_models(model, tmp_path, capsys):
    UnaryNet("tiny", SCENE_CLASSES, hidden=8).save(tmp_path / "other")
    assert run("evaluate", "--model", model, "--model", tmp_path / "other", "--data", "synthetic:3") == 0
    text = capsys.readouterr().out
    assert "model" in text
    assert "other" in text


def test_help_teaches_and_starts_fast():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "messagenet", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    for verb in ("train", "predict", "evaluate", "demo", "data"):
        assert verb in done.stdout
    assert "| torch" not in done.stderr, "help must not wait for torch"


def test_damaged_models_are_refused_by_name(model, tmp_path, capsys):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "extra": 1}))
    image = tmp_path / "a.png"
    Image.fromarray(SyntheticScenes(1)[0].image).save(image)
    assert run("predict", image, "--model", model) == 2
    assert "extra" in capsys.readouterr().err
    (model / "config.json").write_text(
        json.dumps({**config, "settings": {**config["settings"], "hidden": 9}})
    )
    assert run("predict", image, "--model", model) == 2
    assert "shape" in capsys.readouterr().err
