"""Saved models: the same bits back, in whole or half precision; files that do not fit are refused by name."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from messagenet import InputError, four_neighbours, register, settings, surrounding
from messagenet.bundled import bundled_models
from messagenet.data import Classes
from messagenet.models import InputSpec, MessageNet, SegmentationModel, UnaryHead, UnaryNet
from messagenet.settings import component

CLASSES = Classes(("ground", "sky", "tree"), ((1, 2, 3), (4, 5, 6), (7, 8, 9)))


def small(**settings) -> MessageNet:
    torch.manual_seed(0)
    relations = settings.pop("relations", [four_neighbours(), surrounding(cells=5, form="box")])
    backbone = settings.pop("backbone", "tiny")
    return MessageNet(backbone, CLASSES, relations, **{"hidden": 8, **settings}).eval()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"iterations": 2, "tied": False, "cavity": "none", "aggregation": "mean", "initial": "unary"},
        {"separate_features": True, "dependent": "mean", "backbone": {"kind": "tiny", "width": 6, "stride": 8}},
    ],
)
def test_saving_and_loading_is_exact(settings, tmp_path):
    net = small(**settings)
    loaded = SegmentationModel.from_pretrained(net.save(tmp_path / "model"))
    assert loaded.config == net.config
    assert loaded.relations == net.relations
    assert loaded.classes == net.classes
    assert not loaded.training
    images = torch.rand(1, 3, 24, 24)
    assert torch.equal(loaded(images), net(images))
    assert torch.equal(copy.deepcopy(net)(images), net(images))


def test_an_error_inside_a_head_is_shown_as_it_is(tmp_path, monkeypatch):
    monkeypatch.setitem(settings._REGISTRY, "head", dict(settings._REGISTRY["head"]))
    depth: list[int | None] = [1]

    @register("head", "faulty")
    class Faulty(UnaryHead):
        def __init__(self, in_channels: int, num_classes: int, *, hidden: int = 8) -> None:
            super().__init__(in_channels, num_classes, hidden=hidden + depth[0])

    folder = SegmentationModel("tiny", CLASSES, "faulty").save(tmp_path)
    depth[0] = None
    with pytest.raises(TypeError, match=r"unsupported operand type\(s\) for \+"):
        SegmentationModel.from_pretrained(folder)


def test_the_file_says_what_to_build(tmp_path):
    """No entry may be added, renamed or left out without another format number; components have all their options."""
    net = small(relations=[surrounding(cells=3)])
    net.save(tmp_path)
    head = {"relations": [surrounding(cells=3).to_setting()], "hidden": 8}
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "format": 2,
        "model": {
            "backbone": {"kind": "tiny", "width": 32, "stride": 4},
            "neck": None,
            "head": {**component("head", "message"), **head},
            "separate_features": False,
        },
        "input": {
            "classes": {"names": ["ground", "sky", "tree"], "colours": [[1, 2, 3], [4, 5, 6], [7, 8, 9]]},
            "void_values": [],
            "longest_side": None,
            "precision": "float32",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        },
    }


def test_low_precision_models_stay_so(tmp_path):
    net = small().to(torch.bfloat16)
    loaded = SegmentationModel.from_pretrained(net.save(tmp_path / "model"))
    assert next(loaded.parameters()).dtype == torch.bfloat16


class Patches(nn.Module):
    """A user's own backbone: one linear map per 8×8 patch; its part happens to be called filters."""

    channels, stride = 5, 8

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Sequential(nn.Conv2d(3, 5, 8, 8))

    def forward(self, images):
        return self.filters(images)


def test_unary_nets_and_own_backbones_come_back(tmp_path):
    UnaryNet("tiny", 4, hidden=8).save(tmp_path / "unary")
    assert type(SegmentationModel.from_pretrained(tmp_path / "unary").head) is UnaryHead
    net = MessageNet(Patches(), CLASSES, [four_neighbours()], hidden=4).eval()
    net.save(tmp_path / "own")
    with pytest.raises(InputError, match="pass it: from_pretrained"):
        SegmentationModel.from_pretrained(tmp_path / "own")
    loaded = SegmentationModel.from_pretrained(tmp_path / "own", backbone=Patches())
    images = torch.rand(1, 3, 24, 24)
    assert torch.equal(loaded(images), net(images))


def test_what_a_model_is_for_is_remembered(tmp_path):
    spec = InputSpec(
        CLASSES, void_values=(11, 1000), longest_side=384, precision="bf16", mean=(0.1,) * 3, std=(2.0,) * 3
    )
    model = UnaryNet("tiny", spec, hidden=4)
    loaded = SegmentationModel.from_pretrained(model.save(tmp_path))
    assert loaded.input == spec
    images = torch.rand(1, 3, 16, 16)
    assert torch.equal(loaded.normalise(images), model.normalise(images))
    model.input = replace(spec, longest_side=96)
    assert SegmentationModel.from_pretrained(model.save(tmp_path)).input.longest_side == 96
    change_config(tmp_path, lambda config: config["input"].pop("precision"))  # as saved by earlier versions
    assert SegmentationModel.from_pretrained(tmp_path).input.precision == "float32"


