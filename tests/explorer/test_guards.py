"""What must not get through: foreign pages, foreign names, paths, oversized and strange bodies."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import messagenet
from explorer.running import OWN, encoded, explorer_client, photo
from explorer.test_uploads import gif_header, jpeg_header, png, webp_header
from messagenet.explorer import Limits
from messagenet.explorer.app import page_files
from messagenet.explorer.guards import is_own_host
from messagenet.explorer.models import folder_samples

PNG = encoded(photo())
MULTIPART = {"Content-Type": "multipart/form-data; boundary=b"}


def post(client, headers=None, image=PNG, name="x.png", kind="image/png"):
    return client.post("/segment", files={"image": (name, image, kind)}, headers=headers)


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": OWN}, True),
        ({"Origin": OWN.upper().replace("HTTP", "http")}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "http://localhost:9", "Host": "localhost:9"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": "http://127.0.0.1"}, False),
        ({"Origin": "http://127.0.0.1:8766"}, False),
        ({"Origin": OWN + ".evil.example"}, False),
        ({"Origin": "http://localhost:8765"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
    ],
)
@pytest.mark.parametrize("address", ["/segment", "/explain"])
def test_requests_from_other_pages_are_refused(client, headers, allowed, address):
    if address == "/segment":
        answer = post(client, headers)
    else:
        answer = client.post("/explain", json={"key": "0", "x": 0, "y": 0}, headers=headers)
    assert (answer.status_code == 403) == (not allowed)
    if not allowed:
        assert "another web page" in answer.json()["error"]
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "NONSENSE"])
def test_other_methods_are_no_way_round(client, method):
    assert client.request(method, "/segment", headers={"Origin": "https://evil.example"}).status_code == 403
    assert client.request(method, "/segment").status_code == 405


@pytest.mark.parametrize("address", ["/", "/models", "/samples/scene-1.png", "/metrics", "/openapi.json"])
def test_foreign_names_are_refused_everywhere(client, address):
    for host in ("evil.example", "127.0.0.1.evil.example:8765", "", "user@localhost", "localhost:x", "[::1"):
        assert client.get(address, headers={"Host": host}).status_code == 403
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8765", "127.8.8.8", "[::1]:8765"):
        assert client.get(address, headers={"Host": host}).status_code != 403


def test_names_of_a_server_that_listens_elsewhere():
    assert is_own_host("10.0.0.5:8765", "10.0.0.5")
    assert not is_own_host("10.0.0.6:8765", "10.0.0.5")
    assert is_own_host("work.lan:8765", "work.lan")
    assert is_own_host("[fe80::1]:8765", "::")
    assert not is_own_host("evil.example", "0.0.0.0")
    assert not is_own_host("", "")


def test_every_answer_keeps_the_page_to_itself(client):
    answers = [client.get(address) for address in ("/", "/health", "/nowhere", "/openapi.json", "/samples/scene-1.png")]
    answers += [post(client), post(client, image=b""), post(client, {"Origin": "null"})]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] in ("no-store", "no-cache")
        assert "server" not in answer.headers


TRICKS = [
    "../app.py",
    "..%2fapp.py",
    "%2e%2e/app.py",
    "..%5capp.py",
    "%2fetc%2fpasswd",
    "/etc/passwd",
    "....//app.py",
    "app.py",
    "page/index.html",
    "..%252fapp.py",
    "index.html%00.png",
    "%00",
    "~",
    "file:///etc/passwd",
    "secret.txt",
    ".hidden.png",
    "deeper/c.png",
    "link.png",
    "__init__.py",
]


def test_no_path_leads_out(models, tmp_path):
    home = tmp_path / "photos"
    (home / "deeper").mkdir(parents=True)
    for name in ("a.png", ".hidden.png", "deeper/c.png", "../outside.png"):
        (home / name).write_bytes(PNG)
    (home / "secret.txt").write_text("secret")
    (home / "link.png").symlink_to(tmp_path / "outside.png")
    with explorer_client(models[2:], samples=folder_samples(home)) as client:
        assert client.get("/samples").json() == {"samples": ["a.png"]}
        assert client.get("/samples/a.png").content == PNG
        for folder in ("static", "samples"):
            for trick in TRICKS:
                answer = client.get(f"/{folder}/{trick}")
                assert answer.status_code == 404, trick
                assert list(answer.json()) == ["error"]


def test_only_the_page_is_served_from_the_package(client):
    page = Path(messagenet.__file__).parent / "explorer" / "page"
    assert set(page_files()) <= {path.name for path in page.iterdir()}
    for path in (Path(messagenet.__file__).parent / "explorer").glob("*.py"):
        assert client.get(f"/static/{path.name}").status_code == 404


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("make", [png, jpeg_header, webp_header, gif_header])
def test_headers_of_a_hundred_megapixels(client, make):
    answer = post(client, image=make(10_000, 10_000))
    assert answer.status_code == 400
    assert "10000×10000 pixels, more than the 24 million allowed" in answer.json()["error"]


def test_what_hides_behind_an_image_does_not_come_back(client):
    script = b"<script>fetch('//evil.example')</script>PK\x03\x04"
    answer = post(client, image=encoded(photo(), "JPEG") + script)
    assert answer.status_code == 200
    assert b"evil" not in answer.content
    shown = client.post("/segment", files={"key": (None, answer.json()["key"])}, headers={"Accept": "image/png"})
    assert b"evil" not in shown.content


@pytest.mark.parametrize("kind", ["text/html", "application/x-sh", "image/svg+xml", "multipart/form-data", "x"])
def test_the_declared_type_of_a_file_means_nothing(client, kind):
    assert post(client, kind=kind).status_code == 200
    assert post(client, kind=kind, image=b"<svg onload=alert(1)>").status_code == 400


@pytest.mark.parametrize("name", ["../../x.png", "/etc/passwd", "x\u202egnp.exe", "CON", "a" * 1000, ";rm -rf"])
def test_the_name_of_a_file_means_nothing(client, name):
    answer = post(client, name=name)
    assert answer.json()["key"] == post(client).json()["key"]
    assert name not in answer.text


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/json", "application/x-www-form-urlencoded", "image/png", "multipart/mixed"]
)
def test_wrong_content_types_are_refused(client, kind):
    answer = client.post("/segment", content=b"image=x", headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert "multipart/form-data" in answer.json()["error"]
    question = json.dumps({"key": "0" * 32, "x": 1, "y": 1})
    answer = client.post("/explain", content=question, headers={"Content-Type": kind})
    assert answer.status_code == (404 if kind == "application/json" else 422)


def part(name: str, content: bytes, extra: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode() + content + b"\r\n"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (part("model", b"x" * 2000), 400),
        (part("key", b"x" * 1_000_000), 400),
        (b"".join(part(f"f{i}", b"x") for i in range(100)), 400),
        (b"".join(part("image", PNG, f'; filename="{i}"') for i in range(3)), 400),
        (part("x" * 100_000, b""), 400),
        (part("image", PNG), 400),
        (part("key", PNG, '; filename="x"'), 400),
        (b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n", 400),
        (b"--b\r\n" + b"X-Long: " + b"y" * 100_000 + b"\r\n\r\nx\r\n", 400),
        (b"--b\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(5000)) + b"\r\nx\r\n", 400),
        (b"no boundary at all", 400),
        (b"", 400),
    ],
)
def test_strange_forms_are_refused(client, body, status):
    answer = client.post("/segment", content=body + b"--b--\r\n", headers=MULTIPART)
    assert answer.status_code == status
    assert len(answer.json()["error"]) < 300


def test_a_form_without_a_boundary(client):
    answer = client.post("/segment", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert answer.status_code == 400


def test_bodies_are_cut_off_while_they_arrive(models):
    limits = Limits(upload_bytes=100_000)
    taken = 0

    def endless():
        nonlocal taken
        yield part("image", b"", '; filename="x"')[:-2]
        while taken < 1000:
            taken += 1
            yield bytes(10_000)

    with explorer_client(models[2:], limits) as client:
        answer = client.post("/segment", content=endless(), headers=MULTIPART)
        assert answer.status_code == 413
        assert "send a smaller file" in answer.json()["error"]
        declared = client.post("/segment", content=bytes(200_000), headers=MULTIPART)
        assert declared.status_code == 413
        noise = encoded(np.random.default_rng(0).integers(0, 256, (150, 150, 3), np.uint8))
        assert post(client, image=noise).status_code == 200


@pytest.mark.parametrize(
    "body", [b"[" * 15_000, b'{"key": ' + b'"x' * 10, b"null", b"\xff\xfe", b'{"x": NaN}', b"1e999"]
)
def test_strange_questions_are_refused(client, body):
    answer = client.post("/explain", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422)
    assert len(answer.json()["error"]) < 300


def test_long_questions_are_refused(client):
    answer = client.post("/explain", json={"key": "x" * 20_000, "x": 0, "y": 0})
    assert answer.status_code == 413
