"""Whole runs: they learn, repeat themselves, stop when asked, and refuse what cannot work."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from messagenet.data import Classes, Sample, SegmentationData, SyntheticScenes
from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.evaluation import Confusion
from messagenet.geometry import node_targets
from messagenet.models import SegmentationModel, UnaryHead
from messagenet.prediction import PredictOptions, Predictor, score
from messagenet.training import Bar, TrainCallback, TrainConfig, TrainResult, load_config, run_training
from messagenet.training.build import DataSets, build_model
from messagenet.training.progress import read_log

Run = Callable[..., TrainResult]
CACHED = ("run.freeze_backbone=true", "run.cache_features=true", "run.cache_precision=fp32")


def weights(result: TrainResult, which: str = "last") -> dict[str, torch.Tensor]:
    return load_file(result.folder / which / "model.safetensors")


def losses(result: TrainResult) -> list[float]:
    return [record["loss"] for record in read_log(result.folder / "log.jsonl") if "loss" in record]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_training_reduces_the_loss_and_writes_everything(run: Run, tmp_path: Path) -> None:
    result = run("run.steps=25", "run.evaluate_every=10", "run.checkpoint_every=8", progress=Bar())
    assert losses(result)[-1] < 0.7 * losses(result)[0]
    assert (result.steps, result.interrupted) == (25, False)
    names = {path.name for path in result.folder.iterdir()}
    assert names == {"config.yaml", "log.jsonl", "tensorboard", "last", "best", "checkpoint"}
    assert load_config(result.folder / "config.yaml").run.steps == 25
    records = read_log(result.folder / "log.jsonl")
    assert [record["step"] for record in records if "loss" in record] == list(range(1, 26))
    scores = {record["step"]: record["mean_iou"] for record in records if "mean_iou" in record}
    assert list(scores) == [10, 20, 25]
    assert result.best_iou == max(scores.values())
    assert result.last_iou == scores[25]
    assert all(0 <= record["waiting"] <= 1 for record in records if "loss" in record)


def test_the_score_is_that_of_the_saved_model_on_whole_images(run: Run) -> None:
    result = run("run.steps=12", "run.ema=0.5")
    model = SegmentationModel.from_pretrained(result.folder / "best")
    val = SyntheticScenes(3, size=48, split="val")
    confusion = Confusion(val.classes.num_classes)
    for sample in val:
        image = torch.from_numpy(sample.image.transpose(2, 0, 1).copy()).float()[None] / 255
        confusion.update(model.marginals(image).argmax(1)[0].numpy(), sample.mask)
    union = confusion.matrix.sum(0) + confusion.matrix.sum(1) - np.diag(confusion.matrix)
    expected = (np.diag(confusion.matrix)[union > 0] / union[union > 0]).mean()
    assert result.best_iou == pytest.approx(expected, abs=1e-12)


def test_the_same_seed_gives_the_same_weights_whatever_the_workers(run: Run) -> None:
    first = run("augment.mirror=true", "augment.brightness=0.2", name="a")
    second = run("augment.mirror=true", "augment.brightness=0.2", "run.workers=2", name="b")
    other = run("augment.mirror=true", "augment.brightness=0.2", "run.seed=1", name="c")
    assert same(weights(first), weights(second))
    assert losses(first) == losses(second)
    assert not same(weights(first), weights(other))


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_accumulated_batches_are_one_large_batch(run: Run, optimiser: str) -> None:
    settings = (f"optimiser.kind={optimiser}", "optimiser.lr=0.01", "optimiser.clip=0.5")
    large = run(*settings, "run.batch_size=6", name="large")
    small = run(*settings, "run.batch_size=2", "run.accumulate=3", name="small")
    np.testing.assert_allclose(losses(small), losses(large), rtol=1e-5)
    for name, values in weights(large).items():
        torch.testing.assert_close(weights(small)[name], values, rtol=1e-3, atol=2e-5)


def test_one_step_is_the_textbook_one(run: Run, small: Callable[..., TrainConfig]) -> None:
    """A step of plain SGD against autograd on the mean over all labelled nodes."""
    from messagenet.data import collate
    from messagenet.losses import marginal_cross_entropy
    from messagenet.training.batches import Plan

    settings = ("optimiser.kind=sgd", "optimiser.momentum=0", "optimiser.weight_decay=0", "optimiser.clip=0")
    result = run(
        *settings, "run.steps=1", "optimiser.lr=0.5", "run.batch_size=2", "run.accumulate=2", "schedule.warmup=0"
    )
    config = small()
    data = SyntheticScenes(8, size=48)
    model = build_model(config, data.classes).model
    batch = collate([data[i] for _, i in next(Plan(8, 4, 1, 1, 1, 0).batches(0))])
    loss = marginal_cross_entropy(model(batch.images), batch.target, model.output_stride).mean
    loss.backward()
    assert losses(result) == [pytest.approx(loss.item(), rel=1e-6)]
    for name, parameter in model.named_parameters():
        expected = parameter.detach() - 0.5 * parameter.grad
        torch.testing.assert_close(weights(result)[name], expected, rtol=1e-4, atol=1e-6)


class StopAt(TrainCallback):
    """Sends Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.at = step  # every process of a terminal gets its Ctrl-C, so the workers do too
        self.result: TrainResult | None = None

    def step(self, step: int, record: dict[str, Any] | None) -> None:
        if step == self.at:
            for process in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
                os.kill(process or 0, signal.SIGINT)

    def finished(self, result: TrainResult | None) -> None:
        self.result = result


