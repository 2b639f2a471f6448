"""The sink `postgres` on a real server: what every sink holds, and what its settings, tables and refusals promise."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.conninfo import make_conninfo

from pipeline.connectors.postgres import PostgresSink, Timeouts
from pipeline.contract import Row, SinkContract, SinkHarness
from pipeline.errors import Fenced, SinkRejected, SinkUnavailable
from pipeline.sink import Claim, Output
from tests.plugins_pg import Postgres

EVENTS = """CREATE TABLE IF NOT EXISTS events (
    id bigserial, partition text, sequence bigint, "offset" text, enqueued_time timestamptz, key text, body bytea,
    properties jsonb, operation text)"""
MERGE = "INSERT INTO events (partition, sequence) SELECT partition, sequence FROM batch ORDER BY sequence -- in order"


class Harness(SinkHarness):
    partitions = ("0", "a/b 'c' ü")

    def __init__(self, postgres: Postgres, **target: Any) -> None:
        self._postgres = postgres
        self._target = target
        self.sinks: list[PostgresSink] = []

    async def sink(self) -> PostgresSink:
        sink = PostgresSink(self._postgres.dsn, setup=EVENTS, history=True, **self._target)
        self.sinks.append(sink)
        await sink.prepare()
        return sink

    async def rows(self, partition: str) -> list[Row]:
        rows = self._postgres.fetch("SELECT sequence FROM events WHERE partition = %s ORDER BY id", partition)
        return [Row(sequence) for (sequence,) in rows]


class TestTable(SinkContract):
    @pytest.fixture
    async def harness(self, postgres: Postgres) -> AsyncIterator[Harness]:
        harness = Harness(postgres, table="events")
        yield harness
        await asyncio.gather(*(sink.close() for sink in harness.sinks))


class TestMerge(SinkContract):
    @pytest.fixture
    async def harness(self, postgres: Postgres) -> AsyncIterator[Harness]:
        harness = Harness(postgres, merge=MERGE, schema="leases of 'us'")
        yield harness
        await asyncio.gather(*(sink.close() for sink in harness.sinks))


class Open:
    def check(self) -> None: ...

    async def granted(self) -> None: ...


def claim(epoch: int = 1, *, partition: str = "0", generation: int = 0, continuation: str | None = None) -> Claim:
    return Claim(
        pipeline="balances",
        partition=partition,
        owner=f"host-{epoch}",
        epoch=epoch,
        generation=generation,
        continuation=continuation,
        state="",
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def output(table: pa.Table, start: str | None = None, to: str = "1") -> Output:
    return Output(table=table, start=start, to=to, events=table.num_rows)


ONE = pa.table({"account": ["alice"], "value": [Decimal("1.20")]})
BALANCES = "CREATE TABLE IF NOT EXISTS balances (account text PRIMARY KEY, value numeric NOT NULL CHECK (value < 1000))"


@pytest.fixture
async def sink_of(postgres: Postgres) -> AsyncIterator[Callable[..., PostgresSink]]:
    """Makes sinks over the fresh database, and closes them."""
    sinks: list[PostgresSink] = []

    def make(**settings: Any) -> PostgresSink:
        sinks.append(PostgresSink(settings.pop("dsn", postgres.dsn), **settings))
        return sinks[-1]

    yield make
    await asyncio.gather(*(sink.close() for sink in sinks))


Make = Callable[..., PostgresSink]


# Targets


async def test_an_upsert_keeps_the_last_row_of_a_key(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="public.balances", mode="upsert", key=["account"])
    await sink.prepare()
    writer = await sink.open(claim())
    first = pa.table({"account": ["b", "a", "b"], "value": [1, 2, 3]})
    await writer.write(output(first), Open())
    await writer.write(output(pa.table({"value": [5, 4], "account": ["a", "a"]}), "1", "2"), Open())
    assert postgres.fetch("SELECT account, value FROM balances ORDER BY 1") == [("a", 4), ("b", 3)]


async def test_an_upsert_of_nothing_but_keys_takes_rows_that_are_there(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup="CREATE TABLE seen (id int PRIMARY KEY)", table="seen", mode="upsert", key=["id"])
    await sink.prepare()
    writer = await sink.open(claim())
    for start, to in ((None, "1"), ("1", "2")):
        await writer.write(output(pa.table({"id": [2, 1]}), start, to), Open())
    assert postgres.fetch("SELECT id FROM seen ORDER BY 1") == [(1,), (2,)]


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
    sink = sink_of(setup=BALANCES, table="balances", mode="upsert", key=("account",), history=True)
    await sink.prepare()
    writer = await sink.open(claim(3, continuation="7"))
    await writer.write(output(ONE, "7", "8"), Open())
    await writer.write(output(ONE.slice(0, 0), "8", "12"), Open())
    found = postgres.fetch('SELECT epoch, owner, "from", "to", events FROM leasehold_history ORDER BY committed_at')
    assert found == [(3, "host-3", "7", "8", 1), (3, "host-3", "8", "12", 0)]


# Claims


async def test_an_older_generation_is_refused_even_if_it_was_never_seen(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    await sink.open(claim(5, generation=2))
    with pytest.raises(Fenced, match="generation 2 has begun") as fenced:
        await sink.open(claim(9, generation=1))
    assert fenced.value.epoch == 5


async def test_a_refused_write_says_what_came_in_between(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer, twin = await sink.open(claim(1)), await sink.open(claim(1))
    await twin.write(output(ONE), Open())
    with pytest.raises(Fenced, match="stands at '1' already"):
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
    with pytest.raises(Fenced, match="not to be found"):
        await writer.write(output(ONE), Open())
    assert postgres.fetch("SELECT * FROM balances") == []


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
        while postgres.fetch(waiting) != [(1,)]:
            assert not preparing.done()
            await asyncio.sleep(0.01)
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
        (pa.table({"account": ["bob"], "valeu": [1]}), ['42703 column "valeu"', "mend the SQL"]),
        (pa.table({"account": ["bob"], "value": [1000]}), ["23514", "balances_value_check", "mend the transform"]),
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
    sink = sink_of(
        setup=BALANCES, table="balances", mode="upsert", key=["account"], timeouts=Timeouts(lock_s=0.05, statement_s=10)
    )
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
    sink = sink_of(setup=BALANCES, merge=merge, timeouts=Timeouts(statement_s=0.05))
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(SinkUnavailable, match="57014"):
        await writer.write(output(ONE), Open())


# Connections


SECRET = "s3cr3t-pässword"


async def test_a_server_that_is_not_there_is_said_at_once(sink_of: Make) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        sink = sink_of(dsn=f"postgresql://bob:{SECRET}@127.0.0.1:{port}/bank", table="t")
        async with asyncio.timeout(5):
            with pytest.raises(
                SinkUnavailable, match=f"127.0.0.1:{port}/bank cannot be reached: .*refused"
            ) as unavailable:
                await sink.prepare()
    assert SECRET not in repr(unavailable.value)


async def test_a_server_that_never_answers_is_given_up(sink_of: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        sink = sink_of(
            dsn=make_conninfo(host="127.0.0.1", port=mute.getsockname()[1]), table="t", timeouts=Timeouts(connect_s=0.1)
        )
        async with asyncio.timeout(5):
            with pytest.raises(SinkUnavailable, match="cannot be reached: connection timeout expired"):
                await sink.prepare()


async def test_a_wrong_password_is_refused_without_telling_it(postgres: Postgres, sink_of: Make) -> None:
    access = postgres.data_dir / "pg_hba.conf"
    before = access.read_text()
    postgres.fetch("DROP ROLE IF EXISTS teller")
    postgres.fetch("CREATE ROLE teller LOGIN PASSWORD 'right'")
    try:
        access.write_text("local all teller scram-sha-256\n" + before)
        postgres.fetch("SELECT pg_reload_conf()")
        sink = sink_of(dsn=postgres.dsn_of("teller", password=SECRET), table="t")
        with pytest.raises(SinkRejected, match=r"password authentication failed.*mend `dsn`") as refused:
            await sink.prepare()
        assert SECRET not in repr(refused.value)
    finally:
        access.write_text(before)
        postgres.fetch("SELECT pg_reload_conf()")
        postgres.fetch("DROP ROLE teller")


async def test_a_database_that_does_not_exist_is_refused(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(dsn=make_conninfo(postgres.dsn, dbname="nowhere"), table="t")
    with pytest.raises(SinkRejected, match='database "nowhere" does not exist'):
        await sink.prepare()


def test_the_identity_holds_no_secrets_and_tells_destinations_apart() -> None:
    sink = PostgresSink(f"postgresql://bob:{SECRET}@db1:5433,db2:5434/bank?application_name=x", table="balances")
    assert sink.identity == "postgresql://db1,db2:5433,5434/bank schema=public target=balances"
    same = PostgresSink("host=db1,db2 port=5433,5434 dbname=bank user=eve", table="balances", history=True)
    assert same.identity == sink.identity
    others = [
        PostgresSink("host=db1 dbname=bank", table="balances"),
        PostgresSink("host=db1 dbname=bank", table="balances", schema="mine"),
        PostgresSink("host=db1 dbname=bank", merge="INSERT INTO balances TABLE batch"),
    ]
    assert len({other.identity for other in others} | {sink.identity}) == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either `merge` or `table`"),
        ({"merge": "x", "table": "y"}, "either `merge` or `table`"),
        ({"table": "x", "mode": "upsert"}, "`key`"),
        ({"table": "x", "key": ["a"]}, "`key`"),
        ({"dsn": f"postgresql://bob:%{SECRET}@host/x", "table": "x"}, "`dsn` is not"),
        ({"dsn": f"bob:{SECRET}", "table": "x"}, "`dsn` is not"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        PostgresSink(**({"dsn": "host=x"} | settings))
    assert SECRET not in repr(refused.value)


async def test_a_session_is_bounded_and_keeps_the_search_path(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET search_path = elsewhere, public")
    names = (
        "application_name",
        "lock_timeout",
        "idle_in_transaction_session_timeout",
        "search_path",
        "client_encoding",
    )
    shown = ", ".join(f"current_setting('{name}')" for name in names)
    sink = sink_of(
        setup="CREATE TABLE shown (settings text)",
        merge=f"INSERT INTO shown SELECT concat_ws('; ', {shown}) FROM batch",
    )
    await sink.prepare()
    await (await sink.open(claim())).write(output(ONE), Open())
    assert postgres.fetch("SELECT * FROM shown") == [("leasehold; 10s; 10s; elsewhere, public; UTF8",)]


# Values


async def test_every_kind_of_value_arrives_as_it_was(postgres: Postgres, sink_of: Make) -> None:
    paris = timezone(timedelta(hours=1))
    nested = pa.struct(
        [("tags", pa.list_(pa.string())), ("more", pa.map_(pa.string(), pa.int64())), ("day", pa.date32())]
    )
    values: list[tuple[str, pa.DataType, Any, Any]] = [
        ("boolean", pa.bool_(), True, True),
        ("smallint", pa.int8(), -128, -128),
        ("integer", pa.uint16(), 65535, 65535),
        ("bigint", pa.int64(), -(2**63), -(2**63)),
        ("bigint", pa.uint32(), 2**32 - 1, 2**32 - 1),
        ("numeric", pa.uint64(), 2**64 - 1, 2**64 - 1),
        ("real", pa.float32(), 0.1, 0.1),
        ("double precision", pa.float64(), 0.1 + 0.2, 0.1 + 0.2),
        ("double precision", pa.float64(), math.inf, math.inf),
        ("numeric", pa.decimal128(38, 10), Decimal("-1234567890123456789012345678.0000000010"), None),
        ("numeric", pa.decimal256(76, 2), Decimal("1.20"), Decimal("1.20")),
        ("text", pa.string(), "", ""),
        ("text", pa.large_string(), 'a"b,\n\\.\r\n\\N\t€😀', 'a"b,\n\\.\r\n\\N\t€😀'),
        ("text", pa.dictionary(pa.int8(), pa.string()), "x", "x"),
        ("bytea", pa.binary(), b"\x00\xff\\x", b"\x00\xff\\x"),
        ("bytea", pa.binary(2), b"ab", b"ab"),
        ("date", pa.date32(), date(1, 1, 1), date(1, 1, 1)),
        ("date", pa.date64(), date(9999, 12, 31), date(9999, 12, 31)),
        ("time", pa.time64("us"), time(23, 59, 59, 999999), time(23, 59, 59, 999999)),
        ("timestamp", pa.timestamp("us"), datetime.max, None),  # noqa: DTZ901  # without a zone is the point
        ("timestamptz", pa.timestamp("us", "Europe/Paris"), datetime(2026, 1, 1, 1, tzinfo=paris), None),
        ("timestamptz", pa.timestamp("ns", "UTC"), datetime(1900, 1, 1, tzinfo=UTC), None),
        ("text", pa.null(), None, None),
        ("jsonb", pa.list_(pa.int32()), [1, None], [1, None]),
        (
            "jsonb",
            nested,
            {"tags": ['"', None], "more": [("k", 1)], "day": date(2026, 1, 2)},
            {"tags": ['"', None], "more": {"k": 1}, "day": "2026-01-02"},
        ),
    ]
    columns = [pa.array([value, None], arrow) for _, arrow, value, _ in values]
    names = [f"c{i}" for i in range(len(values))]
    defined = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, values, strict=True))
    sink = sink_of(setup=f"CREATE TABLE kinds ({defined})", table="kinds")
    await sink.prepare()
    await (await sink.open(claim())).write(output(pa.table(columns, names)), Open())
    arrived, nulls = postgres.fetch("SELECT * FROM kinds")
    expected = tuple(value if read is None else read for _, _, value, read in values)
    assert arrived == expected
    assert nulls == (None,) * len(values)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1)
)
def test_any_text_arrives_as_it_was(postgres: Postgres, texts: list[str | None]) -> None:
    async def arrive() -> list[str | None]:
        sink = PostgresSink(postgres.dsn, setup="DROP TABLE IF EXISTS t; CREATE TABLE t (x text, i serial)", table="t")
        await sink.prepare()
        partition = f"{texts!r}"[:500]
        writer = await sink.open(claim(partition=partition))
        await writer.write(output(pa.table({"x": pa.array(texts, pa.string())}), writer.position, "1"), Open())
        await sink.close()
        return [x for (x,) in postgres.fetch("SELECT x FROM t ORDER BY i")]

    assert asyncio.run(arrive()) == texts


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["ok", "n\0l"]), "NUL"),
        (pa.array([1], pa.duration("s")), "no such type"),
        (pa.array([1], pa.timestamp("ns")), "would lose data"),
        (pa.array([[Decimal("1.2")]]), "JSON cannot hold a Decimal exactly"),
        (pa.array([[math.nan]]), "not JSON compliant"),
    ],
)
async def test_a_value_that_cannot_be_stored_is_refused_by_column(sink_of: Make, column: pa.Array, words: str) -> None:
    sink = sink_of(setup="CREATE TABLE t (odd text)", table="t")
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(SinkRejected, match=f"column 'odd'.*{words}"):
        await writer.write(output(pa.table({"odd": column})), Open())


async def test_a_position_that_postgresql_cannot_store_is_refused(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(SinkRejected, match="NUL"):
        await writer.write(output(ONE, to="a\0b"), Open())
