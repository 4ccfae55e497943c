"""Every kind of network through the same doors: trained, saved, loaded, used to predict, scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from messagenet.data.classes import numbered_classes
from messagenet.errors import InputError
from messagenet.models import KINDS, SegmentationNet
from messagenet.prediction import Predictor, Views, score
from messagenet.training import DataSets, TrainResult, load_config
from messagenet.training.build import build_network
from messagenet.training.config import KindName, LossConfig, ModelConfig, TrainConfig, choose_config

TINY = [kind for kind in KINDS if kind != "fcn8s"]
SHORT = (
    "run.steps=2",
    "run.batch_size=2",
    "model.hidden=32",
    "model.backbone_options={width: 32}",
    "model.relations=[surrounding:3cells, above:3cells]",
)
FCN = ("model.backbone=efficientnet_lite0", "model.backbone_options={}")


def test_the_configuration_knows_every_kind() -> None:
    assert set(get_args(KindName)) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_trained_saved_loaded_and_scored(
    kind: str, run: Callable[..., TrainResult], scenes: DataSets
) -> None:
    result = run(f"model.kind={kind}", *SHORT, *(FCN if kind == "fcn8s" else ()), name=kind)
    assert result.steps == 2
    net = SegmentationNet.from_pretrained(result.folder / "last")
    assert type(net) is KINDS[kind].network
    again = SegmentationNet.from_pretrained(net.save(result.folder / "again"))
    images = torch.rand(2, 3, 41, 50)
    with torch.no_grad():
        assert torch.equal(net(images), again(images))
        nodes = [-(-side // int(net.stride)) for side in (41, 50)]
        assert net(images).shape == (2, net.classes.num_classes, *nodes)
    assert scenes.val is not None
    scores = score(Predictor(net), scenes.val)
    assert scores.mean_iou == pytest.approx(result.last_iou, abs=1e-6)


@pytest.mark.parametrize("kind", TINY)
def test_every_parameter_learns(kind: str, small: Callable[..., TrainConfig], scenes: DataSets) -> None:
    config = small(f"model.kind={kind}", *SHORT)
    net = build_network(config.model, scenes.train.classes).net.train()
    loss = net.loss(torch.rand(2, 3, 32, 36), torch.randint(0, 9, (2, 32, 36)))
    loss.mean.backward()
    assert [name for name, parameter in net.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize("kind", ["context_crf", "crf_rnn", "deeplab_crf", "inference_machine", "ensemble"])
def test_padding_changes_nothing(kind: str, small: Callable[..., TrainConfig], scenes: DataSets) -> None:
    """On the tiny backbone, whose border repeats pixels, padding beyond whole cells is invisible."""
    config = small(f"model.kind={kind}", *SHORT)
    net = build_network(config.model, scenes.train.classes).net.eval().double()
    small_image, large = torch.rand(1, 3, 24, 32).double(), torch.rand(1, 3, 40, 40).double()
    images = torch.zeros(2, 3, 40, 40).double()
    images[0, :, :24, :32], images[1] = small_image[0], large[0]
    images[0, :, 24:, :32] = small_image[0, :, -1:]
    images[0, :, :, 32:] = images[0, :, :, 31:32]
    valid = torch.zeros(2, 40, 40, dtype=torch.bool)
    valid[0, :24, :32] = valid[1] = True
    with torch.no_grad():
        together, alone = net(images, valid), net(small_image)
        cells = (int(24 // net.stride), int(32 // net.stride))
        torch.testing.assert_close(
            together[:1, :, : cells[0], : cells[1]].softmax(1), alone.softmax(1), rtol=1e-4, atol=1e-4
        )
        torch.testing.assert_close(together[1:], net(large), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["deeplab_crf", "crf_rnn"])
@pytest.mark.parametrize("stride", [1, 2, 4])
def test_dense_networks_work_on_tiles_and_views(kind: str, stride: int) -> None:
    config = ModelConfig(kind=kind, backbone="tiny", hidden=8, working_stride=stride)  # type: ignore[arg-type]
    net = build_network(config, numbered_classes(3)).net
    image = np.random.default_rng(0).integers(0, 256, (70, 133, 3), dtype=np.uint8)
    plain = Predictor(net).marginals(image)
    assert plain.shape == (3, 70, 133)
    torch.testing.assert_close(plain.sum(0), torch.ones(70, 133))
    tiled = Predictor(net, Views(flip=True, scales=(1.0, 0.5), tile=64, overlap=32)).labels(image)
    assert tiled.shape == (70, 133)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.kind=context_crf", "loss.resolution=pixels"), "loss.resolution=nodes"),
        (("model.kind=ensemble", "loss.label_smoothing=0.1"), "label_smoothing=0"),
        (
            ("model.kind=crf_rnn", "run.freeze_backbone=true", "run.cache_features=true"),
            "cache_features=false",
        ),
        (("model.kind=deeplab_crf", "model.working_stride=3"), "choose 1, 2 or 4"),
        (("model.kind=contextcrf",), "context_crf"),
    ],
)
def test_what_cannot_be_is_said_before_training(
    small: Callable[..., TrainConfig], overrides: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        small(*overrides)


@pytest.mark.parametrize("kind", ["context_crf", "deeplab_crf", "inference_machine", "ensemble", "dilated"])
def test_kept_features_train_the_same_head(
    kind: str, run: Callable[..., TrainResult], tmp_path: Path
) -> None:
    settings = (f"model.kind={kind}", *SHORT, "run.freeze_backbone=true")
    plain = run(*settings, name="plain")
    kept = run(*settings, "run.cache_features=true", "run.cache_precision=fp32", name="kept")
    first, second = (
        SegmentationNet.from_pretrained(result.folder / "last").state_dict() for result in (plain, kept)
    )
    for name, values in first.items():
        torch.testing.assert_close(values, second[name], rtol=1e-4, atol=1e-5)
    assert kept.last_iou == pytest.approx(plain.last_iou, abs=1e-4)


def test_pixels_and_smoothing_where_they_apply() -> None:
    for kind in ("fcn8s", "deeplab_crf", "crf_rnn", "inference_machine", "convolution"):
        TrainConfig(ModelConfig(kind=kind), loss=LossConfig("pixels", label_smoothing=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("preset", ["fast", "finetune", "tiny", "paper-vgg16"])
def test_every_preset_can_be_trained_as_every_kind(kind: str, preset: str) -> None:
    config = choose_config(data="folder:street", preset=preset, kind=kind)
    assert config.model.kind == kind
    own = KINDS[kind].network.own_objective
    assert own or config.loss == load_config(preset).loss


def test_a_crf_predicts_with_the_inference_it_was_learned_with_unless_told() -> None:
    found = {}
    for kind in ("context_crf", "crf_pseudo", "crf_likelihood"):
        for given in (None, "mean_field", "belief_propagation"):
            model = replace(load_config("tiny").model, kind=kind, inference=given, hidden=4)
            net = build_network(model, numbered_classes(3)).net
            found[kind, given] = (net.settings["inference"], net.head.inference)
    for (kind, given), both in found.items():
        usual = "belief_propagation" if kind == "crf_likelihood" else "mean_field"
        assert both == (given or usual,) * 2
