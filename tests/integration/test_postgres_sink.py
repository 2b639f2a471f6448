"""The sink `postgres` on a real server: what every sink holds, and what its settings, tables and refusals promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from patience import until_async
from plugins_bank import BALANCES, EXECUTORS_ENV, ONE, Make, Open, claim, output
from plugins_pg import Postgres
from psycopg.sql import Identifier

from leasehold.common.clock import LoopClock
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.connectors.postgres import PostgresOutputSink, Tables, Timeouts, copy
from leasehold.pipeline.connectors.postgres.copy import FEW_ROWS
from leasehold.pipeline.connectors.postgres.shape import shape_of, shape_query
from leasehold.pipeline.connectors.postgres.sql import Column
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness, event_table
from leasehold.pipeline.errors import FeedError, Fenced, SinkRejected, SinkUnavailable
from leasehold.pipeline.event import Page
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.transform import NoTransform

EVENTS = """CREATE TABLE IF NOT EXISTS events (
    id bigserial, partition text, sequence bigint, "offset" text, enqueued_time timestamptz, key text, body bytea,
    properties jsonb, operation text)"""
MERGE = "INSERT INTO events (partition, sequence) SELECT partition, sequence FROM batch ORDER BY sequence -- in order"


class Harness(SinkHarness):
    partitions = ("0", "a/b 'c' ü")

    def __init__(self, postgres: Postgres, *, schema: str = "public", **target: Any) -> None:
        self._postgres = postgres
        self._tables = Tables(schema, history=True)
        self._target = target
        self.sinks: list[PostgresOutputSink] = []

    async def sink(self) -> PostgresOutputSink:
        sink = PostgresOutputSink(
            self._postgres.dsn, setup=EVENTS, tables=self._tables, executors_env=EXECUTORS_ENV, **self._target
        )
        self.sinks.append(sink)
        await sink.prepare()
        return sink

    async def rows(self, partition: str) -> list[Row]:
        rows = self._postgres.fetch("SELECT sequence FROM events WHERE partition = %s ORDER BY id", partition)
        return [Row(sequence) for (sequence,) in rows]


class TestTable(SinkContract):
    @pytest.fixture
    async def harness(self, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
        monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
        harness = Harness(postgres, table="events")
        yield harness
        await asyncio.gather(*(sink.close() for sink in harness.sinks))


class TestMerge(SinkContract):
    @pytest.fixture
    async def harness(self, postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
        monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
        harness = Harness(postgres, merge=MERGE, schema="leases of 'us'")
        yield harness
        await asyncio.gather(*(sink.close() for sink in harness.sinks))


# Targets


async def test_an_upsert_keeps_the_last_row_of_a_key(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="public.balances", key=["account"])
    await sink.prepare()
    writer = await sink.open(claim())
    first = pa.table({"account": ["b", "a", "b"], "value": [1, 2, 3]})
    await writer.write(output(first), Open())
    await writer.write(output(pa.table({"value": [5, 4], "account": ["a", "a"]}), "1", "2"), Open())
    assert postgres.fetch("SELECT account, value FROM balances ORDER BY 1") == [("a", 4), ("b", 3)]


async def test_an_upsert_of_nothing_but_keys_takes_rows_that_are_there(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup="CREATE TABLE seen (id int PRIMARY KEY)", table="seen", key=["id"])
    await sink.prepare()
    writer = await sink.open(claim())
    for start, to in ((None, "1"), ("1", "2")):
        await writer.write(output(pa.table({"id": [2, 1]}), start, to), Open())
    assert postgres.fetch("SELECT id FROM seen ORDER BY 1") == [(1,), (2,)]


PLAIN = "CREATE TABLE plain (id bigint, value numeric(20, 2), note text, made timestamptz DEFAULT now())"


@pytest.mark.parametrize(
    ("more", "is_copied"),
    [
        ("SELECT", True),
        ("CREATE INDEX ON plain (id)", True),
        ("ALTER TABLE plain ADD CHECK (id >= 0), ALTER note SET NOT NULL", True),
        ("CREATE UNIQUE INDEX ON plain (id)", False),
        (
            "CREATE TABLE parent (id bigint PRIMARY KEY); ALTER TABLE plain ADD FOREIGN KEY (id) REFERENCES parent",
            False,
        ),
        ("ALTER TABLE plain ALTER id SET NOT NULL, ALTER id ADD GENERATED BY DEFAULT AS IDENTITY", True),
        ("ALTER TABLE plain ALTER id SET NOT NULL, ALTER id ADD GENERATED ALWAYS AS IDENTITY", False),
        ("ALTER TABLE plain ALTER id TYPE integer", False),
        ("ALTER TABLE plain ALTER note TYPE varchar(9)", False),
        ("CREATE DOMAIN name AS text; ALTER TABLE plain ALTER note TYPE name", False),
        ("CREATE RULE nothing AS ON INSERT TO plain DO INSTEAD NOTHING", False),
        ("CREATE TRIGGER kept BEFORE UPDATE ON plain EXECUTE FUNCTION suppress_redundant_updates_trigger()", False),
        ("ALTER TABLE plain ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; SET ROLE reader", False),
        ("ALTER TABLE plain RENAME TO other; CREATE VIEW plain AS SELECT id, value, note FROM other", False),
        ("ALTER TABLE plain DROP note", False),
        ("DROP TABLE plain", False),
    ],
)
async def test_rows_are_copied_into_a_table_where_that_means_the_same_and_nobody_can_wait_for_them(
    postgres: Postgres, more: str, is_copied: bool
) -> None:
    columns = (Column("id", "bigint"), Column("value", "numeric", scale=2), Column("note", "text"))
    async with await psycopg.AsyncConnection.connect(postgres.dsn) as connection:
        await connection.execute(PLAIN.encode())
        await connection.execute(b"CREATE ROLE reader; GRANT SELECT, INSERT ON plain TO reader")
        await connection.execute(more.encode())
        found = await (await connection.execute(shape_query(Identifier("plain"), columns))).fetchone()
        assert shape_of(None if found is None else found[0], columns).copies is is_copied
        await connection.rollback()


@pytest.mark.parametrize("few", [0, FEW_ROWS])
@pytest.mark.parametrize("unique", ["", "CREATE UNIQUE INDEX IF NOT EXISTS plain_id ON plain (id)"])
async def test_appended_rows_are_the_same_by_any_way(
    postgres: Postgres, sink_of: Make, unique: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy, "FEW_ROWS", few)
    sink = sink_of(setup=f"{PLAIN.replace('TABLE', 'TABLE IF NOT EXISTS')}; {unique}", table="plain")
    await sink.prepare()
    writer = await sink.open(claim())
    table = pa.table({"id": [1, 2, 3], "value": [Decimal("1.01"), None, Decimal(-7)], "note": ["", None, 'a "b",\nc']})
    await writer.write(output(table), Open())
    await writer.write(output(table.slice(0, 0), "1", "2"), Open())
    found = postgres.fetch("SELECT id, value, note, made IS NOT NULL FROM plain ORDER BY 1")
    assert found == [(1, Decimal("1.01"), "", True), (2, None, None, True), (3, Decimal("-7.00"), 'a "b",\nc', True)]
    with pytest.raises(SinkRejected, match="22003"):
        await writer.write(output(pa.table({"id": [4], "value": [Decimal(10) ** 30], "note": ["x"]}), "2", "3"), Open())
    late = await sink.open(claim(epoch=2))
    with pytest.raises(Fenced):
        await writer.write(output(table, "2", "3"), Open())
    assert late.position == "2"
    assert len(postgres.fetch("SELECT id FROM plain")) == 3


async def test_names_are_never_read_as_sql(postgres: Postgres, sink_of: Make) -> None:
    name = 'ord"er; DROP TABLE x; -- %s {}'
    sink = sink_of(setup='CREATE TABLE "odd %s {}" ("ord""er; DROP TABLE x; -- %s {}" int)', table="odd %s {}")
    await sink.prepare()
    writer = await sink.open(claim(partition=r"\'; --"))
    await writer.write(output(pa.table({name: [1]}), to=r"'; DROP TABLE x \' {} %s $1"), Open())
    assert postgres.fetch('SELECT * FROM "odd %s {}"') == [(1,)]
    assert (await sink.open(claim(2, partition=r"\'; --"))).position == r"'; DROP TABLE x \' {} %s $1"


async def test_a_batch_with_other_columns_follows_on_the_same_connection(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup="CREATE TABLE wide (a int, b text)", table="wide", connections_max=1)
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(pa.table({"a": [1]})), Open())
    await writer.write(output(pa.table({"a": [2], "b": ["x"]}), "1", "2"), Open())
    assert postgres.fetch("SELECT a, b FROM wide ORDER BY a") == [(1, None), (2, "x")]


async def test_the_history_names_each_batch_with_its_owner(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances", key=("account",), history=True)
    await sink.prepare()
    writer = await sink.open(claim(3, continuation="7"))
    await writer.write(output(ONE, "7", "8"), Open())
    await writer.write(output(ONE.slice(0, 0), "8", "12"), Open())
    found = postgres.fetch('SELECT epoch, owner, "from", "to", events FROM leasehold_history ORDER BY committed_at')
    assert found == [(3, "host-3", "7", "8", 1), (3, "host-3", "8", "12", 0)]


# Claims


async def test_an_older_generation_is_rejected_for_good_even_if_it_was_never_seen(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    await sink.open(claim(5, generation=2))
    with pytest.raises(SinkRejected, match=r"generation 1, and .* holds output of its generation 2"):
        await sink.open(claim(9, generation=1))


async def test_an_owner_whose_lease_was_reset_is_fenced(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer = await sink.open(claim(4, generation=1))
    await sink.open(claim(5, generation=2))
    with pytest.raises(Fenced, match="generation 2 has begun") as fenced:
        await writer.write(output(ONE), Open())
    assert fenced.value.epoch == 5


async def test_a_refused_write_says_what_came_in_between(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer, twin = await sink.open(claim(1)), await sink.open(claim(1))
    await twin.write(output(ONE), Open())
    with pytest.raises(Fenced, match="is at '1' already"):
        await writer.write(output(ONE), Open())
    await sink.open(claim(4))
    with pytest.raises(Fenced, match="belongs to 'host-4' since epoch 4") as fenced:
        await twin.write(output(ONE, "1", "2"), Open())
    assert fenced.value.epoch == 4


async def test_a_position_that_somebody_deleted_stops_its_owner(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer = await sink.open(claim())
    postgres.fetch("DELETE FROM leasehold_positions")
    with pytest.raises(Fenced, match="was not found"):
        await writer.write(output(ONE), Open())
    assert postgres.fetch("SELECT * FROM balances") == []


@pytest.mark.parametrize(
    "restored",
    [
        pytest.param("DELETE FROM leasehold_positions", id="to before the first claim"),
        pytest.param("DELETE FROM leasehold_positions WHERE generation = 1", id="to before the last reset"),
        pytest.param("DROP TABLE leasehold_positions", id="to before leasehold came"),
    ],
)
async def test_a_database_that_lost_a_position_is_refused_until_a_reset(
    postgres: Postgres, sink_of: Make, restored: str
) -> None:
    """The lease was checkpointed at 2 and would go on there, with nothing of what came before."""
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    await sink.open(claim(1))
    writer = await sink.open(claim(2, generation=1))
    await writer.write(output(ONE, None, "2"), Open())
    postgres.fetch(restored)
    postgres.fetch("TRUNCATE balances")
    await sink.prepare()
    for epoch in (3, 4):  # nor does a refused claim leave a row by which the next one is let in
        words = (
            "no position of lease 'balances/0' in generation 1, .* lost.* leases reset FILE balances 0 --to earliest"
        )
        with pytest.raises(SinkRejected, match=words):
            await sink.open(claim(epoch, generation=1, continuation="2", state=sink.claimed(writer.state)))
    again = await sink.open(claim(5, generation=2, continuation=None, state=sink.claimed(writer.state)))
    await again.write(output(ONE, None, "2"), Open())
    assert postgres.fetch("SELECT count(*) FROM balances") == [(1,)]


async def test_a_lease_that_knows_its_position_goes_on_in_a_database_that_was_restored_to_after_its_first_claim(
    postgres: Postgres, sink_of: Make
) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer = await sink.open(claim(1))
    await writer.write(output(ONE, None, "2"), Open())
    postgres.fetch("UPDATE leasehold_positions SET position = NULL")
    postgres.fetch("TRUNCATE balances")
    again = await sink.open(claim(2, continuation="2", state=writer.state))
    assert again.position is None


# Preparing


async def test_several_hosts_prepare_at_once(postgres: Postgres, sink_of: Make) -> None:
    # without IF NOT EXISTS only one of them at a time can come through
    setup = """DO $$ BEGIN IF to_regclass('log') IS NULL THEN CREATE TABLE log (at int); END IF; END $$;
        INSERT INTO log VALUES (1)"""
    for schema in ("fresh", "fresh too", "fresh as well"):
        sinks = [sink_of(setup=setup, table="log", history=True, schema=schema) for _ in range(8)]
        await asyncio.gather(*(sink.prepare() for sink in sinks))
    assert postgres.fetch("SELECT count(*) FROM log") == [(24,)]


async def test_a_host_that_waited_sees_what_the_other_created(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(table="balances", schema="fresh")
    postgres.fetch(BALANCES)
    await sink.prepare()
    postgres.fetch("DROP SCHEMA fresh CASCADE")  # the session has been here before, and remembers the catalog
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute("SELECT pg_advisory_lock(hashtextextended('leasehold setup', 0))")
        preparing = asyncio.create_task(sink.prepare())
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        await until_async(lambda: preparing.done() or postgres.fetch(waiting) == [(1,)])
        assert not preparing.done()
        other.execute("CREATE SCHEMA fresh")
    await preparing


async def test_a_role_that_may_create_nothing_uses_the_tables_that_are_there(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch("DROP ROLE IF EXISTS clerk")
    postgres.fetch("CREATE ROLE clerk LOGIN")
    postgres.fetch(BALANCES)
    clerk = sink_of(dsn=postgres.dsn_of("clerk"), table="balances", history=True)
    with pytest.raises(SinkRejected, match="42501 permission denied for schema public: grant the role"):
        await clerk.prepare()
    await sink_of(table="balances", history=True).prepare()
    postgres.fetch("GRANT SELECT, INSERT, UPDATE ON leasehold_positions TO clerk")
    postgres.fetch("GRANT INSERT ON leasehold_history, balances TO clerk")
    await clerk.prepare()
    writer = await clerk.open(claim())
    await writer.write(output(ONE), Open())
    assert postgres.fetch("SELECT * FROM balances") == [("alice", Decimal("1.20"))]
    postgres.fetch("DROP OWNED BY clerk")
    postgres.fetch("DROP ROLE clerk")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"setup": "CREATE TABEL x"}, "`setup` was refused: 42601 syntax error"),
        ({"merge": "INSERT INTO nowhere SELECT * FROM batch"}, '`merge` was refused: 42P01 relation "nowhere"'),
        ({"merge": "INSERT INTO balances SELEC * FROM batch"}, "`merge` was refused: 42601"),
        ({"merge": "INSERT INTO balances SELECT * FROM batch; COMMIT"}, "cannot insert multiple commands"),
        ({"merge": "COMMIT"}, "`merge` was refused: 42601"),
        ({"table": "nowhere"}, '`table` was refused: 42P01 relation "nowhere"'),
    ],
)
async def test_preparing_refuses_what_can_never_work(sink_of: Make, settings: dict[str, Any], words: str) -> None:
    defaults = {"setup": BALANCES} | (
        {} if "table" in settings else {"merge": "INSERT INTO balances SELECT * FROM batch"}
    )
    sink = sink_of(**(defaults | settings))
    with pytest.raises(SinkRejected) as refused:
        await sink.prepare()
    assert words in str(refused.value)


async def test_a_merge_is_checked_without_knowing_the_columns_of_batch(sink_of: Make) -> None:
    merges = (
        "INSERT INTO balances (account, value) SELECT * FROM batch ORDER BY 1 ON CONFLICT DO NOTHING;",
        "WITH new AS (TABLE batch) UPDATE balances SET value = new.value FROM new WHERE balances.account = new.account",
        "MERGE INTO balances t USING batch s ON t.account = s.account WHEN NOT MATCHED THEN INSERT VALUES (s.account, s.value)",
    )
    for epoch, merge in enumerate(merges, 1):
        sink = sink_of(setup=BALANCES, merge=merge)
        await sink.prepare()
        writer = await sink.open(claim(epoch))
        await writer.write(output(ONE, writer.position, str(epoch)), Open())


# Refusals


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (pa.table({"account": ["bob"], "valeu": [1]}), ['42703 column "valeu"', "correct the SQL"]),
        (pa.table({"account": ["bob"], "value": [1000]}), ["23514", "balances_value_check", "change the transform"]),
        (pa.table({"account": ["bob"], "value": pa.array([None], pa.int32())}), ["23502"]),
        (pa.table({"account": ["bob"], "value": ["much"]}), ["42804"]),
    ],
)
async def test_a_refused_batch_leaves_nothing_and_names_the_cause(
    postgres: Postgres, sink_of: Make, table: pa.Table, words: list[str]
) -> None:
    sink = sink_of(setup=BALANCES, table="balances", connections_max=1)
    await sink.prepare()
    writer = await sink.open(claim())
    both = pa.concat_tables([table, table])
    with pytest.raises(SinkRejected) as refused:
        await writer.write(output(both), Open())
    for word in ("`table` of partition '0' from None to '1' was refused", *words):
        assert word in str(refused.value)
    assert (postgres.fetch("SELECT * FROM balances"), writer.position) == ([], None)
    await writer.write(output(ONE), Open())
    assert writer.position == "1"


async def test_an_error_of_the_merge_is_never_taken_for_a_fence(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, merge="INSERT INTO balances SELECT account, 1 / (value - value) FROM batch")
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(SinkRejected, match="22012 division by zero"):
        await writer.write(output(ONE), Open())


async def test_a_lock_that_somebody_holds_is_waited_for_and_then_given_up(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances", key=["account"], timeouts=Timeouts(lock_s=0.05, statement_s=10))
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(ONE), Open())
    with psycopg.connect(postgres.dsn) as other:
        other.execute("UPDATE balances SET value = 7")
        with pytest.raises(SinkUnavailable, match="55P03"):
            await writer.write(output(ONE, "1", "2"), Open())
    await writer.write(output(ONE, "1", "2"), Open())
    assert writer.position == "2"


async def test_a_statement_that_takes_too_long_is_given_up(sink_of: Make) -> None:
    merge = "INSERT INTO balances SELECT account, value FROM batch, pg_sleep(60)"
    sink = sink_of(setup=BALANCES, merge=merge, timeouts=Timeouts(statement_s=3))
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(SinkUnavailable, match="57014"):
        await writer.write(output(ONE), Open())


class FallsBack(MemoryChangeFeed):
    """Four events, then the last two once more under the same position, as a lagging replica may answer."""

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        yield Page(event_table(partition, range(4)), "4")
        yield Page(event_table(partition, range(2, 4)), "4")


async def test_a_feed_that_falls_back_makes_nothing_count_twice(postgres: Postgres, sink_of: Make) -> None:
    """The guard compares positions as texts, and would take the second page: it starts where the first one ended."""
    sink = sink_of(setup=EVENTS, merge=MERGE)
    await sink.prepare()
    writer = await sink.open(claim())

    async def delivered(one: DeliveredBatch) -> None: ...

    runner = Runner(
        source=Source(FallsBack("0"), "0", 1),
        transform=NoTransform(),
        writer=writer,
        permit=Open(),
        read_ahead=ReadAhead(limits=BatchLimits(events_max=4), bytes_max=1 << 20, budget=Budget()),
        clock=LoopClock(),
        reporting=Reporting(progress=Progress()),
        delivered=delivered,
    )
    with pytest.raises(FeedError, match="2 events read from '4' end at '4'"):
        await runner.run(asyncio.Event())
    await writer.close("failed")
    assert postgres.fetch("SELECT sequence FROM events ORDER BY id") == [(0,), (1,), (2,), (3,)]
