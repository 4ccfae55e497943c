"""All networks by name, and models saved before there were so many."""

from __future__ import annotations

import json

import pytest
import torch

from messagenet import InputError
from messagenet.graph import above, surrounding
from messagenet.models import KINDS, MessageNet, SegmentationNet, UnaryNet
from messagenet.models.kinds import NETWORKS

FORMAT_1 = {
    "backbone": "tiny",
    "backbone_options": {"width": 8},
    "separate_features": False,
    "hidden": 8,
    "iterations": 2,
    "tied": True,
    "cavity": "factor",
    "initial": "zero",
    "aggregation": "fixed",
    "dependent": "sum",
}


@pytest.mark.parametrize("model", [MessageNet, UnaryNet])
def test_models_of_the_first_format_are_read(model, tmp_path):
    """The file as it was first written: no entry may be added or renamed."""
    settings = {key: value for key, value in FORMAT_1.items() if key != "backbone"}
    relations = [surrounding(cells=3)] if model is MessageNet else []
    net = model("tiny", 3, relations, **settings).eval()
    net.save(tmp_path)
    written = {
        "format": 1,
        "model": model.__name__,
        "classes": {"names": list(net.classes.names), "colours": [list(c) for c in net.classes.colours]},
        "relations": [relation.to_dict() for relation in relations],
        "settings": FORMAT_1,
    }
    assert json.loads((tmp_path / "config.json").read_text()) == json.loads(json.dumps(written))
    loaded = SegmentationNet.from_pretrained(tmp_path)
    image = torch.rand(1, 3, 20, 24)
    assert type(loaded) is model
    assert torch.equal(loaded(image), net(image))


def test_every_network_is_known_by_its_class():
    assert {kind.network for kind in KINDS.values()} == set(NETWORKS.values())
    for kind, (network, fixed) in KINDS.items():
        backbone = "efficientnet_lite0" if kind == "fcn8s" else "tiny"
        relations = [surrounding(cells=3), above(cells=3)] if network.uses_relations else []
        net = network(backbone, 4, relations, **fixed)
        assert fixed.items() <= net.settings.items()
        assert net.outputs_per_factor == (16 if "objective" in fixed else 4)
        json.dumps(net.settings)


def test_networks_without_relations_refuse_them():
    for network, _ in KINDS.values():
        if not network.uses_relations:
            with pytest.raises(InputError, match="use MessageNet"):
                network("tiny", 3, [surrounding(cells=3)])


def test_controls_have_the_parameters_of_the_message_head():
    def size(net):
        return sum(parameter.numel() for parameter in net.parameters())

    messages = size(MessageNet("tiny", 5, hidden=64))
    for kind in ("ensemble", "convolution", "dilated"):
        network, fixed = KINDS[kind]
        assert abs(size(network("tiny", 5, hidden=64, **fixed)) - messages) < 0.02 * messages
