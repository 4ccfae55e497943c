"""Whole networks: sizes, padding, separate features, and saving that gives back the same bits."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from messagenet import InputError, above, four_neighbours, surrounding
from messagenet.data import Classes
from messagenet.models import MessageNet, UnaryNet

CLASSES = Classes(("ground", "sky", "tree"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)))


def small(**settings) -> MessageNet:
    torch.manual_seed(0)
    relations = settings.pop("relations", [four_neighbours(), surrounding(cells=5, form="box")])
    return MessageNet("tiny", CLASSES, relations, **{"hidden": 8, **settings}).eval()


class Patches(nn.Module):
    """A user's own backbone: one linear map per 8×8 patch."""

    channels, stride = 5, 8

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, 5, 8, 8)

    def forward(self, images):
        return self.project(images)


@pytest.mark.parametrize("size", [(1, 1), (4, 4), (33, 50), (40, 17)])
@pytest.mark.parametrize("kind", ["tiny", "efficientnet_lite0", "own"])
def test_any_image_size_gives_marginals_at_its_pixels(size, kind):
    backbone = Patches() if kind == "own" else kind
    options = {"width": 8, "levels": [2]} if kind == "efficientnet_lite0" else {}
    net = MessageNet(backbone, CLASSES, [four_neighbours()], hidden=4, backbone_options=options).eval()
    marginals = net.marginals(torch.rand(2, 3, *size))
    assert marginals.shape == (2, 3, *size)
    torch.testing.assert_close(marginals.sum(1), torch.ones(2, *size))
    nodes = net(torch.rand(1, 3, *size)).shape[2:]
    assert tuple(nodes) == tuple(-(-side // net.stride) for side in size)


def test_vgg16_at_several_scales_passes_messages():
    options = {"fc6_channels": 4, "fc6_kernel": 3, "scales": [1.2, 0.4]}
    net = MessageNet("vgg16", CLASSES, [four_neighbours()], hidden=4, backbone_options=options).eval()
    with torch.no_grad():
        assert net.marginals(torch.rand(1, 3, 50, 61)).shape == (1, 3, 50, 61)


def test_a_padded_image_of_a_local_network_is_judged_as_if_alone():
    net = small(relations=[surrounding(0.4), above(0.4)])
    image, larger = torch.rand(1, 3, 40, 36), torch.rand(1, 3, 48, 52)
    batch = larger.repeat(2, 1, 1, 1)
    batch[0] = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    batch[0, :, :40, :36] = image[0]
    valid = torch.ones(2, 48, 52, dtype=torch.bool)
    valid[0, 40:] = False
    valid[0, :, 36:] = False
    logits = net(batch, valid)
    torch.testing.assert_close(logits[1], net(larger)[0], rtol=1e-4, atol=1e-5)
    inner = (slice(None), slice(0, 5), slice(0, 4))  # the last cells see one pixel of the padding
    torch.testing.assert_close(logits[0, :, :10, :9][inner], net(image)[0][inner], rtol=0.2, atol=0.05)
    assert (logits[0, :, 10:] == 0).all()


def test_unary_net_is_the_network_without_relations():
    torch.manual_seed(0)
    unary = UnaryNet("tiny", CLASSES, hidden=8)
    torch.manual_seed(0)
    same = MessageNet("tiny", CLASSES, [], hidden=8)
    images = torch.rand(1, 3, 20, 20)
    torch.testing.assert_close(unary(images), same(images))
    assert unary.head.factor_types == ["unary"]


def test_separate_features_have_a_backbone_each():
    net = small(separate_features=True)
    assert list(net.backbones) == ["unary", "four_neighbours", "surrounding"]
    net(torch.rand(1, 3, 16, 16)).sum().backward()
    for backbone in net.backbones.values():
        assert all(parameter.grad is not None for parameter in backbone.parameters())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"iterations": 2, "tied": False, "cavity": "none", "aggregation": "sqrt", "initial": "unary"},
        {"separate_features": True, "dependent": "mean", "backbone_options": {"width": 6, "stride": 8}},
    ],
)
def test_saving_and_loading_is_exact(settings, tmp_path):
    net = small(**settings)
    loaded = MessageNet.from_pretrained(net.save(tmp_path / "model"))
    assert loaded.settings == net.settings
    assert loaded.relations == net.relations
    assert loaded.classes == net.classes
    assert not loaded.training
    images = torch.rand(1, 3, 24, 24)
    assert torch.equal(loaded(images), net(images))
    assert torch.equal(copy.deepcopy(net)(images), net(images))


