"""One line for every request, and figures that add up."""

from __future__ import annotations

import json
import logging

import pytest

from explorer.running import encoded, explorer_client, photo
from messagenet.explorer import explorer as explorer_module
from messagenet.explorer.logs import LOGGER, JsonFormatter


@pytest.fixture
def lines():
    written: list[dict] = []

    class Handler(logging.Handler):
        def emit(self, record):
            text = self.format(record)
            assert "\n" not in text
            written.append(json.loads(text))

    handler = Handler()
    handler.setFormatter(JsonFormatter())
    LOGGER.addHandler(handler)
    level = LOGGER.level
    LOGGER.setLevel(logging.INFO)
    yield written
    LOGGER.setLevel(level)
    LOGGER.removeHandler(handler)


def test_one_line_for_every_request(client, lines):
    sent = client.post("/segment", files={"image": ("x.png", encoded(photo()))})
    (line,) = lines
    assert (line["method"], line["path"], line["status"]) == ("POST", "/segment", 200)
    assert (line["model"], line["key"]) == ("messages", sent.json()["key"])
    assert line["sent"] == len(sent.content)
    assert line["received"] > len(encoded(photo()))
    assert line["milliseconds"] > 0
    assert line["level"] == "info"


def test_refusals_say_why(client, lines):
    client.post("/segment", files={"image": ("x.png", b"garbage")})
    client.get("/health", headers={"Host": "evil.example"})
    assert [line["status"] for line in lines] == [400, 403]
    assert "send JPEG" in lines[0]["error"]


def test_nobody_writes_lines_of_his_own(client, lines):
    client.get('/samples/x%0a{"status": 200}%0d%1b[31m')
    (line,) = lines
    assert line["status"] == 404
    assert line["path"] == '/samples/x\n{"status": 200}\r\x1b[31m'


def test_a_failure_is_logged_and_answered(models, lines, monkeypatch):
    def failing(*_):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(explorer_module, "trace_beliefs", failing)
    with explorer_client(models) as client:
        answer = client.post("/segment", files={"image": ("x.png", encoded(photo()))})
        assert client.get("/health").status_code == 200
    assert answer.status_code == 500
    assert answer.json() == {"error": "the server failed; see its log"}
    assert "Content-Security-Policy" in answer.headers
    assert lines[0]["level"] == "error"
    assert "out of luck" in lines[0]["traceback"]


def test_figures_add_up(models):
    with explorer_client(models) as client:
        key = client.post("/segment", files={"image": ("x.png", encoded(photo()))}).json()["key"]
        for _ in range(3):
            client.post("/explain", json={"key": key, "x": 1, "y": 1})
        for strange in ("/nowhere", "/nowhere/else", "/segment/x"):
            client.get(strange)
        answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    figures = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert float(figures['messagenet_requests_total{method="POST",path="/segment",status="200"}']) == 1
    assert float(figures['messagenet_requests_total{method="POST",path="/explain",status="200"}']) == 3
    assert float(figures['messagenet_requests_total{method="any",path="other",status="404"}']) == 3
    assert float(figures['messagenet_cache_lookups_total{result="hit"}']) == 3
    assert float(figures['messagenet_cache_lookups_total{result="miss"}']) == 1
    assert float(figures['messagenet_inference_seconds_count{model="messages"}']) == 1
    assert float(figures['messagenet_waiting_jobs{queue="inference"}']) == 0


def test_methods_that_clients_make_up_are_no_labels(models, lines):
    with explorer_client(models) as client:
        for i in range(5):
            assert client.request(f"MADEUP{i}" + 2000 * "X", "/health").status_code == 405
        text = client.get("/metrics").text
    assert "MADEUP" not in text
    assert max(len(line["method"]) for line in lines) <= 500
