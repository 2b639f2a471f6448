"""Clients that are many, slow or silent, over real sockets: none is waited for without end, and none keeps others out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import structlog
from patience import PATIENCE_S, rhythm, until_async
from starlette.types import Receive, Scope, Send
from unit.service.problems import problem

from leasehold.leases.lease import Lease
from leasehold.service.api import create_app, server
from leasehold.service.api import events as module
from leasehold.service.api.server import serve

ASKING = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def port(start) -> AsyncIterator[int]:
    running = await start(runs=False)
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    async with serve(create_app(running.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
        yield port


@asynccontextmanager
async def connected(port: int, sent: bytes = b"") -> AsyncIterator[Connection]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def ended(connection: Connection) -> None:
    """By the server: a closed or a broken connection, and no answer before."""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            assert await connection[0].read() == b""


async def answered(connection: Connection) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        return await connection[0].readuntil(b"}")


async def test_the_head_of_a_stream_is_told_at_once_and_leaves_no_stream_behind(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STREAMS_MAX", 3)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        for _ in range(3):
            answer = await client.head("/api/events")
            assert (answer.status_code, answer.content) == (200, b"")
            assert answer.headers["content-type"].startswith("text/event-stream")
        assert len(client._transport._pool.connections) == 1, "what is answered wholly is asked again"  # type: ignore[attr-defined]

        async def has_room() -> bool:
            return (await client.get("/api/events?seconds=0")).status_code == 200

        await until_async(has_room)
        head, whole = await client.head("/api/leases"), await client.get("/api/leases")
        assert head.headers["content-length"] == whole.headers["content-length"] == str(len(whole.content))


@pytest.mark.parametrize("sent", [b"", b"GET /health/live HTTP/1.1\r\nhost: loc", ASKING[:-2]])
async def test_a_head_that_does_not_come_is_not_waited_for(
    port: int, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.1)
    async with connected(port, sent) as silent:
        await ended(silent)


async def test_a_head_that_drips_in_wins_no_time_and_an_answer_before_it_neither(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 6.0)
    async with connected(port, ASKING) as (reader, writer):
        await answered((reader, writer))
        writer.write(b"GET /health/live HTTP/1.1\r\nx: ")
        dripping = asyncio.create_task(without_end(writer, b"x", pause_s=0.05))
        await ended((reader, writer))
        dripping.cancel()


async def test_an_answer_that_nobody_reads_is_not_kept(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 0.2)
    asked = b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    reader._transport.pause_reading()  # type: ignore[attr-defined]  # as one whose client has stopped
    with pytest.raises(ConnectionError):
        await asyncio.wait_for(without_end(writer, asked), PATIENCE_S)


async def test_an_answer_without_end_that_nobody_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 3.0)
    gone = asyncio.Event()

    async def watch(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        watching = asyncio.create_task(watch(receive))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        await watching

    async with (
        serve(endless, host="127.0.0.1", port=0, log=structlog.get_logger()) as port,
        connected(port, ASKING) as (reader, _),
    ):
        reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(gone.wait(), PATIENCE_S)


async def without_end(writer: asyncio.StreamWriter, sent: bytes, *, pause_s: float = 0) -> None:
    async for _ in rhythm(pause_s):
        writer.write(sent)
        await writer.drain()


async def test_an_answer_that_takes_longer_than_patience_is_given(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "PATIENCE_S", 3.0)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
        assert "event: ready" in (await client.get("/api/events?seconds=4")).text


async def test_where_all_connections_are_taken_the_longest_silent_makes_room(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 3)
    async with (
        connected(port, b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n") as watching,
        connected(port, ASKING) as first,
    ):
        await watching[0].readuntil(b"event: ready")
        await answered(first)
        async with connected(port) as second, connected(port, ASKING) as probe:
            assert b" 200 " in await answered(probe)
            await ended(first)
            second[1].write(ASKING)
            assert b" 200 " in await answered(second)


async def test_where_every_connection_is_being_answered_one_more_is_told_so(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS_MAX", 1)
    async with connected(port, b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n") as watching:
        await watching[0].readuntil(b"event: ready")
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            answer = await client.get("/health/live")
            assert "limit of 1 connections" in str(problem(answer, 503)["detail"])
            assert answer.headers["retry-after"] == "1"
            assert answer.headers["connection"] == "close"
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:

        async def has_room() -> bool:
            return (await client.get("/health/live")).status_code == 200

        await until_async(has_room)
