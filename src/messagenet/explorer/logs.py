"""JSON log lines and Prometheus metrics of requests. Unknown paths and methods share a label, so labels stay few."""

from __future__ import annotations

import json
import logging
import time
import traceback
from datetime import datetime, timezone
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGGER = logging.getLogger("messagenet.explorer")
DETAILS = "messagenet.details"
MAX_CHARACTERS = 500
NOT_ALLOWED = 405  # the method may be any text, so it must not become a label
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10, 30)
BATCH_SIZES = (1, 2, 4, 8, 16)


class Metrics:
    """Counters, timers and gauges of the server."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter, histogram = partial(Counter, registry=registry), partial(Histogram, registry=registry)
        self.requests = counter("messagenet_requests", "Requests answered.", ("method", "path", "status"))
        self.cache_lookups = counter("messagenet_cache_lookups", "Lookups of beliefs in the cache.", ("result",))
        timer = partial(histogram, buckets=SECONDS)
        self.request_seconds = timer("messagenet_request_seconds", "Time to answer a request.", ("path",))
        self.inference_seconds = timer("messagenet_inference_seconds", "Time of a batch.", ("model",))
        self.batch_images = histogram("messagenet_batch_images", "Images in a batch.", buckets=BATCH_SIZES)
        self.cache_bytes = Gauge("messagenet_cache_bytes", "Bytes in the cache.", registry=registry)
        self.waiting = Gauge("messagenet_waiting_jobs", "Waiting jobs.", ("queue",), registry=registry)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


def log_details(request: Request, **details: Any) -> None:
    """Adds fields to the log line of a request."""
    request.scope.setdefault(DETAILS, {}).update(details)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON, from which no text of a client can break out."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "details", {}),
        }
        if record.exc_info:
            line["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(line, default=str)


class RequestLog:
    """Times, counts and logs every request."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on; answers 500 if a handler fails."""
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
                await JSONResponse({"error": "the server failed; see its log"}, 500)(scope, receive, counted_send)
        seconds = time.perf_counter() - started
        path = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if path != "other" and status != NOT_ALLOWED else "any"
        self.metrics.requests.labels(method, path, str(status)).inc()
        self.metrics.request_seconds.labels(path).observe(seconds)
        line = {
            "method": scope["method"][:MAX_CHARACTERS],
            "path": scope["path"][:MAX_CHARACTERS],
            "status": status,
            "milliseconds": round(1000 * seconds, 1),
            "received": received,
            "sent": sent,
            "client": (scope.get("client") or ("unknown",))[0],
            **details,
        }
        level = logging.INFO if failure is None else logging.ERROR
        LOGGER.log(level, "request", exc_info=failure, extra={"details": line})
