"""A bounded queue with one thread. The oldest job is next, with others of its group; a full queue refuses at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Generic, NamedTuple, TypeVar

Item = TypeVar("Item")
Output = TypeVar("Output")


class Overloaded(Exception):
    """The queue is full."""


class Group(NamedTuple):
    """Which jobs are done together, and how many of them at most."""

    key: Hashable
    max_size: int


class WorkQueue(Generic[Item, Output]):
    """A queue of at most `waiting` jobs and its thread; `work` maps the items of a group to results in the same order.

    >>> queue = WorkQueue("double", lambda items: [2 * item for item in items])
    >>> queue.submit(21).result()
    42
    >>> queue.close()
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[Item]], Sequence[Output]],
        *,
        waiting: int = 64,
        group: Callable[[Item], Group] = lambda _: Group(None, 1),  # each by itself
    ) -> None:
        self.name = name
        self._work, self._max_waiting, self._group = work, waiting, group
        self._jobs: deque[_Job[Item, Output]] = deque()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._serve, name=f"messagenet {name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, item: Item) -> Future[Output]:
        """Adds a job; raises `Overloaded` if the queue is full."""
        job: _Job[Item, Output] = _Job(item, self._group(item), Future())
        with self._changed:
            if self._closed or len(self._jobs) >= self._max_waiting:
                raise Overloaded(self.name)
            self._jobs.append(job)
            self._changed.notify()
        return job.future

    async def run(self, item: Item) -> Output:
        """Adds a job and awaits its result; cancelling the await cancels the job."""
        return await asyncio.wrap_future(self.submit(item))

    def close(self) -> None:
        """Ends the thread after its current group; waiting jobs are cancelled."""
        with self._changed:
            self._closed = True
            for job in self._jobs:
                job.future.cancel()
            self._jobs.clear()
            self._changed.notify()
        self._thread.join()

    def _serve(self) -> None:
        while not self._closed:
            self._answer(self._next_group())  # no job is referenced after its call

    def _answer(self, jobs: Sequence[_Job[Item, Output]]) -> None:
        running = [job for job in jobs if job.future.set_running_or_notify_cancel()]
        if not running:
            return
        try:
            results = self._work([job.item for job in running])
        except Exception as error:
            for job in running:
                job.future.set_exception(error)
            return
        for job, result in zip(running, results, strict=True):
            job.future.set_result(result)

    def _next_group(self) -> list[_Job[Item, Output]]:
        """The job that has waited longest and those of its group; none when the queue is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if self._closed:
                return []
            group = self._jobs[0].group
            members = [job for job in self._jobs if job.group == group][: max(1, group.max_size)]
            taken = set(map(id, members))
            self._jobs = deque(job for job in self._jobs if id(job) not in taken)
            return members


@dataclass(frozen=True, eq=False)
class _Job(Generic[Item, Output]):
    item: Item
    group: Group
    future: Future[Output]
