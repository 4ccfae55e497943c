"""The message explorer under load: a real server, 32 clients, 1,000 requests of random sizes, a tenth of them garbage.

A client sends its next request when the last one is answered. Of ten requests six are new photographs for the page
(JSON), one a photograph for a program (PNG), two are clicks on a photograph sent before, and one is garbage. A good
request must be answered as it should; being sent away with 503 and coming back is allowed, and counted. So is sending
a photograph again that is no longer kept. Garbage must be refused with a 4xx.

Memory is the server's resident set: after a first request, after half of the load, and after all of it. Then twice as
many clients as the queues have room for come at once, and last, clicks are timed on the idle server, by its own clock.
The model is that of the preset `fast` with random weights, as the time does not depend on them.
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
import torch
from PIL import Image

from common import finish, machine, seconds
from messagenet import MessageNet
from messagenet.explorer import Limits
from messagenet.explorer.inference import infer

CLIENTS, REQUESTS, CROWD = 32, 1000, 2 * Limits.waiting
SIZES = (64, 400)
CLICKS = 40
BOUNDARY = "serving-load"
MIB = 2**20
CAP_MIB = Limits.cache_bytes / MIB + 256
"""What the server may grow by: its cache, and as much again for requests under way and libraries' own caches."""


@dataclass
class Tally:
    """What became of the requests, by kind; milliseconds as the clients saw them."""

    times: dict[str, list[float]] = field(default_factory=dict)
    retried: int = 0
    resent: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, milliseconds: float) -> None:
        """Notes the time of a request."""
        with self.lock:
            self.times.setdefault(kind, []).append(milliseconds)


