"""How much a client may send, and how long it may take: checked while the body arrives, not when it is there."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from messagenet.serving.limits import Limits
from messagenet.serving.security import READING

FRAMING_BYTES = 16_384
"""Room for boundaries and headers between the parts of a form."""


class BodyLimits:
    """Bounds on bodies: bytes, seconds, and how many at once.

    Args:
        app: What comes next.
        limits: The bounds.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app = app
        self.limits = limits
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with a watched body, or answers 413 or 503."""
        if scope["type"] != "http" or scope["method"] in READING:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        most = self._most(headers)
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > most:
            await JSONResponse({"error": _too_long(most)}, 413)(scope, receive, send)
        elif self._under_way >= self.limits.requests:
            await busy(self.limits)(scope, receive, send)
        else:
            self._under_way += 1
            try:
                await self.app(scope, self._watched(receive, most), send)
            finally:
                self._under_way -= 1

    def _most(self, headers: Headers) -> int:
        if headers.get("content-type", "").lower().startswith("multipart/form-data"):
            return self.limits.upload_bytes + FRAMING_BYTES
        return self.limits.json_bytes

    def _watched(self, receive: Receive, most: int) -> Receive:
        deadline = time.monotonic() + self.limits.upload_seconds
        received, complete = 0, False

        async def watched() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                raise HTTPException(408, "the request took too long to arrive; send it again") from None
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, _too_long(most))
            complete = not message.get("more_body", False)
            return message

        return watched


def busy(limits: Limits) -> JSONResponse:
    """The answer to one request too many."""
    text = f"the server has too much to do; send the request again in {limits.retry_seconds} s"
    return JSONResponse({"error": text}, 503, {"Retry-After": str(limits.retry_seconds)})


def _too_long(most: int) -> str:
    return f"the request is longer than the {most:,} bytes allowed; send a smaller file"
