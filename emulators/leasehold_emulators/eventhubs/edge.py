"""Sockets: each passes what it receives to a connection, and sends what the connection writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, cast

from leasehold_emulators.eventhubs.connection import Connection
from leasehold_emulators.eventhubs.namespace import Namespace

HIGH_WATER_BYTES = 1 << 20


class Edge(Protocol):
    connection: Connection


@dataclass(slots=True)
class Edges:
    """The edges that are connected."""

    namespace: Namespace
    open: set[Edge] = field(default_factory=set)
    accepted: int = 0

    def socket(self) -> Socket:
        return Socket(self)

    def begun(self, edge: Edge) -> None:
        self.open.add(edge)
        self.accepted += 1

    def ended(self, edge: Edge) -> None:
        self.open.discard(edge)
        edge.connection.gone()


class Heart:
    """Sends heartbeats as often as the client wants them, once that is known."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._beat: asyncio.TimerHandle | None = None

    def start(self) -> None:
        if self._beat is None and self._connection.heartbeat_s:
            loop = asyncio.get_running_loop()
            self._beat = loop.call_later(self._connection.heartbeat_s, self._again)

    def _again(self) -> None:
        self._beat = None
        self._connection.heartbeat()
        self.start()

    def stop(self) -> None:
        if self._beat:
            self._beat.cancel()


class Socket(asyncio.Protocol):
    """A socket as the wire of a connection."""

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.connection = Connection(namespace=edges.namespace, wire=self)
        self._is_full = False
        self._heart = Heart(self.connection)

    # --- from the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.edges.begun(self)

    def data_received(self, data: bytes) -> None:
        self.connection.receive(data)
        self._heart.start()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.connection.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heart.stop()
        self.edges.ended(self)

    # --- from the connection ---

    @property
    def is_full(self) -> bool:
        return self._is_full

    def write(self, data: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, act)
