"""Beliefs of every iteration: the model's own, whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from explorer.running import photo
from messagenet.explorer.inference import infer, passed_bytes, working_scale
from messagenet.graph import above, below, surrounding
from messagenet.models import ConvolutionNet, MessageNet, UnaryNet
from messagenet.prediction import Predictor

PLENTY = 10**12


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    relations = [surrounding(cells=3), above(0.5), below(0.5)]
    return MessageNet("tiny", 4, relations, hidden=8, iterations=3, initial="zero").double().eval()


def test_the_last_iteration_is_the_models_answer(net):
    (inferred,) = infer(net, [photo()], PLENTY)
    expected = Predictor(net).node_logits(photo())
    torch.testing.assert_close(inferred.logits[-1], expected)
    assert inferred.logits.shape == (4, 4, 10, 13)
    assert inferred.nodes == (10, 13)
    assert inferred.size == (37, 50)
    assert inferred.stride == net.stride == 4


def test_every_iteration_is_that_of_the_trace(net):
    (inferred,) = infer(net, [photo()], PLENTY)
    images = torch.from_numpy(photo()).permute(2, 0, 1)[None].double() / 255
    with torch.no_grad():
        features = net.features(images)
        trace = [sum(totals.values())[0].float() for totals in net.head.trace(features)]
        unary = net.head.trace(features)[0]["unary"][0].float()
    torch.testing.assert_close(inferred.logits, torch.stack([unary, *trace]))


def test_together_as_alone(net):
    pictures = [photo(seed) for seed in range(3)]
    together = infer(net, pictures, PLENTY)
    for picture, inferred in zip(pictures, together, strict=True):
        (alone,) = infer(net, [picture], PLENTY)
        torch.testing.assert_close(inferred.logits, alone.logits)
        torch.testing.assert_close(inferred.features["unary"], alone.features["unary"])
        assert inferred.logits.untyped_storage().nbytes() == inferred.logits.nbytes, "keeps the whole batch"


def test_memory_is_counted_as_it_is(net):
    (inferred,) = infer(net, [photo()], PLENTY)
    channels = net.channels
    assert inferred.nbytes == 4 * (4 * 4 * 130) + 8 * channels * 130
    torch.manual_seed(0)
    separate = MessageNet("tiny", 4, [above(0.5)], hidden=8, separate_features=True).eval()
    (inferred,) = infer(separate, [photo()], PLENTY)
    assert inferred.nbytes == 4 * (2 * 4 * 130) + 2 * 4 * separate.channels * 130


@pytest.mark.parametrize("kind", [UnaryNet, ConvolutionNet])
def test_models_without_messages_have_one_map(kind):
    torch.manual_seed(0)
    net = kind("tiny", 4, hidden=32).eval()
    (inferred,) = infer(net, [photo()], PLENTY)
    torch.testing.assert_close(inferred.logits[0], Predictor(net).node_logits(photo()))
    assert len(inferred.logits) == 1
    assert inferred.features == {}


@pytest.mark.filterwarnings("ignore:on an image this small")
@pytest.mark.parametrize("size", [(1, 1), (1, 200), (3, 2), (64, 64)])
def test_any_size(net, size):
    (inferred,) = infer(net, [photo(0, *size)], PLENTY)
    assert inferred.nodes == (-(-size[0] // 4), -(-size[1] // 4))
    assert torch.isfinite(inferred.logits).all()


def test_messages_that_would_not_fit_make_the_picture_smaller(net):
    size = (200, 300)
    needed = passed_bytes(net, size)
    nodes = 50 * 75
    offsets = 8 + 2 * (25 * 25)
    assert needed == 2 * nodes * offsets * 4 * 4
    assert working_scale(net, size, needed) == 1
    budget = needed // 10
    scale = working_scale(net, size, budget)
    assert 0.4 < scale < 1
    (inferred,) = infer(net, [photo(0, *size)], budget)
    assert inferred.stride == pytest.approx(4 / scale)
    assert inferred.size == size
    rows, columns = inferred.nodes
    assert rows * inferred.stride == pytest.approx(200, abs=2 * inferred.stride)
    assert columns * inferred.stride == pytest.approx(300, abs=2 * inferred.stride)
    assert inferred.logits.dtype == torch.float32


def test_one_iteration_or_no_cavities_store_no_messages():
    for options in ({"iterations": 1}, {"iterations": 3, "cavity": "none"}):
        assert passed_bytes(MessageNet("tiny", 3, hidden=8, **options), (4000, 4000)) == 0
    assert passed_bytes(UnaryNet("tiny", 3, hidden=8), (4000, 4000)) == 0


def test_pixels_are_not_changed(net):
    picture = photo()
    before = picture.copy()
    infer(net, [picture], PLENTY)
    np.testing.assert_array_equal(picture, before)
