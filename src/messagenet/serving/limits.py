"""How much the server takes on: every bound in one place.

What is kept between requests stays below `cache_bytes`; what a request needs while it is worked on is bounded by the
size of a picture (`side`), by `message_bytes`, and by how many may wait (`waiting`).
"""

from __future__ import annotations

from dataclasses import dataclass


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