@pytest.mark.parametrize("extra", [("run.workers=1",), ("run.ema=0.8", "run.log_every=4", "optimiser.kind=sgd")])
def test_ctrl_c_finishes_the_step_and_resuming_ends_where_it_would_have(run: Run, extra: tuple[str, ...]) -> None:
    settings = ("run.steps=9", "run.evaluate_every=3", "augment.mirror=true", *extra)
    whole = run(*settings, name="whole")
    watcher, handler = StopAt(5), signal.getsignal(signal.SIGINT)
    part = run(*settings, name="part", progress=watcher)
    assert (part.interrupted, part.steps, watcher.result) == (True, 6, part)
    assert signal.getsignal(signal.SIGINT) is handler
    resumed = run(*settings, name="part", resume=True)
    assert (resumed.interrupted, resumed.steps) == (False, 9)
    assert losses(resumed) == losses(whole)
    assert same(weights(resumed), weights(whole))
    assert same(weights(resumed, "best"), weights(whole, "best"))
    assert resumed.best_iou == whole.best_iou


def test_resuming_a_finished_run_changes_nothing(run: Run) -> None:
    first = run()
    before = weights(first)
    half_written = first.folder / "last" / ".model.safetensors.0a1b2c3d.part"
    half_written.write_bytes(b"killed")
    log = (first.folder / "log.jsonl").read_text()
    console = Console(record=True, file=io.StringIO())
    again = run(resume=True, progress=Bar(console))
    assert "this run is complete, all 6 steps" in (text := console.export_text())
    assert "resuming after" not in text
    assert (first.folder / "log.jsonl").read_text() == log
    assert not half_written.exists()
    assert (again.steps, again.best_iou) == (first.steps, first.best_iou)
    assert same(before, weights(again))


def test_resuming_where_nothing_was_written_begins(run: Run) -> None:
    assert run(resume=True).steps == 6


