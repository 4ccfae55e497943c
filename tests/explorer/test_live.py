"""A real server on a real socket: slow clients, raw paths, too many at once."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from explorer.running import SCENES, encoded, photo, running_server, until, until_closed
from messagenet.explorer import Limits
from messagenet.explorer import explorer as explorer_module

PATIENCE = Limits(upload_seconds=1.0, header_seconds=0.8, upload_bytes=200_000)
FORM = (
    b'--b\r\nContent-Disposition: form-data; name="image"; filename="x.png"\r\n\r\n'
    + encoded(photo())
    + b"\r\n--b--\r\n"
)


def head(length: int, address: str = "/segment") -> bytes:
    lines = (
        f"POST {address} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: multipart/form-data; boundary=b",
        f"Content-Length: {length}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def segment(address, body: bytes = FORM) -> tuple[int, dict, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection(*address, timeout=60)
    connection.request("POST", "/segment", body, {"Content-Type": "multipart/form-data; boundary=b"})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content, answer.headers


@pytest.fixture(scope="module")
def address(models):
    with running_server(models[2:], PATIENCE) as address:
        assert segment(address)[0] == 200
        yield address


def drip(connection: socket.socket, data: bytes, pause: float) -> None:
    """Sends a few bytes at a time, until the server has had enough."""
    try:
        for start in range(0, len(data), 4):
            connection.sendall(data[start : start + 4])
            time.sleep(pause)
    except OSError:
        pass


def test_a_slow_upload_is_ended(address):
    with socket.create_connection(address) as connection:
        connection.sendall(head(len(FORM)) + FORM[:50])
        threading.Thread(target=drip, args=(connection, FORM[50:], 0.05), daemon=True).start()
        received, seconds = until_closed(connection, 20)
    assert received.startswith(b"HTTP/1.1 408")
    assert b"took too long to arrive" in received
    assert 0.4 < seconds < 10
    assert segment(address)[0] == 200


def test_headers_that_never_end_are_ended(address):
    with socket.create_connection(address) as connection:
        threading.Thread(
            target=drip, args=(connection, b"GET / HTTP/1.1\r\nX: " + b"y" * 9999, 0.05), daemon=True
        ).start()
        received, seconds = until_closed(connection, 20)
    assert received == b""
    assert 0.4 < seconds < 10


def test_a_client_that_says_nothing_is_ended(address):
    with socket.create_connection(address) as connection:
        assert until_closed(connection, 20)[0] == b""


def test_a_request_too_long_is_refused_before_it_has_arrived(address):
    with socket.create_connection(address) as connection:
        connection.sendall(head(10**12) + b"x" * 100)
        threading.Thread(target=drip, args=(connection, b"x" * 9999, 0.05), daemon=True).start()
        received, seconds = until_closed(connection, 20)
    assert received.startswith(b"HTTP/1.1 413")
    assert seconds < 10


def test_answers_that_nobody_reads_are_given_up(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET /samples/scene-1.png HTTP/1.1\r\nHost: localhost\r\n\r\n" * 150)
        time.sleep(3 * PATIENCE.header_seconds)
        whole = 150 * len(SCENES["scene-1.png"].content())
        try:
            read = len(until_closed(connection, 20)[0])
        except ConnectionResetError:
            read = 0
    assert read < whole


def test_a_client_that_goes_away_is_no_failure(address, caplog):
    with socket.create_connection(address) as connection:
        connection.sendall(head(len(FORM)) + FORM[:100])
        time.sleep(0.1)
    with caplog.at_level(logging.INFO, "messagenet.explorer"):
        assert segment(address)[0] == 200
        until(lambda: len(caplog.records) >= 1)
    assert {record.levelname for record in caplog.records} == {"INFO"}


def test_slow_clients_do_not_hold_up_others(address):
    slow = [socket.create_connection(address) for _ in range(20)]
    for connection in slow:
        connection.sendall(head(len(FORM)) + FORM[:100])
    assert segment(address)[0] == 200
    for connection in slow:
        connection.close()
    assert segment(address)[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/app.py",
        "/samples/../../../../../../etc/passwd",
        "/samples/..%2f..%2fetc%2fpasswd",
        "//etc/passwd",
        "/static//etc/passwd",
        "http://127.0.0.1/static/../app.py",
        "/static/\\..\\app.py",
    ],
)
def test_raw_paths_lead_nowhere(address, path):
    with socket.create_connection(address) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        received, _ = until_closed(connection, 20)
    assert received.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400"))
    assert b"root:" not in received
    assert b"import" not in received


def waiting_for_inference(address) -> int:
    connection = http.client.HTTPConnection(*address, timeout=30)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return int(float(re.search(r'messagenet_waiting_jobs\{queue="inference"\} (\S+)', text)[1]))


def test_overload_is_answered_at_once_and_passes(models, monkeypatch):
    entered, gate = threading.Event(), threading.Event()
    infer = explorer_module.trace_beliefs

    def slow(*arguments):
        entered.set()
        assert gate.wait(60)
        return infer(*arguments)

    monkeypatch.setattr(explorer_module, "trace_beliefs", slow)
    forms = [FORM.replace(encoded(photo()), encoded(photo(seed, 20, 20 + seed))) for seed in range(12)]
    with running_server(models[2:], Limits(waiting=4, batch_size=1)) as address, ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(segment, address, forms[0])]
        assert entered.wait(30)  # one is at work before the others come, four of which may wait
        for count, form in enumerate(forms[1:5], start=1):  # one by one: decoding has a queue of its own
            answers.append(pool.submit(segment, address, form))
            until(lambda count=count: waiting_for_inference(address) == count)
        answers += [pool.submit(segment, address, form) for form in forms[5:]]
        until(lambda: sum(answer.done() for answer in answers) == 7)
        refused = [answer.result() for answer in answers if answer.done()]
        gate.set()
        statuses = sorted(answer.result()[0] for answer in answers)
        assert segment(address, forms[0])[0] == 200
    assert statuses == [200] * 5 + [503] * 7
    for status, content, headers in refused:
        assert status == 503
        assert headers["Retry-After"] == "1"
        assert "the server is busy" in content["error"]


def test_only_so_many_bodies_at_once(models):
    with running_server(models[2:], Limits(requests=3)) as address:
        waiting = [socket.create_connection(address) for _ in range(3)]
        for connection in waiting:
            connection.sendall(head(len(FORM)) + FORM[:100])
        until(lambda: segment(address)[0] == 503)
        waiting[0].sendall(FORM[100:])
        waiting[0].recv(100)
        assert segment(address)[0] == 200
        for connection in waiting:
            connection.close()
