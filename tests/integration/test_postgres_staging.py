"""The sink `postgres` with rows that executors staged: they count once, with the position, and only if the owner names them."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from patience import PATIENCE_S
from plugins_bank import (
    ACCOUNTS,
    BALANCES,
    DECISIVE,
    EXECUTORS_ENV,
    SETUP,
    Bank,
    Make,
    Open,
    at_the_end,
    claim,
    output,
    staged,
    write,
)
from plugins_pg import Line, Network, Postgres

from leasehold.pipeline.connectors.postgres import PostgresOutputSink, Timeouts
from leasehold.pipeline.connectors.postgres.staging_sql import staging_name
from leasehold.pipeline.connectors.postgres.writer import PostgresWriter
from leasehold.pipeline.dead_letters.record import dead_events
from leasehold.pipeline.errors import Ambiguous, Fenced, Poison, SinkRejected, SinkUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.sink import Output
from leasehold.pipeline.staging import NotStaged, StagedPart

LINES = "CREATE TABLE IF NOT EXISTS lines (id serial, n bigint)"
TABLES = "SELECT relname FROM pg_class WHERE relname ~ '^leasehold_staged' AND relkind = 'r' ORDER BY 1"
ALL_ACCOUNTS = pa.table({"account": ACCOUNTS, "value": [1] * len(ACCOUNTS)})


@pytest.fixture(autouse=True)
def variable(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


async def opened(sink: PostgresOutputSink, epoch: int = 1, partition: str = "0") -> PostgresWriter:
    await sink.prepare()
    return await sink.open(claim(epoch, partition))


@pytest.fixture
def lines(sink_of: Make) -> PostgresOutputSink:
    return sink_of(setup=LINES, table="lines", executors_env=EXECUTORS_ENV)


def tables_in(postgres: Postgres) -> list[str]:
    return [name for (name,) in postgres.fetch(TABLES)]


# What counts


@pytest.mark.parametrize(
    "target", [{"table": "lines"}, {"merge": "INSERT INTO lines (n) SELECT n FROM batch"}], ids=["table", "merge"]
)
async def test_rows_arrive_in_the_order_of_the_parts_and_within_each(
    postgres: Postgres, sink_of: Make, target: dict[str, Any]
) -> None:
    writer = await opened(sink_of(setup=LINES, executors_env=EXECUTORS_ENV, **target))
    found = await staged(writer, [numbers(7, 3), numbers(*range(200, 0, -1)), numbers(5)])
    last, middle, first = found.staged
    await writer.write(replace(found, staged=(first, middle, last)), Open())
    rows = postgres.fetch("SELECT n FROM lines ORDER BY id")
    assert [n for (n,) in rows] == [5, *range(200, 0, -1), 7, 3]
    assert writer.position == "1"


async def test_a_part_of_many_slices_arrives_whole_and_in_order(
    postgres: Postgres, lines: PostgresOutputSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.pipeline.connectors.postgres.stager.SLICE_BYTES", 1000)
    writer = await opened(lines)
    wanted = [*range(3000, 0, -1)]
    await writer.write(await staged(writer, [numbers(*wanted), numbers(-1)]), Open())
    assert [n for (n,) in postgres.fetch("SELECT n FROM lines ORDER BY id")] == [*wanted, -1]


async def test_a_part_that_fails_within_leaves_no_rows(
    postgres: Postgres, lines: PostgresOutputSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.pipeline.connectors.postgres.stager.SLICE_BYTES", 1000)
    writer = await opened(lines)
    with pytest.raises(SinkRejected, match="holds the character NUL"):
        await staged(writer, [pa.table({"text": [*["x" * 100] * 100, "\0"]})])
    assert postgres.fetch(f"SELECT count(*) FROM {staging_name(claim(), None)}") == [(0,)]


async def test_rows_of_a_part_arrive_by_their_sequences(postgres: Postgres, sink_of: Make) -> None:
    """Within a task, Spark may have them in any order, and with the columns in another order and other types."""
    setup = "CREATE TABLE IF NOT EXISTS lines (id serial, sequence bigint, n bigint)"
    writer = await opened(sink_of(setup=setup, table="lines", executors_env=EXECUTORS_ENV))
    columns = pa.schema([("sequence", pa.int64()), ("n", pa.int64())])
    stager = await writer.make_stager(None, columns)
    assert stager is not None
    table = pa.table({"n": pa.array([3, 1, 2], pa.int32()), "other": ["", "", ""], "sequence": [30, 10, 20]})
    part = await asyncio.to_thread(stager.stage, table, "x")
    await writer.write(Output(table=columns.empty_table(), start=None, to="1", events=3, staged=(part,)), Open())
    assert postgres.fetch("SELECT n FROM lines ORDER BY id") == [(1,), (2,), (3,)]


async def test_an_upsert_keeps_the_last_row_of_a_key_over_all_parts(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances", key=["account"], executors_env=EXECUTORS_ENV)
    writer = await opened(sink)
    await writer.write(output(pa.table({"account": ["a", "d"], "value": [100, 100]})), Open())
    one = pa.table({"account": ["b", "a", "b"], "value": [1, 2, 3]})
    two = pa.table({"account": ["c", "a", "a"], "value": [4, 6, 5]})
    found = await staged(writer, [two, one], "1", "2")
    await writer.write(replace(found, staged=found.staged[::-1]), Open())
    assert postgres.fetch("SELECT account, value FROM balances ORDER BY 1") == [
        ("a", 5),
        ("b", 3),
        ("c", 4),
        ("d", 100),
    ]


async def test_a_key_that_the_output_lacks_is_named_before_anything_is_staged(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances", key=["account"], executors_env=EXECUTORS_ENV)
    with pytest.raises(SinkRejected, match="no column 'account', which `key` names"):
        await (await opened(sink)).make_stager(None, numbers(1).schema)


async def test_a_merge_reads_the_table_that_it_always_reads_on_the_same_connection(
    postgres: Postgres, sink_of: Make
) -> None:
    """Several times, and by a system column, which a view would lack."""
    merge = """WITH last AS (SELECT DISTINCT ON (account) account, value FROM batch ORDER BY account, ctid DESC)
        INSERT INTO balances SELECT account, last.value + (SELECT count(*) FROM batch) FROM last ORDER BY account
        ON CONFLICT (account) DO UPDATE SET value = excluded.value"""
    writer = await opened(sink_of(setup=BALANCES, merge=merge, executors_env=EXECUTORS_ENV, connections_max=1))
    rows = pa.table({"account": ["a", "a"], "value": [1, 2]})
    more = rows.append_column("extra", pa.array(["x", "y"]))
    await writer.write(output(rows), Open())
    await writer.write(
        await staged(writer, [more, rows.append_column("extra", pa.array(["", None]))], "1", "2"), Open()
    )
    assert postgres.fetch("SELECT * FROM balances") == [("a", 6)]
    await writer.write(output(rows, "2", "3"), Open())
    assert postgres.fetch("SELECT * FROM balances") == [("a", 4)]


async def test_history_and_dead_letters_are_in_the_same_transaction(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=LINES, table="lines", executors_env=EXECUTORS_ENV, history=True, letters=True)
    writer = await opened(sink)
    now = datetime(2026, 1, 31, tzinfo=UTC)
    event = {"partition": "0", "sequence": 4, "offset": "", "enqueued_time": now, "body": b"?"}
    dead = dead_events(pa.Table.from_pylist([event], schema=EVENT_SCHEMA), [Poison(index=0, reason="bad")], now)
    found = replace(await staged(writer, [numbers(1), numbers(2)]), dead=dead)
    later = await sink.open(claim(2))
    with pytest.raises(Fenced):
        await writer.write(found, Open())
    assert postgres.fetch("SELECT sequence FROM leasehold_dead_letters") == []
    await later.write(replace(await staged(later, [numbers(1), numbers(2)]), dead=dead), Open())
    assert postgres.fetch("SELECT sequence FROM leasehold_dead_letters") == [(4,)]
    assert postgres.fetch('SELECT epoch, "from", "to" FROM leasehold_history') == [(2, None, "1")]


async def test_large_output_that_is_not_for_executors_comes_through_the_host(sink_of: Make) -> None:
    without = await opened(sink_of(setup=LINES, table="lines"))
    assert await without.make_stager(None, numbers(1).schema) is None
    taken = pa.schema([("leasehold_part", pa.string())])
    with_names = await opened(sink_of(setup=LINES, table="lines", executors_env=EXECUTORS_ENV), partition="1")
    assert await with_names.make_stager(None, taken) is None


# What does not count


async def test_a_table_that_was_not_needed_is_dropped_and_that_of_the_next_batch_stays(
    postgres: Postgres, lines: PostgresOutputSink
) -> None:
    writer = await opened(lines)
    columns = numbers(1).schema
    assert await writer.make_stager(None, columns) is not None
    assert await writer.make_stager("1", columns) is not None
    first, second = tables_in(postgres)
    await writer.write(Output(table=numbers(1), start=None, to="1", events=1), Open())
    (left,) = tables_in(postgres)
    assert left in (first, second)
    await writer.write(Output(table=numbers(2), start="1", to="2", events=1), Open())
    assert tables_in(postgres) == []
    assert postgres.fetch("SELECT n FROM lines ORDER BY id") == [(1,), (2,)]


async def test_an_executor_of_an_earlier_owner_finds_no_table(postgres: Postgres, lines: PostgresOutputSink) -> None:
    older = await opened(lines)
    stager = await older.make_stager(None, numbers(1).schema)
    assert stager is not None
    await lines.open(claim(2))
    with pytest.raises(SinkRejected, match=r"staging rows in `leasehold_staged_.*42P01"):
        await asyncio.to_thread(stager.stage, numbers(1), "late")
    assert tables_in(postgres) == []


@pytest.mark.parametrize(("end", "is_stored"), [(b"c", False), (b"QCOMMIT", False), (b"QCOMMIT", True)])
async def test_a_part_whose_answer_is_lost_is_staged_again_under_another_name(
    postgres: Postgres,
    lines: PostgresOutputSink,
    postgres_network: Network,
    monkeypatch: pytest.MonkeyPatch,
    end: bytes,
    is_stored: bool,
) -> None:
    writer = await opened(lines)
    monkeypatch.setenv(EXECUTORS_ENV, postgres_network.dsn)

    async def before(line: Line, message: bytes) -> None:
        if message.startswith(end):  # of the rows, or of the transaction
            postgres_network.before = None
            if is_stored:
                line.lose_replies()
            else:
                line.cut()

    postgres_network.before = before
    with pytest.raises(SinkUnavailable, match=r"staging rows in `.*the connection was lost"):
        await staged(writer, [numbers(1)])
    assert postgres.fetch(f"SELECT count(*) FROM {staging_name(claim(), None)}") == [(int(is_stored),)]
    await writer.write(await staged(writer, [numbers(1)]), Open())
    assert postgres.fetch("SELECT n FROM lines") == [(1,)]


@pytest.mark.parametrize("loss", ["DELETE FROM {} WHERE n = 1", "TRUNCATE {}", "DROP TABLE {}"])
@pytest.mark.parametrize("target", [{"table": "lines"}, {"merge": "INSERT INTO lines (n) SELECT n FROM batch"}])
async def test_staged_rows_that_a_crash_of_the_server_lost_are_processed_again(
    postgres: Postgres, sink_of: Make, loss: str, target: dict[str, str]
) -> None:
    """A table without a log is empty after a crash. The position must not move over its rows."""
    writer = await opened(sink_of(setup=LINES, executors_env=EXECUTORS_ENV, **target))
    found = await staged(writer, [numbers(1), numbers(2)])
    postgres.fetch(loss.format(staging_name(claim(), None)))
    with pytest.raises(SinkUnavailable, match="has lost rows that executors staged"):
        await writer.write(found, Open())
    assert (postgres.fetch("SELECT n FROM lines"), writer.position) == ([], None)
    await writer.write(await staged(writer, [numbers(3)]), Open())
    assert postgres.fetch("SELECT n FROM lines") == [(3,)]


async def test_a_table_that_a_user_s_merge_lacks_is_not_taken_for_staged_rows(
    postgres: Postgres, sink_of: Make
) -> None:
    writer = await opened(sink_of(setup=LINES, table="lines", executors_env=EXECUTORS_ENV))
    found = await staged(writer, [numbers(1)])
    postgres.fetch("DROP TABLE lines")
    with pytest.raises(SinkRejected, match=r'42P01 relation "public\.lines"'):
        await writer.write(found, Open())


@pytest.mark.parametrize("is_applied", [False, True])
async def test_a_commit_whose_answer_is_lost_is_in_doubt_and_the_position_decides(
    postgres: Postgres, sink_of: Make, postgres_network: Network, is_applied: bool
) -> None:
    sink = sink_of(dsn=postgres_network.dsn, setup=LINES, table="lines", executors_env=EXECUTORS_ENV)
    writer = await opened(sink)
    found = await staged(writer, [numbers(1), numbers(2)])

    async def interfere(line: Line) -> None:
        if is_applied:
            line.lose_replies()
        else:
            line.cut()

    at_the_end(postgres_network, interfere)
    with pytest.raises(Ambiguous):
        await writer.write(found, Open())
    heir = await sink.open(claim(2))
    assert heir.position == ("1" if is_applied else None)
    assert tables_in(postgres) == []
    if not is_applied:
        with pytest.raises(NotStaged):
            await heir.write(found, Open())
        await heir.write(await staged(heir, [numbers(1), numbers(2)]), Open())
    assert postgres.fetch("SELECT n FROM lines ORDER BY n") == [(1,), (2,)]


# Time and locks


@pytest.mark.parametrize("target", [{"table": "lines"}, {"merge": "INSERT INTO lines (n) SELECT n FROM batch"}])
async def test_a_staged_batch_is_decided_by_one_message(
    sink_of: Make, postgres_network: Network, target: dict[str, str]
) -> None:
    """So a host that stops holds no lock, whatever it has sent."""
    sink = sink_of(dsn=postgres_network.dsn, setup=LINES, executors_env=EXECUTORS_ENV, **target)
    writer = await opened(sink)
    found = await staged(writer, [numbers(1), numbers(2)])
    messages: list[bytes] = []

    async def before(line: Line, message: bytes) -> None:
        messages.append(message)

    postgres_network.before = before
    await writer.write(found, Open())
    *before_it, decisive, dropping = [message for message in messages if b"EXPLAIN" not in message]
    assert not any(DECISIVE in message or b"INSERT INTO" in message for message in before_it)
    assert DECISIVE in decisive
    assert b"\nCOMMIT" in decisive
    assert decisive.index(DECISIVE) < decisive.index(b"INSERT INTO")
    *_, counted, last_limit, merged, kept, _ = decisive.split(
        b"\n;\n"
    )  # each that may be long has the time that is left
    assert b"statement_timeout" in last_limit
    assert b"INSERT INTO" in merged
    assert b"leasehold_missing" in counted
    assert b"leasehold_changed" in kept
    assert decisive.count(b"statement_timeout") == 2
    assert b"DROP TABLE" in dropping
    assert b"DROP" not in decisive


@contextmanager
def stopped_executor(postgres: Postgres, name: str) -> Iterator[None]:
    """It has sent some rows of its COPY, and stands still."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        try:
            with connection.cursor().copy(f"COPY {name} FROM STDIN (FORMAT csv)".encode()) as copy:
                copy.write(b"9,late,0\n" * 10_000)
                yield
                raise RuntimeError
        except RuntimeError:
            pass


