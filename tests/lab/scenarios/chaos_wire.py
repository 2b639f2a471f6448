"""A way that can be cut or stalled: TCP on this side, and a Unix socket or an address on the other."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import suppress

RESET = struct.pack("ii", 1, 0)


Address = tuple[str, int]


class Wire:
    """server: the path of its socket, or its address."""

    def __init__(self, server: str | Address) -> None:
        self._server = server
        self._ends: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._listener: asyncio.Server | None = None

    @property
    def is_whole(self) -> bool:
        return self._flows.is_set() and not self._is_cut

    @property
    def port(self) -> int:
        assert self._listener is not None, "not listening"
        return int(self._listener.sockets[0].getsockname()[1])

    async def listen(self, address: Address = ("127.0.0.1", 0)) -> None:
        self._listener = await asyncio.start_server(self._accepted, *address)

    def cut(self) -> None:
        """Every connection is reset, and so is every new one."""
        self._is_cut = True
        self._reset()

    def stall(self) -> None:
        """Nothing comes through, and nobody is told."""
        self._flows.clear()

    def mend(self) -> None:
        self._is_cut = False
        self._flows.set()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for pump in self._pumps:
            pump.cancel()
        self._reset()

    def _reset(self) -> None:
        for end in self._ends:
            _reset(end)

    async def _accepted(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._is_cut:
            _reset(client)
            return
        try:
            answers, server = await self._connect()
        except OSError:  # it is being started again
            _reset(client)
            return
        ends = {client, server}
        self._ends |= ends
        pumps = {asyncio.create_task(self._pump(reader, server)), asyncio.create_task(self._pump(answers, client))}
        self._pumps |= pumps
        await asyncio.wait(pumps)
        self._pumps -= pumps
        self._ends -= ends

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if isinstance(self._server, str):
            return await asyncio.open_unix_connection(self._server)
        return await asyncio.open_connection(*self._server)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


def _reset(end: asyncio.StreamWriter) -> None:
    connection = end.get_extra_info("socket")
    if connection is not None and connection.family == socket.AF_INET:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    end.transport.abort()