def test_a_folder_in_use_is_not_written_over(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("precious")
    with pytest.raises(InputError, match=r"is not empty.*--resume.*another folder"):
        run()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_resuming_with_other_settings_is_refused(run: Run) -> None:
    run()
    with pytest.raises(InputError, match=r"optimiser\.lr is 0\.5, but 0\.004"):
        run("optimiser.lr=0.5", resume=True)
    with pytest.raises(InputError, match="took 4 images per step, now it would be 3"):
        run("run.batch_size=3", resume=True)
    run("run.batch_size=2", "run.accumulate=2", "run.workers=1", resume=True)


def test_a_finished_run_can_be_made_longer_but_not_shorter(run: Run) -> None:
    first = run("run.steps=5")
    before = weights(first)
    longer = run("run.steps=8", resume=True)
    assert longer.steps == 8
    assert len(losses(longer)) == 8
    assert not same(before, weights(longer))
    assert load_config(longer.folder / "config.yaml").run.steps == 8
    rates = [record["lr"] for record in read_log(longer.folder / "log.jsonl") if "lr" in record]
    assert rates[5] > rates[4]  # that of a run of eight steps, of which five are done
    assert rates[7] < rates[6] < rates[5]
    with pytest.raises(InputError, match=r"run\.steps is 7, but 8 in .*; give at least as many"):
        run("run.steps=7", resume=True)


def test_resuming_as_another_kind_names_the_kind(run: Run) -> None:
    run()
    with pytest.raises(InputError, match=r"model\.head\.kind is unary, but message in .*config\.yaml"):
        run("model.head=unary", resume=True)
    with pytest.raises(InputError, match=r"model\.neck.* resume with the same settings"):
        run("model.neck.filters=1", resume=True)


class Renamed(SegmentationData):
    """Scenes under other class names."""

    def __init__(self, data: SegmentationData, names: tuple[str, ...]) -> None:
        self.data, self.name, self.classes = data, data.name, Classes(names)

    def __len__(self) -> int:
        return len(self.data)

    def sample_name(self, index: int) -> str:
        return self.data.sample_name(index)

    def load(self, index: int) -> Sample:
        return self.data.load(index)


def test_resuming_with_other_classes_is_refused(run: Run, scenes: DataSets) -> None:
    run()
    more = tuple(f"class {number}" for number in range(12))
    other = DataSets(Renamed(scenes.train, more), None)
    with pytest.raises(InputError, match=r"has 9 classes .* the data have 12"):
        run(resume=True, data=other)


def test_training_and_validation_classes_must_agree(run: Run, scenes: DataSets) -> None:
    more = tuple(f"class {number}" for number in range(12))
    with pytest.raises(InputError, match="different classes"):
        run(data=DataSets(scenes.train, Renamed(scenes.val or scenes.train, more)))


def test_divergence_names_the_rate_and_the_images_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    settings = ("optimiser.lr=1e30", "optimiser.clip=0", "optimiser.kind=sgd", "schedule.warmup=0")
    with pytest.raises(InputError, match=r"optimiser\.lr = 1e\+30, on train-0000\d") as caught:
        run(*settings, "run.checkpoint_every=1")
    assert "\n" not in str(caught.value)
    for model in (tmp_path / "run").glob("**/*.safetensors"):
        assert all(torch.isfinite(values).all() for values in load_file(model).values())


def test_a_relation_that_reaches_nobody_is_refused_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"relation above:0\.05 reaches no node.*12x12 nodes.*above:3cells"):
        run("model.head.relations=[surrounding:0.4, above:0.05]")
    assert not (tmp_path / "run").exists()


def test_a_unary_network_needs_no_relations(run: Run) -> None:
    result = run(system="unary")
    assert isinstance(SegmentationModel.from_pretrained(result.folder / "best").head, UnaryHead)


def test_without_validation_the_best_is_the_last(run: Run, scenes: DataSets) -> None:
    result = run(data=DataSets(scenes.train, None))
    assert (result.best_iou, result.last_iou) == (None, None)
    assert same(weights(result), weights(result, "best"))


@pytest.mark.parametrize(
    "settings",
    [
        ("run.precision=bf16",),
        ("run.norm=frozen", "loss.resolution=pixels"),
        ("model.separate_features=true", "model.head.iterations=2", "model.head.tied=false"),
        ("augment.scale_range=[0.7, 1.3]",),
    ],
)
def test_other_settings_train_too(run: Run, settings: tuple[str, ...]) -> None:
    result = run(*settings, "run.steps=15", "model.head.relations=[surrounding:3cells]")
    assert losses(result)[-1] < losses(result)[0]


