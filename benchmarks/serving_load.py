"""The message explorer under load: a real server, 32 clients, 1,000 requests of random sizes, a tenth of them invalid.

A client sends its next request when the last one is answered. Of ten requests, six are new photos for the page (JSON),
one is a photo for a program (PNG), two are clicks on an earlier photo, and one is invalid. A valid request must get the
right answer. Retrying after a 503 is allowed and counted, and so is sending a photo again that has left the server's
cache. An invalid request must get a 4xx.

Memory is the server's resident set: after a first request, after half of the load, and after all of it. Then twice as
many clients as the queues have room for arrive at once. Last, clicks on the idle server are timed by its own clock. The
model is the preset `fast` with random weights; times do not depend on the weights.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from common import QUICK, fast_preset_model, finish, seconds, soft_photo, start, status_kib
from messagenet.explorer import Limits
from messagenet.explorer.inference import trace_beliefs
from messagenet.explorer.models import ServedModel

CLIENTS, REQUESTS, CROWD, CLICKS = (2, 40, 4, 4) if QUICK else (32, 1000, 2 * Limits.waiting, 40)
SIDES = (32, 64) if QUICK else (64, 400)
WIDTH, HEIGHT = (64, 48) if QUICK else (500, 375)
BOUNDARY = "serving-load"
MIB = 2**20
CAP_MIB = Limits.cache_bytes / MIB + 256
"""How much the server may grow: its cache, and as much again for running requests and the libraries' caches."""


@dataclass
class Tally:
    """Results of the requests, by kind; milliseconds as the clients saw them."""

    times: dict[str, list[float]] = field(default_factory=dict)
    retried: int = 0
    resent: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, milliseconds: float) -> None:
        """Records the time of a request."""
        with self.lock:
            self.times.setdefault(kind, []).append(milliseconds)


