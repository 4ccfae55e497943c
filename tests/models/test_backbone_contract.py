"""What every backbone promises; a new one is one line of `SMALL` and of `STRIDES`."""

from __future__ import annotations

import copy
import json
import pickle
from fractions import Fraction
from math import ceil

import pytest
import torch
from torch import nn

from messagenet.errors import InputError
from messagenet.models import SegmentationModel
from messagenet.models.base import check_backbone
from messagenet.settings import component, find, kinds, options
from oracles.systems import build_backbone

SMALL: dict[str, dict[str, object]] = {
    "vgg16": {"fc6_channels": 8, "fc6_kernel": 3},
    "efficientnet_lite0": {"width": 24},
    "efficientnet_lite1": {"width": 24, "levels": [2, 5]},
    "efficientnet_lite2": {"width": 24, "levels": [1, 3]},
    "tiny": {"width": 8},
    "hand_crafted": {},
}
STRIDES = {
    "vgg16": Fraction(160, 12),
    "efficientnet_lite0": Fraction(16),
    "efficientnet_lite1": Fraction(16),
    "efficientnet_lite2": Fraction(16),
    "tiny": Fraction(4),
    "hand_crafted": Fraction(8),
}
LEARNED = [name for name in SMALL if name != "hand_crafted"]


@pytest.fixture(scope="module")
def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {name: build_backbone(name, **options).eval() for name, options in SMALL.items()}


def test_every_backbone_is_under_test() -> None:
    assert set(SMALL) == set(kinds("backbone")) == set(STRIDES)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("size", [(1, 1), (17, 33), (48, 20)])
def test_any_size_gives_one_node_per_stride(networks: dict[str, nn.Module], name: str, size: tuple[int, int]) -> None:
    network = networks[name]
    with torch.no_grad():
        features = network(torch.randn(2, 3, *size))
    nodes = [ceil(side / STRIDES[name]) for side in size]
    assert network.stride == pytest.approx(float(STRIDES[name]))
    assert features.shape == (2, network.channels, *nodes)
    assert features.isfinite().all()


@pytest.mark.parametrize("name", SMALL)
def test_gradient_reaches_every_parameter_and_the_image(name: str) -> None:
    torch.manual_seed(1)
    network = build_backbone(name, **SMALL[name]).train()
    images = torch.randn(2, 3, 40, 40, requires_grad=True)
    features = network(images)
    (features * torch.randn_like(features)).sum().backward()
    silent = [n for n, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []
    assert images.grad is not None
    assert images.grad.abs().sum() > 0


@pytest.mark.parametrize("name", LEARNED)
def test_state_dict_carries_the_whole_network(networks: dict[str, nn.Module], name: str) -> None:
    torch.manual_seed(2)
    copy = build_backbone(name, **SMALL[name]).eval()
    images = torch.randn(1, 3, 20, 36)
    with torch.no_grad():
        expected = networks[name](images)
        assert not torch.equal(copy(images), expected)
        copy.load_state_dict(networks[name].state_dict())
        assert torch.equal(copy(images), expected)


@pytest.mark.parametrize("name", SMALL)
def test_images_of_a_batch_do_not_meet_in_evaluation(networks: dict[str, nn.Module], name: str) -> None:
    images = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        together = networks[name](images)
        alone = torch.cat([networks[name](image[None]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_bundled_backbones_have_channels_and_stride(networks: dict[str, nn.Module], name: str) -> None:
    check_backbone(networks[name])


@pytest.mark.parametrize("name", SMALL)
def test_its_configuration_rebuilds_it(networks: dict[str, nn.Module], name: str) -> None:
    config = json.loads(json.dumps(networks[name].config))
    assert config == {"kind": name, **config}
    assert set(config) == {"kind", *options(find("backbone", name))}
    assert component("backbone", config) == config
    again = SegmentationModel(config, 3, {"kind": "unary", "hidden": 4}).backbones["shared"]
    assert again.config == config
    assert {n: p.shape for n, p in again.state_dict().items()} == {
        n: p.shape for n, p in networks[name].state_dict().items()
    }


@pytest.mark.parametrize("name", SMALL)
def test_copied_and_sent_it_is_the_same(networks: dict[str, nn.Module], name: str) -> None:
    images = torch.randn(1, 3, 20, 36)
    with torch.no_grad():
        wanted = networks[name](images)
        for other in (copy.deepcopy(networks[name]), pickle.loads(pickle.dumps(networks[name]))):
            assert torch.equal(other(images), wanted)
            assert other.config == networks[name].config


@pytest.mark.parametrize("name", SMALL)
def test_it_serves_in_a_model(networks: dict[str, nn.Module], name: str) -> None:
    model = SegmentationModel(networks[name], 3, {"kind": "unary", "hidden": 4}).eval()
    assert model.feature_stride == model.output_stride == pytest.approx(float(STRIDES[name]))
    with torch.no_grad():
        assert model.marginals(torch.rand(1, 3, 33, 50)).shape == (1, 3, 33, 50)
        nodes = model(torch.rand(1, 3, 33, 50)).shape[2:]
    assert tuple(nodes) == tuple(ceil(side / STRIDES[name]) for side in (33, 50))


@pytest.mark.parametrize("name", SMALL)
def test_unknown_options_are_refused_by_name(name: str) -> None:
    with pytest.raises(InputError, match=rf'there is no setting "backbone\.widht" for {name}'):
        build_backbone(name, widht=3)
