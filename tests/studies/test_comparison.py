"""Comparisons: equal terms for all rows, nothing trained twice, figures that add up."""

from __future__ import annotations

import csv
import json
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from messagenet.data import SCENE_CLASSES, Joined, Sample, SyntheticScenes
from messagenet.errors import InputError
from messagenet.evaluation import Scores
from messagenet.models import KINDS, SegmentationNet
from messagenet.models.controls import parameter_count
from messagenet.prediction import Predictor, score
from messagenet.studies import ROWS, Outcome, Row, compare, lines, markdown
from messagenet.studies import run as comparison_run
from messagenet.studies.cost import Backbone, Cost, measure
from messagenet.studies.systems import find_rows
from messagenet.training import DataSets, TrainConfig, apply_overrides, load_config
from messagenet.training.build import build_network

SMALL = (
    "model.hidden=8",
    "model.backbone_options={width: 8}",
    "model.relations=[surrounding:3cells]",
    "run.steps=2",
    "run.batch_size=2",
    "run.workers=0",
)


def small(*overrides: str) -> TrainConfig:
    return apply_overrides(load_config("tiny"), [*SMALL, *overrides])


def scenes() -> DataSets:
    return DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))


def outcome(row: str, seed: int, iou: float, near: float = 0.2) -> Outcome:
    return Outcome(row, row, seed, iou, {"4": near}, 1234, 9, 2, 1.0, Cost(0.01, 0.02, 3.0))


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Costs that are not measured; the models they were asked for."""
    asked: list[Path] = []

    def measured(folder: Path, height: int, width: int, batch_size: int, backbone: str) -> Cost:
        asked.append(folder)
        frozen = load_config(folder.parent / "run" / "config.yaml").run.freeze_backbone
        assert backbone == ("kept" if frozen else "trained")
        assert (height, width, batch_size) == (32, 32, 2)
        return Cost(0.01, 0.02, 3.0)

    monkeypatch.setattr(comparison_run, "measured", measured)
    return asked


def test_contrasts_are_named_before_anything_is_trained(tmp_path: Path, cheap: list[Path]) -> None:
    rows = ["unary", "message"]
    with pytest.raises(InputError, match='did you mean "unary"'):
        compare(rows, small(), [0], tmp_path, held_out=2, contrasts=[("unray", "message")], data=scenes())
    assert not list(tmp_path.iterdir())
    pairs = [("unary", "learned messages")]  # by name and by label
    compare(rows, small(), [0], tmp_path, held_out=2, contrasts=pairs, data=scenes())
    assert "unary only → learned messages" in (tmp_path / "contrasts.md").read_text()


def test_no_head_has_an_advantage(tmp_path: Path) -> None:
    config = small("model.pretrained_head=true")
    with pytest.raises(InputError, match="trains every head from the beginning"):
        compare(["unary"], config, [0], tmp_path, held_out=2, data=scenes())


def test_an_image_that_is_there_twice_is_held_out_twice(tmp_path: Path, cheap: list[Path]) -> None:
    once = SyntheticScenes(6, size=32)
    twice = DataSets(Joined([once, once], "twice"), scenes().val)
    sets, held_out = comparison_run._parts(twice, 2)
    kept = {sets.train.sample_name(index) for index in range(len(sets.train))}
    assert len(sets.train) == 8
    assert kept.isdisjoint(held_out.sample_name(index) for index in range(len(held_out)))


def test_rows_are_trained_tuned_scored_and_not_again(tmp_path: Path, cheap: list[Path]) -> None:
    rows = ["unary", "context_crf", Row("wide", ("model.kind=message", "model.hidden=12"), "wider messages")]
    found = compare(rows, small(), [0, 1], tmp_path, held_out=2, data=scenes())
    assert [(each.row, each.seed) for each in found] == [
        (name, seed) for seed in (0, 1) for name in ("unary", "context_crf", "wide")
    ]
    assert len(cheap) == 3  # once for each row
    crf = found[1]
    assert list(crf.tuned) == ["pairwise_scale", "inference_iterations"]
    assert crf.outputs_per_factor == 81
    saved = SegmentationNet.from_pretrained(tmp_path / "context_crf" / "seed-0" / "model")
    assert saved.settings["pairwise_scale"] == crf.tuned["pairwise_scale"]
    assert found[2].parameters > found[0].parameters
    table = json.loads((tmp_path / "comparison.json").read_text())
    assert table["rows"][0]["mean_iou"] == pytest.approx(
        statistics.fmean(each.mean_iou for each in (found[0], found[3]))
    )
    with (tmp_path / "comparison.csv").open() as file:
        assert [line["row"] for line in csv.DictReader(file)] == ["unary", "context_crf", "wide"]
    assert (tmp_path / "comparison.md").read_text() == markdown(found)
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("iou.png", "cost.png"))
    weights = tmp_path / "unary" / "seed-0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = compare(rows, small(), [0, 1], tmp_path, held_out=2, data=scenes())
    assert again == found
    assert weights.stat().st_mtime_ns == before


def test_all_rows_have_the_loss_that_each_can_have(tmp_path: Path, cheap: list[Path]) -> None:
    config = small("loss.resolution=pixels", "loss.label_smoothing=0.1")
    compare(["unary"], config, [0], tmp_path / "a", held_out=1, data=scenes())
    assert load_config(tmp_path / "a" / "config.yaml").loss == config.loss
    compare(["unary", "crf_pseudo"], config, [0], tmp_path / "b", held_out=1, data=scenes())
    shared = load_config(tmp_path / "b" / "config.yaml").loss
    assert (shared.resolution, shared.label_smoothing) == ("nodes", 0.0)


def test_held_out_images_are_not_trained_on_when_rare_classes_are_repeated(
    tmp_path: Path, cheap: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()

    class Spying(SyntheticScenes):
        def load(self, index: int) -> Sample:
            seen.add(self.sample_name(index))
            return super().load(index)

    monkeypatch.setattr(comparison_run, "tune", lambda *_, **__: [])
    scenes = DataSets(Spying(12, size=32), SyntheticScenes(2, size=32, split="val"))
    config = small("data.balance=1", "run.epochs=1", "run.steps=null")
    compare(["unary"], config, [0], tmp_path, held_out=4, data=scenes)
    assert seen == {f"train-{index:05d}" for index in range(12) if index % 3}


def test_rows_finished_earlier_stay_in_the_table(tmp_path: Path, cheap: list[Path]) -> None:
    compare(["unary", "message"], small(), [0], tmp_path, held_out=2, data=scenes())
    (found,) = compare(["message"], small(), [0], tmp_path, held_out=2, data=scenes())
    assert found.row == "message"
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert [row["row"] for row in rows] == ["message", "unary"]


def test_systems_without_steps_have_no_time_of_a_step() -> None:
    fitted = replace(outcome("machine_dagger", 0, 0.5), steps=1, train_seconds=12.0)
    (line,) = lines([fitted])
    assert line.step_seconds is None
    assert line.cells[8:10] == ("12", "–")


def test_other_settings_need_another_folder(tmp_path: Path, cheap: list[Path]) -> None:
    compare(["unary"], small(), [0], tmp_path, held_out=1, data=scenes())
    with pytest.raises(InputError, match="other settings"):
        compare(["unary"], small("optimiser.lr=0.5"), [0], tmp_path, held_out=1, data=scenes())
    changed = Row("unary", ("model.kind=unary", "model.hidden=12"))
    with pytest.raises(InputError, match=r"unary.seed-0.run was made with other settings"):
        compare([changed], small(), [0], tmp_path, held_out=1, data=scenes())


def test_an_interrupted_row_is_gone_on_with(
    tmp_path: Path, cheap: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("run.steps=3")
    whole = compare(["unary"], config, [0], tmp_path / "whole", held_out=1, data=scenes())

    class Stopped(Exception):
        pass

    def failing(*_: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(comparison_run, "tune", failing)
        with pytest.raises(Stopped):
            compare(["unary"], config, [0], tmp_path / "cut", held_out=1, data=scenes())
    assert not (tmp_path / "cut" / "comparison.md").exists()
    found = compare(["unary"], config, [0], tmp_path / "cut", held_out=1, data=scenes())
    assert found[0].mean_iou == whole[0].mean_iou
    assert (tmp_path / "cut" / "comparison.md").exists()


def test_costs_are_measured_in_a_process_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = compare(["unary"], small(), [0], tmp_path, held_out=1, data=scenes())
    assert 0 < found.cost.prediction_seconds < 5
    assert 0 < found.cost.step_seconds < 5
    assert 0 <= found.cost.prediction_megabytes < 500
    monkeypatch.setattr(sys, "executable", "false")
    with pytest.raises(InputError, match="cannot be measured"):
        comparison_run.measured(tmp_path / "nothing", 32, 32, 2, "trained")


@pytest.mark.parametrize(
    ("kind", "backbone", "passes"),
    [("message", "trained", 4), ("crf_rnn", "frozen", 4), ("message", "kept", 0), ("deeplab_crf", "kept", 0)],
)
def test_a_step_costs_what_training_does_with_the_backbone(
    kind: str, backbone: Backbone, passes: int, tmp_path: Path
) -> None:
    net = build_network(small(f"model.kind={kind}").model, SCENE_CLASSES).net
    assert comparison_run.measured(net.save(tmp_path), 32, 32, 3, backbone).step_seconds > 0
    seen: list[bool] = []
    feature_net = net.backbones["shared"]
    feature_net.register_forward_hook(
        lambda module, images, result: seen.append(module.training) if len(images[0]) == 3 else None
    )
    measure(net, 32, 32, 3, backbone)
    trained = backbone == "trained"
    assert seen == [trained] * passes
    assert all((parameter.grad is not None) == trained for parameter in feature_net.parameters())
    assert all(parameter.grad is not None for parameter in net.head.parameters())


def test_lines_are_means_and_spreads_over_seeds() -> None:
    first, second = lines([outcome("a", 0, 0.4), outcome("b", 0, 0.9), outcome("a", 1, 0.6, 0.4)])
    assert (first.seeds, first.mean_iou, first.trimap_iou) == ((0, 1), 0.5, pytest.approx(0.3))
    assert first.spread == pytest.approx(statistics.stdev([0.4, 0.6]))
    assert second.spread is None
    text = markdown([outcome("a", 0, 0.4), outcome("a", 1, 0.6), outcome("b", 0, 0.9)]).splitlines()
    assert "50.0 ± 14.1" in text[2]
    assert "**90.0**" in text[3]


def test_every_kind_has_a_row() -> None:
    assert set(KINDS) <= set(ROWS)
    for row in ROWS.values():
        backbone = "efficientnet_lite0" if row.name == "fcn8s" else "tiny"
        assert row.config(small(f"model.backbone={backbone}"), 3).run.seed == 3


@pytest.mark.parametrize(
    ("rows", "seeds", "held_out", "words"),
    [
        (["unray"], [0], 1, 'did you mean "unary"'),
        ([], [0], 1, "nothing to compare"),
        (["unary", "unary"], [0], 1, "twice"),
        (["unary"], [], 1, "one or more"),
        (["unary"], [0, 0], 1, "each once"),
        (["unary"], [0], 6, "not all"),
        ({"mine": ["model.kind=unaryy"]}, [0], 1, "unary"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, rows: list[str], seeds: list[int], held_out: int, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compare(rows, small(), seeds, tmp_path, held_out=held_out, data=scenes())


def test_rows_of_ones_own_by_their_settings() -> None:
    (row,) = find_rows({"mine": ["model.hidden=4"]})
    assert row.config(small(), 2).model.hidden == 4


def test_features_of_a_frozen_backbone_are_computed_once_for_all_rows(
    tmp_path: Path, cheap: list[Path]
) -> None:
    frozen = small("run.freeze_backbone=true", "run.cache_features=true", "run.cache_precision=fp32")
    sets = scenes()
    found = compare(["unary", "message", "deeplab_crf"], frozen, [0, 1], tmp_path, held_out=2, data=sets)
    assert (
        len(list((tmp_path / "features").iterdir())) == 4
    )  # training and scored images, for each random backbone
    for each in found:
        folder = tmp_path / each.row / f"seed-{each.seed}"
        stored = Scores.from_dict(json.loads((folder / "scores.json").read_text()))
        again = score(Predictor(SegmentationNet.from_pretrained(folder / "model")), sets.val)
        assert stored.confusion == again.confusion
        assert stored.mean_iou == each.mean_iou
        assert stored.expected_calibration_error == pytest.approx(again.expected_calibration_error, abs=1e-5)
        assert each.calibration_error == stored.expected_calibration_error
        assert each.small_accuracy == stored.sizes[0].accuracy
        assert each.parameters == parameter_count(SegmentationNet.from_pretrained(folder / "model").head)
    shutil.rmtree(tmp_path / "features")
    (tmp_path / "unary" / "seed-0" / "outcome.json").unlink()
    assert compare(["unary"], frozen, [0], tmp_path, held_out=2, data=sets)[0].mean_iou == found[0].mean_iou