class Client:
    """One user: a connection, and the photograph sent last."""

    def __init__(self, address: tuple[str, int], tally: Tally, seed: int) -> None:
        self.address, self.tally, self.random = address, tally, random.Random(seed)
        self.connection = http.client.HTTPConnection(*address, timeout=300)
        self.last: tuple[bytes, dict[str, int | str]] | None = None

    def request(self, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Status and content of an answer, after as many attempts as the server asks for."""
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
            return self._attempt(path, body, headers)  # the server may end a connection that was idle

    def segment(self, image: bytes, accept: str = "application/json") -> tuple[int, bytes]:
        """Sends a photograph."""
        headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Accept": accept}
        return self.request("/segment", form(image), headers)

    def explain(self, key: str, x: int, y: int) -> tuple[int, bytes]:
        """Clicks on a photograph."""
        question = json.dumps({"key": key, "x": x, "y": y}).encode()
        return self.request("/explain", question, {"Content-Type": "application/json"})

    def act(self, kind: str) -> None:
        """Sends a request of a kind, and notes how it went."""
        if kind == "click" and self.last is None:
            kind = "json"
        image = garbage(self.random) if kind == "garbage" else photograph(self.random)
        answered = {"json": self._json, "png": self._png, "click": self._click, "garbage": self._garbage}
        started = time.perf_counter()
        good = answered[kind](image)
        self.tally.add(kind, 1000 * (time.perf_counter() - started))
        if not good:
            self.tally.failures[kind] += 1

    def _json(self, image: bytes) -> bool:
        status, content = self.segment(image)
        if status != 200:
            return False
        answer = json.loads(content)
        self.last = image, {name: answer[name] for name in ("key", "width", "height")}
        return len(answer["iterations"]) == 2 and (answer["width"], answer["height"]) == size_of(image)

    def _png(self, image: bytes) -> bool:
        status, content = self.segment(image, "image/png")
        return status == 200 and size_of(content) == size_of(image)

    def _click(self, _: bytes) -> bool:
        assert self.last is not None
        image, known = self.last
        place = self.random.randrange(int(known["width"])), self.random.randrange(int(known["height"]))
        status, content = self.explain(str(known["key"]), *place)
        if status == 404:
            self.tally.resent += 1
            return self._json(image) and self.explain(str(known["key"]), *place)[0] == 200
        if status != 200:
            return False
        answer = json.loads(content)
        totals = np.sum([factor["total"] for factor in answer["factors"]], axis=0)
        return bool(np.allclose(totals, answer["after"]["logits"], atol=1e-3))

    def _garbage(self, image: bytes) -> bool:
        return 400 <= self.segment(image)[0] < 500


def photograph(chance: random.Random) -> bytes:
    """Soft shapes with some noise, of a random size, as JPEG or PNG."""
    width, height = chance.randint(*SIZES), chance.randint(*SIZES)
    return soft_image(width, height, chance.randrange(2**31), chance.choice(["JPEG", "PNG"]))


def soft_image(width: int, height: int, seed: int, kind: str) -> bytes:
    rng = np.random.default_rng(seed)
    soft = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    pixels = np.asarray(soft.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
    noisy = (pixels + rng.integers(-6, 7, pixels.shape, dtype=np.int16)).clip(0, 255).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(noisy).save(content, kind, **({"quality": 90} if kind == "JPEG" else {}))
    return content.getvalue()


def garbage(chance: random.Random) -> bytes:
    """Noise, half a photograph, a header that promises too much, or nothing."""
    whole = soft_image(200, 200, chance.randrange(2**31), "PNG")
    huge = whole[:16] + (60_000).to_bytes(4, "big") * 2 + whole[24:]
    return chance.choice([chance.randbytes(chance.randint(1, 100_000)), whole[: len(whole) // 2], huge, b""])


def form(image: bytes) -> bytes:
    start = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
    return start.encode() + image + f"\r\n--{BOUNDARY}--\r\n".encode()


def size_of(image: bytes) -> tuple[int, int]:
    return Image.open(io.BytesIO(image)).size


@contextmanager
def server(model: Path, log: Path) -> Iterator[tuple[int, tuple[str, int]]]:
    """`messagenet serve` in a process of its own: its number and its address."""
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


def resident(process: int) -> float:
    """MiB of memory that a process holds (Linux)."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def busy(process: int) -> float:
    """Seconds of processor time that a process has used (Linux)."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def load(address: tuple[str, int], kinds: list[str], clients: int, seed: int) -> Tally:
    """All requests, shared out over clients that work at once."""
    tally, waiting, lock = Tally(), list(kinds), threading.Lock()

    def work(number: int) -> None:
        client = Client(address, tally, 1000 * seed + number)
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
    kinds = (["json"] * 6 + ["png"] + ["click"] * 2 + ["garbage"]) * (count // 10)
    random.Random(seed).shuffle(kinds)
    return kinds


def percentiles(times: list[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(times, n=20, method="inclusive")
    return cuts[9], cuts[18]


def batch_gain(net: MessageNet) -> float:
    """Time of four photographs one by one over their time together."""
    pictures = [np.random.default_rng(seed).integers(0, 256, (375, 500, 3), np.uint8) for seed in range(4)]
    together: Callable[[], object] = lambda: infer(net, pictures, Limits.message_bytes)  # noqa: E731
    alone: Callable[[], object] = lambda: [infer(net, [each], Limits.message_bytes) for each in pictures]  # noqa: E731
    times = seconds({"together": together, "alone": alone}, turns=5)
    return times["alone"] / times["together"]


def main() -> None:
    print(machine())
    torch.manual_seed(0)
    options = {"width": 128, "output_stride": 32, "node_stride": 8, "filters": 2}
    net = MessageNet("efficientnet_lite0", hidden=128, backbone_options=options).eval()
    gain = batch_gain(net)
    print(f"four photographs of 500×375 together are {gain:.2f} times as fast as one by one")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with server(net.save(folder / "model"), folder / "log") as (process, address):
            load(address, ["json"], 1, seed=1)
            before = resident(process)
            started, used = time.perf_counter(), busy(process)
            halves, memory = [], [before]
            for half in (2, 3):
                halves.append(load(address, shuffled_kinds(REQUESTS // 2, half), CLIENTS, half))
                memory.append(resident(process))
            duration, used = time.perf_counter() - started, busy(process) - used
            crowd = load(address, ["json"] * CROWD, CROWD, seed=4)
            memory.append(resident(process))
            click = idle_clicks(address)
        lines = len((folder / "log").read_text().splitlines())
    times = {kind: halves[0].times[kind] + halves[1].times[kind] for kind in halves[0].times}
    for kind, each in times.items():
        middle, slow = percentiles(each)
        print(f"{kind:8} {len(each):4} requests: p50 {middle:.0f} ms, p95 {slow:.0f} ms")
    retried, resent = (sum(getattr(half, name) for half in halves) for name in ("retried", "resent"))
    failures = sum((each.failures for each in (*halves, crowd)), Counter[str]())
    print(
        f"{REQUESTS / duration:.1f} requests a second, {1000 * used / REQUESTS:.0f} ms of processor time each"
    )
    print(f"{retried} came back after a 503, {resent} sent a photograph again")
    print(f"{CROWD} clients at once: sent away {crowd.retried} times, all answered in the end")
    print("memory (MiB): " + ", ".join(f"{each:.0f}" for each in memory) + f"; {lines} lines of log")
    print(
        f"grown by at most {max(memory) - before:.0f} of {CAP_MIB:.0f} MiB; failures: {dict(failures) or 'none'}"
    )
    good = times["json"] + times["png"]
    finish(
        good_p50_ms=percentiles(good)[0],
        good_p95_ms=percentiles(good)[1],
        loaded_click_p95_ms=percentiles(times["click"])[1],
        idle_click_p50_ms=click[0],
        idle_click_p95_ms=click[1],
        requests_per_second=REQUESTS / duration,
        processor_ms_per_request=1000 * used / REQUESTS,
        retried=retried,
        crowd_retried=crowd.retried,
        failed=failures.total(),
        grown_mib=max(memory) - before,
        grown_second_half_mib=memory[2] - memory[1],
        cap_mib=CAP_MIB,
        batch_gain=gain,
    )
    if failures:
        raise SystemExit(f"good requests failed: {dict(failures)}")
    if max(memory) - before > CAP_MIB:
        raise SystemExit("the server grew beyond its cap")


def idle_clicks(address: tuple[str, int]) -> tuple[float, float]:
    """p50 and p95 of the server's own milliseconds for clicks on one photograph of 500×375, all over it."""
    client = Client(address, Tally(), 5)
    status, content = client.segment(soft_image(500, 375, 6, "JPEG"))
    assert status == 200
    key = json.loads(content)["key"]
    times = []
    for _ in range(CLICKS):
        status, content = client.explain(key, client.random.randrange(500), client.random.randrange(375))
        assert status == 200
        times.append(json.loads(content)["milliseconds"])
    return percentiles(times)


if __name__ == "__main__":
    main()
