"""Sockets: what they bring goes into a connection, what it writes goes out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from servers.eventhubs.connection import Connection
from servers.eventhubs.namespace import Namespace

HIGH_WATER_BYTES = 1 << 20


@dataclass(slots=True)
class Edges:
    """Those that are connected."""

    namespace: Namespace
    open: set[Edge] = field(default_factory=set)
    accepted: int = 0

    def edge(self) -> Edge:
        return Edge(self)


class Edge(asyncio.Protocol):
    """One socket, and the wire of its connection."""

    def __init__(self, edges: Edges) -> None:
        self.edges = edges
        self.connection = Connection(namespace=edges.namespace, wire=self)
        self._is_full = False
        self._heartbeat: asyncio.TimerHandle | None = None

    # --- from the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self.edges.open.add(self)
        self.edges.accepted += 1

    def data_received(self, data: bytes) -> None:
        self.connection.receive(data)
        if self._heartbeat is None and self.connection.heartbeat_s:
            self._beat()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.connection.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.edges.open.discard(self)
        if self._heartbeat:
            self._heartbeat.cancel()
        self.connection.gone()

    def _beat(self) -> None:
        if self.connection.heartbeat_s and not self.transport.is_closing():
            self.connection.heartbeat()
            self._heartbeat = asyncio.get_running_loop().call_later(self.connection.heartbeat_s, self._beat)

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
