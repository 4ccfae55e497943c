"""The message explorer: a local page, and the HTTP interface behind it, that show inference happening.

    upload ─ decode ─ picture ─ infer ─ beliefs of every iteration ─┬─ maps (labels, entropy)
                         └───────── cache ─────────┘                └─ explanation (the messages of one node)

`decode`, `cache`, `infer`, `maps` and `explanation` know nothing of HTTP; `explorer` joins them with
queues; `app` gives them addresses, and `security`, `body_limits`, `slow_clients` stand between it and the network.
"""

from __future__ import annotations

from collections.abc import Sequence
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
        from messagenet.serving.launch import run
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
