"""Who may ask: requests that other web pages make the browser send are refused, and every answer carries headers
that keep the page to itself.

A page elsewhere can make a browser send requests to this machine. Two headers, which scripts cannot forge, tell:

    Origin   where the page that asks comes from; a request with a body must come from here
    Host     what name was asked for; a foreign name that leads to this machine (DNS rebinding) is not ours

How much a client may send, and how long it may take: checked while the body arrives, not when it is there.

Connections on which the client never gets to the point are closed.

The server waits for a client in three places that no handler sees: before a request's headers are complete, after a
request was answered before its body had arrived, and while an answer is not read. (In between, `body_limits` watches.)
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import Hashable

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from messagenet.explorer import Limits

POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
READING = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITE = frozenset({"same-origin", "none"})
WILDCARDS = frozenset({"", "0.0.0.0", "::"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?", re.IGNORECASE)


class SecurityHeaders:
    """Adds `HEADERS` to every answer; what is computed is not to be stored."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class OwnPagesOnly:
    """Refuses requests under foreign names, and requests with a body from foreign pages.

    Args:
        app: What comes next.
        host: The address that the server listens on.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.host = host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 403."""
        if scope["type"] == "http" and (complaint := self._complaint(scope)):
            await JSONResponse({"error": complaint}, 403)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _complaint(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not is_own_name(host, self.host):
            return "the server is not called by its own name; open it as the command printed it"
        if scope["method"] in READING:
            return None
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")
        if foreign or headers.get("sec-fetch-site", "none") not in OWN_SITE:
            return "the request comes from another web page; send it from the server's own page"
        return None


def is_own_name(name: str, bound: str) -> bool:
    """Whether a Host header names this server: loopback, the address it listens on, or any address of a machine
    that listens on all of them. A port may be forwarded, so it may be any.

    >>> is_own_name("localhost:9000", "127.0.0.1"), is_own_name("evil.example:8765", "127.0.0.1")
    (True, False)
    >>> is_own_name("192.168.1.7:8765", "0.0.0.0"), is_own_name("evil.example", "0.0.0.0")
    (True, False)
    """
    match = _HOST.fullmatch(name)
    if match is None:
        return False
    host = match[1].strip("[]").lower()
    if host in ("localhost", bound.lower()):
        return True
    address = as_address(host)
    if address is None:
        return bound in WILDCARDS and host == socket.gethostname().lower()
    return address.is_loopback or bound in WILDCARDS


def as_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that is written, if it is one."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


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


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that waits for a client between one and two times `patience` seconds, then hangs up."""

    patience = Limits.header_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts to watch."""
        super().connection_made(transport)
        self._watch(None)

    def _watch(self, seen: Hashable) -> None:
        unread = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and not unread:
            return
        state = ("unread", unread) if unread else self._awaited()
        if state is None or state != seen:
            self.loop.call_later(self.patience, self._watch, state)
        elif unread:
            self.transport.abort()
        else:
            self.transport.close()

    def _awaited(self) -> Hashable:
        """What has not arrived, the same for as long as it is the same request's; None if nothing is awaited."""
        theirs = self.conn.their_state
        answered = self.cycle is not None and self.cycle.response_complete
        unfinished = theirs is h11.IDLE or (answered and theirs is h11.SEND_BODY)
        return (id(self.cycle), theirs) if unfinished else None
