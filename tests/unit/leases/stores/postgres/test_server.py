"""One limit holds for a whole call: the wait for its turn, the connection, and the answer. Connecting may take longer."""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, cast

import pytest
from patience import PATIENCE_S
from psycopg import AsyncConnection, pq
from psycopg.sql import SQL

from leasehold.common.entra_token import SCOPE
from leasehold.leases.errors import StoreMissing, StoreUnavailable
from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress
from leasehold.leases.stores.postgres.server import Server

TIMEOUT_S = 0.3


def server_at(dsn: str, *, timeout_s: float = TIMEOUT_S) -> Server:
    return Server(PostgresAddress(dsn=dsn, table=LeaseTable(), connections_max=2), call_timeout_s=timeout_s)


async def call(server: Server, *, is_urgent: bool = True) -> None:
    await server.fetch("a call", SQL("").format(), (), is_urgent=is_urgent)


@pytest.mark.parametrize("is_write", [False, True], ids=["read", "write"])
async def test_a_server_that_does_not_answer_costs_the_limit_and_nothing_was_sent(silent: int, is_write: bool) -> None:
    """The driver would wait longer."""
    addresses = f"host=127.0.0.1,127.0.0.1 port={silent},{silent} connect_timeout={10 * PATIENCE_S:.0f}"
    server = server_at(f"{addresses} user=u sslmode=disable gssencmode=disable")
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match=r"replacing 'a' had no connection within 0\.3 s, and was not sent"):
            await server.fetch("replacing 'a'", SQL("SELECT 1").format(), (), is_write=is_write)
    await server.close()


