"""Leases in PostgreSQL behind a real PgBouncer, in both of the modes that docs/leases-postgres.md names.

Skipped without the program `pgbouncer`. What needs no PgBouncer is in test_postgres_leases.py: every transaction of a store has
its settings, whatever its server connection has.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import psycopg
import pytest
from patience import PATIENCE_S, until, until_async
from plugins_node import free_port
from plugins_pg import Postgres, directory_for_all
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

from leasehold.leases.contract import LeaseStoreContract
from leasehold.leases.errors import StoreUnavailable
from leasehold.leases.store import Hint, LeaseStore
from leasehold.leases.stores.postgres import PostgresAddress, PostgresStore
from leasehold.leases.stores.postgres.table import LeaseTable

SERVER_CONNECTIONS = 2
"""Of the pooler in transaction mode, for all clients."""
LOCK = 7
"""An advisory lock: transactions that wait for it keep their server connections."""
CALLS = 50
"""Many for each connection: drivers begin to prepare statements when they repeat, and a pooler may lend others' connections."""


@pytest.fixture(params=["session", "transaction"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pooled(postgres: Postgres, mode: str) -> Iterator[str]:
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is missing: install Debian's package pgbouncer")
    port = free_port()
    with directory_for_all() as folder:
        (folder / "users.txt").write_text('"postgres" ""\n')
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "trust",
            "auth_file": folder / "users.txt",
            "pool_mode": mode,
            "default_pool_size": SERVER_CONNECTIONS if mode == "transaction" else 20,
        }
        lines = [
            "[databases]",
            f"* = host={postgres.socket_dir}",
            "[pgbouncer]",
            *(f"{k} = {v}" for k, v in settings.items()),
        ]
        (folder / "pgbouncer.ini").write_text("\n".join(lines))
        process = subprocess.Popen(
            [program, *_user(postgres), str(folder / "pgbouncer.ini")], stderr=subprocess.PIPE, text=True
        )
        try:
            dsn = make_conninfo(host="127.0.0.1", port=port, user="postgres", dbname=postgres.name)
            until(lambda: process.poll() is not None or _answers(dsn), "PgBouncer answers")
            assert process.poll() is None, process.communicate()[1]
            yield dsn
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def _user(postgres: Postgres) -> list[str]:
    """It refuses to run as root. The user of PostgreSQL may use its socket."""
    return ["-u", postgres.data_dir.owner()] if os.getuid() == 0 else []


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


def opened(dsn: str, **place: str) -> PostgresStore:
    return PostgresStore(PostgresAddress(dsn=dsn, table=LeaseTable(), **place))


class TestPooledStore(LeaseStoreContract):
    @pytest.fixture
    async def store(self, pooled: str) -> AsyncIterator[LeaseStore]:
        store = opened(pooled)
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: LeaseStore, pooled: str) -> AsyncIterator[LeaseStore]:
        other = opened(pooled)
        yield other
        await other.close()


async def test_many_calls_share_the_server_connections(pooled: str) -> None:
    stores = [opened(pooled) for _ in range(4)]
    try:

        async def rewritten(number: int) -> int:
            store, name = stores[number % len(stores)], f"orders/leases/{number}"
            etag = await store.create(name, '{"count": 0}')
            for count in range(1, CALLS):
                etag = await store.replace(name, f'{{"count": {count}}}', etag)
            return len((await store.read(name)).body)

        assert await asyncio.gather(*map(rewritten, range(12))) == [len('{"count": 49}')] * 12
        assert len(await stores[0].list("orders/leases/")) == 12
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.fixture
def weak_defaults(postgres: Postgres) -> None:
    """Of connections that begin later, so of all that the pooler has."""
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET synchronous_commit = off")
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET default_transaction_isolation = serializable")


@pytest.mark.parametrize("mode", ["transaction"])
async def test_each_transaction_has_its_settings_on_every_server_connection_and_leaves_none(
    weak_defaults: None, pooled: str, postgres: Postgres
) -> None:
    store = opened(pooled)
    try:
        await store.list("")
        seen = await on_all_server_connections(
            postgres,
            lambda: store._server.fetch(
                "looking", SQL(f"{SETTINGS}, pg_advisory_xact_lock_shared({LOCK})").format(), ()
            ),
        )
        assert [row[1:5] for row in seen] == [("on", "read committed", "4500ms", "2250ms")] * SERVER_CONNECTIONS

        async def strange() -> list[tuple[object, ...]]:
            async with await psycopg.AsyncConnection.connect(pooled, autocommit=True) as other:
                cursor = await other.execute(f"{SETTINGS}, pg_advisory_xact_lock_shared({LOCK})".encode())
                return await cursor.fetchall()

        others = await on_all_server_connections(postgres, strange)
        assert {row[0] for row in others} == {row[0] for row in seen}, "they get the same server connections"
        assert [row[1:5] for row in others] == [("off", "serializable", "0", "0")] * SERVER_CONNECTIONS
    finally:
        await store.close()


SETTINGS = (
    "SELECT pg_backend_pid(), current_setting('synchronous_commit'), current_setting('transaction_isolation'),"
    " current_setting('statement_timeout'), current_setting('lock_timeout')"
)


async def on_all_server_connections(
    postgres: Postgres, call: Callable[[], Awaitable[list[tuple[object, ...]]]]
) -> list[tuple[object, ...]]:
    """One row of each: the calls hold them side by side, as each waits for the lock."""
    with psycopg.connect(postgres.dsn, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({LOCK})".encode())
        calls = [asyncio.ensure_future(call()) for _ in range(SERVER_CONNECTIONS)]
        await until_async(lambda: postgres.fetch(WAITING) == [(SERVER_CONNECTIONS,)])
        holder.execute(f"SELECT pg_advisory_unlock({LOCK})".encode())
        rows = [row for found in await asyncio.gather(*calls) for row in found]
    assert len({row[0] for row in rows}) == SERVER_CONNECTIONS
    return rows


WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND wait_event = 'advisory'"
    " AND datname = current_database()"
)


async def test_notifications_arrive_or_the_error_names_the_setting(pooled: str, mode: str, postgres: Postgres) -> None:
    hint = Hint("b", "orders")
    sender, direct = opened(pooled), opened(pooled, listen_dsn=postgres.dsn)
    try:
        if mode == "transaction":
            with pytest.raises(StoreUnavailable, match=r"pooler in transaction mode, .*: set `listen_dsn`"):
                await anext(sender.watch())
        for listener in (direct, *([sender] if mode == "session" else [])):
            hints = listener.watch()
            assert await anext(hints) == Hint()
            await sender.notify([hint])
            assert await anext(hints) == hint
            await hints.aclose()
    finally:
        await asyncio.gather(sender.close(), direct.close())