async def test_an_executor_that_stops_within_its_copy_keeps_no_writer_waiting(
    postgres: Postgres, lines: PostgresOutputSink
) -> None:
    writer, other = await opened(lines), await lines.open(claim(1, "other"))
    found = await staged(writer, [numbers(1), numbers(2)])
    name = staging_name(claim(), None)
    with stopped_executor(postgres, name):
        locked = "SELECT DISTINCT relation::regclass::text FROM pg_locks WHERE mode = 'RowExclusiveLock' AND relation > 16000"
        assert postgres.fetch(locked) == [(name,)]
        await writer.write(found, Open())
        await other.write(output(numbers(3)), Open())
        assert await writer.make_stager("1", numbers(1).schema) is not None
        heir = await lines.open(claim(2))
        assert heir.position == "1"
        assert name in tables_in(postgres)
    await lines.open(claim(3))
    assert tables_in(postgres) == []
    assert postgres.fetch("SELECT n FROM lines ORDER BY n") == [(1,), (2,), (3,)]


async def test_a_merge_that_takes_too_long_leaves_the_batch_to_the_host(postgres: Postgres, sink_of: Make) -> None:
    """All statements together have less time than the host waits: it learns that nothing was committed."""
    postgres.fetch("CREATE TABLE pace AS SELECT 0::float AS s")
    merge = "INSERT INTO lines (n) SELECT n FROM batch, pg_sleep((SELECT s FROM pace))"
    timeouts = Timeouts(transaction_s=4.5)
    writer = await opened(sink_of(setup=LINES, merge=merge, executors_env=EXECUTORS_ENV, timeouts=timeouts))
    await writer.write(await staged(writer, [numbers(1)]), Open())
    found = await staged(writer, [numbers(2)], "1", "2")
    postgres.fetch("UPDATE pace SET s = 3")  # seconds, after a lock that takes 2: each alone is below the limit
    with psycopg.connect(postgres.dsn) as holder:
        holder.execute("UPDATE leasehold_positions SET owner = owner")
        asyncio.get_running_loop().call_later(2, holder.rollback)
        with pytest.raises(NotStaged, match=r"`merge` cannot take 1 rows in 4 s"):
            await writer.write(found, Open())
    assert (postgres.fetch("SELECT n FROM lines"), writer.position) == ([(1,)], "1")
    postgres.fetch("UPDATE pace SET s = 0")
    await writer.write(found, Open())
    assert postgres.fetch("SELECT n FROM lines ORDER BY 1") == [(1,), (2,)]


