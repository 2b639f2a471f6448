"""The server around the API: it serves inside the running loop, ends with its block, and says what is wrong in a line."""

import asyncio
import re
import signal
import socket
from functools import partial

import httpx
import pytest
import structlog
from patience import PATIENCE_S, until_async
from unit.service.problems import problem

from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.service.api import create_app, server
from leasehold.service.api.server import serve
from leasehold.service.errors import StartFailed


@pytest.fixture
async def resting(start):
    """A host that has not begun, over a pipeline with a lease."""
    running = await start(runs=False, feeds={"bank": MemoryChangeFeed(["a"])})
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    return running


async def test_the_server_serves_inside_the_running_loop_and_stops_with_its_block(resting) -> None:
    async with httpx.AsyncClient() as client:
        async with serve(create_app(resting.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
            answer = await client.get(f"http://127.0.0.1:{port}/api/leases/bank/a")
            assert answer.json()["partition"] == "a"
            assert "server" not in answer.headers
            assert (await client.head(f"http://127.0.0.1:{port}/health/live")).content == b""
        with pytest.raises(httpx.ConnectError):
            await client.get(f"http://127.0.0.1:{port}/health/live")


async def test_the_server_leaves_signal_handlers_alone(resting) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serve(create_app(resting.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
        async with httpx.AsyncClient() as client:  # once it answers it has set up whatever it sets up
            await client.get(f"http://127.0.0.1:{port}/health/live")
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_a_taken_port_is_one_line_with_its_remedy(resting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartFailed) as raised:
            async with serve(create_app(resting.view), host="127.0.0.1", port=port, log=structlog.get_logger()):
                pass
    assert f"127.0.0.1:{port}: the port is taken" in str(raised.value)
    assert "set api.port to 0, which picks a free one" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(("host", "port"), [("203.0.113.1", 0), ("no.such.host.invalid", 0), ("127.0.0.1", 70_000)])
async def test_an_address_that_cannot_be_served_is_a_failed_start(resting, host: str, port: int) -> None:
    with pytest.raises(StartFailed, match=re.escape(host)):
        async with serve(create_app(resting.view), host=host, port=port, log=structlog.get_logger()):
            pass


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no end by itself of what is idle or half sent."""
    assert server.GRACE_S <= 1
    monkeypatch.setattr(server, "GRACE_S", 0.1)
    monkeypatch.setattr(server, "PATIENCE_S", 10 * PATIENCE_S)
    monkeypatch.setattr(server.uvicorn, "Config", partial(server.uvicorn.Config, timeout_keep_alive=10 * PATIENCE_S))


@pytest.mark.usefixtures("short_grace")
async def test_the_server_stops_soon_whatever_its_clients_do(start) -> None:
    """Idle keep-alive connections, half a request, and an answer that never comes."""

    class Silent(MemoryStore):
        asked = asyncio.Event()

        async def list(self, prefix: str):
            self.asked.set()
            await asyncio.Event().wait()

    silent = Silent()
    running = await start(store=silent, runs=False)
    running.view._keeper.store = silent  # without its timeout
    requests = [
        b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health/live HT",
        b"GET /api/leases HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"",
    ]
    serving = serve(create_app(running.view), host="127.0.0.1", port=0, log=structlog.get_logger())
    async with asyncio.timeout(PATIENCE_S), serving as port:
        connections = [await asyncio.open_connection("127.0.0.1", port) for _ in requests]
        for request, (_, writer) in zip(requests, connections, strict=True):
            writer.write(request)
        await connections[0][0].readuntil(b'"reasons":[]}')
        await silent.asked.wait()
    for reader, writer in connections:
        await reader.read()
        writer.close()


async def test_cancelling_what_serves_stops_the_server(resting) -> None:
    bound: list[int] = []

    async def work() -> None:
        async with serve(create_app(resting.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
            bound.append(port)
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await until_async(lambda: bound)
    working.cancel()
    await asyncio.wait({working}, timeout=PATIENCE_S)
    assert working.cancelled()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", bound[0])


async def test_what_is_no_http_is_answered_and_faults_are_logged_with_their_traceback(start) -> None:
    class Faulty(MemoryStore):
        async def list(self, prefix: str):
            raise ZeroDivisionError("secret")

    running = await start(store=Faulty(), runs=False)
    with structlog.testing.capture_logs() as logs:
        async with serve(create_app(running.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                problem(await client.get("/api/leases"), 500)
    faults = [entry for entry in logs if entry["log_level"] == "error"]
    assert len(faults) == 1
    assert isinstance(faults[0]["exc_info"], ZeroDivisionError)


@pytest.mark.usefixtures("short_grace")
async def test_a_stream_of_events_does_not_keep_the_server(start) -> None:
    running = await start(runs=False)
    with structlog.testing.capture_logs() as logs:
        serving = serve(create_app(running.view), host="127.0.0.1", port=0, log=structlog.get_logger())
        async with asyncio.timeout(PATIENCE_S), serving as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await reader.readuntil(b"event: ready")
        await reader.read()
        writer.close()
    assert not [entry for entry in logs if entry["log_level"] == "error"]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (
            b"POST /api/pipelines/bank/pause HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10485760\r\n\r\n"
            + b" " * 4096,
            413,
        ),
        (b"GET /" + b"x" * 40_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 40_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"x" * 400_000, 400),
        (b"GET /api/leases HTTP/1.1\r\nhost: evil.example\r\n\r\n", 403),
        (b"GET /api/leases HTTP/1.1\r\n\r\n", 400),
        (b"GET /api/leases HTTP/1.0\r\n\r\n", 403),
        (b"GET http://evil.example/api/leases HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
        (b"GET /api/leases/bank/a%0d%0aset-cookie:%20x=1 HTTP/1.1\r\nhost: localhost\r\n\r\n", 404),
        (b"GET /api/leases\r\nx: y HTTP/1.1\r\nhost: localhost\r\n\r\n", 400),
    ],
)
async def test_what_no_client_of_ours_would_send_is_answered_over_a_socket(
    resting, request_: bytes, status: int
) -> None:
    async with serve(create_app(resting.view), host="127.0.0.1", port=0, log=structlog.get_logger()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        head = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert head.startswith(b"HTTP/1.1 %d " % status), head
    assert b"set-cookie" not in head.lower()