@pytest.mark.parametrize("is_urgent", [False, True], ids=["turn", "slot"])
async def test_the_wait_for_other_calls_is_within_the_limit(is_urgent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many connections as there may be are being made, for calls whose limit is longer."""
    server = server_at("host=127.0.0.1 user=u")
    begun = asyncio.Semaphore(0)

    async def hang(**parameters: Any) -> AsyncConnection:
        begun.release()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(AsyncConnection, "connect", hang)
    server._timeout_s = 60.0
    calls = [asyncio.create_task(call(server, is_urgent=each)) for each in (False, True)]
    for _ in calls:
        await begun.acquire()
    server._timeout_s = TIMEOUT_S
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(StoreUnavailable, match=r"replacing 'a' had no connection .* and was not sent: look at the"):
            await server.fetch("replacing 'a'", SQL("").format(), (), is_write=True, is_urgent=is_urgent)
    for each in calls:
        each.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await server.close()


# Servers that do not answer. The driver waits for each address at least 2 s.


class Refusing(NamedTuple):
    """A server that hangs up. has_come: whether a client has come."""

    port: int
    has_come: asyncio.Event


@asynccontextmanager
async def refusing_at(address: str, port: int = 0) -> AsyncIterator[Refusing]:
    has_come = asyncio.Event()

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        has_come.set()
        writer.close()

    async with await asyncio.start_server(hang_up, address, port) as listening:
        yield Refusing(listening.sockets[0].getsockname()[1], has_come)


@pytest.fixture
async def refusing() -> AsyncIterator[Refusing]:
    async with refusing_at("127.0.0.1") as server:
        yield server


async def test_calls_that_are_shorter_than_the_drivers_limit_get_past_a_silent_server(
    silent: int, refusing: Refusing
) -> None:
    server = server_at(
        f"host=127.0.0.1,127.0.0.1 port={silent},{refusing.port} user=u sslmode=disable gssencmode=disable"
    )
    async with asyncio.timeout(PATIENCE_S):
        while not refusing.has_come.is_set():
            with pytest.raises(StoreUnavailable):
                await call(server)
    await server.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one address of their own")
async def test_calls_get_past_the_silent_addresses_of_a_name(silent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the IPv6 address of a name whose server is reached by IPv4."""

    async def resolve(host: str, port: object, **options: object) -> list[Any]:
        addresses = "127.0.0.1", "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, silent)) for address in addresses]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    async with refusing_at("127.0.0.2", silent) as refusing, asyncio.timeout(PATIENCE_S):
        server = server_at(f"host=db.test port={silent} user=u sslmode=disable gssencmode=disable")
        while not refusing.has_come.is_set():
            with pytest.raises(StoreUnavailable):
                await call(server)
        await server.close()


async def test_a_connection_for_notifications_gets_past_a_silent_server_too(silent: int, refusing: Refusing) -> None:
    server = server_at(
        f"host=127.0.0.1,127.0.0.1 port={silent},{refusing.port} user=u sslmode=disable gssencmode=disable"
    )
    with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*timeout expired"):
        await server.open_listener()
    assert refusing.has_come.is_set()
    await server.close()


# Openings that outlive their callers


class Connection:
    """As the driver has it, as far as `Server` looks at one that works."""

    def __init__(self) -> None:
        self._line, self._server = socket.socketpair()
        self.info = self
        self.transaction_status = pq.TransactionStatus.IDLE
        self.closed = False

    def fileno(self) -> int:
        return self._line.fileno()

    async def close(self) -> None:
        self.closed = True
        self._line.close()
        self._server.close()


class Scripted(Server):
    """A server whose connections open when the test says so. `openings`: one future for each."""

    openings: list[asyncio.Future[Connection]]
    used: list[AsyncConnection]

    async def _open(self, parameters: dict[str, Any], address: str, setting: str) -> AsyncConnection:
        opening: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()
        self.openings.append(opening)
        return cast(AsyncConnection, await opening)

    async def _prepare(self, connection: AsyncConnection) -> None:
        """It is as it has to be."""

    async def _rows(self, connection: AsyncConnection, *message: object) -> list[tuple[Any, ...]]:
        self.used.append(connection)
        return []


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    server = Scripted(PostgresAddress(dsn="host=db user=u", table=LeaseTable(), connections_max=2), call_timeout_s=5.0)
    server.openings, server.used = [], []
    yield server
    await server.close()


async def leave(server: Scripted) -> None:
    """Call, and give up while there is no connection."""
    leaving = asyncio.create_task(call(server))
    await settle()
    leaving.cancel()
    await asyncio.wait({leaving})
    assert leaving.cancelled()


async def settle() -> None:
    """Let everything run that waits for nothing outside of this test."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_connection_that_opens_after_its_caller_has_left_is_for_the_next(scripted: Scripted) -> None:
    await leave(scripted)
    connection = Connection()
    scripted.openings[0].set_result(connection)
    await settle()
    await call(scripted)
    assert scripted.used == [connection]
    assert len(scripted.openings) == 1


async def test_a_call_waits_for_the_opening_that_an_earlier_one_left(scripted: Scripted) -> None:
    await leave(scripted)
    await leave(scripted)
    waiting = asyncio.create_task(call(scripted))
    await settle()
    connection = Connection()
    scripted.openings[0].set_result(connection)
    await waiting
    assert scripted.used == [connection]
    assert len(scripted.openings) == 1


async def test_a_connection_that_opens_while_its_caller_leaves_is_kept(scripted: Scripted) -> None:
    leaving = asyncio.create_task(call(scripted))
    await settle()
    opening = next(iter(scripted._openings))
    opening.add_done_callback(lambda _: leaving.cancel())
    connection = Connection()
    scripted.openings[0].set_result(connection)
    await asyncio.wait({leaving})
    assert leaving.cancelled()
    await settle()
    await call(scripted)
    assert scripted.used == [connection]


async def test_openings_that_are_left_count_as_connections(scripted: Scripted) -> None:
    """Two calls at a time, and two connections are permitted."""
    for _ in range(3):
        leaving = [asyncio.create_task(call(scripted)) for _ in range(2)]
        await settle()
        for each in leaving:
            each.cancel()
        await asyncio.wait(leaving)
    assert len(scripted.openings) == 2
    connections = [Connection(), Connection()]
    for opening, connection in zip(scripted.openings, connections, strict=True):
        opening.set_result(connection)
    await settle()
    await asyncio.gather(*(call(scripted) for _ in range(5)))
    assert {*scripted.used} <= {*connections}
    assert len(scripted.openings) == 2


async def test_why_an_opening_failed_that_was_left_is_in_the_next_error(scripted: Scripted) -> None:
    await leave(scripted)
    scripted.openings[0].set_exception(StoreMissing("no leases yet"))
    await settle()
    scripted._timeout_s = 0.01
    words = r"look at the servers in `dsn`, or raise `connections_max` \(the last attempt to connect failed: no leases yet\)$"
    with pytest.raises(StoreUnavailable, match=words):
        await call(scripted)
    scripted.openings[1].set_result(Connection())
    await settle()
    scripted._slots = asyncio.Semaphore(0)  # other calls use all connections
    with pytest.raises(StoreUnavailable, match=r"or raise `connections_max`$"):
        await call(scripted)


async def test_closing_ends_openings_and_their_callers_know(scripted: Scripted) -> None:
    waiting = asyncio.create_task(call(scripted))
    await settle()
    await scripted.close()
    assert scripted.openings[0].cancelled()
    for late in (waiting, call(scripted)):
        with pytest.raises(StoreUnavailable, match="the lease store is closed"):
            await late
    assert len(scripted.openings) == 1


async def test_closing_closes_the_connections_of_openings_that_were_left(scripted: Scripted) -> None:
    await leave(scripted)
    await leave(scripted)
    connection = Connection()
    scripted.openings[0].set_result(connection)
    await settle()
    await scripted.close()
    assert connection.closed


async def test_a_connection_that_opens_while_the_store_closes_is_not_kept(scripted: Scripted) -> None:
    waiting = asyncio.create_task(call(scripted))
    await settle()
    connection = Connection()
    scripted.openings[0].set_result(connection)
    scripted._is_closed = True
    await waiting
    assert connection.closed


# Access tokens


class Token(NamedTuple):
    token: str = "t"
    expires_on: float = time.time() + 3600


class SlowIssuer:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, ...]] = []
        self.is_ready = asyncio.Event()

    async def get_token(self, *scopes: str) -> Any:
        self.requests.append(scopes)
        await self.is_ready.wait()
        return Token()


async def test_a_token_that_takes_longer_than_a_call_is_named_and_used_by_a_later_one(
    refusing: Refusing,
) -> None:
    issuer = SlowIssuer()
    place = PostgresAddress(
        dsn=f"host=127.0.0.1 port={refusing.port} user=u gssencmode=disable",
        table=LeaseTable(),
        connections_max=2,
        identity="default",
    )
    server = Server(place, call_timeout_s=0.05, credential=issuer)
    for _ in range(2):
        with pytest.raises(
            StoreUnavailable, match=r"was not sent: the access token is still being fetched: check `identity`"
        ):
            await call(server)
    issuer.is_ready.set()
    async with asyncio.timeout(PATIENCE_S):
        while not refusing.has_come.is_set():
            with suppress(StoreUnavailable):
                await call(server)
    assert issuer.requests == [(SCOPE,)]
    await server.close()


@pytest.mark.parametrize(
    ("dsn", "connect_s"),
    [
        ("host=a user=u", 12),
        ("host=a,b,c user=u", 4),
        ("hostaddr=10.0.0.1,10.0.0.2 user=u", 6),
        ("postgresql://u@a:1,b:2,c:3,d:4/bank", 3),
        ("host=a,b,c,d,e,f,g,h,i user=u", 2),
        ("host=a,b connect_timeout=9 user=u", "9"),
    ],
)
def test_the_time_for_a_connection_is_shared_by_the_servers(dsn: str, connect_s: object) -> None:
    assert server_at(dsn, timeout_s=12.0)._parameters["connect_timeout"] == connect_s
