"""Figures for Prometheus, in a registry of the server's own.

Labels take few values whatever is requested: an address that is not known counts as "other".
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

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
