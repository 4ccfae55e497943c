"""Comparisons: equal terms for all systems, nothing trained twice, figures that add up."""

from __future__ import annotations

import csv
import json
import shutil
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from messagenet.data import ConcatData, Sample, SegmentationData, SyntheticScenes
from messagenet.errors import InputError
from messagenet.evaluation import Scores
from messagenet.models import SegmentationModel
from messagenet.models.controls import parameter_count
from messagenet.prediction import PredictOptions, Predictor, score
from messagenet.settings import kinds
from messagenet.studies import compare
from messagenet.studies import run as comparison
from messagenet.studies.cost import Cost
from messagenet.studies.run import find_systems
from messagenet.studies.tables import markdown
from messagenet.training import DataSets, TrainConfig, load_config, override
from messagenet.training.systems import SYSTEMS, System, custom_system

SMALL = (
    "model.head.hidden=8",
    "model.backbone.width=8",
    "model.head.relations=[surrounding:3cells]",
    "run.steps=2",
    "run.batch_size=2",
    "run.workers=0",
)


def small(*settings: str) -> TrainConfig:
    return override(load_config("tiny"), [*SMALL, *settings])


def scenes() -> DataSets:
    return DataSets(SyntheticScenes(6, size=32), SyntheticScenes(2, size=32, split="val"))


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Costs that are not measured; the models they were asked for."""
    asked: list[Path] = []

    def measure(
        folder: Path, height: int, width: int, batch_size: int, backbone: str, loss: Mapping[str, object]
    ) -> Cost:
        asked.append(folder)
        config = load_config(folder.parent / "run" / "config.yaml")
        frozen = "cached" if config.run.cache_features else "frozen"
        assert backbone == (frozen if config.run.freeze_backbone else "trained")
        assert loss == config.loss
        assert (height, width, batch_size) == (32, 32, 2)
        return Cost(0.01, 0.02, 3.0)

    monkeypatch.setattr(comparison, "measure_in_subprocess", measure)
    return asked


class Stopped(Exception):
    """Ends a comparison."""


@pytest.mark.parametrize(
    ("config", "data", "images"),
    [
        ("tiny", None, "synthetic"),
        ("small.yaml", None, "synthetic:50"),
        ("small.yaml", "noisy:30", "noisy:30"),
        (load_config("tiny"), Path("synthetic:40"), "synthetic:40"),
        (None, "synthetic:40", "synthetic:40"),
    ],
)
def test_what_is_shared_may_be_named(
    config: str | TrainConfig | None,
    data: str | Path | None,
    images: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[TrainConfig] = []

    def train(system: System, seed: int, config: TrainConfig, *_: object) -> None:
        found.append(config)
        raise Stopped

    monkeypatch.setattr(comparison, "_train_and_score", train)
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text("preset: tiny\ndata: {spec: 'synthetic:50'}")
    with pytest.raises(Stopped):
        compare(["unary"], config, [0], "out", data=data)
    assert (found[0].model.backbone["kind"], found[0].data.spec) == ("tiny", images)


def test_what_is_shared_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='did you mean "tiny"'):
        compare(["unary"], "tinny", [0], tmp_path / "out")
    with pytest.raises(InputError, match="--data folder:DIR"):
        compare(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_contrasts_are_named_before_anything_is_trained(tmp_path: Path, cheap: list[Path]) -> None:
    systems = ["unary", "message"]
    with pytest.raises(InputError, match='did you mean "unary"'):
        compare(systems, small(), [0], tmp_path, held_out=2, contrasts=[("unray", "message")], data=scenes())
    assert not list(tmp_path.iterdir())
    pairs = [("unary", "learned messages")]  # by name and by label
    compare(systems, small(), [0], tmp_path, held_out=2, contrasts=pairs, data=scenes())
    assert "unary only → learned messages" in (tmp_path / "contrasts.md").read_text()


def test_systems_are_scored_on_a_split_or_on_data_of_ones_own(tmp_path: Path, cheap: list[Path]) -> None:
    unscored = small("data.spec=synthetic:8", "data.val_split=null")
    with pytest.raises(InputError, match=r"there is nothing to score the systems on; set data\.val_split"):
        compare(["unary"], unscored, [0], tmp_path, held_out=1)
    assert compare(["unary"], unscored, [0], tmp_path, held_out=1, data=scenes())


def test_no_head_has_an_advantage(tmp_path: Path) -> None:
    config = small("model.pretrained_head=true")
    with pytest.raises(InputError, match="trains every head from the beginning"):
        compare(["unary"], config, [0], tmp_path, held_out=2, data=scenes())


def test_an_image_that_is_there_twice_is_held_out_twice(tmp_path: Path, cheap: list[Path]) -> None:
    once = SyntheticScenes(6, size=32)
    twice = DataSets(ConcatData([once, once], "twice"), scenes().val)
    sets, held_out = comparison._hold_out(twice, 2, "val")
    kept = {sets.train.sample_name(index) for index in range(len(sets.train))}
    assert len(sets.train) == 8
    assert kept.isdisjoint(held_out.sample_name(index) for index in range(len(held_out)))


def test_systems_are_trained_tuned_scored_and_not_again(tmp_path: Path, cheap: list[Path]) -> None:
    systems = ["unary", "context_crf", custom_system("wide", ["message", "model.head.hidden=12"], "wider messages")]
    found = compare(systems, small(), [0, 1], tmp_path, held_out=2, data=scenes())
    assert [(each.system, each.seed) for each in found] == [
        (name, seed) for seed in (0, 1) for name in ("unary", "context_crf", "wide")
    ]
    assert len(cheap) == 3  # once for each system
    crf = found[1]
    assert list(crf.tuned) == ["pairwise_scale", "inference_iterations"]
    assert crf.outputs_per_factor == 81
    saved = SegmentationModel.from_pretrained(tmp_path / "context_crf" / "seed-0" / "model")
    assert saved.config["head"]["pairwise_scale"] == crf.tuned["pairwise_scale"]
    assert found[2].parameters > found[0].parameters
    table = json.loads((tmp_path / "comparison.json").read_text())
    assert table["systems"][0]["mean_iou"] == pytest.approx(
        statistics.fmean(each.mean_iou for each in (found[0], found[3]))
    )
    with (tmp_path / "comparison.csv").open() as file:
        assert [line["system"] for line in csv.DictReader(file)] == ["unary", "context_crf", "wide"]
    assert (tmp_path / "comparison.md").read_text() == markdown(found)
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("iou.png", "cost.png"))
    weights = tmp_path / "unary" / "seed-0" / "model" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    again = compare(systems, small(), [0, 1], tmp_path, held_out=2, data=scenes())
    assert again == found
    assert weights.stat().st_mtime_ns == before


def test_all_systems_have_the_loss_that_each_can_have(tmp_path: Path, cheap: list[Path]) -> None:
    config = small("loss.resolution=pixels", "loss.label_smoothing=0.1")
    compare(["unary"], config, [0], tmp_path / "a", held_out=1, data=scenes())
    assert load_config(tmp_path / "a" / "config.yaml").loss == config.loss
    compare(["unary", "crf_pseudo"], config, [0], tmp_path / "b", held_out=1, data=scenes())
    shared = load_config(tmp_path / "b" / "config.yaml").loss
    assert (shared["resolution"], shared["label_smoothing"]) == ("nodes", 0.0)
    trained = load_config(tmp_path / "b" / "unary" / "seed-0" / "run" / "config.yaml").loss
    assert trained == shared


def test_held_out_images_are_not_trained_on_when_rare_classes_are_repeated(
    tmp_path: Path, cheap: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()

    class Spying(SyntheticScenes):
        def load(self, index: int) -> Sample:
            seen.add(self.sample_name(index))
            return super().load(index)

    monkeypatch.setattr(comparison, "tune", lambda *_, **__: [])
    scenes = DataSets(Spying(12, size=32), SyntheticScenes(2, size=32, split="val"))
    config = small("data.balance=1", "run.epochs=1", "run.steps=null")
    compare(["unary"], config, [0], tmp_path, held_out=4, data=scenes)
    assert seen == {f"train-{index:05d}" for index in range(12) if index % 3}


@pytest.mark.parametrize("cached", [False, True])
def test_systems_are_scored_with_the_options_of_prediction(tmp_path: Path, cheap: list[Path], cached: bool) -> None:
    frozen = ("run.freeze_backbone=true", "run.cache_features=true") if cached else ()
    settings, options = small(*frozen), PredictOptions(flip=True, longest_side=20)
    sets = scenes()
    (found,) = compare(["context_crf"], settings, [0], tmp_path, held_out=2, data=sets, options=options)
    model = SegmentationModel.from_pretrained(tmp_path / "context_crf" / "seed-0" / "model")
    assert sets.val is not None
    assert found.mean_iou == score(Predictor(model, options), sets.val).mean_iou
    with pytest.raises(InputError, match=r"scored with other options; give those of options\.json"):
        compare(["context_crf"], settings, [0], tmp_path, held_out=2, data=scenes())


def test_systems_can_be_chosen_without_val(tmp_path: Path, cheap: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[str]] = {"tuned": set(), "scored": set()}

    def names(data: SegmentationData) -> set[str]:
        return {data.sample_name(index) for index in range(len(data))}

    def spy_tune(_: object, data: SegmentationData, **__: object) -> list[object]:
        seen["tuned"] |= names(data)
        return []

    def spy_score(predictor: Predictor, data: SegmentationData) -> Scores:
        seen["scored"] |= names(data)
        return score(predictor, data)

    monkeypatch.setattr(comparison, "tune", spy_tune)
    monkeypatch.setattr(comparison, "score", spy_score)
    sets = DataSets(SyntheticScenes(6, size=32), None)
    (found,) = compare(["context_crf"], small(), [0], tmp_path, held_out=3, score_on="held_out", data=sets)
    assert seen == {"tuned": {"train-00000", "train-00004"}, "scored": {"train-00002"}}
    assert found.negative_log_likelihood is not None
    with pytest.raises(InputError, match="scored with other options"):
        compare(["context_crf"], small(), [0], tmp_path, held_out=3, data=scenes())
    with pytest.raises(InputError, match="hold out at least 2"):
        compare(["context_crf"], small(), [0], tmp_path, held_out=1, score_on="held_out", data=sets)


def test_systems_finished_earlier_stay_in_the_table(tmp_path: Path, cheap: list[Path]) -> None:
    compare(["unary", "message"], small(), [0], tmp_path, held_out=2, data=scenes())
    (found,) = compare(["message"], small(), [0], tmp_path, held_out=2, data=scenes())
    assert found.system == "message"
    rows = json.loads((tmp_path / "comparison.json").read_text())["systems"]
    assert [row["system"] for row in rows] == ["message", "unary"]


def test_other_settings_need_another_folder(tmp_path: Path, cheap: list[Path]) -> None:
    compare(["unary"], small(), [0], tmp_path, held_out=1, data=scenes())
    with pytest.raises(InputError, match="other settings"):
        compare(["unary"], small("optimiser.lr=0.5"), [0], tmp_path, held_out=1, data=scenes())
    changed = custom_system("unary", ["unary", "model.head.hidden=12"])
    with pytest.raises(InputError, match=r"unary.seed-0.run was made with other settings"):
        compare([changed], small(), [0], tmp_path, held_out=1, data=scenes())


def test_an_interrupted_system_is_gone_on_with(
    tmp_path: Path, cheap: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small("run.steps=3")
    whole = compare(["unary"], config, [0], tmp_path / "whole", held_out=1, data=scenes())

    def failing(*_: object, **__: object) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(comparison, "_scores", failing)
        with pytest.raises(Stopped):
            compare(["unary"], config, [0], tmp_path / "cut", held_out=1, data=scenes())
    assert not (tmp_path / "cut" / "comparison.md").exists()
    found = compare(["unary"], config, [0], tmp_path / "cut", held_out=1, data=scenes())
    assert found[0].mean_iou == whole[0].mean_iou
    assert (tmp_path / "cut" / "comparison.md").exists()


def test_every_head_and_every_loss_has_a_system() -> None:
    configs = [system.apply(small()) for system in SYSTEMS.values()]
    assert {config.model.head["kind"] for config in configs} == set(kinds("head"))
    assert {config.loss["kind"] for config in configs} == set(kinds("loss"))
    assert {config.run.method for config in configs} == set(kinds("method"))


@pytest.mark.parametrize(
    ("systems", "seeds", "held_out", "words"),
    [
        (["unray"], [0], 1, 'did you mean "unary"'),
        ([], [0], 1, "nothing to compare"),
        (["unary", "unary"], [0], 1, "twice"),
        (["unary"], [], 1, "one or more"),
        (["unary"], [0, 0], 1, "each once"),
        (["unary"], [0], 6, "not all"),
        ({"mine": ["unaryy"]}, [0], 1, 'did you mean "unary"'),
        ({"mine": ["model.head.kind=unaryy"]}, [0], 1, 'did you mean "unary"'),
        ({"mine": ["unary", "model.head.iterations=2"]}, [0], 1, "iterations"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, systems: list[str], seeds: list[int], held_out: int, words: str) -> None:
    with pytest.raises(InputError, match=words):
        compare(systems, small(), seeds, tmp_path, held_out=held_out, data=scenes())


def test_nothing_is_written_before_the_first_system_can_be_built(tmp_path: Path, cheap: list[Path]) -> None:
    out = tmp_path / "out"
    with pytest.raises(InputError, match=r"model\.pretrained is missing\.pth"):
        compare(["unary"], small("model.pretrained=missing.pth"), [0], out, data=scenes())
    assert not out.exists()
    compare(["unary"], small(), [0], out, data=scenes())  # the fix is not refused as other settings


@pytest.mark.parametrize(("images", "expected"), [(6, 1), (30, 3), (400, 20)])
def test_few_of_few_images_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: int, expected: int
) -> None:
    asked: list[int] = []

    def stop(_: DataSets, held_out: int, score_on: str) -> None:
        asked.append(held_out)
        raise InputError("enough")

    monkeypatch.setattr(comparison, "_hold_out", stop)
    sets = DataSets(SyntheticScenes(images, size=32), SyntheticScenes(2, size=32, split="val"))
    with pytest.raises(InputError, match="enough"):
        compare(["unary"], small(), [0], tmp_path, data=sets)
    assert asked == [expected]


def test_other_data_and_images_to_score_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the data are a list; give text such as folder:street"):
        compare(["unary"], small(), [0], tmp_path, data=[])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="score_on is 'validation'"):
        compare(["unary"], small(), [0], tmp_path, score_on="validation", data=scenes())  # type: ignore[arg-type]


def test_systems_of_ones_own_by_their_settings() -> None:
    (system,) = find_systems({"mine": ["model.head.hidden=4"]})
    assert system.apply(small()).model.head["hidden"] == 4


def test_features_of_a_frozen_backbone_are_computed_once_for_all_systems(tmp_path: Path, cheap: list[Path]) -> None:
    frozen = small("run.freeze_backbone=true", "run.cache_features=true", "run.cache_precision=fp32")
    sets = scenes()
    found = compare(["unary", "message", "deeplab_crf"], frozen, [0, 1], tmp_path, held_out=2, data=sets)
    assert len(list((tmp_path / "features").iterdir())) == 4  # training and scored images, for each random backbone
    for each in found:
        folder = tmp_path / each.system / f"seed-{each.seed}"
        stored = Scores.from_dict(json.loads((folder / "scores.json").read_text()))
        again = score(Predictor(SegmentationModel.from_pretrained(folder / "model")), sets.val)
        assert stored.confusion == again.confusion
        assert stored.mean_iou == each.mean_iou
        assert stored.expected_calibration_error == pytest.approx(again.expected_calibration_error, abs=1e-5)
        assert each.calibration_error == stored.expected_calibration_error
        assert each.small_accuracy == stored.sizes[0].accuracy
        assert each.parameters == parameter_count(SegmentationModel.from_pretrained(folder / "model").head)
    shutil.rmtree(tmp_path / "features")
    (tmp_path / "unary" / "seed-0" / "result.json").unlink()
    assert compare(["unary"], frozen, [0], tmp_path, held_out=2, data=sets)[0].mean_iou == found[0].mean_iou


def test_systems_keep_their_settings_of_cached_features(tmp_path: Path, cheap: list[Path]) -> None:
    frozen = small("run.freeze_backbone=true", "run.cache_features=true", f"run.cache_folder={tmp_path / 'mine'}")
    systems = {"varied": ["unary", "run.cache_variants=2", "augment.mirror=true"], "rnn": ["crf_rnn"]}
    compare({**systems, "forward": ["machine_forward"]}, frozen, [0], tmp_path / "out", held_out=2, data=scenes())
    configs = {name: load_config(tmp_path / "out" / name / "seed-0" / "run" / "config.yaml") for name in systems}
    assert configs["varied"].run.cache_variants == 2
    assert not configs["rnn"].run.cache_features
    assert len(list((tmp_path / "mine").iterdir())) == 2
    assert not (tmp_path / "out" / "features").exists()


def test_iterations_are_those_of_training(tmp_path):
    with pytest.raises(InputError, match="compared with the iterations that they are trained for"):
        compare(["unary"], small(), [0], tmp_path / "out", options=PredictOptions(iterations=2))
    assert not (tmp_path / "out").exists()
