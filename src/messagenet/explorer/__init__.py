"""The message explorer: a local page, and the HTTP interface behind it, that show message passing at work.

    file ─ decode ─ Upload ─ trace_beliefs ─ BeliefTrace ─┬─ pixel_maps   POST /segment
                       └──────── ByteCache ───────┘       └─ explain      POST /explain

Every bound of the server is a field of `Limits`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from messagenet.errors import InputError

EXTRA = ("fastapi", "starlette", "uvicorn", "h11", "python_multipart", "prometheus_client")  # the extra `[serve]`


def serve(
    models: str | Path | Sequence[str | Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    samples: str | Path | None = None,
    longest_side: int | None = None,
    open_browser: bool | None = None,
) -> None:
    """Serves the message explorer until it is interrupted.

    Args:
        models: Folders of saved models or names of bundled ones, or one of them; the page starts with the first.
            Default: the bundled model, and those that `messagenet demo` has trained in this folder.
        host: The address to listen on; only this machine can reach the default.
        port: The port to listen on; 0 for any free one.
        samples: A folder of sample images. Default: photos and synthetic scenes.
        longest_side: As of `PredictOptions`, and at most the longest side of `Limits`, to which every image is reduced.
        open_browser: Open the page in the browser. Default: if run in a terminal.
    """
    if (longest_side or 0) > Limits.longest_side:
        raise InputError(f"longest_side is {longest_side}; give at most {Limits.longest_side}")
    try:
        from messagenet.explorer.launch import run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in EXTRA:
            raise
        raise InputError(
            f'{error.name}, which the explorer needs, is not installed; pip install "messagenet[serve]"'
        ) from None
    folders = [Path(model) for model in ([models] if isinstance(models, str | Path) else models)]
    show = sys.stdout.isatty() if open_browser is None else open_browser
    run(folders, host, port, None if samples is None else Path(samples), longest_side, show)


@dataclass(frozen=True)
class Limits:
    """Bounds of the server. Per request, `longest_side`, `message_bytes` and `waiting` bound the memory."""

    upload_bytes: int = 20_000_000  # of a file
    field_bytes: int = 1_024  # of a text field of a form
    json_bytes: int = 16_384  # of the body of any other request
    upload_seconds: float = 30.0  # to send the body of a request
    header_seconds: float = 10.0  # to send the headers, or the rest of a request that was refused
    pixels: int = 24_000_000  # of an image that is decoded, by the size in its header
    longest_side: int = 1024  # larger images are reduced to this side before anything is computed
    cache_bytes: int = 256 * 2**20  # for images, features and beliefs between requests
    message_bytes: int = 512 * 2**20  # for single messages during inference (several iterations, exact cavities)
    waiting: int = 64  # jobs in each queue; the one for rendering is longer
    requests: int = 128  # with a body, open at once
    batch_size: int | None = None  # None: 8 on a GPU, 1 on a CPU, where batches are not faster
    retry_seconds: int = 1  # `Retry-After` when the server is busy