def test_half_precision_needs_a_gpu(run: Run) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(InputError, match="use bf16 or float32"):
        run("run.precision=fp16")


def test_a_trained_backbone_can_be_taken_over_and_frozen(run: Run) -> None:
    first = run(name="first", system="unary")
    folder = first.folder / "last"
    second = run(f"model.pretrained={folder}", "run.freeze_backbone=true", name="second")
    theirs, ours = weights(first), weights(second)
    backbone = [name for name in ours if name.startswith("backbones.")]
    assert backbone
    assert all(torch.equal(ours[name], theirs[name]) for name in backbone)
    with pytest.raises(InputError, match="has other options"):
        run(f"model.pretrained={folder}", "model.backbone.width=16", name="third")


def test_a_whole_model_can_be_taken_over(run: Run) -> None:
    first = run(name="first")
    folder = f"model.pretrained={first.folder / 'last'}"
    second = run(folder, "model.pretrained_head=true", "optimiser.lr=1e-12", "run.steps=1", name="second")
    ours, theirs = weights(second), weights(first)
    for name, values in theirs.items():
        torch.testing.assert_close(ours[name], values)
    for other, words in (
        ("model.head.kind=unary", "head.kind is message there and unary here"),
        ("model.head.aggregation=sum", "head.aggregation is fixed there and sum here"),
        ("model.head.relations=[surrounding:2cells]", "head.relations is"),
        ("model.backbone.width=16", "parameters of other sizes"),
    ):
        with pytest.raises(InputError, match=words):
            run(folder, "model.pretrained_head=true", other, name="third")
    with pytest.raises(InputError, match="to take the head from"):
        run("model.pretrained_head=true", name="third")
    config = load_config(second.folder / "config.yaml")
    with pytest.raises(InputError, match="only for the same classes"):
        build_model(config, numbered_classes(9))
    with pytest.raises(InputError, match="has no head"):
        run("model.pretrained=package", "model.backbone=efficientnet_lite0", "model.pretrained_head=true", name="fifth")


def test_data_are_opened_from_the_configuration(tmp_path: Path, small: Callable[..., TrainConfig]) -> None:
    result = run_training(small("data.spec=synthetic:6", "data.val_limit=2", "run.steps=2"), tmp_path / "run")
    assert result.steps == 2


@pytest.mark.parametrize(
    "cached", [(), ("run.freeze_backbone=true", "run.cache_features=true", "run.cache_precision=fp32")]
)
def test_the_working_size_is_saved_and_used_by_validation_and_prediction(run: Run, cached: tuple[str, ...]) -> None:
    result = run("augment.longest_side=24", "run.steps=12", *cached)
    model = SegmentationModel.from_pretrained(result.folder / "last")
    assert model.input.longest_side == 24
    seen: list[tuple[int, ...]] = []
    forward_features = model.forward_features

    def spy(images: torch.Tensor) -> Any:
        seen.append(tuple(images.shape[2:]))
        return forward_features(images)

    model.forward_features = spy  # type: ignore[method-assign]
    val = SyntheticScenes(3, size=48, split="val")
    assert Predictor(model).labels(val[0].image).shape == (48, 48)
    assert set(seen) == {(24, 24)}
    assert score(Predictor(model), val).mean_iou == pytest.approx(result.last_iou, abs=1e-6)
    whole = score(Predictor(model, PredictOptions(longest_side=0)), val)
    assert whole.mean_iou != pytest.approx(result.last_iou, abs=1e-6)


@pytest.mark.parametrize("system", ["message", "ensemble", "context_crf", "crf_pseudo", "crf_likelihood"])
def test_labels_of_nodes_are_computed_once_a_step(run: Run, system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def spy(target: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(len(target))
        return node_targets(target, *arguments, **options)

    monkeypatch.setattr("messagenet.losses.cross_entropy.node_targets", spy)
    sizes = ("model.head.hidden=32", "model.backbone.width=32", "model.head.relations=[surrounding:3cells]")
    run("run.steps=2", "run.batch_size=3", "run.accumulate=2", system=system, shared=sizes)
    assert calls == [3] * 4