async def test_a_merge_of_staged_rows_may_take_longer_than_another_statement(postgres: Postgres, sink_of: Make) -> None:
    merge = "INSERT INTO lines (n) SELECT n FROM batch, pg_sleep(3)"
    timeouts = Timeouts(statement_s=2.5)
    writer = await opened(sink_of(setup=LINES, merge=merge, executors_env=EXECUTORS_ENV, timeouts=timeouts))
    await writer.write(await staged(writer, [numbers(1)]), Open())
    with pytest.raises(SinkUnavailable, match="57014"):  # the setting was that transaction's alone
        await writer.write(output(numbers(2), "1", "2"), Open())
    assert postgres.fetch("SELECT n FROM lines") == [(1,)]


async def test_partitions_that_touch_the_same_accounts_take_turns(bank: Bank) -> None:
    sinks = [await bank.sink(connections_max=3, executors_env=EXECUTORS_ENV) for _ in range(2)]

    async def run(sink: PostgresOutputSink, partition: str) -> None:
        writer = await sink.open(claim(1, partition))
        for _ in range(3):
            start = writer.position
            to = str(int(start or 0) + 1)
            await writer.write(await staged(writer, [ALL_ACCOUNTS], start, to), Open())
            await write(writer)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as hosts:
        for i in range(4):
            hosts.create_task(run(sinks[i % 2], str(i)))
    assert bank.counted() == 24
    assert tables_in(bank.postgres) == []


