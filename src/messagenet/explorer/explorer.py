"""The explorer without HTTP: models, a cache, and a queue for each kind of work.

    decoding     uploads to pictures
    inferring    pictures to beliefs; those of one model and one size together
    rendering    beliefs to maps
    explaining   beliefs to the messages of one node, which must not wait for any of the others

A request that has its picture in hand never needs the cache to answer: what is evicted meanwhile is made again.

What is kept between requests: as many values as fit into a number of bytes, those used last.

Memory that is free goes back to the system.

The C library keeps what is freed between two pieces in use. A server whose every request computes with large pieces,
and keeps small ones, would come to hold far more than it uses.
"""

from __future__ import annotations

import base64
import ctypes
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Any, BinaryIO, NamedTuple, Protocol, TypeVar

from messagenet.errors import InputError
from messagenet.explorer import Limits
from messagenet.explorer.inference import (
    Inferred,
    belief_maps,
    explain,
    grey_png,
    infer,
    label_map,
    passed_bytes,
)
from messagenet.explorer.logs import Metrics
from messagenet.explorer.models import ServedModel, chosen
from messagenet.explorer.uploads import Picture, decode, file_key
from messagenet.explorer.work_queue import Group, WorkQueue
from messagenet.models import MessageNet
from messagenet.report import palette_image, png_bytes


class Sized(Protocol):
    """Anything that knows what it takes in memory."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


Value = TypeVar("Value", bound=Sized)


class ByteCache:
    """Values by key, the least recently used leaving first; safe to use from several threads.

    >>> import numpy as np
    >>> cache = ByteCache(100)
    >>> for name in "abc":
    ...     cache.put(name, np.zeros(40, np.uint8))
    >>> cache.get("a", np.ndarray) is None, cache.nbytes
    (True, 80)

    Args:
        most: How many bytes the values may take together.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.nbytes = 0
        self._values: OrderedDict[Hashable, Sized] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, kind: type[Value]) -> Value | None:
        """The value of this kind, which is then the last to leave; None if it is not kept."""
        with self._lock:
            value = self._values.get(key)
            if value is None:
                return None
            self._values.move_to_end(key)
        assert isinstance(value, kind)
        return value

    def put(self, key: Hashable, value: Sized) -> None:
        """Keeps a value, unless it is larger than everything that may be kept."""
        with self._lock:
            if (old := self._values.pop(key, None)) is not None:
                self.nbytes -= old.nbytes
            if value.nbytes > self.most:
                return
            self._values[key] = value
            self.nbytes += value.nbytes
            while self.nbytes > self.most:
                self.nbytes -= self._values.popitem(last=False)[1].nbytes


def _trim_function() -> Callable[[int], int] | None:
    """`malloc_trim` of the GNU C library, where that is what the process runs on."""
    if sys.platform != "linux":
        return None
    function: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return function


class Trimmer:
    """Gives free memory back, but not more often than every so many seconds.

    Args:
        seconds: How long to wait between two times.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._trim = _trim_function()
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Gives back what can be, if it is time."""
        now = time.monotonic()
        if self._trim is not None and now - self._last >= self.seconds:
            self._trim(0)
            self._last = now


GPU_BATCH = 8
TRIM_SECONDS = 5.0
Result = TypeVar("Result")


class NotKept(Exception):
    """A picture was asked for by a key that is not, or no longer, kept."""


class InferenceJob(NamedTuple):
    """A picture for a model."""

    model: ServedModel
    picture: Picture


