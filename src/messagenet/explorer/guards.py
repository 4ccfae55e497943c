"""Middleware between the app and the network: checks of origin and size, security headers, and timeouts.

A page elsewhere can make a browser send requests to this machine. Two headers, which scripts cannot forge, reveal it:

    Origin   the page that sends the request; a request with a body must come from the server's own page
    Host     the requested host name; a foreign name that resolves to this machine (DNS rebinding) is refused

A body is measured and timed while it arrives (`BodyLimits`). Where no handler runs (incomplete headers, a body after
its answer, a response that is not read), `TimeoutProtocol` closes connections that stall.
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

SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; style-src 'self'; script-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OWN_SITES = frozenset({"same-origin", "none"})
WILDCARDS = frozenset({"", "0.0.0.0", "::"})
FRAMING_BYTES = 16_384  # for boundaries and headers between the parts of a form
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?", re.IGNORECASE)


class SecurityHeaders:
    """Adds `SECURITY_HEADERS` to every response, and `Cache-Control: no-store` unless the route has set its own."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app(scope, receive, send_with_headers if scope["type"] == "http" else send)


class SameOriginOnly:
    """Refuses requests for foreign hosts, and requests with a body from foreign pages; `host` is the bound address."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app, self.host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or answers 403."""
        if scope["type"] == "http" and (refusal := self._refusal(scope)):
            await JSONResponse({"error": refusal}, 403)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if not is_own_host(host, self.host):
            return "the request names another host; open the page at the address that the command printed"
        if scope["method"] in SAFE_METHODS:
            return None
        origin = headers.get("origin")
        foreign = origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}")
        if foreign or headers.get("sec-fetch-site", "none") not in OWN_SITES:
            return "the request comes from another web page; send it from the server's own page"
        return None


class BodyLimits:
    """Limits bodies of requests: bytes, seconds, and how many at once."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with a limited body, or answers 413 or 503."""
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").lower().startswith("multipart/form-data")
        max_bytes = self.limits.upload_bytes + FRAMING_BYTES if is_form else self.limits.json_bytes
        declared = headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > max_bytes:
            await JSONResponse({"error": _too_long(max_bytes)}, 413)(scope, receive, send)
        elif self._open >= self.limits.requests:
            await busy_response(self.limits)(scope, receive, send)
        else:
            self._open += 1
            try:
                await self.app(scope, self._limit(receive, max_bytes), send)
            finally:
                self._open -= 1

    def _limit(self, receive: Receive, max_bytes: int) -> Receive:
        deadline = time.monotonic() + self.limits.upload_seconds
        received, complete = 0, False

        async def limited() -> Message:
            nonlocal received, complete
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                raise HTTPException(408, "the request took too long to arrive; send it again") from None
            received += len(message.get("body", b""))
            if received > max_bytes:
                raise HTTPException(413, _too_long(max_bytes))
            complete = not message.get("more_body", False)
            return message

        return limited


class TimeoutProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection after waiting for the client for one to two times `timeout` seconds."""

    timeout = Limits.header_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer."""
        super().connection_made(transport)
        self._check(None)

    def _check(self, seen: Hashable) -> None:
        unread = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and not unread:
            return
        state = ("unread", unread) if unread else self._awaited()
        if state is None or state != seen:
            self.loop.call_later(self.timeout, self._check, state)
        elif unread:
            self.transport.abort()
        else:
            self.transport.close()

    def _awaited(self) -> Hashable:
        """What the server waits for, equal as long as it is the same; None if it waits for nothing."""
        client_state = self.conn.their_state
        answered = self.cycle is not None and self.cycle.response_complete
        unfinished = client_state is h11.IDLE or (answered and client_state is h11.SEND_BODY)
        return (id(self.cycle), client_state) if unfinished else None


def is_own_host(header: str, bound: str) -> bool:
    """Whether a Host header names loopback, the bound address, or any address if bound to all; with any port.

    >>> is_own_host("localhost:9000", "127.0.0.1"), is_own_host("evil.example:8765", "127.0.0.1")
    (True, False)
    >>> is_own_host("192.168.1.7:8765", "0.0.0.0"), is_own_host("evil.example", "0.0.0.0")
    (True, False)
    """
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    host = match[1].strip("[]").lower()
    if host in ("localhost", bound.lower()):
        return True
    address = parse_address(host)
    if address is None:
        return bound in WILDCARDS and host == socket.gethostname().lower()
    return address.is_loopback or bound in WILDCARDS


def parse_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address in a text; None if it is something else."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def busy_response(limits: Limits) -> JSONResponse:
    """The answer while the server is busy."""
    text = f"the server is busy; send the request again in {limits.retry_seconds} s"
    return JSONResponse({"error": text}, 503, {"Retry-After": str(limits.retry_seconds)})


def _too_long(max_bytes: int) -> str:
    return f"the request is longer than the {max_bytes:,} bytes allowed; send a smaller file"
