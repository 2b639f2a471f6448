"""AMQP over WebSockets: a connection gets what messages contain, and what it writes is sent in messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import WSMsgType, web

from leasehold_emulators.eventhubs.connection import Connection
from leasehold_emulators.eventhubs.edge import HIGH_WATER_BYTES, Edges, Heart

PROTOCOL = "AMQPWSB10"
PATH = "/$servicebus/websocket"


class Tunnel:
    """A WebSocket as the wire of a connection."""

    def __init__(self, edges: Edges, request: web.BaseRequest) -> None:
        self.connection = Connection(namespace=edges.namespace, wire=self)
        self._edges = edges
        self._request = request
        self._socket = web.WebSocketResponse(protocols=(PROTOCOL,), max_msg_size=0)
        self._waiting = bytearray()
        self._has_news = asyncio.Event()
        self._is_closing = False

    async def serve(self) -> web.StreamResponse:
        """Serve until either side has closed the WebSocket."""
        await self._socket.prepare(self._request)
        self._edges.begun(self)
        heart = Heart(self.connection)
        sending = asyncio.create_task(self._send())
        try:
            async for message in self._socket:
                if message.type is WSMsgType.BINARY:
                    self.connection.receive(message.data)
                    heart.start()
        finally:
            heart.stop()
            self._edges.ended(self)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        return self._socket

    async def _send(self) -> None:
        while not self._is_closing or self._waiting:
            await self._has_news.wait()
            self._has_news.clear()
            data = bytes(self._waiting)
            self._waiting.clear()
            if data:
                await self._socket.send_bytes(data)
            self.connection.pump()
        await self._socket.close()

    # --- from the connection ---

    @property
    def is_full(self) -> bool:
        return len(self._waiting) > HIGH_WATER_BYTES

    def write(self, data: bytes) -> None:
        if not self._is_closing:
            self._waiting += data
            self._has_news.set()

    def close(self) -> None:
        self._is_closing = True
        self._has_news.set()

    def abort(self) -> None:
        self._waiting.clear()
        self.close()
        if self._request.transport:
            self._request.transport.abort()

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_s, act)


async def serve_tunnel(edges: Edges, request: web.BaseRequest) -> web.StreamResponse:
    """Serve a tunnel if the HTTP request has its path."""
    if request.path != PATH:
        return web.Response(status=404)
    return await Tunnel(edges, request).serve()
