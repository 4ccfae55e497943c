"""The message explorer: a local page, and the HTTP interface behind it, that show inference happening.

    upload ─ decode ─ picture ─ infer ─ beliefs of every iteration ─┬─ maps (labels, entropy)
                         └───────── cache ─────────┘                └─ explanation (the messages of one node)

`decode`, `cache`, `infer`, `maps` and `explanation` know nothing of HTTP; `explorer` joins them with
queues; `app` gives them addresses, and `security`, `body_limits`, `slow_clients` stand between it and the network.

How much the server takes on: every bound in one place.

What is kept between requests stays below `cache_bytes`; what a request needs while it is worked on is bounded by the
size of a picture (`side`), by `message_bytes`, and by how many may wait (`waiting`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from messagenet.errors import InputError

EXTRA = ("fastapi", "starlette", "uvicorn", "h11", "python_multipart", "prometheus_client")


def serve(
    models: Sequence[str | Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    samples: str | Path | None = None,
    open_browser: bool = False,
) -> None:
    """Serves the message explorer until it is interrupted.

    Args:
        models: Folders of saved models and names of those in the box; the first one is shown first. Unless told, the
            model in the box, and those that `messagenet demo` has trained in this folder.
        host: The address to listen on; only this machine can reach the default.
        port: The port to listen on; 0 for any that is free.
        samples: A folder of images to offer; photographs and synthetic scenes unless told.
        open_browser: Show the page in the browser.
    """
    try:
        from messagenet.explorer.launch import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise InputError(
            f'{error.name}, which the explorer needs, is not installed; pip install "messagenet[serve]"'
        ) from None
    run(
        [Path(model) for model in models],
        host,
        port,
        None if samples is None else Path(samples),
        open_browser,
    )


@dataclass(frozen=True)
class Limits:
    """Bounds of the server.

    Attributes:
        upload_bytes: The largest file that may be sent.
        field_bytes: The largest text field that may be sent with it.
        json_bytes: The largest body of any other request.
        upload_seconds: How long a client may take to send a request's body.
        header_seconds: How long it may take to begin, or to finish one that was refused.
        pixels: The largest picture that is decoded, by what its header says.
        side: Pictures with a longer edge are reduced to it before anything is computed.
        cache_bytes: What pictures, features and beliefs together may take between requests.
        message_bytes: What single messages may take while they are passed (several iterations, exact cavities).
        waiting: How many jobs may wait in each queue.
        requests: How many requests with a body may be under way.
        batch: How many pictures of one size a model sees at once; unless told 8 on a GPU and 1 on a CPU, where more
            at a time are not faster (`benchmarks/serving_load.py`).
        retry_seconds: When to come back, for those that were sent away.
    """

    upload_bytes: int = 20_000_000
    field_bytes: int = 1_024
    json_bytes: int = 16_384
    upload_seconds: float = 30.0
    header_seconds: float = 10.0
    pixels: int = 24_000_000
    side: int = 1024
    cache_bytes: int = 256 * 2**20
    message_bytes: int = 512 * 2**20
    waiting: int = 64
    requests: int = 128
    batch: int | None = None
    retry_seconds: int = 1
