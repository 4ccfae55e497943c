"""The interface as a program meets it: every address, and the numbers of the Python interface in the answers."""

from __future__ import annotations

import base64
import io
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image

from explorer.running import encoded, explorer_client, photo
from messagenet import __version__
from messagenet.data.classes import numbered_classes
from messagenet.explorer import Limits
from messagenet.explorer.app import PAGE_TYPES, page_files
from messagenet.explorer.models import ServedModel
from messagenet.graph import surrounding
from messagenet.models import InputSpec, MessageNet
from messagenet.prediction import Predictor
from messagenet.prediction.files import predict_files

PNG = encoded(photo())


def segment(client, image=PNG, accept="application/json", **fields):
    files = {} if image is None else {"image": ("photo.png", image, "image/png")}
    data = {name: (None, str(value)) for name, value in fields.items()}
    return client.post("/segment", files={**files, **data}, headers={"Accept": accept})


def grey(text):
    image = Image.open(io.BytesIO(base64.b64decode(text)))
    assert image.mode == "L"
    return np.asarray(image)


def test_health_and_models(client):
    assert client.get("/health").json() == {"status": "ok", "version": __version__, "models": 3}
    answer = client.get("/models").json()
    assert [model["id"] for model in answer["models"]] == ["messages", "boxes", "alone"]
    assert answer["default"] == "messages"


def test_segment_as_json(client, models):
    answer = segment(client).json()
    assert (answer["width"], answer["height"], answer["rows"], answer["columns"]) == (50, 37, 10, 13)
    assert (answer["model"], answer["stride"]) == ("messages", 4.0)
    assert [step["t"] for step in answer["maps"]] == [0, 1, 2]
    last = answer["maps"][-1]
    np.testing.assert_array_equal(grey(last["labels"]), Predictor(models[0].model).labels(photo()))
    assert grey(last["entropy"]).shape == (37, 50)
    assert sum(last["shares"]) == pytest.approx(1)
    assert answer["milliseconds"] > 0


def test_segment_as_png_is_what_predict_writes(client, models, tmp_path):
    answer = segment(client, accept="image/png")
    assert answer.headers["content-type"] == "image/png"
    (tmp_path / "photo.png").write_bytes(PNG)
    predicted = predict_files(Predictor(models[0].model), [tmp_path], tmp_path / "out", ["mask"])
    assert answer.content == predicted.files[0].read_bytes()
    first = segment(client, accept="image/png", iteration=0, model="messages").content
    steps = segment(client).json()["maps"]
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(first))), grey(steps[0]["labels"]))
    assert first != answer.content


def test_an_image_above_the_working_size_is_labelled_at_its_own_size():
    torch.manual_seed(0)
    spec = InputSpec(numbered_classes(4), longest_side=40)
    model = MessageNet("tiny", spec, [surrounding(cells=3)], hidden=8)
    with explorer_client([ServedModel("small", model.eval())]) as client:
        answer = segment(client, encoded(photo(0, 75, 100))).json()
    assert (answer["width"], answer["height"], answer["rows"], answer["columns"]) == (100, 75, 8, 10)
    assert answer["stride"] == 10.0
    np.testing.assert_array_equal(grey(answer["maps"][-1]["labels"]), Predictor(model).labels(photo(0, 75, 100)))


def test_an_image_is_sent_once(client):
    answer = segment(client).json()
    again = segment(client, None, key=answer["key"]).json()
    assert {**again, "milliseconds": 0} == {**answer, "milliseconds": 0}
    other = segment(client, None, key=answer["key"], model="alone").json()
    assert other["key"] == answer["key"]
    assert [step["t"] for step in other["maps"]] == [0]
    assert other["maps"][0]["changed"] == 0


def test_explain(client, models):
    key = segment(client).json()["key"]
    answer = client.post("/explain", json={"key": key, "model": "messages", "x": 21, "y": 30}).json()
    assert (answer["key"], answer["model"], answer["iteration"]) == (key, "messages", 2)
    totals = np.array([factor["total"] for factor in answer["factors"]])
    expected = Predictor(models[0].model).node_logits([photo()])[0, :, 7, 5]
    np.testing.assert_allclose(totals.sum(0), expected, atol=1e-5)
    np.testing.assert_allclose(answer["belief"]["logits"], expected, atol=1e-6)
    np.testing.assert_allclose(answer["belief"]["marginal"], torch.softmax(expected, 0), atol=1e-6)
    before = client.post("/explain", json={"key": key, "x": 21, "y": 30, "iteration": 0}).json()
    assert [factor["name"] for factor in before["factors"]] == ["unary"]
    assert before["belief"] == before["unary"] == answer["unary"]


def test_explain_a_model_that_was_not_shown_yet(client):
    key = segment(client).json()["key"]
    answer = client.post("/explain", json={"key": key, "model": "boxes", "x": 0, "y": 0}).json()
    assert [factor["name"] for factor in answer["factors"]] == ["unary", "surrounding", "above"]


