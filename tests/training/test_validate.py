"""Validation in groups of one size, and the search for what training does not learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator

from messagenet.data import Augment, ConcatData, Subset, SyntheticScenes, as_data
from messagenet.errors import InputError
from messagenet.evaluation import Confusion
from messagenet.models import MessageNet, SegmentationModel, UnaryNet
from messagenet.prediction import PredictOptions, Predictor, Refinement, score
from messagenet.training.feature_cache import CacheSettings, FeatureCache
from messagenet.training.validate import Validation, tune

SCENES = SyntheticScenes(3, size=32)


def crf() -> SegmentationModel:
    return SegmentationModel("tiny", SCENES.classes, {"kind": "crf", "hidden": 8})


def test_the_best_of_all_combinations_is_set_and_saved(tmp_path) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    net = crf()
    told: list[tuple[int, int]] = []
    trials = tune(net, SCENES, {"pairwise_scale": (0.0, 3.0, 9.0)}, progress=lambda *at: told.append(at))
    assert told == [(number, len(SCENES)) for number in range(1, len(SCENES) + 1)]
    assert [trial.mean_iou for trial in trials] == sorted((t.mean_iou for t in trials), reverse=True)
    for trial in trials:
        net.set_tunable(**trial.values)
        assert score(Predictor(net), SCENES).mean_iou == pytest.approx(trial.mean_iou)
    tune(net, SCENES, {"pairwise_scale": (0.0, 3.0, 9.0)})
    loaded = SegmentationModel.from_pretrained(net.save(tmp_path))
    assert loaded.config["head"]["pairwise_scale"] == trials[0].values["pairwise_scale"]
    image = torch.rand(1, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(loaded(image), net(image))


def test_kernels_of_a_dense_crf() -> None:
    net = SegmentationModel("tiny", SCENES.classes, {"kind": "deeplab_crf", "hidden": 8})
    seen: list[object] = []
    net.backbones["shared"].register_forward_hook(lambda *_: seen.append(1))
    trials = tune(net, Subset(SCENES, [0]), {"bilateral_weight": (1.0, 2.0), "bilateral_colour": (5.0,)})
    assert len(trials) == 2
    assert len(seen) == 1  # the features do not depend on the kernels
    assert score(Predictor(net), Subset(SCENES, [0])).mean_iou == pytest.approx(trials[0].mean_iou)
    assert net.head.kernels[1].weight == trials[0].values["bilateral_weight"]
    assert net.head.kernels[1].colour == 5.0


@pytest.mark.parametrize("options", [PredictOptions(flip=True, longest_side=20), PredictOptions(refine=Refinement())])
def test_tuning_predicts_as_it_is_told(options: PredictOptions) -> None:
    torch.manual_seed(0)
    net = crf()
    trials = tune(net, SCENES, {"pairwise_scale": (0.0, 3.0)}, options=options)
    assert score(Predictor(net, options), SCENES).mean_iou == pytest.approx(trials[0].mean_iou)
    assert score(Predictor(net), SCENES).mean_iou != pytest.approx(trials[0].mean_iou)


def test_nothing_to_tune_and_nothing_to_tune_on() -> None:
    with pytest.raises(InputError, match="the model has nothing to tune: it learns everything in training"):
        tune(UnaryNet("tiny", SCENES.classes, hidden=8), SCENES)
    with pytest.raises(InputError, match="the model has nothing to tune"):
        tune(data=SCENES)  # the bundled model
    with pytest.raises(InputError, match="say which data set to open: --data folder:DIR"):
        tune(crf())
    with pytest.raises(InputError, match="at least one"):
        tune(crf(), Subset(SCENES, []))
    with pytest.raises(InputError, match="pairwise_scale"):
        crf().set_tunable(pairwise_scal=2.0)


def test_models_and_data_may_be_named(tmp_path: Path) -> None:
    folder = crf().save(tmp_path / "best")
    before = (folder / "config.json").read_bytes()
    values = {"pairwise_scale": (9.0, 0.0)}
    named = tune(f"{folder}/", "synthetic:2", values, limit=1)
    scene = SyntheticScenes(2, split="val")[0]
    pairs = as_data([(scene.image, scene.mask)], SCENES.classes)
    assert (
        named
        == tune(folder, pairs, values, out=tmp_path / "other")
        == tune(SegmentationModel.from_pretrained(folder), pairs, values)
    )
    assert {path.name for path in tmp_path.iterdir()} == {"best", "best-tuned", "other"}
    assert (folder / "config.json").read_bytes() == before
    for name in ("best-tuned", "other"):
        assert (
            SegmentationModel.from_pretrained(tmp_path / name).config["head"]["pairwise_scale"]
            == named[0].values["pairwise_scale"]
        )


@pytest.mark.parametrize("cached", [False, True])
def test_images_of_one_size_are_scored_together(cached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as if each of them were alone."""
    torch.manual_seed(1)
    model = MessageNet("tiny", SCENES.classes, hidden=8)
    parts = [SyntheticScenes(3, size=32), SyntheticScenes(10, size=48), SyntheticScenes(2, size=32)]
    data = ConcatData(parts, "scenes of two sizes")
    cache = None
    if cached:
        settings = CacheSettings(Augment(), precision="fp32", working_size=True)
        cache = FeatureCache(model, data, tmp_path, settings)
        cache.build(Accelerator())
    sizes: list[int] = []
    name = "from_features" if cached else "node_logits"
    original = getattr(Predictor, name)

    def spy(self: Predictor, batch: Any, *arguments: Any) -> torch.Tensor:
        sizes.append(len(batch))
        logits: torch.Tensor = original(self, batch, *arguments)
        return logits

    monkeypatch.setattr(Predictor, name, spy)
    together = Validation(data, Accelerator(), 0, cache).score(model)
    assert sizes == [3, 8, 2, 2]
    monkeypatch.undo()
    alone = Confusion(data.classes.num_classes)
    for sample in data:
        alone.update(Predictor(model).labels(sample.image), sample.mask)
    assert (together.matrix == alone.matrix).all()
