"""What is kept between requests: as many values as fit into a number of bytes, those used last."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Protocol, TypeVar


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