def test_half_precision_models_stay_so(tmp_path):
    net = small().to(torch.bfloat16)
    loaded = MessageNet.from_pretrained(net.save(tmp_path / "model"))
    assert next(loaded.parameters()).dtype == torch.bfloat16


def test_unary_nets_and_own_backbones_come_back(tmp_path):
    UnaryNet("tiny", 4, hidden=8).save(tmp_path / "unary")
    assert type(MessageNet.from_pretrained(tmp_path / "unary")) is UnaryNet
    net = MessageNet(Patches(), CLASSES, [four_neighbours()], hidden=4).eval()
    net.save(tmp_path / "own")
    with pytest.raises(InputError, match="pass it: from_pretrained"):
        MessageNet.from_pretrained(tmp_path / "own")
    loaded = MessageNet.from_pretrained(tmp_path / "own", backbone=Patches())
    images = torch.rand(1, 3, 24, 24)
    assert torch.equal(loaded(images), net(images))


def change_weights(folder, change):
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path)


def test_wrong_files_are_refused_by_name(tmp_path):
    folder = small().save(tmp_path / "model")
    name = "head.estimators.0.unary.receiver.weight"

    def refused(words):
        with pytest.raises(InputError, match=words):
            MessageNet.from_pretrained(folder)

    change_weights(folder, lambda state: state.update(extra=torch.zeros(1)))
    refused("has not: extra")
    change_weights(folder, lambda state: (state.pop("extra"), state.pop(name)))
    refused(f"lacks parameters of the model: {name}")
    (folder / "model.safetensors").write_bytes(b"damaged")
    refused("damaged")
    (folder / "model.safetensors").unlink()
    refused("there is no model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["settings"]["iteration"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    refused("iteration")
    (folder / "config.json").write_text("{")
    refused("not valid json")
    folder = tmp_path / "nothing"
    refused("holds no model")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: MessageNet("tinny", 3), 'did you mean "tiny"'),
        (lambda: MessageNet("tiny", 1), "at least 2 classes"),
        (lambda: MessageNet(nn.Conv2d(3, 4, 1), 3), "channels"),
        (lambda: MessageNet(Patches(), 3, separate_features=True), "give its name"),
        (lambda: UnaryNet("tiny", 3, [four_neighbours()]), "use MessageNet"),
        (lambda: small()(torch.rand(3, 8, 8)), "RGB"),
        (lambda: small()(torch.full((1, 3, 8, 8), torch.nan)), "NaN"),
    ],
)
def test_bad_networks_name_the_fix(build, words):
    with pytest.raises(InputError, match=words):
        build()


def test_the_check_of_features_can_be_left_out():
    images = torch.full((1, 3, 16, 16), torch.nan)
    with pytest.raises(InputError, match="NaN or infinity"):
        MessageNet("tiny", 3, hidden=4)(images)
    assert MessageNet("tiny", 3, hidden=4, check_finite=False)(images).isnan().any()


def test_void_values_are_remembered(tmp_path):
    UnaryNet("tiny", 3, hidden=4, void_values=(11, 1000)).save(tmp_path / "net")
    assert MessageNet.from_pretrained(tmp_path / "net").void_values == (11, 1000)
    config = json.loads((tmp_path / "net" / "config.json").read_text())
    del config["classes"]["void_values"]  # as earlier versions wrote it
    (tmp_path / "net" / "config.json").write_text(json.dumps(config))
    assert MessageNet.from_pretrained(tmp_path / "net").void_values == ()
    config["classes"]["void_values"] = [-3]
    (tmp_path / "net" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"config\.json.*void value -3"):
        MessageNet.from_pretrained(tmp_path / "net")
