"""Image files in, result files out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from messagenet import InputError, surrounding
from messagenet.models import MessageNet
from messagenet.prediction import Predictor, predict_files


@pytest.fixture
def net():
    torch.manual_seed(0)
    return MessageNet("tiny", 3, [surrounding(cells=3)], hidden=8)


def random_image(height, width, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_files_are_written_in_every_kind(net, tmp_path):
    for name in ("a/one.png", "b/one.jpg"):
        (tmp_path / name).parent.mkdir()
        Image.fromarray(random_image(20, 31)).save(tmp_path / name)
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
    Image.fromarray(random_image(8, 8)).save(tmp_path / "a.png")
    before = (tmp_path / "a.png").read_bytes()
    with pytest.raises(InputError, match="choose another folder"):
        predict_files(Predictor(net), [tmp_path], tmp_path)
    assert (tmp_path / "a.png").read_bytes() == before
    assert len(predict_files(Predictor(net), [tmp_path], tmp_path / "out").files) == 2
    assert len(predict_files(Predictor(net), [tmp_path], tmp_path / "out").files) == 2, "its own results are no input"


def test_a_bad_file_among_good_ones_is_reported_and_the_others_are_written(net, tmp_path):
    images, out = tmp_path / "images", tmp_path / "out"
    images.mkdir()
    for name in ("a", "c"):
        Image.fromarray(random_image(8, 8)).save(images / f"{name}.png")
    (images / "b.png").write_text("not an image at all")
    seen = []
    predicted = predict_files(Predictor(net), [images], out, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert list(predicted.written) == [images / "a.png", images / "c.png"]
    assert list(predicted.failed) == [images / "b.png"]
    assert "b.png is not an image" in predicted.failed[images / "b.png"]
    expected = {"a.png", "a.overlay.png", "c.png", "c.overlay.png"}
    assert {file.name for file in out.iterdir()} == {file.name for file in predicted.files} == expected


def test_a_folder_that_cannot_be_written_ends_the_prediction(net, tmp_path):
    for name in ("a", "b"):
        Image.fromarray(random_image(8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match=r"cannot write .*out"):
        predict_files(Predictor(net), [tmp_path / "a.png", tmp_path / "b.png"], tmp_path / "out")


def test_unknown_outputs_are_refused_before_anything_is_written(net, tmp_path):
    (tmp_path / "words.jpg").write_text("not an image at all")
    for outputs, words in ((["masks"], "did you mean"), ([], "nothing to write")):
        with pytest.raises(InputError, match=words):
            predict_files(Predictor(net), [tmp_path], tmp_path / "out", outputs)
    assert not (tmp_path / "out").exists()


def test_files_of_an_image_by_what_they_are(net, tmp_path):
    Image.fromarray(random_image(8, 8)).save(tmp_path / "a.png")
    predicted = predict_files(Predictor(net), [tmp_path / "a.png"], tmp_path / "out", ["overlay", "mask"])
    assert [file.name for file in predicted.written[tmp_path / "a.png"]] == ["a.png", "a.overlay.png"]


def test_a_page_shows_the_images(net, tmp_path):
    Image.fromarray(random_image(8, 8)).save(tmp_path / "a.png")
    predicted = predict_files(Predictor(net), [tmp_path / "a.png"], tmp_path / "out", show=True)
    page = predicted.write_page(tmp_path / "page.html").read_text()
    assert "a.png" in page
    assert predicted.shares[tmp_path / "a.png"]


def test_one_word_to_save_is_named_not_its_letters(net, tmp_path):
    Image.fromarray(random_image(8, 8)).save(tmp_path / "a.png")
    with pytest.raises(InputError, match=r"what to save is 'mask'; give a list, such as \['mask'\]"):
        predict_files(Predictor(net), [tmp_path], tmp_path / "out", "mask")
