"""A server that is silent, for tests of leases in PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest


@pytest.fixture
async def silent() -> AsyncIterator[int]:
    """The port of a server that takes connections and answers nothing."""
    lines: list[asyncio.StreamWriter] = []

    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(writer)

    listening = await asyncio.start_server(keep, "127.0.0.1", 0)
    yield listening.sockets[0].getsockname()[1]
    for line in lines:
        line.close()
    listening.close()
