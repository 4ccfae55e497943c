from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from messagenet import InputError, surrounding
from messagenet.losses import upsample
from messagenet.models import MessageNet, UnaryNet
from messagenet.prediction import Predictor, Views, predict_files, score
from messagenet.prediction.upsample import joined_logits, most_probable, pixel_strips, spans


@pytest.fixture
def net():
    torch.manual_seed(0)
    return MessageNet("tiny", 3, [surrounding(cells=3)], hidden=8)


def picture(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.mark.parametrize("rows", [7, 16, 32])
@pytest.mark.parametrize(
    ("size", "stride"),
    [((37, 50), 4.0), ((16, 16), 16.0), ((41, 30), 40 / 3), ((1, 1), 8.0), ((97, 33), 8.0)],
)
def test_strips_equal_one_enlargement(size, stride, rows):
    nodes = [int(-(-side // stride)) for side in size]
    logits = torch.randn(1, 5, *nodes, dtype=torch.float64)
    whole = upsample(logits, size, stride)[0]
    strips = torch.cat(list(pixel_strips(logits[0], size, stride, rows)), 1)
    assert strips.shape[1:] == size
    tolerance = (
        1e-6 if stride == int(stride) else 0.05
    )  # a fractional stride is rounded to whole pixels in `upsample`
    torch.testing.assert_close(strips, whole, rtol=tolerance, atol=tolerance * float(whole.abs().max()))


def test_strips_beyond_the_last_node_repeat_it():
    logits = torch.randn(3, 4, 2)  # 4 rows of nodes for 7 of cells
    strips = torch.cat(list(pixel_strips(logits, (56, 16), 8.0, rows=8)), 1)
    torch.testing.assert_close(strips, torch.cat(list(pixel_strips(logits, (56, 16), 8.0, rows=7)), 1))
    torch.testing.assert_close(strips[:, 40:], strips[:, 40:41].expand(-1, 16, -1))


@pytest.mark.parametrize("num_classes", [1, 2, 21, 255])
def test_the_first_of_equally_probable_classes(num_classes):
    values = torch.randint(0, 5, (num_classes, 20, 30)).float()
    values[-1, 0] = 9
    assert (most_probable(values) == values.numpy().argmax(0)).all()


@pytest.mark.parametrize("size", [(30, 45), (4, 4), (1, 1), (33, 7)])
def test_prediction_has_the_size_of_the_image(net, size):
    predictor = Predictor(net)
    image = picture(*size)
    marginals = predictor.marginals(image)
    assert marginals.shape == (3, *size)
    torch.testing.assert_close(marginals.sum(0), torch.ones(size))
    expected = net.marginals(torch.from_numpy(image).permute(2, 0, 1)[None] / 255)[0]
    torch.testing.assert_close(marginals, expected.detach(), rtol=1e-4, atol=1e-5)
    assert (predictor.labels(image) == marginals.argmax(0).numpy()).all()


def test_tiles_of_a_local_network_equal_the_whole():
    torch.manual_seed(0)
    net = UnaryNet("tiny", 4, hidden=8)  # a node sees one pixel beyond its cell
    image = picture(150, 203)
    whole = Predictor(net, Views(tile=4096)).node_logits(image)
    tiled = Predictor(net, Views(tile=64, overlap=16)).node_logits(image)
    assert tiled.shape == whole.shape
    torch.testing.assert_close(tiled, whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [4.0, 16.0, 40 / 3])
def test_tiles_of_a_constant_are_constant(stride):
    def run(tile):
        size = [int(-(-side // stride)) for side in tile.shape[2:]]
        return torch.ones(1, 2, *size)

    joined = joined_logits(torch.zeros(1, 3, 333, 479), run, 160, 48, stride)
    torch.testing.assert_close(joined, torch.ones_like(joined))
    assert abs(joined.shape[2] * stride - 333) <= 2 * stride


@pytest.mark.parametrize("length", [1, 47, 48, 49, 63, 64, 65, 100, 333, 1000])
def test_spans_cover_and_overlap(length):
    windows = spans(length, 48, 16, 16)
    assert windows[0][0] == 0
    assert windows[-1][1] == length
    for (_, end), (start, _) in pairwise(windows):
        assert start % 16 == 0
        assert end - start >= 16


def test_flipped_view_of_a_mirrored_image_is_the_same(net):
    image = picture(24, 40)
    predictor = Predictor(net, Views(flip=True))
    straight = predictor.marginals(image)
    mirrored = predictor.marginals(np.ascontiguousarray(image[:, ::-1])).flip(2)
    torch.testing.assert_close(straight, mirrored, rtol=1e-3, atol=1e-3)


def test_scales_average_marginals(net):
    image = picture(24, 40)
    marginals = Predictor(net, Views(scales=(0.5, 1.0, 1.5), flip=True)).marginals(image)
    assert marginals.shape == (3, 24, 40)
    torch.testing.assert_close(marginals.sum(0), torch.ones(24, 40), rtol=1e-4, atol=1e-4)


def test_large_images_are_reduced_to_what_the_model_is_for(net, tmp_path):
    image = picture(60, 120)
    whole = Predictor(net).marginals(image)
    half = Predictor(net, Views(scales=(0.5,))).marginals(image)
    assert torch.equal(Predictor(net, Views(longest_side=60)).marginals(image), half)
    assert torch.equal(Predictor(net, Views(longest_side=240)).marginals(image), whole)
    net.longest_side = 60
    saved = MessageNet.from_pretrained(net.save(tmp_path))
    assert saved.longest_side == 60
    assert torch.equal(Predictor(saved).marginals(image), half)
    assert torch.equal(Predictor(saved, Views(longest_side=0)).marginals(image), whole)
    with pytest.raises(InputError, match="0 for any size"):
        Views(longest_side=-1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"longest_side": "large"}))
    with pytest.raises(InputError, match="longest_side is 'large'"):
        MessageNet.from_pretrained(tmp_path)


def test_files_are_written_in_every_kind(net, tmp_path):
    for name in ("a/one.png", "b/one.jpg"):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(picture(20, 31)).save(tmp_path / name)
    out = tmp_path / "out"
    written = predict_files(
        Predictor(net), [tmp_path / "a", tmp_path / "b"], out, ["mask", "overlay", "entropy", "probs"]
    )
    names = {str(path.relative_to(out)) for path in written.files}
    assert {"a/one.png", "b/one.png", "a/one.overlay.png", "b/one.npz", "a/one.entropy.png"} <= names
    mask = Image.open(out / "a/one.png")
    assert mask.mode == "P"
    assert mask.size == (31, 20)
    stored = np.load(out / "a/one.npz", allow_pickle=False)
    assert stored["marginals"].shape == (3, 20, 31)
    assert (np.asarray(mask) == stored["marginals"].argmax(0)).mean() > 0.99
    with pytest.raises(InputError, match="two images are called 'one'"):
        predict_files(Predictor(net), [tmp_path / "a", tmp_path / "b"], out, ["voc"])
    (server,) = predict_files(Predictor(net), [tmp_path / "a"], out, ["voc"]).files
    assert server == out / "results/VOC2012/Segmentation/comp6_test_cls/one.png"


def test_results_never_replace_their_images(net, tmp_path):
    Image.fromarray(picture(8, 8)).save(tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    with pytest.raises(InputError, match="choose another folder"):
        predict_files(Predictor(net), [tmp_path], tmp_path)
    assert (tmp_path / "a.png").read_bytes() == before
    assert len(predict_files(Predictor(net), [tmp_path], tmp_path / "out").files) == 2
    assert len(predict_files(Predictor(net), [tmp_path], tmp_path / "out").files) == 2, (
        "its own results are no input"
    )


@pytest.mark.parametrize("width", [33, 36, 48])
def test_other_views_see_the_same_places(width):
    class Ramp(UnaryNet):
        """Logits that are the position in the image, in parts of its width."""

        def forward(self, images, valid=None):
            return torch.nn.functional.avg_pool2d(images[:, :3], 8, ceil_mode=True, count_include_pad=False)

    net = Ramp("tiny", 3, backbone_options={"stride": 8}, hidden=4)
    image = np.zeros((16, width, 3), np.uint8)
    image[:, :, 0] = np.linspace(0, 255, width)[None]
    straight = Predictor(net).node_logits(image)
    for scale in (0.75, 1.5):
        view = Predictor(net)._view(torch.from_numpy(image.transpose(2, 0, 1).copy())[None], scale, False)[0]
        torch.testing.assert_close(view[:, :, 1:-2], straight[:, :, 1:-2], rtol=0, atol=0.04)
    mirrored = Predictor(net)._view(torch.from_numpy(image.transpose(2, 0, 1).copy())[None], 1.0, True)[0]
    torch.testing.assert_close(mirrored[:, :, 1:-2], straight[:, :, 1:-2], rtol=0, atol=0.04)


def test_tiles_of_a_constant_picture_with_messages_agree_inside():
    torch.manual_seed(0)
    net = MessageNet("tiny", 3, hidden=8)
    image = np.full((128, 150, 3), 90, np.uint8)
    whole = Predictor(net, Views(tile=4096)).node_logits(image)[:, 16, 16:20]
    tiled = Predictor(net, Views(tile=128, overlap=32)).node_logits(image)[:, 16, 16:20]
    torch.testing.assert_close(tiled, whole, rtol=0.05, atol=0.02)


def test_a_bad_file_among_good_ones_is_reported_and_the_others_are_written(net, tmp_path):
    images, out = tmp_path / "images", tmp_path / "out"
    images.mkdir()
    for name in ("a", "c"):
        Image.fromarray(picture(8, 8)).save(images / f"{name}.png")
    (images / "b.png").write_text("not a picture")
    seen = []
    predicted = predict_files(
        Predictor(net), [images], out, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert list(predicted.written) == [images / "a.png", images / "c.png"]
    assert list(predicted.failed) == [images / "b.png"]
    assert "b.png is not an image" in predicted.failed[images / "b.png"]
    expected = {"a.png", "a.overlay.png", "c.png", "c.overlay.png"}
    assert {file.name for file in out.iterdir()} == {file.name for file in predicted.files} == expected


def test_a_folder_that_cannot_be_written_ends_the_prediction(net, tmp_path):
    for name in ("a", "b"):
        Image.fromarray(picture(8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write .*out"):
        predict_files(Predictor(net), [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out")


def test_bad_input_names_the_fix(net, tmp_path):
    predictor = Predictor(net)
    (tmp_path / "words.jpg").write_text("not a picture")
    with pytest.raises(InputError, match="did you mean"):
        predict_files(predictor, [tmp_path], tmp_path / "out", ["masks"])
    with pytest.raises(InputError, match="RGB bytes"):
        predictor.labels(np.zeros((4, 4), np.uint8))
    with pytest.raises(InputError, match="at most half"):
        Views(tile=100, overlap=80)
    assert not (tmp_path / "out").exists()


def test_score_needs_the_models_classes(net):
    from messagenet.data import SyntheticScenes

    with pytest.raises(InputError, match=r"3 classes class 0.*9 classes sky"):
        score(Predictor(net), SyntheticScenes(1))
    scenes = SyntheticScenes(1)
    with pytest.raises(InputError, match="in its order"):
        score(Predictor(UnaryNet("tiny", scenes.classes.names[::-1], hidden=4)), scenes)
