"""How many connections the API bears, and how long it waits for a client that is slow or silent.

uvicorn waits for a request's head as long as it likes to come, and for an answer to be read: whoever opens connections and says
nothing holds them. Here a client that is waited for has `limits.PATIENCE_S`. Where all connections are taken, a new one gets
the place of whoever has been silent the longest, so that silence keeps no probe out.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api import limits
from service.api.problems import problem


class BoundedConnection(H11Protocol):
    """One connection. What it overrides is called by asyncio, but for `on_response_complete`, which uvicorn calls."""

    _waiting: asyncio.TimerHandle | None = None
    silent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self.silent_since = self.loop.time()
        self._wait()
        if len(self.connections) > limits.CONNECTIONS_MAX and not self._is_given_a_place():
            self.app = _busy

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait_where_it_owes()

    def on_response_complete(self) -> None:
        self.silent_since = self.loop.time()
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._wait_where_it_owes()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()

    @property
    def is_silent(self) -> bool:
        """It asks for nothing: the head of its next request is not there, or not wholly."""
        cycle: Any = self.cycle  # None before the first
        return cycle is None or bool(cycle.response_complete)

    def _is_given_a_place(self) -> bool:
        ours = [each for each in self.connections if isinstance(each, BoundedConnection)]
        silent = [each for each in ours if each.is_silent and each is not self]
        if silent:
            longest = min(silent, key=lambda each: each.silent_since)
            self.connections.discard(longest)  # at once: `connection_lost` is called a moment later
            longest.transport.abort()
        return bool(silent)

    def _wait_where_it_owes(self) -> None:
        """A head, or the reading of what was written."""
        if self.is_silent or self.flow.write_paused:
            self._wait()
        else:
            self._stop_waiting()

    def _wait(self) -> None:
        """From the first moment on: bytes that drip in or out win no time."""
        if self._waiting is None:
            self._waiting = self.loop.call_later(limits.PATIENCE_S, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


async def _busy(scope: Any, receive: Any, send: Any) -> None:
    detail = f"all {limits.CONNECTIONS_MAX} connections of this host are being answered: ask another host, or later"
    headers = {"connection": "close", "retry-after": "1", "cache-control": "no-store"}
    await problem(HTTPStatus.SERVICE_UNAVAILABLE, detail, headers)(scope, receive, send)
