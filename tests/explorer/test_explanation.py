"""One pixel explained: the numbers of the Python interface, in pixels of the picture."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from explorer.running import photo
from messagenet.errors import InputError
from messagenet.explorer.inference import Inferred, cell_box, explain, infer, node_at
from messagenet.message_passing import received_messages


@pytest.fixture(scope="module")
def net(models):
    return models[0].net


@pytest.fixture(scope="module")
def inferred(net):
    return infer(net, [photo()], 10**12)[0]


def softmax(logits):
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


@pytest.mark.parametrize("iteration", [0, 1, 2])
def test_totals_sum_to_the_logits(net, inferred, iteration):
    answer = explain(net, inferred, 21.5, 30, iteration)
    totals = np.array([factor["total"] for factor in answer["factors"]])
    np.testing.assert_allclose(totals.sum(0), answer["after"]["logits"], atol=1e-5)
    for factor in answer["factors"][1:]:
        np.testing.assert_allclose(np.sum(factor["values"], axis=0), factor["total"], atol=1e-12)
        assert len(factor["values"]) == len(factor["senders"])
    for t, belief in enumerate(answer["iterations"]):
        assert belief["t"] == t
        assert belief["logits"] == inferred.logits[t, :, 7, 5].double().tolist()
        np.testing.assert_allclose(belief["marginal"], softmax(belief["logits"]), atol=1e-12)
    assert answer["unary"]["logits"] == answer["iterations"][0]["logits"]
    assert answer["after"]["logits"] == answer["iterations"][iteration]["logits"]
    assert answer["node"] == {"row": 7, "column": 5, "box": [20, 28, 24, 32]}
    assert (len(answer["factors"]) == 1) == (iteration == 0)


def test_messages_are_those_of_the_python_interface(net, inferred):
    answer = explain(net, inferred, 3, 3, 2)
    images = torch.from_numpy(photo()).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        expected = received_messages(net.head, net.features(images), (0, 0))
    ours = [
        (factor["name"], (tuple(sender),), values)
        for factor in answer["factors"][1:]
        for sender, values in zip(factor["senders"], factor["values"], strict=True)
    ]
    assert [entry[:2] for entry in ours] == [(m.factor, m.senders) for m in expected[1:]]
    np.testing.assert_allclose([entry[2] for entry in ours], [m.values for m in expected[1:]], atol=1e-6)
    above = answer["factors"][2]
    assert (above["name"], above["box"], above["senders"], above["total"]) == ("above", None, [], [0.0] * 9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_any_precision(net, dtype):
    other = copy.deepcopy(net).to(dtype)
    (inferred,) = infer(other, [photo()], 10**12)
    answer = explain(other, inferred, 21, 30, 2)
    totals = np.sum([factor["total"] for factor in answer["factors"]], axis=0)
    np.testing.assert_allclose(
        totals, answer["after"]["logits"], atol=0.05 if dtype is torch.bfloat16 else 1e-6
    )


def test_boxes_are_around_the_senders(net, inferred):
    answer = explain(net, inferred, 49, 36, 2)
    boxes = {factor["name"]: factor.get("box") for factor in answer["factors"]}
    assert answer["node"]["box"] == [48, 36, 50, 37]
    assert boxes["surrounding"] == [44, 32, 50, 37]
    assert boxes["above"] == [44, 28, 50, 36]
    assert boxes["below"] is None


def test_a_box_factor_has_one_message_of_many(models):
    net = models[1].net
    (inferred,) = infer(net, [photo()], 10**12)
    around = explain(net, inferred, 20, 20, 1)["factors"][1]
    assert around["form"] == "box"
    assert len(around["values"]) == 1
    assert len(around["senders"]) == 24
    assert around["box"] == [12, 12, 32, 32]


def test_strides_that_are_not_whole():
    inferred = Inferred(torch.zeros(1, 2, 3, 4), {}, 13.4, (40, 50))
    assert node_at(inferred, 13.3, 13.5) == (1, 0)
    assert node_at(inferred, 49.9, 39.9) == (2, 3)
    assert cell_box(inferred, [(2, 3)]) == pytest.approx([40.2, 26.8, 50, 40])


@pytest.mark.parametrize("place", [(-0.1, 0), (0, -1), (50, 0), (0, 37), (1e300, 0)])
def test_outside_the_picture(net, inferred, place):
    with pytest.raises(InputError, match="is outside the image; x runs from 0 to 49, y from 0 to 36"):
        explain(net, inferred, *place, 1)
