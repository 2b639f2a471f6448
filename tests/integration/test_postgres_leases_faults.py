# ruff: noqa: F811 -- fixtures of another file
"""Leases in PostgreSQL when the network and the server fail: a write is sent once, and its outcome is found out."""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from math import inf
from pathlib import Path

import psycopg
import pytest
from azure.core.exceptions import ClientAuthenticationError
from integration.test_postgres_identity import Issuer, Teller, issuer, teller  # noqa: F401 -- fixtures
from new_postgres import new_postgres
from plugins_pg import PORT, Line, Network, Postgres
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

from leasehold.common.clock import BootClock
from leasehold.leases.errors import StoreAmbiguous, StoreConflict, StoreUnavailable
from leasehold.leases.host_record import HostRecord
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.session import Session
from leasehold.leases.store import TimedStore
from leasehold.leases.stores.postgres import LeaseTable, PostgresAddress, PostgresStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.spark.master import roomy_shm

ID = "orders/leases/0"
TIMEOUT_S = 5.0


def store_at(dsn: str, *, call_timeout_s: float = TIMEOUT_S, **place: object) -> PostgresStore:
    address = PostgresAddress(**{"dsn": dsn, "table": LeaseTable(), **place})  # type: ignore[arg-type]
    return PostgresStore(address, call_timeout_s=call_timeout_s)


@pytest.fixture
async def store(postgres_network: Network) -> AsyncIterator[PostgresStore]:
    """By way of the network."""
    store = store_at(postgres_network.dsn)
    await store.list("")
    yield store
    await store.close()


