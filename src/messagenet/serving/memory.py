"""Memory that is free goes back to the system.

The C library keeps what is freed between two pieces in use. A server whose every request computes with large pieces,
and keeps small ones, would come to hold far more than it uses.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable


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
