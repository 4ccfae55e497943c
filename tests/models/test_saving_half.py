"""Models saved in half precision: half the file, rounded once, read back as float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from messagenet.errors import InputError
from messagenet.models import MessageNet


@pytest.fixture
def net() -> MessageNet:
    torch.manual_seed(0)
    return MessageNet("efficientnet_lite0", 3, hidden=8, backbone_options={"width": 16, "levels": [2]})


def test_parameters_come_back_rounded_to_16_bits_as_float32(tmp_path: Path, net: MessageNet) -> None:
    whole, half = net.save(tmp_path / "whole"), net.save(tmp_path / "half", half=True)
    size = [(folder / "model.safetensors").stat().st_size for folder in (whole, half)]
    assert size[1] < 0.65 * size[0]
    loaded = MessageNet.from_pretrained(half).state_dict()
    for name, values in net.state_dict().items():
        wanted = values.half().float() if values.is_floating_point() else values
        assert loaded[name].dtype == values.dtype
        assert torch.equal(loaded[name], wanted)


def test_saving_leaves_the_network_as_it_is(tmp_path: Path, net: MessageNet) -> None:
    before = {name: values.clone() for name, values in net.state_dict().items()}
    net.save(tmp_path, half=True)
    assert all(torch.equal(values, before[name]) for name, values in net.state_dict().items())
    assert next(net.parameters()).dtype == torch.float32


def test_a_second_saving_changes_nothing_more(tmp_path: Path, net: MessageNet) -> None:
    first = net.save(tmp_path / "first", half=True)
    second = MessageNet.from_pretrained(first).save(tmp_path / "second", half=True)
    assert (first / "model.safetensors").read_bytes() == (second / "model.safetensors").read_bytes()


def test_what_does_not_fit_is_refused_and_nothing_is_written(tmp_path: Path, net: MessageNet) -> None:
    with torch.no_grad():
        next(net.parameters()).flatten()[0] = 1e6
    with pytest.raises(InputError, match="16 bits cannot hold; save the model without half"):
        net.save(tmp_path / "model", half=True)
    assert not (tmp_path / "model").exists()


def test_an_unknown_storage_is_refused(tmp_path: Path, net: MessageNet) -> None:
    folder = net.save(tmp_path, half=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "stored": "int4"}))
    with pytest.raises(InputError, match="'int4'; this version reads 'fp16'"):
        MessageNet.from_pretrained(folder)