@pytest.fixture
async def other(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    """Another host's, undisturbed."""
    store = store_at(postgres.dsn)
    yield store
    await store.close()


class Writes:
    """Does something to each message that has a write, and counts them."""

    def __init__(self, network: Network, what: str) -> None:
        self.count = 0
        self._what = what
        network.before = self._before

    async def _before(self, line: Line, message: bytes) -> None:
        if not any(word in message for word in (b"UPDATE", b"INSERT", b"DELETE")):
            return
        self.count += 1
        if self._what == "lose the answer":
            line.lose_replies()
        elif self._what == "lose the write":
            line.cut()
        elif self._what == "stall":
            await asyncio.Event().wait()


# Writes


@pytest.mark.parametrize("what", ["lose the answer", "lose the write", "stall"])
async def test_a_write_without_an_answer_is_in_doubt_and_is_not_sent_again(
    store: PostgresStore, other: PostgresStore, postgres_network: Network, what: str
) -> None:
    etag = await store.create(ID, '{"tick":1}')
    writes = Writes(postgres_network, what)
    with pytest.raises(StoreAmbiguous, match=r"replacing 'orders/leases/0' (was sent, and|got no answer)"):
        await store.replace(ID, '{"tick":2}', etag)
    assert writes.count == 1
    assert ((await other.read(ID)).etag != etag) == (what == "lose the answer")
    postgres_network.before = None
    assert await store.read(ID) == await other.read(ID)


@pytest.mark.parametrize("what", ["lose the answer", "lose the write"])
async def test_whoever_takes_a_lease_finds_out_whether_it_has_it(
    store: PostgresStore, other: PostgresStore, postgres_network: Network, what: str
) -> None:
    clock, timing, timed = BootClock(), Timing(), TimedStore(store, TIMEOUT_S)
    session = Session(timed, HostRecord(name="a", incarnation="1"), clock=clock, timing=timing)
    await session.open()
    keeper = Keeper(timed, host="a", incarnation="1", clock=clock, timing=timing, session=session)
    await keeper.create(Lease(pipeline="orders", partition="0"))
    seen = await keeper.read("orders", "0")
    writes = Writes(postgres_network, what)
    owned = await keeper.take(seen, lambda state: state)
    assert writes.count == 1
    if what == "lose the write":
        assert owned is None
        return
    postgres_network.before = None
    assert owned is not None
    await owned.checkpoint("5", "")
    await owned.release()
    lease = (await Keeper(other, host="b", incarnation="2", clock=clock, timing=timing).read("orders", "0")).lease
    assert (lease.continuation, lease.owner, lease.epoch) == ("5", None, 1)


async def test_every_call_is_one_message_with_its_settings(store: PostgresStore, postgres_network: Network) -> None:
    """So neither its settings nor its transaction cost a round trip."""
    etag = await store.create(ID, '{"tick":1}')
    messages: list[bytes] = []

    async def before(line: Line, message: bytes) -> None:
        messages.append(message)

    postgres_network.before = before
    calls = [
        lambda: store.replace(ID, '{"tick":2}', etag),
        lambda: store.create("orders/leases/1", "{}"),
        lambda: store.read(ID),
        lambda: store.list(""),
        lambda: store.read_changes(""),
    ]
    for count, call in enumerate(calls, 1):
        await call()
        assert [message[:5] for message in messages] == [b"QSET "] * count


async def test_a_write_cut_after_its_message_happens_once_or_not_at_all(
    store: PostgresStore, other: PostgresStore, postgres_network: Network
) -> None:
    etag = await store.create(ID, '{"tick":1}')

    async def before(line: Line, message: bytes) -> None:
        if b"UPDATE" in message:
            line.forward(message[:1] + (len(message) + 3).to_bytes(4, "big") + message[1:])
            line.cut()

    postgres_network.before = before
    with pytest.raises(StoreAmbiguous):
        await store.replace(ID, '{"tick":2}', etag)
    postgres_network.before = None
    now = await other.read(ID)
    assert now.body in ('{"tick":1}', '{"tick":2}')
    if now.etag != etag:
        with pytest.raises(StoreConflict):
            await store.replace(ID, '{"tick":3}', etag)
    else:
        await store.replace(ID, '{"tick":3}', etag)


# Servers that go away


async def test_connections_that_a_restart_has_cut_are_replaced_without_an_error(postgres: Postgres) -> None:
    store = store_at(postgres.dsn)
    etags = await asyncio.gather(*(store.create(f"orders/leases/{number}", "{}") for number in range(6)))
    postgres.stop()
    postgres.start()
    for number, etag in enumerate(etags):
        await store.replace(f"orders/leases/{number}", "{}", etag)
    await store.close()


async def test_a_server_that_is_down_has_carried_out_nothing(postgres: Postgres) -> None:
    store = store_at(postgres.dsn)
    etag = await store.create(ID, "{}")
    begun = await store.read_changes("")
    assert begun is not None
    postgres.stop()
    try:
        for call in (
            store.replace(ID, "{}", etag),
            store.create(ID + "1", "{}"),
            store.delete(ID, etag),
            store.read(ID),
            store.list(""),
            store.count(""),
            store.read_changes("", begun.token),
        ):
            with pytest.raises(StoreUnavailable, match="cannot be reached"):
                await call
    finally:
        postgres.start()
    assert [each.etag for each in await store.list("")] == [etag]
    assert await store.read_changes("", begun.token) is None, "another server may count transactions from the start"
    await store.close()


async def test_a_read_whose_connection_is_cut_is_sent_again(store: PostgresStore, postgres_network: Network) -> None:
    etag = await store.create(ID, "{}")
    reads = 0

    async def before(line: Line, message: bytes) -> None:
        nonlocal reads
        if b"document.id = " in message:
            reads += 1
            if reads == 1:
                line.cut()

    postgres_network.before = before
    assert (await store.read(ID)).etag == etag
    assert reads == 2


async def test_a_cancelled_call_frees_its_connection_at_once(store: PostgresStore, postgres_network: Network) -> None:
    etag = await store.create(ID, "{}")
    for _ in range(8):  # more than there are connections
        Writes(postgres_network, "stall")
        with pytest.raises(StoreAmbiguous):
            await TimedStore(store, 0.05).replace(ID, "{}", etag)
    postgres_network.before = None
    assert await store.replace(ID, "{}", etag) != etag


# Replicas


@pytest.fixture(scope="module")
def standby() -> Iterator[str]:
    """The directory of the socket of a server in recovery."""
    directory = Path(tempfile.mkdtemp(prefix="leasehold-standby-", dir=roomy_shm()))
    server = new_postgres(directory / "data")
    server.stop()
    (directory / "data" / "standby.signal").touch()
    shutil.chown(directory / "data" / "standby.signal", (directory / "data").owner(), (directory / "data").group())
    server.ensure_postgres_running()
    yield str(server.get_postmaster_info().socket_dir)
    server.cleanup()
    shutil.rmtree(directory, ignore_errors=True)


def dsn_of(directory: str, **more: str) -> str:
    return make_conninfo(host=directory, port=PORT, user="postgres", dbname="postgres", **more)


@pytest.mark.parametrize("wish", [{}, {"target_session_attrs": "any"}])
async def test_a_read_only_replica_is_refused(standby: str, wish: dict[str, str]) -> None:
    store = store_at(dsn_of(standby, **wish))
    for call in (store.list(""), store.create(ID, "{}")):
        with pytest.raises(
            StoreUnavailable,
            match=r"(is a read-only replica .*|takes no writes: its sessions are read-only): name the primary in `dsn`",
        ):
            await call
    await store.close()


@pytest.mark.parametrize("is_first", [True, False])
async def test_a_primary_that_is_down_is_not_called_a_replica(standby: str, is_first: bool) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        servers = [(standby, str(PORT)), ("127.0.0.1", str(closed.getsockname()[1]))]
        if not is_first:
            servers.reverse()
        hosts, ports = (",".join(each) for each in zip(*servers, strict=True))
        store = store_at(make_conninfo(host=hosts, port=ports, user="postgres", dbname="postgres", password="s3cret"))
        with pytest.raises(StoreUnavailable, match=r"cannot be reached: .*session is read-only") as unavailable:
            await store.list("")
        await store.close()
    assert "Connection refused" in str(unavailable.value)
    assert "read-only replica" not in str(unavailable.value)
    assert "s3cret" not in str(unavailable.value)


async def test_of_several_servers_the_primary_is_used(standby: str, postgres: Postgres) -> None:
    """Both have the database, so only their roles distinguish them."""
    dsn = make_conninfo(host=f"{standby},{postgres.socket_dir}", port=PORT, user="postgres", dbname="postgres")
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
    store = store_at(dsn, table=LeaseTable(name=postgres.name))
    await store.create(ID, "{}")
    await store.close()
    with psycopg.connect(dsn_of(postgres.socket_dir), autocommit=True) as connection:
        assert connection.execute(f"SELECT id FROM {postgres.name}").fetchall() == [(ID,)]
        connection.execute(f"DROP TABLE {postgres.name}")


async def test_a_pooler_that_leads_to_a_replica_later_is_noticed_by_every_read(
    store: PostgresStore, standby: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection was made to the primary, and is one to the replica now."""
    await store.create(ID, "{}")
    begun = await store.read_changes("")
    assert begun is not None
    replica = await psycopg.AsyncConnection.connect(dsn_of(standby), autocommit=True)
    await replica.execute("SELECT set_config('search_path', 'pg_catalog', false)")
    for statement in ("_listed", "_found", "_counted", "_now", "_changed"):
        text = getattr(store, statement).as_string(replica).replace('"public"."leasehold_leases"', TABLE_OF_NONE)
        monkeypatch.setattr(store, statement, SQL(text))
    store._server._idle[:] = [(inf, replica)]
    for call in (
        lambda: store.list(""),
        lambda: store.read(ID),
        lambda: store.count(""),
        lambda: store.read_changes(""),
        lambda: store.read_changes("", begun.token),
    ):
        if replica.closed:
            replica = await psycopg.AsyncConnection.connect(dsn_of(standby), autocommit=True)
        store._server._idle[:] = [(inf, replica)]
        with pytest.raises(StoreUnavailable, match=r"is a read-only replica \(it is in recovery\)"):
            await call()
        assert not store._server._idle


TABLE_OF_NONE = (
    "(SELECT NULL::text AS id, NULL::json AS body, NULL::uuid AS version, NULL::xid8 AS changed_in WHERE false)"
)
"""The replica of the tests has no table of leases."""


# Access tokens


async def test_new_connections_get_the_newest_token(
    postgres: Postgres,
    teller: Teller,
    issuer: Issuer,
) -> None:
    place = PostgresAddress(dsn=teller.dsn, table=LeaseTable(), identity="default")
    store = PostgresStore(place, credential=issuer)
    await store.list("")
    issuer.token = "token-2"
    teller.takes("token-2")
    teller.cut()
    with pytest.raises(StoreUnavailable, match=r"refused the access token: .*belongs to this `identity`") as refused:
        await store.create(ID, "{}")
    assert "token-" not in str(refused.value)
    await store.create(ID, "{}")
    issuer.error = ClientAuthenticationError("az login has expired")
    teller.cut()
    await store.read(ID)  # a token that holds is used on
    await store.close()


async def test_without_a_token_the_error_says_so(teller: Teller, issuer: Issuer) -> None:
    issuer.error = ClientAuthenticationError("az login has expired")
    store = PostgresStore(PostgresAddress(dsn=teller.dsn, table=LeaseTable(), identity="default"), credential=issuer)
    with pytest.raises(StoreUnavailable, match=r"there is no access token \(az login has expired\): log in"):
        await store.list("")
    await store.close()


# Servers that cannot be


@pytest.mark.parametrize(
    ("dsn", "why"),
    [
        ("host=127.0.0.1 port=1 dbname=bank", r"127.0.0.1:1/bank cannot be reached: .*refused"),
        (
            "host=nowhere.invalid dbname=bank",
            r"nowhere.invalid:5432/bank cannot be reached: .*check the host in `dsn`",
        ),
    ],
)
async def test_a_server_that_is_not_there_is_named(dsn: str, why: str) -> None:
    store = store_at(f"{dsn} user=u password=geheim")
    with pytest.raises(StoreUnavailable, match=why) as caught:
        await store.list("")
    assert "geheim" not in str(caught.value)
    await store.close()


async def test_a_database_that_does_not_exist_is_a_wrong_setting(postgres: Postgres) -> None:
    store = store_at(postgres.dsn_of("postgres") + " dbname=nowhere")
    with pytest.raises(StoreUnavailable, match=r"refused the connection: .*does not exist.*: correct `dsn`"):
        await store.list("")
    await store.close()
