"""Leases in a real PostgreSQL: the promises of a store, the table that it makes, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
import yaml
from patience import until_async
from plugins_pg import Postgres
from psycopg.sql import SQL

from leasehold.leases.contract import LeaseStoreContract
from leasehold.leases.document import BODY_BYTES_MAX, decode_lease, encode_lease, lease_id
from leasehold.leases.errors import InvalidDocument, StoreConflict, StoreMissing, StoreUnavailable
from leasehold.leases.lease import Lease
from leasehold.leases.store import LeaseStore
from leasehold.leases.stores.postgres import PostgresAddress, PostgresStore
from leasehold.leases.stores.postgres.table import LeaseTable, settings
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

ID = "orders/leases/0"
PAGE = Path(__file__).parents[2] / "docs" / "leases-postgres.md"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable()))
    yield store
    await store.close()


class TestPostgresStore(LeaseStoreContract):
    @pytest.fixture
    async def store(self, postgres: Postgres) -> AsyncIterator[LeaseStore]:
        store = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable()))
        yield store
        await store.close()

    @pytest.fixture
    async def other(self, store: LeaseStore, postgres: Postgres) -> AsyncIterator[LeaseStore]:
        other = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable()))
        yield other
        await other.close()


async def opened(postgres: Postgres, **place: object) -> PostgresStore:
    return PostgresStore(PostgresAddress(**{"dsn": postgres.dsn, "table": LeaseTable(), **place}))  # type: ignore[arg-type]


# The table


async def test_hosts_that_start_together_make_the_table_once(postgres: Postgres) -> None:
    stores = [PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable())) for _ in range(8)]
    try:
        assert await asyncio.gather(*(each.list("") for each in stores)) == [[]] * 8
    finally:
        await asyncio.gather(*(each.close() for each in stores))
    assert postgres.fetch("SELECT obj_description('public.leasehold_leases'::regclass)") == [
        ("leasehold leases, version 1",)
    ]


@pytest.mark.parametrize("table", ['odd "name"', "x" * 63, "Größe"])
async def test_names_of_schema_and_table_are_quoted(postgres: Postgres, table: str) -> None:
    postgres.fetch("CREATE SCHEMA \"a.b 'c'\"")
    store = await opened(postgres, table=LeaseTable("a.b 'c'", table))
    try:
        etag = await store.create(ID, "{}")
        assert (await store.read(ID)).etag == etag
    finally:
        await store.close()
    assert postgres.fetch(
        "SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE relkind = 'r' AND nspname NOT IN ('pg_catalog', 'information_schema')"
    ) == [("a.b 'c'", table)]


@pytest.mark.parametrize(("on_windows", "interval"), [(False, "1s"), (True, "0")])
async def test_a_server_looks_for_lost_clients_if_it_can(postgres: Postgres, on_windows: bool, interval: str) -> None:
    if on_windows:
        postgres.act_as_on_windows()
    store = await opened(postgres)
    try:
        etag = await store.create(ID, "{}")
        assert (await store.read(ID)).etag == etag
    finally:
        await store.close()
    connection = await psycopg.AsyncConnection.connect(postgres.dsn, autocommit=True)
    async with connection:
        message = settings(statement_s=1, lock_s=1) + SQL("SELECT current_setting('client_connection_check_interval')")
        cursor = await connection.execute(message)
        while cursor.nextset():
            pass
        assert await cursor.fetchone() == (interval,)


async def test_two_tables_hold_two_groups(postgres: Postgres) -> None:
    one, two = await opened(postgres), await opened(postgres, table=LeaseTable(name="others"))
    try:
        await one.create(ID, "{}")
        assert await two.list("") == []
    finally:
        await one.close()
        await two.close()


async def test_a_command_makes_no_table(postgres: Postgres) -> None:
    store = await opened(postgres, creates=False)
    try:
        with pytest.raises(StoreMissing, match=r"no leases yet in the table 'public.leasehold_leases'"):
            await store.list("")
        host = await opened(postgres)
        await host.create(ID, "{}")
        await host.close()
        assert [each.id for each in await store.list("")] == [ID]
    finally:
        await store.close()


async def test_a_role_that_may_not_create_needs_only_the_table(postgres: Postgres) -> None:
    role = f"role_{postgres.name}"
    postgres.fetch(f"CREATE ROLE {role} LOGIN; REVOKE CREATE ON SCHEMA public FROM public")
    try:
        store = await opened(postgres, dsn=postgres.dsn_of(role))
        with pytest.raises(
            StoreUnavailable, match=r"could not be made.*permission denied for schema.*grant this role CREATE"
        ):
            await store.list("")
        owner = await opened(postgres)
        await owner.list("")
        with pytest.raises(StoreUnavailable, match=r"permission denied for table.*grant this role SELECT"):
            await store.list("")
        postgres.fetch(f"GRANT SELECT, INSERT, UPDATE, DELETE ON leasehold_leases TO {role}")
        etag = await store.create(ID, "{}")
        await store.delete(ID, await store.replace(ID, "{}", etag))
        await store.close()
        await owner.close()
    finally:
        postgres.fetch(f"DROP OWNED BY {role}; DROP ROLE {role}")


async def test_the_table_that_the_documentation_has_is_the_one_that_hosts_make(postgres: Postgres) -> None:
    columns = (
        "SELECT attname, format_type(atttypid, atttypmod), attnotnull, pg_get_expr(adbin, adrelid), attcollation"
        " FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum"
        " WHERE attrelid = 'leasehold_leases'::regclass AND attnum > 0 ORDER BY attnum"
    )
    table = (
        "SELECT obj_description(oid), reloptions, (SELECT array_agg(pg_get_indexdef(indexrelid) ORDER BY 1) FROM pg_index"
        " WHERE indrelid = pg_class.oid) FROM pg_class WHERE oid = 'leasehold_leases'::regclass"
    )
    store = await opened(postgres)
    await store.list("")
    await store.close()
    made = postgres.fetch(columns), postgres.fetch(table)
    postgres.fetch("DROP TABLE leasehold_leases")
    create, *_ = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    postgres.fetch("\n".join(line for line in create.splitlines() if not line.startswith("GRANT")))
    assert (postgres.fetch(columns), postgres.fetch(table)) == made


async def test_the_query_of_the_documentation_counts_each_owners_leases(
    postgres: Postgres, store: PostgresStore
) -> None:
    for number, owner in enumerate(("a", "b", "a", None)):
        await store.create(f"orders/leases/{number}", json.dumps({"owner": owner}))
    await store.create("_hosts/a", '{"owner": "nobody"}')
    _, query, *_ = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert postgres.fetch(query) == [("a", 2), ("b", 1), (None, 1)]


@pytest.fixture
def chart_query() -> str:
    """The query over leases that the page about the chart shows."""
    page = (PAGE.parent / "kubernetes.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```yaml\n(autoscaling:\n  by: postgres\n.*?)```", page, re.DOTALL)
    return str(yaml.safe_load(example)["autoscaling"]["postgres"]["query"])


async def test_the_query_of_the_chart_counts_what_is_behind_the_positions(
    postgres: Postgres, store: PostgresStore, chart_query: str
) -> None:
    query = chart_query
    await store.list("")
    postgres.fetch("CREATE TABLE outbox (id bigint); INSERT INTO outbox SELECT generate_series(1, 10)")
    assert postgres.fetch(query) == [(10,)], "before the first host has created a lease"
    leases = [
        Lease(pipeline="balances", partition="0", continuation="7"),
        Lease(pipeline="balances", partition="1", continuation="2", closed=True),
        Lease(pipeline="others", partition="0", continuation="1"),
    ]
    for lease in leases:
        await store.create(lease_id(*lease.key), encode_lease(lease))
    await store.create("_hosts/a", "{}")
    assert postgres.fetch(query) == [(3,)]
    unread = Lease(pipeline="balances", partition="2")
    await store.create(lease_id(*unread.key), encode_lease(unread))
    assert postgres.fetch(query) == [(10,)], "nothing of this partition was read yet"


async def test_the_query_of_the_chart_reads_leases_that_hosts_wrote(
    postgres: Postgres, store: PostgresStore, chart_query: str
) -> None:
    postgres.fetch("CREATE TABLE outbox (id bigint); INSERT INTO outbox SELECT generate_series(1, 10)")
    feed, destination = MemoryChangeFeed(["0", "1"]), MemoryDestination()

    async def process(host: str, *events: int) -> None:
        pipeline = PipelineParts(
            name="balances", feed=feed, sink=MemoryOutputSink(destination), transform=NoTransform()
        )
        processor = ProcessorCore([pipeline], await opened(postgres), host=host)
        await processor.start()
        try:
            await until_async(
                lambda: len(processor.host.workers) == 2 and [len(destination.rows(each)) for each in "01"] == [*events]
            )
        finally:
            await processor.stop()

    feed.append("0", [b""] * 7)
    await process("a", 7, 0)
    assert {each.id: json.loads(each.body)["continuation"] for each in await store.list("balances/leases/")} == {
        "balances/leases/0": "7",
        "balances/leases/1": None,
    }
    assert postgres.fetch(chart_query) == [(10,)], "nothing of partition 1 was read yet"
    feed.append("1", [b""] * 4)
    await process("b", 7, 4)
    assert postgres.fetch(chart_query) == [(6,)]
    feed.append("0", [b""] * 3)
    feed.append("1", [b""] * 6)
    await process("c", 10, 10)
    assert postgres.fetch(chart_query) == [(0,)]


async def test_a_table_of_others_is_left_alone(postgres: Postgres) -> None:
    postgres.fetch("CREATE TABLE leasehold_leases (id text PRIMARY KEY, body text, version int)")
    store = await opened(postgres)
    with pytest.raises(StoreUnavailable, match=r"is not one of leases, because it lacks the comment"):
        await store.create(ID, "{}")
    await store.close()


async def test_a_table_of_a_newer_version_is_left_alone(postgres: Postgres, store: PostgresStore) -> None:
    await store.list("")
    postgres.fetch("COMMENT ON TABLE leasehold_leases IS 'leasehold leases, version 2'")
    other = await opened(postgres)
    with pytest.raises(
        StoreUnavailable, match=r"by a newer Leasehold .version 2 of the table; this one knows 1.: upgrade"
    ):
        await other.list("")
    await other.close()


async def test_a_table_that_is_dropped_is_reported_and_made_again(postgres: Postgres, store: PostgresStore) -> None:
    await store.create(ID, "{}")
    postgres.fetch("DROP TABLE leasehold_leases")
    with pytest.raises(StoreUnavailable, match=r"was dropped while hosts use it"):
        await store.read(ID)
    assert await store.list("") == []


async def test_a_missing_schema_is_named(postgres: Postgres) -> None:
    store = await opened(postgres, table=LeaseTable("nowhere"))
    with pytest.raises(
        StoreUnavailable, match=r"'nowhere.leasehold_leases' of leases could not be made.*create the schema"
    ):
        await store.list("")
    await store.close()


async def test_a_lock_that_keeps_the_table_from_being_made_is_to_be_looked_for(postgres: Postgres) -> None:
    store = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable()), call_timeout_s=7.0)
    with closing(psycopg.connect(postgres.dsn)) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended('leasehold leases public.leasehold_leases', 0))")
        with pytest.raises(StoreUnavailable, match=r"could not be made: 55P03.*advisory lock.*pg_locks"):
            await store.list("")
    assert await store.list("") == []
    await store.close()


async def test_a_database_whose_sessions_are_read_only_is_not_called_a_replica(postgres: Postgres) -> None:
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET default_transaction_read_only = on")
    store = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable()))
    with pytest.raises(StoreUnavailable, match=r"takes no writes: .*default_transaction_read_only"):
        await store.list("")
    await store.close()


async def test_a_database_in_another_encoding_is_refused(postgres: Postgres) -> None:
    name = f"{postgres.name}_latin"
    postgres.fetch(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        store = await opened(postgres, dsn=Postgres(postgres.server, name).dsn)
        with pytest.raises(StoreUnavailable, match=r"encoding LATIN1.*ENCODING 'UTF8'"):
            await store.list("")
        await store.close()
    finally:
        postgres.fetch(f"DROP DATABASE {name} WITH (FORCE)")


# What a connection brings


async def test_a_document_that_is_edited_by_hand_has_to_be_json_and_gets_a_new_version(
    postgres: Postgres, store: PostgresStore
) -> None:
    etag = await store.create(ID, '{"tick":1}')
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        postgres.fetch("UPDATE leasehold_leases SET body = '{\"tick\":'")
    postgres.fetch("DELETE FROM leasehold_leases")
    postgres.fetch("INSERT INTO leasehold_leases (id, body) VALUES (%s, %s)", ID, '{"tick":2}')
    with pytest.raises(StoreConflict):
        await store.replace(ID, "{}", etag)
    assert json.loads((await store.read(ID)).body) == {"tick": 2}


async def test_of_a_document_that_is_too_large_only_enough_is_read_to_refuse_it(
    postgres: Postgres, store: PostgresStore
) -> None:
    whole = Lease(pipeline="orders", partition="0", epoch=1)
    await store.create(ID, encode_lease(whole))
    token = await store.read_changes("orders/")
    assert token is not None
    huge = f'{{"more":"{"x" * 3_000_000}"}}'
    postgres.fetch("UPDATE leasehold_leases SET body = %s, changed_in = pg_current_xact_id()", huge)
    changed = await store.read_changes("orders/", token.token)
    assert changed is not None
    for found in (await store.read(ID), *await store.list(""), *changed.documents):
        assert len(found.body) == BODY_BYTES_MAX + 1
        with pytest.raises(InvalidDocument, match=f"document '{ID}' is larger than {BODY_BYTES_MAX} bytes"):
            decode_lease(found.id, found.body)


SETTINGS = ("synchronous_commit", "transaction_isolation", "statement_timeout", "lock_timeout")
RECORDING = """
    CREATE TABLE recorded (settings text[]);
    CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO recorded SELECT array_agg(current_setting(name) ORDER BY number)
        FROM unnest({names}) WITH ORDINALITY AS s (name, number);
      RETURN NULL;
    END $$;
    CREATE TRIGGER record AFTER INSERT OR UPDATE OR DELETE ON leasehold_leases FOR EACH ROW EXECUTE FUNCTION record()
