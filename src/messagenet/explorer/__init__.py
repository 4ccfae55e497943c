"""The message explorer: a local page, and the HTTP interface behind it, that show message passing at work.

    file ─ decode ─ Upload ─ trace_beliefs ─ BeliefTrace ─┬─ pixel_maps   POST /segment
                       └──────── ByteCache ───────┘       └─ explain      POST /explain

`uploads` and `inference` do the work, independent of HTTP. `explorer` adds queues and a cache, `app` the routes,
`guards` and `logs` the middleware, and `launch` starts the server. Every bound of the server is a field of `Limits`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from messagenet.errors import InputError

EXTRA = ("fastapi", "starlette", "uvicorn", "h11", "python_multipart", "prometheus_client")
"""What the extra `[serve]` installs."""


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
        models: Folders of saved models or names of bundled ones; the page starts with the first. Default: the bundled
            model, and those that `messagenet demo` has trained in this folder.
        host: The address to listen on; only this machine can reach the default.
        port: The port to listen on; 0 for any free one.
        samples: A folder of sample images. Default: photos and synthetic scenes.
        open_browser: Open the page in the browser.
    """
    try:
        from messagenet.explorer.launch import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise InputError(
            f'{error.name}, which the explorer needs, is not installed; pip install "messagenet[serve]"'
        ) from None
    folder = None if samples is None else Path(samples)
    run([Path(model) for model in models], host, port, folder, open_browser)


@dataclass(frozen=True)
class Limits:
    """Bounds of the server.

    `cache_bytes` bounds the memory for images and beliefs between requests. During a request, memory is bounded by the
    size of an image (`longest_side`), by `message_bytes`, and by the number of waiting jobs (`waiting`).

    Attributes:
        upload_bytes: Largest file that may be sent.
        field_bytes: Largest text field of a form.
        json_bytes: Largest body of any other request.
        upload_seconds: Time to send the body of a request.
        header_seconds: Time to send the headers, or the rest of a request that was refused.
        pixels: Largest image that is decoded, by the size in its header.
        longest_side: Larger images are reduced to this side before anything is computed.
        cache_bytes: Memory for images, features and beliefs between requests.
        message_bytes: Memory for single messages during inference (several iterations, exact cavities).
        waiting: Jobs that may wait in each queue.
        requests: Requests with a body that may be open at once.
        batch_size: Images of one size per forward pass. Default: 8 on a GPU, and 1 on a CPU, where batches are not
            faster (`benchmarks/serving_load.py`).
        retry_seconds: Value of `Retry-After` when the server is busy.
    """

    upload_bytes: int = 20_000_000
    field_bytes: int = 1_024
    json_bytes: int = 16_384
    upload_seconds: float = 30.0
    header_seconds: float = 10.0
    pixels: int = 24_000_000
    longest_side: int = 1024
    cache_bytes: int = 256 * 2**20
    message_bytes: int = 512 * 2**20
    waiting: int = 64
    requests: int = 128
    batch_size: int | None = None
    retry_seconds: int = 1
