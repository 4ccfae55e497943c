"""One line of JSON for every request, and an answer even where a handler fails.

Figures for Prometheus, in a registry of the server's own.

Labels take few values whatever is requested: an address that is not known counts as "other".
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCHES = (1, 2, 4, 8, 16)


class Metrics:
    """What is counted and timed."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "messagenet_requests", "Requests answered.", ("method", "path", "status"), registry=self.registry
        )
        self.request_seconds = Histogram(
            "messagenet_request_seconds",
            "Time to answer a request.",
            ("path",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.inference_seconds = Histogram(
            "messagenet_inference_seconds",
            "Time of a model for a batch.",
            ("model",),
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_pictures = Histogram(
            "messagenet_batch_pictures", "Pictures in a batch.", buckets=BATCHES, registry=self.registry
        )
        self.cache_lookups = Counter(
            "messagenet_cache_lookups",
            "Beliefs looked for in the cache.",
            ("result",),
            registry=self.registry,
        )
        self._cache_bytes = Gauge("messagenet_cache_bytes", "What the cache holds.", registry=self.registry)
        self._waiting = Gauge(
            "messagenet_waiting_jobs", "Jobs that wait.", ("queue",), registry=self.registry
        )

    def watch_cache(self, nbytes: Callable[[], float]) -> None:
        """Reads the size of the cache when asked."""
        self._cache_bytes.set_function(nbytes)

    def watch_queue(self, name: str, length: Callable[[], float]) -> None:
        """Reads the length of a queue when asked."""
        self._waiting.labels(name).set_function(length)

    def answered(self, method: str, path: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self.requests.labels(method, path, str(status)).inc()
        self.request_seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """All figures, as Prometheus reads them."""
        return generate_latest(self.registry)


LOGGER = logging.getLogger("messagenet.explorer")
DETAILS = "messagenet.details"
LONGEST = 500
NOT_ALLOWED = 405  # a client may call a method anything; it does not become a label


def note(request: Request, **details: Any) -> None:
    """Adds to the line of a request."""
    request.scope.setdefault(DETAILS, {}).update(details)


class JsonLines(logging.Formatter):
    """A record as one line of JSON; whatever a client sent cannot break out of it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "details", {}),
        }
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


class RequestLog:
    """Times, counts and logs every request.

    Args:
        app: What comes next.
        metrics: Where to count.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; a handler that fails answers 500."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, received, sent = time.perf_counter(), 0, 0, 0
        details: dict[str, Any] = scope.setdefault(DETAILS, {})

        async def counted_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, sent
            status = message.get("status", status)
            sent += len(message.get("body", b""))
            await send(message)

        failure: Exception | None = None
        try:
            await self.app(scope, counted_receive, counted_send)
        except Exception as error:
            failure = error
            if status == 0:
                answer = JSONResponse({"error": "the server failed; its log says why"}, 500)
                await answer(scope, receive, counted_send)
        seconds = time.perf_counter() - started
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if path != "other" and status != NOT_ALLOWED else "any"
        self.metrics.answered(method, path, status, seconds)
        line = {
            "method": scope["method"][:LONGEST],
            "path": scope["path"][:LONGEST],
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
            "received": received,
            "sent": sent,
            "client": (scope.get("client") or ("unknown",))[0],
            **details,
        }
        level = logging.INFO if failure is None else logging.ERROR
        LOGGER.log(level, "request", exc_info=failure, extra={"details": line})
