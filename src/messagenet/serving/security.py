"""Who may ask: requests that other web pages make the browser send are refused, and every answer carries headers
that keep the page to itself.

A page elsewhere can make a browser send requests to this machine. Two headers, which scripts cannot forge, tell:

    Origin   where the page that asks comes from; a request with a body must come from here
    Host     what name was asked for; a foreign name that leads to this machine (DNS rebinding) is not ours
"""

from __future__ import annotations

import ipaddress
import re
import socket

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