"""
"""Each write of a lease notes the settings under which it is committed."""


async def test_a_write_waits_for_the_disk_and_has_bounds_on_whatever_server_connection_it_gets(
    postgres: Postgres,
) -> None:
    """A pooler in transaction mode may run each transaction on another one, which has the settings of the role."""
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET synchronous_commit = off")
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET default_transaction_isolation = serializable")
    store = await opened(postgres)
    await store.list("")
    postgres.fetch(RECORDING.format(names=f"ARRAY{[*SETTINGS]}"))

    async def reset() -> None:
        await store._server._idle[-1][1].execute("DISCARD ALL")

    await reset()
    etag = await store.create(ID, '{"tick":1}')
    await reset()
    etag = await store.replace(ID, '{"tick":2}', etag)
    await reset()
    await store.delete(ID, etag)
    usual = [await (await store._server._idle[-1][1].execute(f"SHOW {name}".encode())).fetchone() for name in SETTINGS]
    await store.close()
    assert postgres.fetch("SELECT settings FROM recorded") == [(["on", "read committed", "4500ms", "2250ms"],)] * 3
    assert usual == [("off",), ("serializable",), ("0",), ("0",)], "nothing stays for the next client of the connection"


@pytest.mark.parametrize(("usual", "used"), [("local", "on"), ("remote_write", "remote_write"), ("on", "on")])
async def test_a_commit_that_a_role_already_waits_for_stays_as_it_is(postgres: Postgres, usual: str, used: str) -> None:
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET synchronous_commit = {usual}")
    store = await opened(postgres)
    assert await store._server.fetch("looking", SQL("SELECT current_setting('synchronous_commit')").format(), ()) == [
        (used,)
    ]
    await store.close()


async def test_connections_are_bounded_and_one_is_left_for_heartbeats(postgres: Postgres) -> None:
    store = await opened(postgres, connections_max=3)
    await store.create(ID, "{}")
    await store.create("_sessions/a", "{}")
    with closing(psycopg.connect(postgres.dsn)) as other:
        other.execute("UPDATE leasehold_leases SET body = body WHERE id = %s", (ID,))
        version = (await store.read(ID)).etag
        writes = [asyncio.create_task(store.replace(ID, "{}", version)) for _ in range(20)]
        await until_async(lambda: postgres.fetch(WAITING) == [(2,)])
        beat = await store.read("_sessions/a")
        await store.replace("_sessions/a", "{}", beat.etag)
        assert not any(each.done() for each in writes)
        [(connections,)] = postgres.fetch(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leasehold leases'"
        )
        assert connections == 3
        other.rollback()
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert sum(isinstance(each, str) for each in outcomes) == 1
    assert all(isinstance(each, StoreConflict) for each in outcomes if not isinstance(each, str))
    await store.close()


async def test_a_row_that_stays_locked_is_an_error_with_a_remedy_and_nobody_waits_at_the_server(
    postgres: Postgres,
) -> None:
    store = PostgresStore(PostgresAddress(dsn=postgres.dsn, table=LeaseTable()), call_timeout_s=7.0)
    etag = await store.create(ID, '{"tick":1}')
    with closing(psycopg.connect(postgres.dsn)) as other:
        other.execute("SELECT FROM leasehold_leases FOR UPDATE")
        with pytest.raises(StoreUnavailable, match=r"55P03.*look for an open transaction that holds it"):
            await store.replace(ID, '{"tick":2}', etag)
        assert postgres.fetch(WAITING) == [(0,)]
    assert (await store.read(ID)).etag == etag
    await store.close()


async def test_changes_committed_late_are_in_the_next_answer(postgres: Postgres, store: PostgresStore) -> None:
    """The first transaction to begin is the last to commit, as no order of numbers shows."""
    await store.list("")
    with closing(psycopg.connect(postgres.dsn)) as other:
        other.execute("INSERT INTO leasehold_leases (id, body) VALUES ('a/leases/late', '{}')")
        begun = await store.read_changes("a/leases/")
        assert begun is not None
        await store.create("a/leases/soon", "{}")
        first = await store.read_changes("a/leases/", begun.token)
        assert first is not None
        assert [each.id for each in first.documents] == ["a/leases/soon"]
        other.commit()
    second = await store.read_changes("a/leases/", first.token)
    assert second is not None
    assert [each.id for each in second.documents] == ["a/leases/late"]


async def test_a_long_transaction_elsewhere_repeats_nothing(postgres: Postgres, store: PostgresStore) -> None:
    await store.list("")
    with closing(psycopg.connect(postgres.dsn)) as other:
        other.execute("CREATE TABLE anything ()")
        begun = await store.read_changes("")
        assert begun is not None
        await store.create(ID, "{}")
        first = await store.read_changes("", begun.token)
        assert first is not None
        assert len(first.documents) == 1
        second = await store.read_changes("", first.token)
        assert second is not None
        assert not second.documents


async def test_changes_use_the_index(postgres: Postgres, store: PostgresStore) -> None:
    await store.list("")
    postgres.fetch(
        "INSERT INTO leasehold_leases (id, body) SELECT 'a/leases/' || n, '{}' FROM generate_series(1, 20000) n"
    )
    postgres.fetch("ANALYZE leasehold_leases")
    begun = await store.read_changes("a/leases/")
    assert begun is not None
    snapshot = begun.token.split()[0]
    with closing(psycopg.connect(postgres.dsn, autocommit=True)) as connection:
        query = store._changed.as_string(connection)
        plan = connection.execute(
            f"EXPLAIN {query}".encode(), (snapshot, snapshot, "a/leases/", "a/leases/\U0010ffff")
        ).fetchall()
    assert "leasehold_leases_changed_in" in str(plan), plan