class Client:
    """One user: a connection, and the last photo sent."""

    def __init__(self, address: tuple[str, int], tally: Tally, seed: int) -> None:
        self.address, self.tally, self.random = address, tally, random.Random(seed)
        self.connection = http.client.HTTPConnection(*address, timeout=300)
        self.last: tuple[bytes, dict[str, int | str]] | None = None

    def request(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Returns status and content of an answer, after as many attempts as the server asks for."""
        while True:
            status, content, wait = self._attempt(path, body, headers)
            if status != 503:
                return status, content
            with self.tally.lock:
                self.tally.retried += 1
            time.sleep(float(wait or "nan") * (1 + self.random.random()))

    def _attempt(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes, str | None]:
        reused = self.connection.sock is not None
        try:
            self.connection.request("POST", path, body, headers)
            answer = self.connection.getresponse()
            return answer.status, answer.read(), answer.headers["Retry-After"]
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.connection.close()
            if not reused:
                raise
            return self._attempt(path, body, headers)  # the server may close an idle connection

    def segment(self, image: bytes, accept: str = "application/json") -> tuple[int, bytes]:
        """Sends a photo."""
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Accept": accept}
        return self.request("/segment", form(image), headers)

    def explain(self, key: str, x: int, y: int) -> tuple[int, bytes]:
        """Clicks on a photo."""
        question = json.dumps({"key": key, "x": x, "y": y}).encode()
        return self.request("/explain", question, {"Content-Type": "application/json"})

    def act(self, kind: str) -> None:
        """Sends a request of a kind and records its time and whether it got the right answer."""
        if kind == "click" and self.last is None:
            kind = "json"
        image = invalid_image(self.random) if kind == "invalid" else random_photo(self.random)
        send = {"json": self._json, "png": self._png, "click": self._click, "invalid": self._invalid}
        started = time.perf_counter()
        correct = send[kind](image)
        self.tally.add(kind, 1000 * (time.perf_counter() - started))
        if not correct:
            self.tally.failures[kind] += 1

    def _json(self, image: bytes) -> bool:
        status, content = self.segment(image)
        if status != 200:
            return False
        answer = json.loads(content)
        self.last = image, {name: answer[name] for name in ("key", "width", "height")}
        return len(answer["maps"]) == 2 and (answer["width"], answer["height"]) == size_of(image)

    def _png(self, image: bytes) -> bool:
        status, content = self.segment(image, "image/png")
        return status == 200 and size_of(content) == size_of(image)

    def _click(self, _: bytes) -> bool:
        assert self.last is not None
        image, sent = self.last
        pixel = self.random.randrange(int(sent["width"])), self.random.randrange(int(sent["height"]))
        status, content = self.explain(str(sent["key"]), *pixel)
        if status == 404:
            self.tally.resent += 1
            return self._json(image) and self.explain(str(sent["key"]), *pixel)[0] == 200
        if status != 200:
            return False
        answer = json.loads(content)
        totals = np.sum([factor["total"] for factor in answer["factors"]], axis=0)
        return bool(np.allclose(totals, answer["belief"]["logits"], atol=1e-3))

    def _invalid(self, image: bytes) -> bool:
        return 400 <= self.segment(image)[0] < 500


def random_photo(rng: random.Random) -> bytes:
    """A photo of a random size, as JPEG or PNG."""
    width, height = rng.randint(*SIDES), rng.randint(*SIDES)
    return encoded_photo(width, height, rng.randrange(2**31), rng.choice(["JPEG", "PNG"]))


def encoded_photo(width: int, height: int, seed: int, kind: str) -> bytes:
    content = io.BytesIO()
    photo = Image.fromarray(soft_photo(width, height, seed=seed, noise=6))
    photo.save(content, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return content.getvalue()


def invalid_image(rng: random.Random) -> bytes:
    """Noise, half a photo, a header that promises too many pixels, or nothing."""
    whole = encoded_photo(200, 200, rng.randrange(2**31), "PNG")
    huge = whole[:16] + (60_000).to_bytes(4, "big") * 2 + whole[24:]
    return rng.choice([rng.randbytes(rng.randint(1, 100_000)), whole[: len(whole) // 2], huge, b""])


def form(image: bytes) -> bytes:
    start = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
    return start.encode() + image + f"\r\n--{BOUNDARY}--\r\n".encode()


def size_of(image: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(image)).size


@contextmanager
def server(model: Path, log: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    """Runs `messagenet serve` in its own process; yields its process id and its address."""
    command = [sys.executable, "-m", "messagenet", "serve", "--model", str(model), "--port", "0"]
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().split()[2])
        assert address.hostname is not None
        assert address.port is not None
        yield process.pid, (address.hostname, address.port)
    finally:
        process.terminate()
        process.wait()


def resident_mib(process: int) -> float:
    """Resident memory of a process (Linux)."""
    return status_kib(f"/proc/{process}/status", "VmRSS") / 1024


def processor_seconds(process: int) -> float:
    """Processor time of a process so far (Linux)."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def send_all(address: tuple[str, int], kinds: list[str], clients: int, seed: int) -> Tally:
    """Sends all requests, shared by concurrent clients."""
    tally, waiting, lock = Tally(), list(kinds), threading.Lock()

    def work(index: int) -> None:
        client = Client(address, tally, 1000 * seed + index)
        while True:
            with lock:
                if not waiting:
                    return
                kind = waiting.pop()
            client.act(kind)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(work, range(clients)))
    return tally


