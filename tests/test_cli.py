"""The command as a user meets it: results on disk, one-line errors, exit codes."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from PIL import Image

import messagenet as mn
from command import run
from messagenet import api
from messagenet.cli import models, options, research
from messagenet.cli.options import predict_options
from messagenet.data import SCENE_CLASSES, SyntheticScenes, read_mask
from messagenet.data.open import forms
from messagenet.errors import InputError
from messagenet.message_passing import grid
from messagenet.models import MessageNet, SegmentationModel, UnaryNet
from messagenet.prediction import PredictOptions, Predictor
from messagenet.settings import _REGISTRY, kinds
from messagenet.training.config import preset_names
from messagenet.training.systems import SYSTEMS


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
    tiny = ["--preset", "tiny", "--set", "run.workers=0", "--set", "model.head.hidden=8"]
    assert run("train", "--data", f"folder:{street}", "--out", out, *tiny, "--epochs", 2) == 0
    assert (out / "best" / "model.safetensors").is_file()
    assert (out / "config.yaml").is_file()
    assert run("predict", street / "images", "--model", out / "best", "--out", tmp_path / "p") == 0
    assert Image.open(tmp_path / "p" / "3.png").size == (32, 24)
    assert (tmp_path / "p" / "3.overlay.png").is_file()
    scores, report = tmp_path / "scores.json", tmp_path / "report.html"
    rows = {f"--{kind}": tmp_path / f"scores.{kind}" for kind in ("csv", "latex")}
    arguments = ["--model", out / "best", "--data", f"folder:{street}", "--json", scores, "--report", report]
    assert run("evaluate", *arguments, *(word for pair in rows.items() for word in pair)) == 0
    assert [len(file.read_text().splitlines()) for file in rows.values()] == [2, 2]
    assert 0 <= json.loads(scores.read_text())["run"]["summary"]["mean_iou"] <= 1
    assert "<html" in report.read_text()
    assert "Mean IoU" in capsys.readouterr().out


def test_data_check_counts_and_fails_on_issues(street, tmp_path, capsys):
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


def test_data_check_refuses_a_folder_without_masks_as_training_does(street, tmp_path, capsys):
    (street / "masks").rename(tmp_path / "masks")
    assert run("data", "check", f"folder:{street}") == 2
    text = capsys.readouterr().out
    assert "has no masks to learn from; add them" in text
    assert "no issues found" not in text
    assert run("train", "--data", f"folder:{street}", "--preset", "tiny", "--out", tmp_path / "run") == 2
    assert "has no masks to learn from; add them" in capsys.readouterr().err


def test_a_run_that_is_complete_says_so(tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    small = ["--set", "run.workers=0", "--set", "model.head.hidden=8", "--set", "run.steps=1"]
    assert run("train", "--data", "synthetic:8", "--out", out, *small) == 0
    assert "messagenet predict IMAGES" in capsys.readouterr().out
    assert run("train", "--out", out, "--resume") == 0
    text = capsys.readouterr().out
    assert "this run is complete" in text
    assert "--epochs N" in text
    assert "resuming after" not in text
    monkeypatch.setattr("messagenet.training.distributed.is_first_process", lambda: False)
    assert run("train", "--out", out, "--resume") == 0
    assert "messagenet predict IMAGES" not in capsys.readouterr().out


def test_void_values_of_the_training_are_those_of_the_evaluation(street, tmp_path, capsys):
    for i in range(6):
        mask = np.array(Image.open(street / "masks" / f"{i}.png"))
        mask[:3] = 11
        Image.fromarray(mask).save(street / "masks" / f"{i}.png")
    data = ["--data", f"folder:{street}"]
    tiny = ["--preset", "tiny", "--set", "run.workers=0", "--set", "model.head.hidden=8", "--epochs", 1]
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
    assert {file.name for file in out.iterdir()} == {f"{i}{end}.png" for i in (0, 2) for end in ("", ".overlay")}
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
    tiny = ["--preset", "tiny", "--set", "run.workers=0", "--set", "model.head.hidden=8"]
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
        (["train", "--data", "synthetic:8", "--set", "model.head.relations=[surrounding:0.01]"], "surrounding"),
        (["train", "--data", "synthetic:8", "--set", "model.head.relations=[{name: a, offsets: []}]"], "at least one"),
        (["train", "--data", "synthetic:8", "--resume"], "no run to resume"),
        (["predict", "x.jpg", "--model", "nowhere"], "config.json"),
        (["evaluate", "--model", "nowhere"], "config.json"),
        (["evaluate"], "say which data set to open: --data folder:DIR"),
        (["tune"], "the model has nothing to tune"),
        (["data", "check", "folder:nowhere"], "nowhere"),
        (["train", "--data", "synthetic:8", "--set", "augment.crop=big"], "give a whole number or a list of 2, each"),
        (["predict", ""], "an image path is empty; give an image file, a folder or a glob"),
        (["infer", "nope.uai"], "cannot read nope.uai (No such file or directory); check the path"),
        (["infer", "model.uai", "-o", "."], ". is a folder; give a file such as model.MAR"),
        (["evaluate", "--report", "."], ". is a folder; give a file such as report.html"),
        (["evaluate", "--csv", "."], ". is a folder; give a file such as scores.csv"),
        (["evaluate", "--json", "/"], "/ is a folder; give a file such as /scores.json"),
        (["data", "check", "synthetic:4", "--sheet", "."], ". is a folder; give a file such as sheet.png"),
        (["data", "check", "synthetic:4", "--sheet", "a/b.jpg"], "PNG image, not b.jpg; call it a/b.png"),
    ],
)
def test_bad_arguments_name_the_fix(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not list(tmp_path.iterdir())


def test_predict_refuses_what_is_no_image_and_writes_nothing(model, tmp_path, capsys):
    (tmp_path / "words.jpg").write_text("words")
    assert run("predict", tmp_path / "words.jpg", "--model", model, "--out", tmp_path / "out") == 2
    assert "words.jpg" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("predict", tmp_path / "empty", "--model", model, "--out", tmp_path / "out") == 2
    assert run("predict", tmp_path, "--model", model, "--scales", "big") == 2
    assert not (tmp_path / "out").exists()


def test_a_tiny_image_is_predicted_with_a_note(model, tmp_path, capsys):
    grid._warn_empty.cache_clear()  # shown once in a process
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
    image = tmp_path / "a.png"
    Image.new("RGB", (64, 64)).save(image)
    with pytest.warns(UserWarning, match="odd"):
        run("predict", image, "--model", model, "--out", tmp_path / "out", "--save", "mask")
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
    tiny = ["--preset", "tiny", "--set", "run.workers=1", "--set", "model.head.hidden=8", "--epochs", 1]
    arguments = ["train", "--data", f"folder:{street}", "--out", tmp_path / "run", *tiny]
    assert run(*arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1
    for i in range(6):
        mask.save(street / "masks" / f"{i}.png")
    assert run(*arguments) == 0


def test_settings_are_explained_before_training(capsys):
    assert run("settings", "fast") == 0
    text = capsys.readouterr().out
    assert "# Passes over the training images." in text
    assert "efficientnet_lite0" in text


def test_evaluate_compares_models(model, tmp_path, capsys):
    UnaryNet("tiny", SCENE_CLASSES, hidden=8).save(tmp_path / "other")
    assert run("evaluate", "--model", model, "--model", tmp_path / "other", "--data", "synthetic:3") == 0
    text = capsys.readouterr().out
    assert "model" in text
    assert "other" in text


def test_help_teaches_and_starts_fast():
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "messagenet", "--help"], capture_output=True, text=True, check=True
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
        json.dumps({**config, "model": {**config["model"], "head": {**config["model"]["head"], "hidden": 9}}})
    )
    assert run("predict", image, "--model", model) == 2
    assert "shape" in capsys.readouterr().err


def test_predict_does_not_read_what_it_has_written(model, tmp_path, monkeypatch):
    """Shares and the page come from the labels in memory."""
    photos, out = tmp_path / "photos", tmp_path / "out"
    photos.mkdir()
    Image.fromarray(SyntheticScenes(1)[0].image).save(photos / "a.png")
    opened: list[Path] = []
    plain_open = Image.open

    def spy(source, *arguments, **options):
        if isinstance(source, str | Path):
            opened.append(Path(source))
        return plain_open(source, *arguments, **options)

    def refuse(path, *_, **__):
        raise AssertionError(f"{path} is read back")

    monkeypatch.setattr(Image, "open", spy)
    for module in ("messagenet.data.images", "messagenet.data", "messagenet.data.pairs"):
        monkeypatch.setattr(f"{module}.read_mask", refuse, raising=False)
    everything = ["--save", "mask,overlay,entropy,probs,voc", "--report", tmp_path / "page.html"]
    assert run("predict", photos, "--model", model, "--out", out, *everything) == 0
    assert len([path for path in out.rglob("*") if path.is_file()]) == 5
    assert {path.resolve() for path in opened} <= {(photos / "a.png").resolve()}


def _option(parameter: inspect.Parameter):
    kind, option = get_args(parameter.annotation)
    return parameter.name, kind, option.help, parameter.default


@pytest.mark.parametrize("command", [models.predict, models.evaluate, models.tune, research.compare])
def test_all_commands_that_predict_take_the_same_options(command):
    shared = inspect.signature(predict_options, eval_str=True).parameters
    ours = [inspect.signature(command).parameters[name] for name in shared]
    assert [_option(each) for each in ours] == [_option(each) for each in shared.values()]
    known = {field.name for field in dataclasses.fields(PredictOptions)}
    own = {"overlap", "refine", "iterations"}  # `tune` and `compare` keep the iterations of training
    assert known - own == set(shared), "an option of prediction is missing on the command line"
    explorer = inspect.signature(models.serve, eval_str=True).parameters["longest_side"]
    assert _option(explorer) == _option(shared["longest_side"])


ONLY_COMMANDS = {
    (mn.infer, "out"),  # it returns what the command writes
    (mn.evaluate_models, "models"),  # `mn.evaluate` has the default
    *((mn.compare, name) for name in ("study", "preset", "set_", "classes", "void", "keep", "rest", "epochs")),
}
"""Options that the function lacks, or has in another argument, such as the `config` of a comparison."""


@pytest.mark.parametrize(
    ("command", "function"),
    [
        (models.train, mn.train),
        (models.predict, mn.predict),
        (models.evaluate, mn.evaluate_models),
        (models.tune, mn.tune),
        (models.serve, mn.serve),
        (models.settings, mn.load_config),
        (research.compare, mn.compare),
        (research.demo, mn.run_demo),
        (research.infer, mn.infer),
    ],
)
def test_every_command_is_a_function_with_the_same_defaults(command, function):
    parameters = inspect.signature(function).parameters
    predicts = inspect.signature(predict_options).parameters if "options" in parameters else {}
    others = {"void": "void_values", "set_": "settings", "preset": "source", "browser": "open_browser"}
    for given, option in inspect.signature(command).parameters.items():
        name = next((each for each in (given, others.get(given), f"{given}s") if each in parameters), given)
        if (
            given in ("imports", "json_file", "csv_file", "latex_file", "iterations", *predicts)
            or (function, name) in ONLY_COMMANDS
        ):
            continue
        default = parameters[name].default
        assert (option.default is option.empty) == (default is option.empty), name
        if option.default is not None:
            default = ",".join(default) if isinstance(default, tuple) else default
            assert default == (str(option.default) if isinstance(option.default, Path) else option.default), name


def test_iterations_that_a_model_was_not_trained_for_are_exit_code_2(model, tmp_path, capsys):
    Image.new("RGB", (40, 30)).save(tmp_path / "a.png")
    for iterations, words in ((2, "this head is for one iteration, not 2"), (0, "give a whole number, at least 1")):
        arguments = ["--model", model, "--out", tmp_path / "p", "--iterations", iterations]
        assert run("predict", tmp_path / "a.png", *arguments) == 2
        assert words in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "p").exists()


def test_options_of_a_predictor_are_its_own(model):
    predictor = Predictor(SegmentationModel.from_pretrained(model), PredictOptions(flip=True))
    with pytest.raises(InputError, match="a Predictor has its own options"):
        api.evaluate(predictor, "synthetic:1", options=PredictOptions())
    assert api.evaluate(predictor, "synthetic:1").mean_iou is not None


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ([], {}),
        (["--tile", 64], {"tile": 64}),
        (["--longest-side", 40], {"longest_side": 40}),
        (["--scales", "0.5,1", "--flip"], {"scales": (0.5, 1.0), "flip": True}),
        (["--iterations", 1], {"iterations": 1}),
    ],
)
def test_evaluate_scores_what_predict_writes(model, tmp_path, arguments, options):
    data = SyntheticScenes(2, split="val")
    predictor = Predictor(SegmentationModel.from_pretrained(model), PredictOptions(**options))
    confusion = np.zeros((9, 9), int)
    for index in range(len(data)):
        image, mask = data[index].image, data[index].mask
        Image.fromarray(image).save(tmp_path / "a.png")
        assert run("predict", tmp_path / "a.png", "--model", model, "--out", tmp_path / "p", *arguments) == 0
        labels = read_mask(tmp_path / "p" / "a.png")
        np.testing.assert_array_equal(labels, predictor.labels(image))
        np.add.at(confusion, (mask[mask != 255], labels[mask != 255]), 1)
    scores = tmp_path / "scores.json"
    assert run("evaluate", "--model", model, "--data", "synthetic:2", "--json", scores, *arguments) == 0
    assert json.loads(scores.read_text())["model"]["confusion"] == confusion.tolist()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("run.steps=many", "run.steps is 'many'; give a whole number"),
        ("model.head.hiden=8", 'did you mean "hidden"'),
        ("model.head.kind=mesage", 'did you mean "message"'),
        ("model.head.hidden=0", "model.head: hidden is 0; give a whole number, at least 1"),
        ("model.head=[1]", "give a kind, or settings"),
        ("model.backbone.kind=timy", 'did you mean "tiny"'),
        ("model.backbone.width=-1", "width"),
        ("model.neck={filters: -1}", "filters"),
        ("model.neck={fliters: 1}", 'did you mean "filters"'),
        ("model.hidden=8", "model.h"),
        ("loss.kind=likelihod", 'did you mean "likelihood"'),
        ("loss.kind=piecewise", "set model.head.kind=crf"),
        ("loss.label_smoothing=2", "label_smoothing is 2"),
        ("run.method=daggre", 'did you mean "dagger"'),
        ("optimiser.kind=adam", 'did you mean "adamw"'),
        ("run.cache_features=true", "freeze_backbone"),
        ("data.keep=[nowhere]", "nowhere"),
        ("steps=3", 'did you mean "run.steps"'),
        ("run.steps", "sets nothing"),
        ("run.steps=[", "not YAML"),
    ],
)
def test_a_refused_setting_is_one_line_and_exit_code_2(setting, words, tmp_path, capsys):
    out = tmp_path / "run"
    assert run("train", "--data", "synthetic:8", "--out", out, "--set", setting) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert words in error
    assert not (out / "last").exists()


def test_a_setting_that_the_system_does_not_use_is_refused(tmp_path, capsys):
    arguments = ["train", "--data", "synthetic:8", "--out", tmp_path / "run", "--system", "unary"]
    assert run(*arguments, "--set", "model.head.iterations=2") == 2
    assert 'no setting "model.head.iterations" for unary' in capsys.readouterr().err
    assert run(*arguments[:-1], "unaryy") == 2
    assert 'there is no system "unaryy"; did you mean "unary"' in capsys.readouterr().err


def test_help_lists_what_there_is():
    named = set(re.findall(r"`(\w+)`", options.SYSTEMS_HELP))
    assert named == {name for name in SYSTEMS if not name.startswith("message_t")}
    for command, parameter in ((models.train, "preset"), (models.settings, "preset")):
        (option,) = get_type_hints(command, include_extras=True)[parameter].__metadata__
        listed = set(re.findall(r"`([\w-]+)`", option.help))
        assert listed | {"default"} == set(preset_names())
    assert set(re.findall(r"`(\w+(?::[\w,]+)?)`", options.DATA_HELP)) == set(forms()) - {"DIR"}
    engines = get_type_hints(research.infer, include_extras=True)["engine"].__metadata__[0].help
    assert set(re.findall(r"`(\w+)`", engines)) == set(kinds("engine"))


def test_components_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.setitem(_REGISTRY, "backbone", dict(_REGISTRY["backbone"]))
    source = tmp_path / "flat_backbone.py"
    source.write_text(
        "import torch, messagenet as mn\n"
        '@mn.register("backbone", "flat")\n'
        "class Flat(torch.nn.Conv2d):\n"
        "    def __init__(self, width: int = 4):\n"
        "        super().__init__(3, width, 8, stride=8)\n"
        "        self.channels = width\n"
    )
    (tmp_path / "broken.py").write_text("import nowhere_at_all\n")
    for command in (("train", "--data", "synthetic:4"), ("settings",), ("predict", "a.png"), ("infer", "a.uai")):
        assert run(*command, "--import", tmp_path / "broken.py") == 2
        assert "cannot be imported (ModuleNotFoundError: No module named 'nowhere_at_all')" in capsys.readouterr().err
    (tmp_path / "mine.yaml").write_text("model: {backbone: {kind: flat, width: 5}}\n")
    assert run("settings", tmp_path / "mine.yaml") == 2
    assert 'there is no backbone "flat"' in capsys.readouterr().err
    assert run("settings", tmp_path / "mine.yaml", "--import", source) == 0
    assert "width: 5" in capsys.readouterr().out
