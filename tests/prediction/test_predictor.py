"""The one way from an image to probabilities: sizes, tiles, views, fused convolutions, features, refinement."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn

from messagenet import InputError, surrounding
from messagenet.geometry import upsample
from messagenet.inference.dense import Bilateral, DenseGraph, DenseMeanField, Gaussian
from messagenet.models import MessageNet, SegmentationModel, UnaryNet
from messagenet.models.backbones import has_bf16_instructions
from messagenet.models.backbones.fused import FusedConvolution, FusedResidual
from messagenet.prediction import PredictOptions, Predictor, Refinement
from messagenet.prediction.predictor import resize, scaled_size


@pytest.fixture
def net():
    torch.manual_seed(0)
    return MessageNet("tiny", 3, [surrounding(cells=3)], hidden=8)


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("size", [(30, 45), (4, 4), (1, 1), (33, 7)])
def test_prediction_has_the_size_of_the_image(net, size):
    predictor = Predictor(net)
    image = random_image(*size)
    marginals = predictor.marginals(image)
    assert marginals.shape == (3, *size)
    torch.testing.assert_close(marginals.sum(0), torch.ones(size))
    expected = net.marginals(torch.from_numpy(image).permute(2, 0, 1)[None] / 255)[0]
    torch.testing.assert_close(marginals, expected.detach(), rtol=1e-4, atol=1e-5)
    assert (predictor.labels(image) == marginals.argmax(0).numpy()).all()


def test_tiles_of_a_local_network_equal_the_whole():
    torch.manual_seed(0)
    net = UnaryNet("tiny", 4, hidden=8)  # a node sees one pixel beyond its cell
    image = random_image(150, 203)
    whole = Predictor(net, PredictOptions(tile=4096)).node_logits([image])[0]
    tiled = Predictor(net, PredictOptions(tile=64, overlap=16)).node_logits([image])[0]
    assert tiled.shape == whole.shape
    torch.testing.assert_close(tiled, whole, rtol=1e-5, atol=1e-5)


def test_flipped_view_of_a_mirrored_image_is_the_same(net):
    image = random_image(24, 40)
    predictor = Predictor(net, PredictOptions(flip=True))
    straight = predictor.marginals(image)
    mirrored = predictor.marginals(np.ascontiguousarray(image[:, ::-1])).flip(2)
    torch.testing.assert_close(straight, mirrored, rtol=1e-3, atol=1e-3)


def test_scales_average_marginals(net):
    image = random_image(24, 40)
    marginals = Predictor(net, PredictOptions(scales=(0.5, 1.0, 1.5), flip=True)).marginals(image)
    assert marginals.shape == (3, 24, 40)
    torch.testing.assert_close(marginals.sum(0), torch.ones(24, 40), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(not has_bf16_instructions(), reason="needs bf16 instructions")
def test_precision_is_asked_for_or_what_the_model_is_for(monkeypatch):
    torch.manual_seed(0)
    model, image = SegmentationModel("efficientnet_lite0", 3, "unary").eval(), random_image(64, 96)
    exact, rounded = (Predictor(model, PredictOptions(precision=each)) for each in ("float32", "bf16"))
    torch.testing.assert_close(rounded.marginals(image), exact.marginals(image), rtol=0.1, atol=0.05)
    assert not torch.equal(rounded.marginals(image), exact.marginals(image))
    model.input = replace(model.input, precision="bf16")
    for instructions, expected in ((True, rounded), (False, exact)):
        monkeypatch.setattr("messagenet.prediction.predictor.has_bf16_instructions", lambda value=instructions: value)
        assert torch.equal(Predictor(model).marginals(image), expected.marginals(image))
    exact.options = PredictOptions(precision="bf16")
    assert torch.equal(exact.marginals(image), rounded.marginals(image)), "another precision on the same predictor"
    assert rounded.marginals(image).dtype == torch.float32
    levels = SegmentationModel("efficientnet_lite0", 3, "fcn8s").eval()
    with pytest.raises(InputError, match="which no part of this model is computed in"):
        Predictor(levels, PredictOptions(precision="bf16")).marginals(image)
    with pytest.raises(InputError, match="precision is 'fp8'; give "):
        PredictOptions(precision="fp8")


def test_large_images_are_reduced_to_what_the_model_is_for(net, tmp_path):
    image = random_image(60, 120)
    whole = Predictor(net).marginals(image)
    half = Predictor(net, PredictOptions(scales=(0.5,))).marginals(image)
    assert torch.equal(Predictor(net, PredictOptions(longest_side=60)).marginals(image), half)
    assert torch.equal(Predictor(net, PredictOptions(longest_side=240)).marginals(image), whole)
    net.input = replace(net.input, longest_side=60)
    saved = SegmentationModel.from_pretrained(net.save(tmp_path))
    assert saved.input.longest_side == 60
    assert torch.equal(Predictor(saved).marginals(image), half)
    assert torch.equal(Predictor(saved, PredictOptions(longest_side=0)).marginals(image), whole)
    with pytest.raises(InputError, match="0 for any size"):
        PredictOptions(longest_side=-1)


@pytest.mark.parametrize("width", [33, 36, 48])
def test_other_views_see_the_same_places(width):
    class Ramp(UnaryNet):
        """Logits that are the position in the image, in parts of its width."""

        def forward(self, images, sizes=None):
            return torch.nn.functional.avg_pool2d(images[:, :3], 8, ceil_mode=True, count_include_pad=False)

    net = Ramp({"kind": "tiny", "stride": 8}, 3, hidden=4)
    image = np.zeros((16, width, 3), np.uint8)
    image[:, :, 0] = np.linspace(0, 255, width)[None]
    straight = Predictor(net).node_logits([image])[0]
    pixels, predictor = torch.from_numpy(image.transpose(2, 0, 1).copy())[None], Predictor(net)
    for scale in (0.75, 1.5):
        view = predictor._view(pixels, scale, False, net)[0].detach()
        torch.testing.assert_close(view[:, :, 1:-2], straight[:, :, 1:-2], rtol=0, atol=0.04)
    mirrored = predictor._view(pixels, 1.0, True, net)[0].detach()
    torch.testing.assert_close(mirrored[:, :, 1:-2], straight[:, :, 1:-2], rtol=0, atol=0.04)


def test_tiles_of_a_constant_image_with_messages_agree_inside():
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, hidden=8)
    image = np.full((128, 150, 3), 90, np.uint8)
    whole = Predictor(net, PredictOptions(tile=4096)).node_logits([image])[0, :, 16, 16:20]
    tiled = Predictor(net, PredictOptions(tile=128, overlap=32)).node_logits([image])[0, :, 16, 16:20]
    torch.testing.assert_close(tiled, whole, rtol=0.05, atol=0.02)


def test_bad_input_names_the_fix(net):
    with pytest.raises(InputError, match="RGB bytes"):
        Predictor(net).labels(np.zeros((4, 4), np.uint8))
    with pytest.raises(InputError, match="at most half"):
        PredictOptions(tile=100, overlap=80)
    with pytest.raises(InputError, match="scales are"):
        PredictOptions(scales=())


def test_arrays_pil_images_and_files_are_the_same(net, tmp_path):
    image = random_image(20, 30)
    Image.fromarray(image).save(tmp_path / "image.png")
    predictor = Predictor(net)
    wanted = predictor.marginals(image)
    for other in (Image.fromarray(image), tmp_path / "image.png", str(tmp_path / "image.png")):
        assert torch.equal(predictor.marginals(other), wanted)
        assert (predictor.labels(other) == predictor.labels(image)).all()


# Several images at once.


class Spy(nn.Module):
    """Notes the shapes that a backbone is called with."""

    def __init__(self, backbone):
        super().__init__()
        self.backbone, self.channels, self.stride = backbone, backbone.channels, backbone.stride
        self.shapes = []

    def forward(self, images):
        self.shapes.append(tuple(images.shape))
        return self.backbone(images)


def test_images_of_one_size_go_through_the_model_together(net):
    spy = net.backbones["shared"] = Spy(net.backbones["shared"])
    images = [random_image(24, 36, seed) for seed in range(3)]
    together = Predictor(net).node_logits(images)
    assert spy.shapes == [(3, 3, 24, 36)]
    assert together.shape == (3, 3, 6, 9)
    for image, logits in zip(images, together, strict=True):
        torch.testing.assert_close(Predictor(net).node_logits([image])[0], logits, rtol=1e-5, atol=1e-6)


def test_views_and_tiles_of_several_images_go_together_too(net):
    options = PredictOptions(flip=True, scales=(0.5, 1.0), tile=64, overlap=16)
    images = [random_image(60, 100, seed) for seed in range(2)]
    spy = net.backbones["shared"] = Spy(net.backbones["shared"])
    together = Predictor(net, options).node_logits(images)
    assert {shape[0] for shape in spy.shapes} == {2}
    for image, logits in zip(images, together, strict=True):
        alone = Predictor(net, options).node_logits([image])[0]
        torch.testing.assert_close(logits, alone, rtol=1e-5, atol=1e-6)


def test_another_function_can_stand_for_the_model(net):
    image = random_image(24, 36)
    seen = []

    def forward(images):
        seen.append((images.shape, float(images.max())))
        return net(images)

    found = Predictor(net).node_logits([image], forward)
    assert seen == [((1, 3, 24, 36), float(image.max() / np.float32(255)))]
    torch.testing.assert_close(found, Predictor(net).node_logits([image]), rtol=1e-5, atol=1e-6)


# From features.

HEADS = [
    ("tiny", "message"),
    ("tiny", {"kind": "crf", "hidden": 6}),
    ("tiny", {"kind": "message", "iterations": 2}),
    ("efficientnet_lite0", "fcn8s"),
    ("efficientnet_lite0", "deconvnet"),
    ("hand_crafted", "inference_machine"),
]


@pytest.mark.parametrize("longest_side", [None, 60, 200])
@pytest.mark.parametrize(("backbone", "head"), HEADS, ids=str)
@pytest.mark.parametrize("size", [(90, 131), (33, 50)])
def test_features_stand_for_the_image(backbone, head, longest_side, size):
    torch.manual_seed(0)
    model = SegmentationModel(backbone, 3, head).eval()
    for parameter in model.head.parameters():
        nn.init.normal_(parameter, std=0.3)
    model.input = replace(model.input, longest_side=longest_side)
    predictor = Predictor(model)
    images = [random_image(*size, seed) for seed in range(2)]
    working = predictor.working_size(size)
    assert max(working) == min(max(size), longest_side or max(size))
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    reduced = pixels if working == size else resize(pixels, working)
    with torch.inference_mode():
        features = model.forward_features(reduced.float() / 255)
        found = predictor.from_features(features, size)
        wanted = predictor.node_logits(images)
    tolerance = 1e-3 if backbone == "efficientnet_lite0" else 1e-5  # whose convolutions are fused
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)
    assert wanted.shape[2:] == tuple(-int(-side // model.output_stride) for side in size)


def test_features_are_those_of_one_view(net):
    image = random_image(24, 36)
    features = net.forward_features(torch.from_numpy(image).permute(2, 0, 1)[None] / 255)
    for options in (PredictOptions(flip=True), PredictOptions(scales=(1.0, 0.5))):
        with pytest.raises(InputError, match="one view"):
            Predictor(net, options).from_features(features, (24, 36))


def test_working_sizes_keep_at_least_a_pixel():
    assert scaled_size((1, 300), 0.1) == (1, 30)
    assert scaled_size((7, 5), 1.0) == (7, 5)


# Fused convolutions.

LITE = {"kind": "efficientnet_lite0", "width": 16, "output_stride": 32, "levels": [3, 5, 7]}
IMAGE = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)


def lite_model(kind: str = "message", seed: int = 0) -> SegmentationModel:
    torch.manual_seed(seed)
    net = SegmentationModel(LITE, 3, kind)
    for module in net.modules():  # values as after a training, so that differences can be seen
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.3, 1.2)
        elif isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.3)
    return net.eval()


def logits(net: SegmentationModel) -> torch.Tensor:
    pixels = torch.from_numpy(IMAGE.transpose(2, 0, 1).copy())[None].float() / 255
    with torch.inference_mode():
        return net(pixels)[0]


@pytest.mark.parametrize("kind", ["message", "unary", "fcn8s", "crf", "deeplab_crf"])
def test_every_kind_predicts_as_it_does_itself(kind: str) -> None:
    net = lite_model(kind)
    assert logits(net).std() > 0.1
    torch.testing.assert_close(Predictor(net).node_logits([IMAGE])[0], logits(net), rtol=1e-3, atol=1e-3)


def test_it_is_fused_and_made_once() -> None:
    predictor = Predictor(lite_model())
    with torch.inference_mode():
        first, second = predictor.fastest(torch.device("cpu")), predictor.fastest(torch.device("cpu"))
    assert first is second
    assert first is not predictor.model
    assert not list(first.backbones.parameters())
    assert first.head is predictor.model.head


def test_changes_of_the_weights_are_seen() -> None:
    net, other = lite_model(seed=0), lite_model(seed=1)
    predictor = Predictor(net)
    before = predictor.node_logits([IMAGE])[0]
    net.load_state_dict(other.state_dict())
    after = predictor.node_logits([IMAGE])[0]
    torch.testing.assert_close(after, logits(other), rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before, after, atol=1e-2)
    with torch.no_grad():
        net.backbones["shared"].stem.norm.running_mean += 1.0
    torch.testing.assert_close(predictor.node_logits([IMAGE])[0], logits(net), rtol=1e-3, atol=1e-3)


def test_another_precision_is_followed() -> None:
    net = lite_model()
    predictor = Predictor(net)
    single = predictor.node_logits([IMAGE])[0]
    net.double()
    torch.testing.assert_close(predictor.node_logits([IMAGE])[0], single, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("travel", [copy.deepcopy, lambda predictor: pickle.loads(pickle.dumps(predictor))])
def test_a_predictor_can_be_copied_and_sent(travel) -> None:
    predictor = Predictor(lite_model())
    wanted = predictor.node_logits([IMAGE])[0]
    torch.testing.assert_close(travel(predictor).node_logits([IMAGE])[0], wanted)


def test_under_autocast_the_network_itself_is_called() -> None:
    net = lite_model()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(Predictor(net).node_logits([IMAGE])[0], logits(net).float())


@pytest.fixture
def fused_calls(monkeypatch):
    """How often fused convolutions are called."""
    calls = []
    for part in (FusedConvolution, FusedResidual):
        forward = part.forward
        monkeypatch.setattr(
            part, "forward", lambda self, x, forward=forward: (calls.append(type(self)), forward(self, x))[1]
        )
    return calls


def test_fused_convolutions_are_used_in_prediction_on_a_processor(fused_calls) -> None:
    predictor = Predictor(lite_model())
    for call in (predictor.labels, predictor.marginals, lambda image: predictor.node_logits([image])):
        fused_calls.clear()
        call(IMAGE)
        assert FusedResidual in fused_calls
    images = torch.rand(1, 3, 64, 64)
    fused_calls.clear()
    with torch.no_grad():
        predictor.forward(images)
    assert FusedResidual in fused_calls


def test_fused_convolutions_are_used_nowhere_else(fused_calls) -> None:
    model = lite_model()
    predictor = Predictor(model)
    images = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        model(images)
        model.marginals(images)
    predictor.forward(images).sum().backward()  # gradients reach the model itself
    assert model.backbones["shared"].stem.convolution.weight.grad.abs().sum() > 0
    with torch.autocast("cpu", torch.bfloat16):
        predictor.labels(IMAGE)
    with torch.no_grad():
        assert predictor.fastest(torch.device("meta")) is model
    Predictor(lite_model().double()).labels(IMAGE)
    assert not fused_calls


def test_the_neck_is_fused_with_the_backbone(fused_calls) -> None:
    torch.manual_seed(0)
    model = SegmentationModel("tiny", 3, "unary", neck={"kind": "separable", "filters": 1}).eval()
    found = Predictor(model).node_logits([IMAGE])
    assert fused_calls.count(FusedResidual) == 1
    torch.testing.assert_close(found[0], logits(model), rtol=1e-4, atol=1e-5)


def test_a_single_step_of_training_is_seen() -> None:
    model = lite_model()
    predictor = Predictor(model)
    before = predictor.node_logits([IMAGE])[0]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.rand(1, 3, 64, 64)).square().mean().backward()
    optimiser.step()
    after = predictor.node_logits([IMAGE])[0]
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, logits(model), rtol=1e-3, atol=1e-3)


# Refinement by a dense CRF.

KERNELS = (Gaussian(2.0, 2.0), Bilateral(4.0, 6.0, 20.0))


@pytest.fixture
def image() -> np.ndarray:
    dice = np.random.default_rng(0)
    pixels = np.full((90, 41, 3), 60, np.uint8)
    pixels[30:, 17:] = (200, 120, 40)
    return (pixels + dice.integers(0, 12, pixels.shape)).astype(np.uint8)


@pytest.fixture
def refined_net() -> MessageNet:
    torch.manual_seed(0)
    return MessageNet("tiny", 3, hidden=8).eval()


def test_is_mean_field_on_the_image_with_the_enlarged_logits_as_unaries(refined_net, image) -> None:
    refinement = Refinement(KERNELS, iterations=4)
    colours = torch.from_numpy(image).permute(2, 0, 1).float() / 255
    with torch.no_grad():
        unary = upsample(refined_net(colours[None]), (90, 41), refined_net.output_stride)[0]
        expected = DenseMeanField(4).run(DenseGraph(colours, KERNELS), unary).marginals
    found = Predictor(refined_net, PredictOptions(refine=refinement)).marginals(image)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0)
    plain = Predictor(refined_net).marginals(image)
    assert (found - plain).abs().max() > 0.01
    labels = Predictor(refined_net, PredictOptions(refine=refinement)).labels(image)
    assert (labels == found.argmax(0).numpy()).all()


def test_bands_agree_with_the_whole(refined_net, image) -> None:
    whole = Predictor(refined_net, PredictOptions(refine=Refinement(KERNELS, iterations=3))).marginals(image)
    bands = Predictor(refined_net, PredictOptions(refine=Refinement(KERNELS, iterations=3, pixels=41 * 40))).marginals(
        image
    )
    assert bands.shape == whole.shape
    assert not torch.equal(bands, whole)  # it was cut
    assert (bands - whole).abs().mean() < 5e-3
    narrow = Refinement((Gaussian(2.0, 0.5),), iterations=3, pixels=41 * 8)
    nearly = Predictor(refined_net, PredictOptions(refine=narrow)).marginals(image)
    exact = Predictor(refined_net, PredictOptions(refine=Refinement((Gaussian(2.0, 0.5),), iterations=3))).marginals(
        image
    )
    assert (nearly - exact).abs().max() < 0.02


def test_refuses_to_refine_nothing() -> None:
    with pytest.raises(InputError, match="at least one"):
        Refinement(pixels=0)


def test_a_pil_image_is_read_as_its_file_is(tmp_path):
    predictor = Predictor(MessageNet("tiny", 3, hidden=8))
    pixels = np.random.default_rng(0).integers(0, 256, (30, 45, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        assert predictor.labels(image).shape == (45, 30)
        assert np.array_equal(predictor.labels(image), predictor.labels(tmp_path / "turned.png"))


def test_a_head_that_is_replaced_is_used():
    model = MessageNet("tiny", 3, hidden=8)
    predictor, image = Predictor(model), np.zeros((30, 45, 3), np.uint8)
    predictor.labels(image)
    model.head = MessageNet("tiny", 3, hidden=8).eval().head
    torch.testing.assert_close(predictor.marginals(image), Predictor(model).marginals(image))


@pytest.mark.parametrize("kind", ["deeplab_crf", "crf_rnn"])
def test_dense_crfs_predict_batches_in_threads(kind):
    model = SegmentationModel("tiny", 9, {"kind": kind, "hidden": 8})
    images = list(np.random.default_rng(0).integers(0, 256, (3, 96, 96, 3), np.uint8))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = Predictor(model).node_logits(images)
    finally:
        torch.set_num_threads(threads)
    for logits, image in zip(together, images, strict=True):
        torch.testing.assert_close(logits, Predictor(model).node_logits([image])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (np.zeros((0, 5, 3), np.uint8), "an image of 5x0 has no pixel; give at least one"),
        (np.zeros((5, 0, 3), np.uint8), "an image of 0x5 has no pixel; give at least one"),
        (Image.new("RGB", (0, 4)), "an image of 0x4 has no pixel; give at least one"),
        (torch.zeros(0, 4, 3, dtype=torch.uint8), r"an image must be .* not torch.uint8 \(0, 4, 3\)"),
        (None, "an image must be RGB bytes .* not NoneType"),
    ],
)
def test_what_is_no_image_is_one_line(image: Any, words: str) -> None:
    predictor = Predictor(UnaryNet("tiny", 3))
    for call in (predictor.labels, predictor.marginals):
        with pytest.raises(InputError, match=f"^{words}$"):
            call(image)


@pytest.mark.parametrize("model", [3, nn.Linear(2, 2)])
def test_what_is_no_model_names_the_fix(model):
    with pytest.raises(
        InputError, match=rf"the model is a {type(model).__name__}; give a SegmentationModel, its folder"
    ):
        Predictor(model)


def test_another_number_of_iterations():
    image = random_image(30, 45)
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, hidden=8, iterations=2, initial="unary", dependent="gate").eval()
    predictor = Predictor(net, PredictOptions(iterations=4))
    with torch.inference_mode():
        features = net.forward_features(predictor.as_input(predictor.stack([image])))
        expected = net.head.run(features, iterations=4).logits
    torch.testing.assert_close(predictor.node_logits([image]), expected)
    torch.testing.assert_close(predictor.from_features(features, image.shape[:2]), expected)
    assert not torch.allclose(Predictor(net).node_logits([image]), expected)
    assert net.head.iterations == 2
    torch.testing.assert_close(pickle.loads(pickle.dumps(predictor)).node_logits([image]), expected)


@pytest.mark.parametrize(
    ("model", "iterations", "text"),
    [
        (
            lambda: MessageNet("tiny", 3, hidden=8),
            2,
            "this head is for one iteration, not 2; train it with iterations=2",
        ),
        (lambda: MessageNet("tiny", 3, hidden=8), 0, "give a whole number, at least 1"),
        (lambda: MessageNet("tiny", 3, hidden=8, iterations=2, tied=False), 3, "train it with tied=true"),
        (
            lambda: SegmentationModel("tiny", 3, "convolution"),
            2,
            "iterations is for learned messages, and this model passes none; leave it out",
        ),
    ],
)
def test_iterations_that_a_head_cannot_run_are_refused(model, iterations, text):
    with pytest.raises(InputError, match=text):
        Predictor(model(), PredictOptions(iterations=iterations))


@settings(max_examples=40, deadline=None)
@given(
    nodes=st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    cut=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_labels_of_pixels_have_the_largest_upsampled_logits(nodes, cut, dtype, seed):
    torch.manual_seed(seed)
    predictor = Predictor(SegmentationModel("tiny", 3, "unary"))
    stride = predictor.model.output_stride
    size = tuple(max(1, int(count * stride) - less) for count, less in zip(nodes[1:], cut, strict=True))
    logits = torch.randn(nodes, dtype=dtype)
    upsampled = upsample(logits[None], size, stride)[0].numpy()
    labels = predictor.pixel_labels(logits, size)
    chosen = np.take_along_axis(upsampled, labels[None].astype(np.int64), 0)[0]
    assert labels.shape == size
    np.testing.assert_allclose(chosen, upsampled.max(0), rtol=1e-5, atol=1e-6)


def test_the_first_of_equal_classes_is_the_label_and_threads_share_the_rows():
    predictor = Predictor(SegmentationModel("tiny", 3, "unary"))
    assert not predictor.pixel_labels(torch.zeros(3, 4, 5), (16, 20)).any()
    logits, before = torch.randn(3, 40, 50), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = predictor.pixel_labels(logits, (160, 200))
        torch.set_num_threads(3)
        np.testing.assert_array_equal(predictor.pixel_labels(logits, (160, 200)), single)
    finally:
        torch.set_num_threads(before)
