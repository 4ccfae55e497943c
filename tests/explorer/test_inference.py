"""Beliefs of every iteration, maps of pixels and the messages to a node: the numbers of the Python interface."""

from __future__ import annotations

import copy
import io
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from explorer.running import photo
from messagenet.bundled import model_folder, photographs
from messagenet.data import read_image
from messagenet.data.classes import as_classes
from messagenet.errors import InputError
from messagenet.explorer.inference import (
    BeliefTrace,
    cell_box,
    explain,
    grey_png,
    label_map,
    node_at,
    pixel_maps,
    stored_message_bytes,
    trace_beliefs,
    working_size,
)
from messagenet.explorer.models import ServedModel, load_models
from messagenet.graph import above, below, surrounding
from messagenet.message_passing import received_messages
from messagenet.models import InputSpec, MessageNet, SegmentationModel, UnaryNet
from messagenet.prediction import PredictOptions, Predictor
from messagenet.report import entropy

PLENTY = 10**12


def served(model):
    return ServedModel("served", model.eval())


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    relations = [surrounding(cells=3), above(0.5), below(0.5)]
    return served(MessageNet("tiny", 4, relations, hidden=8, iterations=3, initial="zero").double())


def test_the_last_iteration_is_the_models_answer(model):
    (trace,) = trace_beliefs(model, [photo()], PLENTY)
    (expected,) = Predictor(model.model).node_logits([photo()])
    torch.testing.assert_close(trace.logits[-1], expected)
    assert trace.logits.shape == (4, 4, 10, 13)
    assert trace.nodes == (10, 13)
    assert trace.size == (37, 50)
    assert trace.stride == model.model.output_stride == 4


def test_every_iteration_is_that_of_the_trace(model):
    (trace,) = trace_beliefs(model, [photo()], PLENTY)
    images = torch.from_numpy(photo()).permute(2, 0, 1)[None].double() / 255
    with torch.no_grad():
        features = model.model.forward_features(images)
        totals = [sum(by_type.values())[0].float() for by_type in model.model.head.trace(features)]
        unary = model.model.head.trace(features)[0]["unary"][0].float()
    torch.testing.assert_close(trace.logits, torch.stack([unary, *totals]))


def test_together_as_alone(model):
    images = [photo(seed) for seed in range(3)]
    together = trace_beliefs(model, images, PLENTY)
    for image, trace in zip(images, together, strict=True):
        (alone,) = trace_beliefs(model, [image], PLENTY)
        torch.testing.assert_close(trace.logits, alone.logits)
        torch.testing.assert_close(trace.features["unary"], alone.features["unary"])
        assert trace.logits.untyped_storage().nbytes() == trace.logits.nbytes, "keeps the whole batch"


def test_memory_is_counted_as_it_is(model):
    (trace,) = trace_beliefs(model, [photo()], PLENTY)
    channels = model.model.head.in_channels
    assert trace.nbytes == 4 * (4 * 4 * 130) + 8 * channels * 130
    torch.manual_seed(0)
    separate = MessageNet("tiny", 4, [above(0.5)], hidden=8, separate_features=True).eval()
    (trace,) = trace_beliefs(served(separate), [photo()], PLENTY)
    assert trace.nbytes == 4 * (2 * 4 * 130) + 2 * 4 * separate.head.in_channels * 130


@pytest.mark.parametrize("kind", ["unary", "convolution"])
def test_models_without_messages_have_one_map(kind):
    torch.manual_seed(0)
    model = served(SegmentationModel("tiny", 4, {"kind": kind, "hidden": 32}))
    (trace,) = trace_beliefs(model, [photo()], PLENTY)
    torch.testing.assert_close(trace.logits, Predictor(model.model).node_logits([photo()]))
    assert len(trace.logits) == 1
    assert trace.features == {}


