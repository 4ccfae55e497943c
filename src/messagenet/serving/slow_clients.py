"""Connections on which the client never gets to the point are closed.

The server waits for a client in three places that no handler sees: before a request's headers are complete, after a
request was answered before its body had arrived, and while an answer is not read. (In between, `body_limits` watches.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from messagenet.serving.limits import Limits


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that waits for a client between one and two times `patience` seconds, then hangs up."""

    patience = Limits.header_seconds

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts to watch."""
        super().connection_made(transport)
        self._watch(None)

    def _watch(self, seen: Hashable) -> None:
        unread = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and not unread:
            return
        state = ("unread", unread) if unread else self._awaited()
        if state is None or state != seen:
            self.loop.call_later(self.patience, self._watch, state)
        elif unread:
            self.transport.abort()
        else:
            self.transport.close()

    def _awaited(self) -> Hashable:
        """What has not arrived, the same for as long as it is the same request's; None if nothing is awaited."""
        theirs = self.conn.their_state
        answered = self.cycle is not None and self.cycle.response_complete
        unfinished = theirs is h11.IDLE or (answered and theirs is h11.SEND_BODY)
        return (id(self.cycle), theirs) if unfinished else None