class Explorer:
    """What the server does.

    Args:
        models: The models on offer; the first is the one taken unless told.
        limits: Bounds.
        metrics: Where to count.
    """

    def __init__(self, models: Sequence[ServedModel], limits: Limits, metrics: Metrics) -> None:
        self.models, self.limits, self.metrics = tuple(models), limits, metrics
        self.cache = ByteCache(limits.cache_bytes)
        self._trim = Trimmer(TRIM_SECONDS)
        self._decoding: WorkQueue[BinaryIO, Picture] = self._queue("decoding", self._decode)
        self._inferring: WorkQueue[InferenceJob, Inferred] = WorkQueue(
            "inferring", self._infer, waiting=limits.waiting, group=self._group
        )
        self._rendering: WorkQueue[Callable[[], Any], Any] = self._queue("rendering", _call)
        self._explaining: WorkQueue[Callable[[], Any], Any] = self._queue("explaining", _call)
        self._queues = (self._decoding, self._inferring, self._rendering, self._explaining)
        metrics.watch_cache(lambda: self.cache.nbytes)
        for queue in self._queues:
            metrics.watch_queue(queue.name, queue.__len__)

    def _queue(self, name: str, work: Callable[[Any], Result]) -> WorkQueue[Any, Result]:
        """A queue whose jobs are done one by one."""
        return WorkQueue(name, lambda items: [work(item) for item in items], waiting=self.limits.waiting)

    def close(self) -> None:
        """Ends the threads."""
        for queue in self._queues:
            queue.close()

    def model(self, name: str | None) -> ServedModel:
        """The model of a name; the first one unless told."""
        return chosen(self.models, name)

    async def accept(self, file: BinaryIO) -> Picture:
        """Decodes an upload, and keeps the picture."""
        return await self._decoding.run(file)

    def kept(self, key: str) -> Picture:
        """A picture that was sent before."""
        picture = self.cache.get(key, Picture)
        if picture is None:
            raise NotKept(key)
        return picture

    async def segmentation(self, model: ServedModel, picture: Picture) -> dict[str, Any]:
        """The maps of all iterations, as `POST /segment` answers."""
        inferred = await self._inferred(model, picture)
        answer: dict[str, Any] = await self._rendering.run(lambda: _segmentation(inferred))
        return {"key": picture.key, "model": model.id, **answer}

    async def mask(self, model: ServedModel, picture: Picture, iteration: int | None) -> bytes:
        """The labels after an iteration as a palette PNG."""
        iteration = model.checked_iteration(iteration)
        inferred = await self._inferred(model, picture)
        content: bytes = await self._rendering.run(
            lambda: png_bytes(palette_image(label_map(inferred, iteration), model.net.classes))
        )
        return content

    async def explanation(
        self, model: ServedModel, picture: Picture, x: float, y: float, iteration: int | None
    ) -> dict[str, Any]:
        """The messages of the node at a pixel, as `POST /explain` answers."""
        net, iteration = model.net, model.checked_iteration(iteration)
        if not isinstance(net, MessageNet) or not model.explains:
            raise InputError(f"model {model.id!r} passes no learned messages; choose one that explains")
        inferred = await self._inferred(model, picture)
        answer: dict[str, Any] = await self._explaining.run(lambda: explain(net, inferred, x, y, iteration))
        return {"key": picture.key, "model": model.id, **answer}

    async def _inferred(self, model: ServedModel, picture: Picture) -> Inferred:
        kept = self.cache.get((picture.key, model.id), Inferred)
        self.metrics.cache_lookups.labels("miss" if kept is None else "hit").inc()
        return await self._inferring.run(InferenceJob(model, picture)) if kept is None else kept

    def _decode(self, file: BinaryIO) -> Picture:
        key = file_key(file)
        picture = self.cache.get(key, Picture) or Picture(key, decode(file, self.limits))
        self.cache.put(key, picture)
        return picture

    def _group(self, job: InferenceJob) -> Group:
        """Pictures of one model and size, as many as their messages allow."""
        most = self.limits.batch or (GPU_BATCH if job.model.net.device.type == "cuda" else 1)
        if most > 1 and (needed := passed_bytes(job.model.net, job.picture.size)):
            most = min(most, max(1, self.limits.message_bytes // needed))
        return Group((job.model.id, job.picture.size), most)

    def _infer(self, jobs: Sequence[InferenceJob]) -> list[Inferred]:
        """Runs the model of a group on those of its pictures that it has not seen yet."""
        model = jobs[0].model
        pictures = {job.picture.key: job.picture for job in jobs}
        found = {
            key: kept for key in pictures if (kept := self.cache.get((key, model.id), Inferred)) is not None
        }
        if missing := [picture for key, picture in pictures.items() if key not in found]:
            started = time.perf_counter()
            results = infer(model.net, [picture.pixels for picture in missing], self.limits.message_bytes)
            self.metrics.inference_seconds.labels(model.id).observe(time.perf_counter() - started)
            self.metrics.batch_pictures.observe(len(missing))
            for picture, inferred in zip(missing, results, strict=True):
                self.cache.put((picture.key, model.id), inferred)
                found[picture.key] = inferred
            self._trim()
        return [found[job.picture.key] for job in jobs]


def _call(function: Callable[[], Result]) -> Result:
    return function()


def _segmentation(inferred: Inferred) -> dict[str, Any]:
    (height, width), (rows, columns) = inferred.size, inferred.nodes
    iterations = [
        {
            "t": t,
            "labels": base64.b64encode(grey_png(each.labels)).decode(),
            "entropy": base64.b64encode(grey_png(each.entropy)).decode(),
            "shares": each.shares,
            "changed": each.changed,
        }
        for t, each in enumerate(belief_maps(inferred))
    ]
    grid = {"width": width, "height": height, "rows": rows, "columns": columns, "stride": inferred.stride}
    return {**grid, "iterations": iterations}