def change_config(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c["input"].update(void_values=[-3]), r"config\.json.*void value -3"),
        (lambda c: c["input"].update(longest_side="large"), "longest_side is 'large'; give a whole number or null"),
        (lambda c: c["input"].update(precision="int8"), "precision is 'int8'; give "),
        (lambda c: c["input"].pop("mean"), "input: mean missing; save the model again"),
        (lambda c: c["input"].update(colour=1), "input: unknown entry 'colour'"),
        (lambda c: c["input"].update(classes=3), "classes are 3"),
        (lambda c: c["input"]["classes"].update(names=3), "classes.names is 3"),
        (lambda c: c.update(input=3), "input is 3; save the model again"),
        (lambda c: c.update(model=None), "model is None; save the model again"),
        (lambda c: c.update(model=[]), r"model is \[\]; save the model again"),
        (lambda c: c.pop("model"), "model missing; save the model again"),
        (lambda c: c.update(modle=1), "unknown entry 'modle'; did you mean \"model\""),
        (lambda c: c.update(format=1), "has format 1, this version reads 2"),
        (lambda c: c.update(stored="int4"), "'int4'; this version reads 'fp16'"),
        (lambda c: c["model"].pop("neck"), "model: neck missing"),
        (lambda c: c["model"].update(separate_features="yes"), "separate_features is 'yes'; give true or false"),
        (
            lambda c: c["model"]["head"].update(iteration=2),
            r'no setting ".*config\.json: model\.head\.iteration" for message: did you mean "iterations"',
        ),
        (lambda c: c["model"]["head"].update(hidden="many"), r"model\.head\.hidden is 'many'"),
        (lambda c: c["model"]["head"].update(hidden=0), r"config\.json.*hidden"),
        (lambda c: c["model"]["head"].update(kind="mesage"), 'did you mean "message"'),
        (lambda c: c["model"]["head"].pop("kind"), "has no kind"),
        (lambda c: c["model"].update(head=3), r"model\.head is 3; give a kind"),
        (lambda c: c["model"]["backbone"].update(width=0), r"config\.json.*width is 0"),
    ],
)
def test_configurations_that_do_not_describe_a_model_are_refused(tmp_path, change, words):
    folder = small().save(tmp_path)
    change_config(folder, change)
    with pytest.raises(InputError, match=words) as caught:
        SegmentationModel.from_pretrained(folder)
    assert "\n" not in str(caught.value)
    assert "config.json" in str(caught.value)


def test_an_empty_neck_changes_nothing(tmp_path):
    net = small()
    change_config(net.save(tmp_path), lambda config: config["model"].update(neck={}))
    loaded, images = SegmentationModel.from_pretrained(tmp_path), torch.rand(1, 3, 24, 24)
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
            SegmentationModel.from_pretrained(folder)

    change_weights(folder, lambda state: state.update(extra=torch.zeros(1)))
    refused("does not have: extra")
    change_weights(folder, lambda state: (state.pop("extra"), state.update({name: torch.zeros(2, 3)})))
    refused(rf"{name} has shape \(2, 3\), the model needs \(8, 32\)")
    change_weights(folder, lambda state: state.pop(name))
    refused(f"lacks parameters of the model: {name}")
    (folder / "model.safetensors").write_bytes(b"damaged")
    refused("damaged")
    (folder / "model.safetensors").unlink()
    refused("there is no model.safetensors")
    (folder / "config.json").write_text("[]")
    refused("does not describe a model")
    (folder / "config.json").write_text("{")
    refused("not valid json")
    folder = tmp_path / "nothing"
    refused("holds no model")
    small().save(tmp_path / "run" / "best")
    folder = tmp_path / "run"
    refused("did you mean .*best")


@pytest.mark.parametrize("name", bundled_models())
def test_bundled_models_are_saved_as_they_are_read(name, tmp_path):
    model = SegmentationModel.from_pretrained(name)
    again = SegmentationModel.from_pretrained(model.save(tmp_path, half=True))
    assert again.config == model.config
    assert again.input == model.input
    assert all(torch.equal(values, model.state_dict()[key]) for key, values in again.state_dict().items())


# Half precision: half the file, rounded once, read back as float32.


@pytest.fixture
def net() -> MessageNet:
    torch.manual_seed(0)
    return MessageNet({"kind": "efficientnet_lite0", "width": 16, "levels": [2]}, 3, hidden=8)


def test_parameters_come_back_rounded_to_16_bits_as_float32(tmp_path: Path, net: MessageNet) -> None:
    whole, half = net.save(tmp_path / "whole"), net.save(tmp_path / "half", half=True)
    size = [(folder / "model.safetensors").stat().st_size for folder in (whole, half)]
    assert size[1] < 0.65 * size[0]
    loaded = SegmentationModel.from_pretrained(half).state_dict()
    for name, values in net.state_dict().items():
        wanted = values.half().float() if values.is_floating_point() else values
        assert loaded[name].dtype == values.dtype
        assert torch.equal(loaded[name], wanted)


def test_saving_leaves_the_model_as_it_is(tmp_path: Path, net: MessageNet) -> None:
    before = {name: values.clone() for name, values in net.state_dict().items()}
    net.save(tmp_path, half=True)
    assert all(torch.equal(values, before[name]) for name, values in net.state_dict().items())
    assert next(net.parameters()).dtype == torch.float32


def test_a_second_saving_changes_nothing_more(tmp_path: Path, net: MessageNet) -> None:
    first = net.save(tmp_path / "first", half=True)
    second = SegmentationModel.from_pretrained(first).save(tmp_path / "second", half=True)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path: Path, net: MessageNet) -> None:
    with torch.no_grad():
        next(net.parameters()).flatten()[0] = 1e6
    with pytest.raises(InputError, match="16 bits cannot hold; save the model without half"):
        net.save(tmp_path / "model", half=True)
    assert not (tmp_path / "model").exists()
