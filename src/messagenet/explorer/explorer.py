"""The explorer without HTTP: models, a cache, and a queue for each kind of work.

Inference is batched by model and size; explanations wait for no other work. Uploads and beliefs are cached, least
recently used out first; evicted beliefs are computed again. As the C library keeps free memory between the small blocks
of the cache, `Trimmer` returns it to the system.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from threading import Lock
from typing import Any, BinaryIO, Protocol, TypeVar

from messagenet.errors import InputError
from messagenet.explorer import Limits
from messagenet.explorer.inference import BeliefTrace, explain, label_map, segment, stored_message_bytes, trace_beliefs
from messagenet.explorer.logs import Metrics
from messagenet.explorer.models import ServedModel
from messagenet.explorer.uploads import Upload, decode, file_key
from messagenet.explorer.work_queue import Group, WorkQueue
from messagenet.report import palette_image, png_bytes

GPU_BATCH_SIZE = 8
TRIM_SECONDS = 1.0


class CacheMiss(Exception):
    """No upload with this key is cached, or not any more."""


class Explorer:
    """Decoding, inference, rendering and explanations for the server; the first model is the default."""

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = tuple(models), limits, metrics
        self.cache = ByteCache(limits.cache_bytes)
        self._trim = Trimmer(TRIM_SECONDS)
        # Rendering takes what inference has finished: its queue is longer, so that work already done is not refused.
        lengths = {"decoding": limits.waiting, "rendering": 2 * limits.waiting + 2, "explaining": limits.waiting}
        queues = [
            WorkQueue[Callable[[], Any], Any](name, lambda calls: [call() for call in calls], waiting=length)
            for name, length in lengths.items()
        ]
        self._decoding, self._rendering, self._explaining = queues
        self._inference = WorkQueue("inference", self._infer, waiting=limits.waiting, group=self._group)
        self._queues: tuple[WorkQueue[Any, Any], ...] = (self._inference, *queues)
        metrics.cache_bytes.set_function(lambda: self.cache.nbytes)
        for queue in self._queues:
            metrics.waiting.labels(queue.name).set_function(queue.__len__)

    def close(self) -> None:
        """Ends the threads."""
        for queue in self._queues:
            queue.close()

    async def add_upload(self, file: BinaryIO) -> Upload:
        """Decodes a file, and caches the upload."""
        upload: Upload = await self._decoding.run(lambda: self._decode(file))
        return upload

    def cached_upload(self, key: str) -> Upload:
        """An upload from the cache; raises `CacheMiss`."""
        upload = self.cache.get(key, Upload)
        if upload is None:
            raise CacheMiss(key)
        return upload

    async def segmentation(self, model: ServedModel, upload: Upload) -> dict[str, Any]:
        """The maps of all iterations, as `POST /segment` answers."""
        trace = await self._trace(model, upload)
        answer: dict[str, Any] = await self._rendering.run(lambda: segment(model.predictor, trace))
        return {"key": upload.key, "model": model.id, **answer}

    async def mask(self, model: ServedModel, upload: Upload, iteration: int | None) -> bytes:
        """The labels after an iteration as a palette PNG."""
        iteration = model.resolve_iteration(iteration)
        trace = await self._trace(model, upload)
        classes, labels = model.model.classes, partial(label_map, model.predictor, trace, iteration)
        content: bytes = await self._rendering.run(lambda: png_bytes(palette_image(labels(), classes)))
        return content

    async def explanation(
        self, model: ServedModel, upload: Upload, x: float, y: float, iteration: int | None
    ) -> dict[str, Any]:
        """The messages to the node at a pixel, as `POST /explain` answers."""
        head, iteration = model.head, model.resolve_iteration(iteration)
        if head is None:
            raise InputError(f"model {model.id!r} passes no learned messages; choose one that does")
        trace = await self._trace(model, upload)
        answer: dict[str, Any] = await self._explaining.run(lambda: explain(head, trace, x, y, iteration))
        return {"key": upload.key, "model": model.id, **answer}

    async def _trace(self, model: ServedModel, upload: Upload) -> BeliefTrace:
        cached = self.cache.get((upload.key, model.id), BeliefTrace)
        self.metrics.cache_lookups.labels("miss" if cached is None else "hit").inc()
        return await self._inference.run((model, upload)) if cached is None else cached

    def _decode(self, file: BinaryIO) -> Upload:
        key = file_key(file)
        upload = self.cache.get(key, Upload) or Upload(key, decode(file, self.limits))
        self.cache.put(key, upload)
        return upload

    def _group(self, job: tuple[ServedModel, Upload]) -> Group:
        """Uploads of one size for one model, as many as their messages allow."""
        model, size = job[0], job[1].size
        batch_size = self.limits.batch_size or (GPU_BATCH_SIZE if model.model.device.type == "cuda" else 1)
        if batch_size > 1 and (needed := stored_message_bytes(model, model.predictor.working_size(size))):
            batch_size = min(batch_size, max(1, self.limits.message_bytes // needed))
        return Group((model.id, size), batch_size)

    def _infer(self, jobs: Sequence[tuple[ServedModel, Upload]]) -> list[BeliefTrace]:
        """Runs the model of a group on those of its uploads that are not cached."""
        model = jobs[0][0]
        uploads = {upload.key: upload for _, upload in jobs}
        traces = {key: trace for key in uploads if (trace := self.cache.get((key, model.id), BeliefTrace))}
        if missing := [upload for key, upload in uploads.items() if key not in traces]:
            started = time.perf_counter()
            results = trace_beliefs(model, [upload.pixels for upload in missing], self.limits.message_bytes)
            self.metrics.inference_seconds.labels(model.id).observe(time.perf_counter() - started)
            self.metrics.batch_images.observe(len(missing))
            for upload, trace in zip(missing, results, strict=True):
                self.cache.put((upload.key, model.id), trace)
                traces[upload.key] = trace
            self._trim()
        return [traces[upload.key] for _, upload in jobs]


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


Value = TypeVar("Value", bound=_Sized)


class ByteCache:
    """A cache of at most `max_bytes` that evicts the least recently used value first. Thread-safe.

    >>> import numpy as np
    >>> cache = ByteCache(100)
    >>> for name in "abc":
    ...     cache.put(name, np.zeros(40, np.uint8))
    >>> cache.get("a", np.ndarray) is None, cache.nbytes
    (True, 80)
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self.nbytes = max_bytes, 0
        self._values: OrderedDict[Hashable, _Sized] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, kind: type[Value]) -> Value | None:
        """The value of this type, which becomes the most recently used; None if it is not cached."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
        assert value is None or isinstance(value, kind)
        return value

    def put(self, key: Hashable, value: _Sized) -> None:
        """Caches a value, unless it alone is larger than the cache."""
        with self._lock:
            if (old := self._values.pop(key, None)) is not None:
                self.nbytes -= old.nbytes
            if value.nbytes > self.max_bytes:
                return
            self._values[key] = value
            self.nbytes += value.nbytes
            while self.nbytes > self.max_bytes:
                self.nbytes -= self._values.popitem(last=False)[1].nbytes


class Trimmer:
    """Returns free memory to the system, at most once in `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._trim = _trim_function()
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Returns free memory, unless the last time was less than `seconds` ago."""
        now = time.monotonic()
        if self._trim is not None and now - self._last >= self.seconds:
            self._trim(0)
            self._last = now


def _trim_function() -> Callable[[int], int] | None:
    """`malloc_trim` of the GNU C library, if the process runs on it."""
    if sys.platform != "linux":
        return None
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function