def shuffled_kinds(count: int, seed: int) -> list[str]:
    kinds = (["json"] * 6 + ["png"] + ["click"] * 2 + ["invalid"]) * (count // 10)
    random.Random(seed).shuffle(kinds)
    return kinds


def percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return cuts[9], cuts[18]


def batch_gain(model: ServedModel) -> float:
    """Returns the time of four photos one by one over their time as a batch."""
    images = [soft_photo(WIDTH, HEIGHT, seed=seed) for seed in range(4)]
    ways: dict[str, Callable[[], object]] = {
        "batch": lambda: trace_beliefs(model, images, Limits.message_bytes),
        "one by one": lambda: [trace_beliefs(model, [image], Limits.message_bytes) for image in images],
    }
    times = seconds(ways, turns=5)
    return times["one by one"] / times["batch"]


def idle_clicks(address: tuple[str, int]) -> tuple[float, float]:
    """Returns p50 and p95 of the server's own milliseconds for clicks at random pixels of one photo."""
    client = Client(address, Tally(), 5)
    status, content = client.segment(encoded_photo(WIDTH, HEIGHT, 6, "JPEG"))
    assert status == 200
    key = json.loads(content)["key"]
    times = []
    for _ in range(CLICKS):
        status, content = client.explain(key, client.random.randrange(WIDTH), client.random.randrange(HEIGHT))
        assert status == 200
        times.append(json.loads(content)["milliseconds"])
    return percentiles(times)


def main() -> None:
    start(__doc__)
    net = fast_preset_model(21).eval()
    gain = batch_gain(ServedModel("fast", net))
    print(f"a batch of four {WIDTH}×{HEIGHT} photos is {gain:.2f} times as fast as one by one")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with server(net.save(folder / "model"), folder / "log") as (process, address):
            send_all(address, ["json"], 1, seed=1)
            before = resident_mib(process)
            started, used = time.perf_counter(), processor_seconds(process)
            halves, memory = [], [before]
            for half in (2, 3):
                halves.append(send_all(address, shuffled_kinds(REQUESTS // 2, half), CLIENTS, half))
                memory.append(resident_mib(process))
            duration, used = time.perf_counter() - started, processor_seconds(process) - used
            crowd = send_all(address, ["json"] * CROWD, CROWD, seed=4)
            memory.append(resident_mib(process))
            click = idle_clicks(address)
        log_lines = len((folder / "log").read_text().splitlines())
    growth = max(memory) - before
    times = {kind: halves[0].times[kind] + halves[1].times[kind] for kind in halves[0].times}
    for kind, values in times.items():
        p50, p95 = percentiles(values)
        print(f"{kind:8} {len(values):4} requests: p50 {p50:.0f} ms, p95 {p95:.0f} ms")
    retried, resent = (sum(getattr(half, name) for half in halves) for name in ("retried", "resent"))
    failures = sum((tally.failures for tally in (*halves, crowd)), Counter[str]())
    print(f"{REQUESTS / duration:.1f} requests a second, {1000 * used / REQUESTS:.0f} ms of processor time each")
    print(f"{retried} retries after a 503, {resent} photos sent again")
    print(f"{CROWD} clients at once: {crowd.retried} retries, all answered")
    print("memory (MiB): " + ", ".join(f"{mib:.0f}" for mib in memory) + f"; {log_lines} lines of log")
    print(f"growth {growth:.0f} of at most {CAP_MIB:.0f} MiB; failures: {dict(failures) or 'none'}")
    valid = times["json"] + times["png"]
    finish(
        good_p50_ms=percentiles(valid)[0],
        good_p95_ms=percentiles(valid)[1],
        loaded_click_p95_ms=percentiles(times["click"])[1],
        idle_click_p50_ms=click[0],
        idle_click_p95_ms=click[1],
        requests_per_second=REQUESTS / duration,
        processor_ms_per_request=1000 * used / REQUESTS,
        retried=retried,
        crowd_retried=crowd.retried,
        failed=failures.total(),
        grown_mib=growth,
        grown_second_half_mib=memory[2] - memory[1],
        cap_mib=CAP_MIB,
        batch_gain=gain,
    )
    if failures:
        raise SystemExit(f"valid requests failed, or invalid ones were accepted: {dict(failures)}")
    if growth > CAP_MIB:
        raise SystemExit("the server grew beyond its cap")


if __name__ == "__main__":
    main()