@pytest.mark.filterwarnings("ignore:on an image this small")
@pytest.mark.parametrize("size", [(1, 1), (1, 200), (3, 2), (64, 64)])
def test_any_size(model, size):
    (trace,) = trace_beliefs(model, [photo(0, *size)], PLENTY)
    assert trace.nodes == (-(-size[0] // 4), -(-size[1] // 4))
    assert torch.isfinite(trace.logits).all()


def test_messages_that_would_not_fit_reduce_the_image(model):
    size = (200, 300)
    needed = stored_message_bytes(model, size)
    nodes = 50 * 75
    offsets = 8 + 2 * (25 * 25)
    assert needed == 2 * nodes * offsets * 4 * 4
    assert working_size(model, size, needed) == size
    budget = needed // 10
    reduced = working_size(model, size, budget)
    scale = reduced[1] / size[1]
    assert 0.4 < scale < 1
    assert stored_message_bytes(model, reduced) <= budget
    (trace,) = trace_beliefs(model, [photo(0, *size)], budget)
    assert trace.stride == pytest.approx(4 / scale)
    assert trace.size == size
    rows, columns = trace.nodes
    assert rows * trace.stride == pytest.approx(200, abs=2 * trace.stride)
    assert columns * trace.stride == pytest.approx(300, abs=2 * trace.stride)
    assert trace.logits.dtype == torch.float32


def test_one_iteration_or_no_cavities_store_no_messages():
    for options in ({"iterations": 1}, {"iterations": 3, "cavity": "none"}):
        assert stored_message_bytes(served(MessageNet("tiny", 3, hidden=8, **options)), (4000, 4000)) == 0
    assert stored_message_bytes(served(UnaryNet("tiny", 3, hidden=8)), (4000, 4000)) == 0


def test_pixels_are_not_changed(model):
    image = photo()
    before = image.copy()
    trace_beliefs(model, [image], PLENTY)
    np.testing.assert_array_equal(image, before)


@pytest.fixture(scope="module")
def trace(models):
    return trace_beliefs(models[0], [photo()], PLENTY)[0]


def test_the_last_map_is_the_prediction(models, trace):
    predictor = Predictor(models[0].model)
    *_, last = pixel_maps(models[0].predictor, trace)
    np.testing.assert_array_equal(last.labels, predictor.labels(photo()))
    np.testing.assert_array_equal(label_map(models[0].predictor, trace, 2), last.labels)
    expected = 255 * entropy(predictor.marginals(photo()))
    assert abs(last.entropy.astype(float) - expected).max() <= 0.51


@pytest.mark.parametrize("longest_side", [None, 40])
def test_labels_are_the_predictors_exactly(longest_side):
    torch.manual_seed(0)
    spec = InputSpec(as_classes(4), longest_side=longest_side)
    model = served(MessageNet("tiny", spec, [surrounding(cells=3), above(0.5)], hidden=8, iterations=2))
    image = photo(0, 75, 100)
    (trace,) = trace_beliefs(model, [image], PLENTY)
    assert trace.size == (75, 100)
    assert trace.nodes == ((19, 25) if longest_side is None else (8, 10))
    np.testing.assert_array_equal(label_map(model.predictor, trace, 2), Predictor(model.model).labels(image))
    *_, last = pixel_maps(model.predictor, trace)
    np.testing.assert_array_equal(last.labels, Predictor(model.model).labels(image))


@pytest.mark.parametrize(("longest_side", "nodes"), [(None, (8, 10)), (60, (12, 15)), (0, (19, 25))])
def test_labels_are_the_predictors_at_the_longest_side_asked_for(tmp_path, longest_side, nodes):
    torch.manual_seed(0)
    spec = InputSpec(as_classes(4), longest_side=40)
    folder = MessageNet("tiny", spec, [surrounding(cells=3)], hidden=8).save(tmp_path)
    (model,) = load_models([folder], longest_side)
    (trace,) = trace_beliefs(model, [image := photo(0, 75, 100)], PLENTY)
    assert trace.nodes == nodes
    labels = Predictor(folder, PredictOptions(longest_side=longest_side)).labels(image)
    np.testing.assert_array_equal(label_map(model.predictor, trace, 1), labels)


def test_labels_of_the_bundled_model_are_the_predictors_exactly():
    (served_model,) = load_models([model_folder()])
    image = read_image(next(path for path in photographs() if path.name.startswith("astronaut")))
    assert max(image.shape) > served_model.model.input.longest_side
    (trace,) = trace_beliefs(served_model, [image], PLENTY)
    labels = label_map(served_model.predictor, trace, served_model.iterations)
    np.testing.assert_array_equal(labels, Predictor().labels(image))


def test_shares_and_changes_are_counted(models, trace):
    maps = list(pixel_maps(models[0].predictor, trace))
    assert len(maps) == 3
    assert maps[0].changed == 0
    for before, after in pairwise(maps):
        assert after.changed == np.mean(before.labels != after.labels) > 0
    for each in maps:
        assert each.shares == [np.mean(each.labels == k) for k in range(9)]


def test_a_png_holds_the_values():
    values = photo()[..., 0]
    image = Image.open(io.BytesIO(grey_png(values)))
    assert image.mode == "L"
    np.testing.assert_array_equal(np.asarray(image), values)


def softmax(logits):
    weights = np.exp(np.array(logits) - max(logits))
    return weights / weights.sum()


@pytest.mark.parametrize("iteration", [0, 1, 2])
def test_totals_sum_to_the_logits(models, trace, iteration):
    answer = explain(models[0].head, trace, 21.5, 30, iteration)
    totals = np.array([factor["total"] for factor in answer["factors"]])
    np.testing.assert_allclose(totals.sum(0), answer["belief"]["logits"], atol=1e-5)
    for factor in answer["factors"][1:]:
        np.testing.assert_allclose(np.sum(factor["messages"], axis=0), factor["total"], atol=1e-12)
        assert len(factor["messages"]) == len(factor["senders"])
    for t, belief in enumerate(answer["beliefs"]):
        assert belief["t"] == t
        assert belief["logits"] == trace.logits[t, :, 7, 5].double().tolist()
        np.testing.assert_allclose(belief["marginal"], softmax(belief["logits"]), atol=1e-12)
    assert answer["unary"]["logits"] == answer["beliefs"][0]["logits"]
    assert answer["belief"]["logits"] == answer["beliefs"][iteration]["logits"]
    assert answer["node"] == {"row": 7, "column": 5, "box": [20, 28, 24, 32]}
    assert (len(answer["factors"]) == 1) == (iteration == 0)


@pytest.mark.parametrize("cavity", ["factor", "none"])
def test_gated_messages_sum_to_the_logits(cavity):
    torch.manual_seed(0)
    options = {"hidden": 8, "iterations": 2, "dependent": "gate", "initial": "unary", "cavity": cavity}
    gated = served(MessageNet("tiny", 4, [surrounding(cells=3), above(0.5), below(0.5)], **options))
    (trace,) = trace_beliefs(gated, [photo()], PLENTY)
    for iteration in (1, 2):
        answer = explain(gated.head, trace, 21.5, 30, iteration)
        totals = np.array([factor["total"] for factor in answer["factors"]])
        np.testing.assert_allclose(totals.sum(0), answer["belief"]["logits"], atol=1e-5)


def test_messages_are_those_of_the_python_interface(models, trace):
    answer = explain(models[0].head, trace, 3, 3, 2)
    images = torch.from_numpy(photo()).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        expected = received_messages(models[0].head, models[0].model.forward_features(images), (0, 0))
    ours = [
        (factor["name"], (tuple(sender),), message)
        for factor in answer["factors"][1:]
        for sender, message in zip(factor["senders"], factor["messages"], strict=True)
    ]
    assert [entry[:2] for entry in ours] == [(m.factor, m.senders) for m in expected[1:]]
    np.testing.assert_allclose([entry[2] for entry in ours], [m.values for m in expected[1:]], atol=1e-6)
    above = answer["factors"][2]
    assert (above["name"], above["box"], above["senders"], above["total"]) == ("above", None, [], [0.0] * 9)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_models_of_any_precision(models, dtype):
    other = served(copy.deepcopy(models[0].model).to(dtype))
    (trace,) = trace_beliefs(other, [photo()], PLENTY)
    answer = explain(other.head, trace, 21, 30, 2)
    totals = np.sum([factor["total"] for factor in answer["factors"]], axis=0)
    np.testing.assert_allclose(totals, answer["belief"]["logits"], atol=0.05 if dtype is torch.bfloat16 else 1e-6)


def test_boxes_are_around_the_senders(models, trace):
    answer = explain(models[0].head, trace, 49, 36, 2)
    boxes = {factor["name"]: factor.get("box") for factor in answer["factors"]}
    assert answer["node"]["box"] == [48, 36, 50, 37]
    assert boxes["surrounding"] == [44, 32, 50, 37]
    assert boxes["above"] == [44, 28, 50, 36]
    assert boxes["below"] is None


def test_a_box_factor_has_one_message_of_many(models):
    (trace,) = trace_beliefs(models[1], [photo()], PLENTY)
    around = explain(models[1].head, trace, 20, 20, 1)["factors"][1]
    assert around["form"] == "box"
    assert len(around["messages"]) == 1
    assert len(around["senders"]) == 24
    assert around["box"] == [12, 12, 32, 32]


def test_strides_that_are_not_whole():
    trace = BeliefTrace(torch.zeros(1, 2, 3, 4), {}, 13.4, (40, 50), (12, 15))
    assert node_at(trace, 13.3, 13.5) == (1, 0)
    assert node_at(trace, 49.9, 39.9) == (2, 3)
    assert cell_box(trace, [(2, 3)]) == pytest.approx([40.2, 26.8, 50, 40])


@pytest.mark.parametrize("pixel", [(-0.1, 0), (0, -1), (50, 0), (0, 37), (1e300, 0)])
def test_outside_the_image(models, trace, pixel):
    with pytest.raises(InputError, match="is outside the image; x runs from 0 to 49, y from 0 to 36"):
        explain(models[0].head, trace, *pixel, 1)