# Tables that are left over


async def test_a_claim_drops_what_earlier_epochs_of_its_lease_staged_and_nothing_else(
    postgres: Postgres, sink_of: Make, lines: PostgresOutputSink
) -> None:
    writer, other = await opened(lines, 5), await lines.open(claim(1, "other"))
    await staged(writer, [numbers(1)])
    await staged(writer, [numbers(1)], "7")
    theirs = await other.make_stager(None, numbers(1).schema)
    assert theirs is not None
    ours = staging_name(claim(5), None)
    lease = ours[: ours.index("_5_")]
    kept = [
        staging_name(claim(1, "other"), None),
        f"{lease}_8_00000000",  # of a later epoch
        f"{lease}_7_00000000",  # of this epoch
        f"{lease}_1_0000000g",
        f"{lease}_1_00000000x",
        f"{lease}_x_00000000",
        f"{lease}_1",
        f"{lease}_logged",
    ]
    for name in kept[1:-1]:
        postgres.fetch(f"CREATE UNLOGGED TABLE {name} ()")
    postgres.fetch(f"CREATE TABLE {kept[-1]} ()")
    postgres.fetch(f"ALTER TABLE {kept[-1]} RENAME TO {lease}_1_11111111")
    kept[-1] = f"{lease}_1_11111111"
    postgres.fetch("CREATE SCHEMA elsewhere")
    postgres.fetch(f"CREATE UNLOGGED TABLE elsewhere.{lease}_1_22222222 ()")
    await sink_of(setup=LINES, table="lines").open(claim(6))  # it does not know of staging
    assert len(tables_in(postgres)) == len(kept) + 3
    await lines.open(claim(7))
    assert tables_in(postgres) == sorted([*kept, f"{lease}_1_22222222"])


