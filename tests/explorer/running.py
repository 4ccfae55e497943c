"""The explorer as an application and as a real server, and what to send to it."""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import uvicorn
from PIL import Image
from starlette.testclient import TestClient

from messagenet.explorer import Limits
from messagenet.explorer.app import create_app
from messagenet.explorer.explorer import Explorer
from messagenet.explorer.guards import TimeoutProtocol
from messagenet.explorer.launch import listen
from messagenet.explorer.logs import Metrics
from messagenet.explorer.models import ServedModel, scene_samples

OWN = "http://127.0.0.1:8765"
SCENES = scene_samples()


def encoded(pixels: np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind, **options)
    return content.getvalue()


def photo(seed: int = 0, height: int = 37, width: int = 50) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@contextmanager
def explorer_client(models: list[ServedModel], limits: Limits | None = None, **options: Any) -> Iterator[TestClient]:
    explorer = Explorer(models, limits or Limits(), Metrics())
    samples = options.pop("samples", SCENES)
    with TestClient(create_app(explorer, samples), base_url=OWN, **options) as client:
        yield client


@contextmanager
def running_server(models: list[ServedModel], limits: Limits | None = None) -> Iterator[tuple[str, int]]:
    """A real server on a free port, in a thread; its address."""
    limits = limits or Limits()
    listener = listen("127.0.0.1", 0)
    app = create_app(Explorer(models, limits, Metrics()), SCENES)
    protocol = type("Protocol", (TimeoutProtocol,), {"timeout": limits.header_seconds})
    config = uvicorn.Config(app, http=protocol, ws="none", log_config=None, access_log=False, proxy_headers=False)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield listener.getsockname()
    server.should_exit = True
    thread.join(10)


def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def until_closed(connection: socket.socket, seconds: float) -> tuple[bytes, float]:
    """What the server sends until it closes the connection, and how long that takes."""
    connection.settimeout(seconds)
    started, received = time.monotonic(), b""
    while data := connection.recv(65536):
        received += data
    return received, time.monotonic() - started