@pytest.mark.parametrize(
    ("question", "status", "text"),
    [
        ({"key": "0" * 32, "x": 1, "y": 1}, 404, "send it again"),
        ({"x": 50, "y": 1}, 400, "outside the image"),
        ({"x": 1, "y": 1, "iteration": 3}, 400, "0 (before messages) to 2"),
        ({"x": 1, "y": 1, "model": "mesages"}, 400, 'did you mean "messages"'),
        ({"x": 1, "y": 1, "model": "alone"}, 400, "choose one that does"),
        ({"x": "one", "y": 1}, 422, "x: "),
        ({"x": 1}, 422, "y: "),
        ({"x": 1, "y": 1, "z": 1}, 422, "z: "),
    ],
)
def test_questions_that_cannot_be_answered(client, question, status, text):
    question = {"key": segment(client).json()["key"], **question}
    answer = client.post("/explain", json=question)
    assert answer.status_code == status
    assert text in answer.json()["error"]
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"image": b""}, 400, "not a readable image"),
        ({"image": b"garbage"}, 400, "send JPEG, PNG, WEBP or GIF"),
        ({"image": None, "model": "boxes"}, 400, "either a file"),
        ({"key": "0" * 32}, 400, "either a file"),
        ({"image": None, "key": "0" * 32}, 404, "send it again"),
        ({"model": "x"}, 400, "there is no model 'x'"),
        ({"iteration": 7}, 400, "has 0 (before messages) to 2"),
        ({"iteration": "²"}, 400, "is not a number"),
        ({"modle": "x"}, 400, 'did you mean "model"'),
    ],
)
def test_forms_that_cannot_be_answered(client, fields, status, text):
    answer = segment(client, **fields)
    assert answer.status_code == status
    assert text in answer.json()["error"]


def test_evicted_uploads_are_asked_for_again(models):
    limits = Limits(cache_bytes=100_000)
    with explorer_client(models, limits) as client:
        keys = [segment(client, encoded(photo(seed, 60, 60))).json()["key"] for seed in range(12)]
        assert segment(client, None, key=keys[0]).status_code == 404
        assert segment(client, None, key=keys[-1]).status_code == 200
        figures = client.get("/metrics").text
        held = float(
            next(line for line in figures.splitlines() if line.startswith("messagenet_cache_bytes ")).split()[1]
        )
        assert 0 < held <= limits.cache_bytes


def test_an_image_larger_than_the_cache_is_answered_all_the_same(models):
    with explorer_client(models, Limits(cache_bytes=10)) as client:
        answer = segment(client)
        assert answer.status_code == 200
        assert segment(client, None, key=answer.json()["key"]).status_code == 404


def test_requests_at_once_are_answered_as_alone(models):
    photos = [photo(seed, 30 + 3 * (seed % 3), 41) for seed in range(24)]
    with explorer_client(models, Limits(batch_size=4)) as client, ThreadPoolExecutor(12) as pool:
        masks = list(pool.map(lambda image: segment(client, encoded(image), "image/png"), photos))
        figures = client.get("/metrics").text
    predictor = Predictor(models[0].model)
    for image, mask in zip(photos, masks, strict=True):
        np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(mask.content))), predictor.labels(image))
    assert "messagenet_batch_images_sum 24.0" in figures


def test_samples(client):
    names = client.get("/samples").json()["samples"]
    assert names == [f"scene-{i}.png" for i in range(1, 5)]
    sample = client.get(f"/samples/{names[0]}")
    assert sample.headers["content-type"] == "image/png"
    assert segment(client, sample.content).json()["width"] == 256


def test_page_files_are_served_with_their_types(client):
    for name, content in page_files().items():
        answer = client.get(f"/static/{name}")
        assert answer.content == content
        assert answer.headers["content-type"] == PAGE_TYPES[name[name.rindex(".") :]]
        again = client.get(f"/static/{name}", headers={"If-None-Match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_the_interface_is_described(client):
    description = client.get("/openapi.json").json()
    assert {"/segment", "/explain", "/models", "/health", "/samples", "/metrics"} <= set(description["paths"])
    form = description["paths"]["/segment"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert set(form["schema"]["properties"]) == {"image", "key", "model", "iteration"}
    schemas = description["components"]["schemas"]
    assert {"Explanation", "Segmentation", "ExplainRequest"} <= set(schemas)
    own = {name: schema for name, schema in schemas.items() if "ValidationError" not in name}
    assert all(schema["description"] for schema in own.values())


def test_no_page_loads_anything_from_elsewhere(client):
    for address in ("/docs", "/redoc"):
        assert client.get(address).status_code == 404
    page = client.get("/").text
    assert 'href="openapi.json"' in page
    assert "http://" not in page
    assert "https://" not in page


def test_answers_fit_their_description(client):
    from messagenet.explorer import schemas

    answer = segment(client).json()
    schemas.Segmentation.model_validate(answer)
    question = {"key": answer["key"], "x": 21, "y": 30}
    schemas.Explanation.model_validate(client.post("/explain", json=question).json())