async def test_a_batch_that_failed_leaves_rows_that_the_next_attempt_never_names(
    postgres: Postgres, lines: PostgresOutputSink
) -> None:
    writer = await opened(lines)
    await staged(writer, [numbers(1), numbers(2)])
    again = await staged(writer, [numbers(1), numbers(2)])
    assert len(tables_in(postgres)) == 1
    await writer.write(again, Open())
    assert postgres.fetch("SELECT n FROM lines ORDER BY id") == [(1,), (2,)]
    assert tables_in(postgres) == []


# Roles and secrets


@pytest.fixture
def executor(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    postgres.fetch("DROP ROLE IF EXISTS executor")
    postgres.fetch("CREATE ROLE executor LOGIN PASSWORD 'hunter2'")
    dsn = postgres.dsn_of("executor", password="hunter2")
    monkeypatch.setenv(EXECUTORS_ENV, dsn)
    yield dsn
    postgres.fetch("DROP OWNED BY executor")
    postgres.fetch("DROP ROLE executor")


async def test_a_role_that_may_only_stage_needs_the_schema_and_no_more(
    postgres: Postgres, sink_of: Make, executor: str
) -> None:
    sink = sink_of(setup=LINES, table="lines", schema="leases", executors_env=EXECUTORS_ENV)
    writer = await opened(sink)
    with pytest.raises(SinkRejected, match="42501 permission denied for schema leases"):
        await staged(writer, [numbers(1)])
    postgres.fetch("GRANT USAGE ON SCHEMA leases TO executor")
    found = await staged(writer, [numbers(1)])
    name = staging_name(claim(), None)
    with psycopg.connect(executor, autocommit=True) as connection:
        for forbidden in (
            f"SELECT * FROM leases.{name}",
            f"DELETE FROM leases.{name}",
            f"DROP TABLE leases.{name}",
            "SELECT * FROM leases.leasehold_positions",
            "UPDATE leases.leasehold_positions SET position = '9'",
            "INSERT INTO lines (n) VALUES (1)",
            "CREATE TABLE leases.own ()",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(forbidden.encode())
    await writer.write(found, Open())
    assert postgres.fetch("SELECT n FROM lines") == [(1,)]


async def test_what_is_sent_to_executors_holds_no_secret(lines: PostgresOutputSink, executor: str) -> None:
    stager = await (await opened(lines)).make_stager("7", numbers(1).schema)
    sent = pickle.dumps(stager)
    assert EXECUTORS_ENV.encode() in sent
    for text in (b"hunter2", b"executor", b"host="):
        assert text not in sent.replace(b"leasehold executor", b"")
    assert "hunter2" not in repr(stager)


async def test_a_variable_that_is_not_set_is_named(
    lines: PostgresOutputSink, sink_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await opened(lines)
    stager = await writer.make_stager(None, numbers(1).schema)
    assert stager is not None
    for value in ("", None):
        if value is None:
            monkeypatch.delenv(EXECUTORS_ENV)
        else:
            monkeypatch.setenv(EXECUTORS_ENV, value)
        with pytest.raises(SinkRejected, match=f"variable {EXECUTORS_ENV}, .* is not set.* on all hosts and executors"):
            stager.stage(numbers(1), "x")
        with pytest.raises(SinkRejected, match=f"variable {EXECUTORS_ENV}, which `executors_env` names, is not set"):
            await writer.make_stager(None, numbers(1).schema)
        with pytest.raises(SinkRejected, match=f"variable {EXECUTORS_ENV}, which `executors_env` names, is not set"):
            await sink_of(setup=LINES, table="lines", executors_env=EXECUTORS_ENV).prepare()


async def test_a_variable_with_another_text_is_named_and_not_quoted(
    lines: PostgresOutputSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, "postgresql://executor:hun/ter2@bank")
    with pytest.raises(SinkRejected, match=f"variable {EXECUTORS_ENV} has a port that is not a number") as refused:
        await lines.prepare()
    assert "hun" not in str(refused.value)


async def test_an_executor_that_cannot_log_in_names_the_variable(
    postgres: Postgres, lines: PostgresOutputSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    stager = await (await opened(lines)).make_stager(None, numbers(1).schema)
    assert stager is not None
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn_of("nobody_here"))
    with pytest.raises(SinkRejected, match=f"refused the connection: .*: correct the variable {EXECUTORS_ENV}"):
        stager.stage(numbers(1), "x")
    monkeypatch.setenv(EXECUTORS_ENV, "host=127.0.0.1 port=1 user=postgres")
    with pytest.raises(SinkUnavailable, match="cannot be reached"):
        stager.stage(numbers(1), "x")


async def test_a_host_that_may_create_no_tables_is_refused_at_its_start(postgres: Postgres, sink_of: Make) -> None:
    await sink_of(setup=SETUP, table="balances", schema="leases").prepare()
    postgres.fetch("DROP ROLE IF EXISTS reader")
    postgres.fetch("CREATE ROLE reader LOGIN")
    postgres.fetch("GRANT USAGE ON SCHEMA leases TO reader; GRANT INSERT ON balances TO reader")
    reader = {"dsn": postgres.dsn_of("reader"), "table": "balances", "schema": "leases"}
    with pytest.raises(SinkRejected, match="may create tables in schema 'leases': grant CREATE on it"):
        await sink_of(**reader, executors_env=EXECUTORS_ENV).prepare()
    postgres.fetch("DROP OWNED BY reader")
    postgres.fetch("DROP ROLE reader")


async def test_a_part_that_another_batch_staged_is_refused_by_name(lines: PostgresOutputSink) -> None:
    writer = await opened(lines)
    part = StagedPart(epoch=1, start="3", name="x", rows=1)
    with pytest.raises(NotStaged, match="'x' was staged at epoch 1 from '3', and not at epoch 1 from None"):
        await writer.write(Output(table=numbers(), start=None, to="1", events=1, staged=(part,)), Open())
