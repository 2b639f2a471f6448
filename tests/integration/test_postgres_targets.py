"""The sink `postgres`: which tables it writes into, whatever they are called and whatever becomes of them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from patience import until_async
from plugins_bank import EXECUTORS_ENV, Make, Open, claim, output, staged
from plugins_pg import Line as Connection
from plugins_pg import Network, Postgres

from leasehold.pipeline.connectors.postgres import Timeouts, copy
from leasehold.pipeline.connectors.postgres.copy import FEW_ROWS
from leasehold.pipeline.connectors.postgres.writer import TIMEOUTS_MAX
from leasehold.pipeline.errors import OutputRefused, OutputTooLarge, SinkRejected, SinkUnavailable

FEW, MANY = 3, 10 * FEW_ROWS
UPSERT: dict[str, Any] = {"key": ["id"]}
IDS = "(id bigint PRIMARY KEY, value bigint)"


def rows(first: int, count: int) -> pa.Table:
    return pa.table(
        {"id": pa.array(range(first, first + count), pa.int64()), "value": pa.array([1] * count, pa.int64())}
    )


# Names


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("more", [{}, UPSERT], ids=["append", "upsert"])
@pytest.mark.parametrize("kind", ["a table", "a plain table", "a view", "partitioned"])
@pytest.mark.parametrize("name", ["batch", "leasehold_batch", "excluded"])
async def test_a_target_may_be_called_as_what_our_statements_name(
    postgres: Postgres, sink_of: Make, name: str, kind: str, more: dict[str, Any], count: int
) -> None:
    made = {
        "a table": f"CREATE TABLE {name} {IDS}",
        "a plain table": f"CREATE TABLE {name} (id bigint, value bigint)",
        "a view": f"CREATE TABLE behind {IDS}; CREATE VIEW {name} AS SELECT * FROM behind",
        "partitioned": f"CREATE TABLE {name} {IDS} PARTITION BY HASH (id);"
        f" CREATE TABLE one PARTITION OF {name} FOR VALUES WITH (MODULUS 1, REMAINDER 0)",
    }[kind]
    if kind == "a plain table" and more:
        pytest.skip("an upsert needs a unique index")
    postgres.fetch(made)
    sink = sink_of(table=name, connections_max=1, **more)
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, count), None, "1"), Open())
    await writer.write(output(rows(count, FEW), "1", "2"), Open())
    await sink.prepare()  # by a session that has a table of its own
    await writer.write(output(rows(count + FEW, count), "2", "3"), Open())
    assert postgres.fetch(f"SELECT count(*) FROM public.{name}") == [(2 * count + FEW,)]


async def test_staged_rows_arrive_in_a_table_called_batch(
    postgres: Postgres, sink_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    sink = sink_of(
        setup=f"CREATE TABLE IF NOT EXISTS batch {IDS}", table="batch", executors_env=EXECUTORS_ENV, **UPSERT
    )
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, FEW)), Open())
    await writer.write(await staged(writer, [rows(FEW, FEW)], "1", "2"), Open())
    assert postgres.fetch("SELECT count(*) FROM public.batch") == [(2 * FEW,)]


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_a_merge_reads_the_output_in_a_database_with_a_table_called_batch(
    postgres: Postgres, sink_of: Make, count: int
) -> None:
    postgres.fetch("CREATE TABLE public.batch (lot text); CREATE TABLE copied (id bigint, value bigint)")
    sink = sink_of(merge="INSERT INTO copied SELECT id, value FROM batch", connections_max=1)
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, count)), Open())
    await sink.prepare()
    await writer.write(output(rows(count, count), "1", "2"), Open())
    assert postgres.fetch("SELECT count(*) FROM copied") == [(2 * count,)]
    assert postgres.fetch("SELECT count(*) FROM public.batch") == [(0,)]


async def test_a_merge_may_write_into_a_table_called_batch_by_its_schema(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch(f"CREATE TABLE public.batch {IDS}")
    sink = sink_of(merge="INSERT INTO public.batch SELECT id, value FROM batch")
    await sink.prepare()
    await (await sink.open(claim())).write(output(rows(0, FEW)), Open())
    assert postgres.fetch("SELECT count(*) FROM public.batch") == [(FEW,)]


@pytest.mark.parametrize(
    "merge", ["INSERT INTO batch SELECT * FROM batch", "DELETE FROM batch", "SELECT id FROM batch"]
)
async def test_a_merge_that_writes_into_the_output_alone_is_refused(
    postgres: Postgres, sink_of: Make, merge: str
) -> None:
    postgres.fetch(f"CREATE TABLE public.batch {IDS}")
    sink = sink_of(merge=merge)
    await sink.prepare()
    with pytest.raises(SinkRejected, match=r"`merge` stores no row of the output.* name its schema"):
        await sink.check_columns(rows(0, 0).schema)
    writer = await sink.open(claim())
    for _ in range(2):
        with pytest.raises(SinkRejected, match="`merge` stores no row"):
            await writer.write(output(rows(0, FEW)), Open())
    assert writer.position is None


@pytest.mark.parametrize("merge", ["SELECT 1", "VALUES (1)", "SELECT 1 -- ", "WITH x AS (SELECT 1) TABLE x"])
async def test_a_merge_that_stores_nothing_is_refused_at_the_start(sink_of: Make, merge: str) -> None:
    with pytest.raises(SinkRejected, match="stores no row of the output, and its position would move"):
        await sink_of(merge=merge).prepare()


UNREAD = "`merge` never reads the output, and its position would move over it: read the table `batch`"


@pytest.mark.parametrize(
    "merge",
    [
        "INSERT INTO t VALUES (1, 2)",
        "UPDATE t SET value = value + 1",
        "INSERT INTO t SELECT id, value FROM batch WHERE false",
        "INSERT INTO t SELECT id, value FROM batch WHERE 1 = 2",
        "MERGE INTO t USING (SELECT * FROM batch WHERE false) b ON t.id = b.id WHEN NOT MATCHED THEN INSERT VALUES (b.id, 1)",
        "WITH unused AS (SELECT * FROM batch) DELETE FROM t",
        "INSERT INTO t SELECT id, value FROM public.batch",
        "INSERT INTO t SELECT n, 1 FROM generate_series(1, 3) AS n",
        'INSERT INTO t SELECT * FROM jsonb_to_record(\'{"id": 1, "value": 2}\') AS one (id bigint, value bigint)',
    ],
)
async def test_a_merge_that_never_reads_the_output_is_refused_at_the_start(
    postgres: Postgres, sink_of: Make, merge: str
) -> None:
    postgres.fetch(f"CREATE TABLE t {IDS}; CREATE TABLE public.batch {IDS}")
    sink = sink_of(merge=merge)

    async def start() -> None:
        await sink.prepare()
        await sink.check_columns(rows(0, 0).schema)

    with pytest.raises(SinkRejected, match=UNREAD):
        await start()


@pytest.mark.parametrize(
    "merge",
    [
        "INSERT INTO t SELECT id, value FROM batch WHERE id > 100",
        "INSERT INTO t SELECT count(*), 1 FROM batch",
        "UPDATE t SET value = value + (SELECT sum(value) FROM batch)",
        "DELETE FROM t WHERE id IN (SELECT id FROM batch)",
        "DELETE FROM t WHERE NOT EXISTS (SELECT FROM batch)",
        "WITH b AS (SELECT * FROM batch), d AS (DELETE FROM t USING b WHERE b.id = t.id) INSERT INTO t SELECT id, 1 FROM b",
        "INSERT INTO t SELECT * FROM read_batch()",
        "INSERT INTO t SELECT row_number() OVER (), ndoc FROM ts_stat('SELECT to_tsvector(''simple'', id::text) FROM batch')",
        "INSERT INTO t SELECT n, 1 FROM batch, generate_series(id, id) AS n",
    ],
)
async def test_a_merge_that_reads_the_output_in_any_way_is_taken(postgres: Postgres, sink_of: Make, merge: str) -> None:
    postgres.fetch(f"""CREATE TABLE t {IDS};
        CREATE FUNCTION read_batch() RETURNS SETOF t LANGUAGE plpgsql AS
        $$ BEGIN RETURN QUERY SELECT id, value FROM batch; END $$""")
    sink = sink_of(merge=merge)
    await sink.prepare()
    await sink.check_columns(rows(0, 0).schema)
    await (await sink.open(claim())).write(output(rows(0, FEW)), Open())


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_a_trigger_that_writes_into_a_table_called_batch_finds_it(
    postgres: Postgres, sink_of: Make, count: int
) -> None:
    postgres.fetch(
        f"""CREATE TABLE public.batch (id bigint); CREATE TABLE target {IDS};
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN INSERT INTO batch VALUES (NEW.id); RETURN NEW; END $$;
        CREATE TRIGGER noted AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION note()"""
    )
    sink = sink_of(table="target")
    await sink.prepare()
    await (await sink.open(claim())).write(output(rows(0, count)), Open())
    assert postgres.fetch("SELECT count(*) FROM public.batch") == [(count,)]


async def test_setup_means_the_user_s_table_called_batch(postgres: Postgres, sink_of: Make) -> None:
    setup = f"CREATE TABLE IF NOT EXISTS batch {IDS}; ALTER TABLE batch ADD COLUMN IF NOT EXISTS added text"
    for target in ({"merge": "INSERT INTO public.batch SELECT id, value FROM batch"}, {"table": "batch"}):
        sink = sink_of(setup=setup, connections_max=1, **target)
        await sink.prepare()
        writer = await sink.open(claim(partition=next(iter(target))))
        await writer.write(output(rows(len(target["merge"]) if "merge" in target else 0, FEW)), Open())
        postgres.fetch("ALTER TABLE public.batch DROP COLUMN added")
        await sink.prepare()
        assert postgres.fetch("SELECT count(added) FROM public.batch") == [(0,)]


@pytest.mark.parametrize("count", [FEW, MANY])
async def test_a_target_is_where_the_search_path_led_at_the_start(
    postgres: Postgres, sink_of: Make, count: int
) -> None:
    postgres.fetch("CREATE SCHEMA own; CREATE TABLE own.t (id bigint, value bigint); CREATE TABLE public.u (id bigint)")
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET search_path = own, public, pg_temp")
    sink = sink_of(table="t")
    await sink.prepare()
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET search_path = public")
    postgres.fetch("CREATE TABLE public.t (id bigint, value bigint)")
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    postgres.fetch(
        f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}"
    )  # new ones have the new path
    writer = await sink.open(claim())
    await writer.write(output(rows(0, count)), Open())
    assert postgres.fetch("SELECT count(*) FROM own.t") == [(count,)]


@pytest.mark.parametrize(
    ("path", "is_refused"),
    [
        ("public, pg_temp", True),
        ("absent, PG_TEMP, public", True),
        ('public, "pg_temp"', True),
        ("pg_temp, public", False),
        ("public", False),
    ],
)
async def test_a_merge_is_refused_if_the_search_path_could_hide_the_output(
    postgres: Postgres, sink_of: Make, path: str, is_refused: bool
) -> None:
    postgres.fetch(f"CREATE TABLE copied {IDS}")
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET search_path = {path}")
    sink = sink_of(merge="INSERT INTO public.copied SELECT id, value FROM batch")
    if is_refused:
        with pytest.raises(SinkRejected, match=r"another table `batch`.* search_path names pg_temp"):
            await sink.prepare()
        return
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, FEW)), Open())
    postgres.fetch(f"CREATE TABLE public.batch {IDS}")
    await writer.write(output(rows(FEW, FEW), "1", "2"), Open())
    assert postgres.fetch("SELECT count(*) FROM public.copied") == [(2 * FEW,)]


# Tables that lose rows


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("CREATE UNLOGGED TABLE t (id bigint PRIMARY KEY, value bigint)", r"into public\.t, which is UNLOGGED"),
        (
            "CREATE UNLOGGED TABLE u (id bigint PRIMARY KEY, value bigint); CREATE VIEW t AS SELECT * FROM u",
            r"public\.u",
        ),
        (
            """CREATE TABLE t (id bigint PRIMARY KEY, value bigint) PARTITION BY RANGE (id);
            CREATE UNLOGGED TABLE p PARTITION OF t FOR VALUES FROM (0) TO (9)""",
            r"into public\.p, which is UNLOGGED",
        ),
        ("FOREIGN", r"into public\.t, which is a foreign table|foreign-data wrapper"),
    ],
    ids=["unlogged", "behind a view", "a partition", "foreign"],
)
@pytest.mark.parametrize(
    "more", [{"table": "t"}, {"merge": "INSERT INTO t SELECT id, value FROM batch"}, {"table": "t", **UPSERT}]
)
async def test_a_table_that_may_lose_rows_is_refused(
    postgres: Postgres, sink_of: Make, made: str, words: str, more: dict[str, Any]
) -> None:
    if made == "FOREIGN":
        if "key" in more:
            pytest.skip("PostgreSQL refuses such a key itself")
        made = """CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far;
            CREATE FOREIGN TABLE t (id bigint, value bigint) SERVER far"""
    postgres.fetch(made)
    sink = sink_of(**more)

    async def start() -> None:
        await sink.prepare()
        await sink.check_columns(rows(0, 0).schema)

    with pytest.raises(SinkRejected, match=words):
        await start()


PLAIN = "CREATE TABLE t (id bigint, value bigint)"
WEAKENED = {
    "unlogged": (PLAIN, "ALTER TABLE t SET UNLOGGED", "`table` is UNLOGGED"),
    "unlogged, with a key": (f"CREATE TABLE t {IDS}", "ALTER TABLE t SET UNLOGGED", "`table` is UNLOGGED"),
    "a rule": (PLAIN, "CREATE RULE r AS ON INSERT TO t DO INSTEAD NOTHING", "stores no row of the output"),
    "a partition": (
        f"{PLAIN} PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO ({FEW})",
        "CREATE UNLOGGED TABLE q PARTITION OF t DEFAULT",
        r"into public\.q, which is UNLOGGED",
    ),
    "a view": (
        "CREATE TABLE a (id bigint, value bigint); CREATE UNLOGGED TABLE u (LIKE a); CREATE VIEW t AS SELECT * FROM a",
        "CREATE OR REPLACE VIEW t AS SELECT * FROM u",
        r"into public\.u, which is UNLOGGED",
    ),
    "behind a view": (
        "CREATE TABLE a (id bigint, value bigint); CREATE VIEW t AS SELECT * FROM a",
        "ALTER TABLE a SET UNLOGGED",
        r"into public\.a, which is UNLOGGED",
    ),
    "a deeper partition": (
        f"""{PLAIN} PARTITION BY RANGE (id);
        CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (1000000) PARTITION BY RANGE (id);
        CREATE TABLE q PARTITION OF p FOR VALUES FROM (0) TO ({FEW})""",
        "CREATE UNLOGGED TABLE r PARTITION OF p DEFAULT",
        r"into public\.r, which is UNLOGGED",
    ),
    "a deeper partition that changes": (
        f"""{PLAIN} PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t DEFAULT PARTITION BY RANGE (id);
        CREATE TABLE q PARTITION OF p DEFAULT""",
        "ALTER TABLE q SET UNLOGGED",
        r"into public\.q, which is UNLOGGED",
    ),
    "a foreign partition": (
        f"""{PLAIN} PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t DEFAULT PARTITION BY RANGE (id);
        CREATE TABLE q PARTITION OF p FOR VALUES FROM (0) TO ({FEW});
        CREATE FOREIGN DATA WRAPPER far; CREATE SERVER far FOREIGN DATA WRAPPER far""",
        "CREATE FOREIGN TABLE r PARTITION OF p DEFAULT SERVER far",
        r"into public\.r, which is a foreign table|foreign-data wrapper",
    ),
}
MERGE = "INSERT INTO t SELECT id, value FROM batch"


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("case", WEAKENED)
@pytest.mark.parametrize("more", [{"table": "t"}, {"merge": MERGE}], ids=["table", "merge"])
async def test_a_table_that_may_lose_rows_since_it_was_first_written_is_refused(
    postgres: Postgres, sink_of: Make, case: str, count: int, more: dict[str, Any]
) -> None:
    made, change, words = WEAKENED[case]
    if "merge" in more:
        words = words.replace("`table` is", r"into public\.t, which is")
    postgres.fetch(made)
    sink = sink_of(**more, connections_max=1)
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, FEW)), Open())
    postgres.fetch(change)
    with pytest.raises(SinkRejected, match=words):
        await writer.write(output(rows(FEW, count), "1", "2"), Open())
    assert writer.position == "1"


async def test_a_partition_that_is_added_to_a_merge_s_table_is_written(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch(f"{PLAIN} PARTITION BY RANGE (id); CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO ({FEW})")
    sink = sink_of(merge=MERGE, connections_max=1)
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, FEW)), Open())
    postgres.fetch("CREATE TABLE q PARTITION OF t DEFAULT")
    await writer.write(output(rows(FEW, FEW), "1", "2"), Open())
    assert postgres.fetch("SELECT count(*) FROM q") == [(FEW,)]


PATHS = {
    "the server's": "ALTER SYSTEM SET search_path = other, public",
    "the role's": "ALTER ROLE {} SET search_path = other, public",
}


@pytest.mark.parametrize("is_new", [False, True], ids=["the connection", "a new connection"])
@pytest.mark.parametrize("whose", PATHS)
async def test_a_merge_writes_where_it_did_at_the_start_whatever_becomes_of_the_search_path(
    postgres: Postgres, sink_of: Make, whose: str, is_new: bool
) -> None:
    role = f"pathfinder_{postgres.name}"
    postgres.fetch(f"CREATE ROLE {role} LOGIN SUPERUSER; CREATE TABLE public.t (id bigint, value bigint)")
    sink = sink_of(dsn=postgres.dsn_of(role), merge=MERGE, connections_max=1)
    try:
        await sink.prepare()
        writer = await sink.open(claim())
        await writer.write(output(rows(0, FEW)), Open())
        postgres.fetch("CREATE SCHEMA other; CREATE TABLE other.t (id bigint, value bigint)")
        postgres.fetch(PATHS[whose].format(role))
        postgres.fetch("SELECT pg_reload_conf()")
        await until_async(lambda: whose == "the role's" or postgres.fetch("SHOW search_path") == [("other, public",)])
        if is_new:
            postgres.fetch(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'")
        await writer.write(output(rows(FEW, FEW), "1", "2"), Open())
        assert postgres.fetch("SELECT (SELECT count(*) FROM public.t), (SELECT count(*) FROM other.t)") == [
            (2 * FEW, 0)
        ]
    finally:
        await sink.close()
        postgres.fetch("ALTER SYSTEM RESET search_path")
        postgres.fetch("SELECT pg_reload_conf()")
        postgres.fetch(f"DROP OWNED BY {role}; DROP ROLE {role}")


# Tables that change


CHANGES = {
    "a rule": (
        "CREATE TABLE audit (id bigint); CREATE RULE r AS ON INSERT TO t DO ALSO INSERT INTO audit VALUES (NEW.id)",
        None,
    ),
    "an identity": ("ALTER TABLE t ALTER id SET NOT NULL, ALTER id ADD GENERATED ALWAYS AS IDENTITY", "428C9"),
    "a generated column": (
        "ALTER TABLE t DROP value; ALTER TABLE t ADD value bigint GENERATED ALWAYS AS (id) STORED",
        "428C9",
    ),
    "a type": ("ALTER TABLE t ALTER value TYPE timestamptz USING now()", "42804"),
    "a narrower type": ("ALTER TABLE t ALTER value TYPE smallint", None),
    "no column": ("ALTER TABLE t DROP value", "42703"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_table_that_changes_means_the_same_for_many_rows_as_for_few(
    postgres: Postgres, sink_of: Make, change: str
) -> None:
    sink = sink_of(setup="CREATE TABLE IF NOT EXISTS t (id bigint, value bigint)", table="t")
    await sink.prepare()
    writers = [await sink.open(claim(partition=str(n))) for n in range(2)]
    for writer, first in zip(writers, (0, 5000), strict=True):
        await writer.write(output(rows(first, MANY), None, "1"), Open())
        await writer.write(output(rows(first + MANY, FEW), "1", "2"), Open())
    statements, refused = CHANGES[change]
    postgres.fetch(statements)
    for writer, first, count in zip(writers, (10_000, 20_000), (FEW, MANY), strict=True):
        if refused is None:
            await writer.write(output(rows(first, count), "2", "3"), Open())
        else:
            with pytest.raises(SinkRejected, match=refused):
                await writer.write(output(rows(first, count), "2", "3"), Open())
    if change == "a rule":
        assert postgres.fetch("SELECT count(*) FROM audit") == [(FEW + MANY,)]


async def test_a_table_that_changes_before_each_message_arrives_is_looked_at_again(
    postgres: Postgres, sink_of: Make, postgres_network: Network
) -> None:
    sink = sink_of(
        dsn=postgres_network.dsn,
        setup="CREATE TABLE IF NOT EXISTS t (id numeric, value bigint)",
        table="t",
        connections_max=1,
    )
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(rows(0, FEW)), Open())

    async def before(line: Connection, message: bytes) -> None:
        if b"leasehold_guard" in message:
            postgres_network.before = None
            postgres.fetch("ALTER TABLE t ALTER id TYPE integer")

    postgres_network.before = before
    table = pa.table({"id": [Decimal("2.5")], "value": [1]})
    with pytest.raises(OutputRefused, match="column 'id', which is numeric in the output and integer in the table"):
        await writer.write(output(table, "1", "2"), Open())


async def test_a_few_rows_still_travel_in_one_message(
    postgres: Postgres, sink_of: Make, postgres_network: Network
) -> None:
    for target in ({"table": "t"}, {"table": "t", **UPSERT}):
        sink = sink_of(dsn=postgres_network.dsn, setup=f"CREATE TABLE IF NOT EXISTS t {IDS}", **target)
        await sink.prepare()
        writer = await sink.open(claim(partition=str(len(target))))
        await writer.write(output(rows(100 * len(target), FEW)), Open())
        messages: list[bytes] = []

        async def before(line: Connection, message: bytes, messages: list[bytes] = messages) -> None:
            messages.append(message)

        postgres_network.before = before
        await writer.write(output(rows(100 * len(target) + FEW, FEW), "1", "2"), Open())
        assert [message[:1] for message in messages] == [b"Q"]
        postgres_network.before = None


# Rights


@pytest.mark.parametrize("count", [FEW, MANY])
@pytest.mark.parametrize("more", [{}, UPSERT], ids=["append", "upsert"])
async def test_a_role_with_rights_on_the_columns_alone_writes(
    postgres: Postgres, sink_of: Make, more: dict[str, Any], count: int
) -> None:
    keyed = IDS if more else "(id bigint, value bigint)"
    postgres.fetch(f"CREATE TABLE t {keyed}; CREATE SCHEMA ours")
    postgres.fetch("DROP ROLE IF EXISTS clerk_of_columns")
    postgres.fetch(
        """CREATE ROLE clerk_of_columns LOGIN; GRANT ALL ON SCHEMA ours TO clerk_of_columns;
        GRANT INSERT (id, value), UPDATE (value), SELECT (id, value) ON t TO clerk_of_columns"""
    )
    try:
        sink = sink_of(dsn=postgres.dsn_of("clerk_of_columns"), table="t", schema="ours", **more)
        await sink.prepare()
        await sink.check_columns(rows(0, 0).schema)
        writer = await sink.open(claim())
        await writer.write(output(rows(0, count)), Open())
        assert postgres.fetch("SELECT count(*) FROM t") == [(count,)]
        await sink.close()
    finally:
        postgres.fetch("DROP OWNED BY clerk_of_columns; DROP ROLE clerk_of_columns")


# Types


@pytest.mark.parametrize("way", ["few", "copy", "staged"])
@pytest.mark.parametrize("more", [{}, {"key": ["id"]}], ids=["append", "upsert"])
async def test_nulls_without_a_type_are_stored_in_any_column(
    postgres: Postgres, sink_of: Make, more: dict[str, Any], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    monkeypatch.setattr(copy, "FEW_ROWS", 50 if way == "few" else 0)
    kinds = [
        "int",
        "numeric(5,2)",
        "timestamptz",
        "jsonb",
        "uuid",
        "bytea",
        "text[]",
        "mood",
        "char(3)",
        "date",
        "bool",
        "inet",
    ]
    columns = ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds))
    postgres.fetch(f"CREATE TYPE mood AS ENUM ('good'); CREATE TABLE t (id bigint PRIMARY KEY, {columns})")
    sink = sink_of(table="t", executors_env=EXECUTORS_ENV, **more)
    await sink.prepare()
    table = pa.table({"id": [1, 2], **{f"c{n}": pa.nulls(2) for n in range(len(kinds))}})
    await sink.check_columns(table.schema)
    writer = await sink.open(claim())
    await writer.write(await staged(writer, [table]) if way == "staged" else output(table), Open())
    assert postgres.fetch("SELECT * FROM t ORDER BY 1") == [(n, *[None] * len(kinds)) for n in (1, 2)]


@pytest.mark.parametrize(
    ("kind", "column", "words"),
    [
        ("uuid", pa.array([], pa.string()), "42804"),
        ("jsonb", pa.array([], pa.string()), "42804"),
        ("mood", pa.array([], pa.string()), "42804"),
        ("text[]", pa.array([], pa.list_(pa.string())), "42804"),
        ("timestamptz", pa.array([], pa.string()), "42804"),
        ("int", pa.array([], pa.bool_()), "42804"),
        ("time", pa.array([], pa.timestamp("us")), "would cut it"),
        ("text", pa.array([], pa.duration("s")), "no such type"),
        ("text", pa.array([], pa.list_(pa.decimal128(5, 2))), "JSON cannot hold a Decimal"),
    ],
)
async def test_types_that_cannot_fit_are_refused_before_the_first_row(
    postgres: Postgres, sink_of: Make, kind: str, column: pa.Array, words: str
) -> None:
    postgres.fetch(f"CREATE TYPE mood AS ENUM ('good'); CREATE TABLE t (id bigint PRIMARY KEY, odd {kind})")
    table = pa.table({"id": pa.array([], pa.int64()), "odd": column})
    for more in ({}, UPSERT):
        sink = sink_of(table="t", **more)
        await sink.prepare()
        with pytest.raises(SinkRejected, match=f"(?s)odd.*{words}|{words}.*odd"):
            await sink.check_columns(table.schema)
        await sink.check_columns(table.select(["id"]).schema)


async def test_a_column_that_the_table_lacks_is_refused_before_the_first_row(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch(f"CREATE TABLE t {IDS}")
    for target in ({"table": "t"}, {"table": "t", **UPSERT}, {"merge": "INSERT INTO t SELECT id, valeu FROM batch"}):
        sink = sink_of(**target)
        await sink.prepare()
        with pytest.raises(SinkRejected, match='42703 column "valeu"'):
            await sink.check_columns(
                pa.schema([("id", pa.int64()), ("valeu" if "table" in target else "value", pa.int64())])
            )


# Time


async def test_a_batch_that_always_takes_too_long_is_refused_in_the_end(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch("CREATE TABLE pace AS SELECT 60::float AS s")
    merge = "INSERT INTO t SELECT id, value FROM batch, pg_sleep((SELECT s FROM pace))"
    sink = sink_of(setup=f"CREATE TABLE IF NOT EXISTS t {IDS}", merge=merge, timeouts=Timeouts(statement_s=1))
    await sink.prepare()
    for epoch in range(1, TIMEOUTS_MAX):
        with pytest.raises(SinkUnavailable, match="57014"):
            await (await sink.open(claim(epoch))).write(output(rows(0, FEW)), Open())
    writer = await sink.open(claim(TIMEOUTS_MAX))
    with pytest.raises(OutputTooLarge, match=f"`merge` of {FEW} rows has exceeded 1 s {TIMEOUTS_MAX} times"):
        await writer.write(output(rows(0, FEW)), Open())
    with pytest.raises(SinkRejected, match="has exceeded") as refused:  # one event is not to blame
        await (await sink.open(claim(9))).write(output(rows(0, 1)), Open())
    assert not isinstance(refused.value, OutputRefused)
    postgres.fetch("UPDATE pace SET s = 0")
    await (await sink.open(claim(10))).write(output(rows(0, FEW)), Open())
    postgres.fetch("UPDATE pace SET s = 60")
    with pytest.raises(SinkUnavailable, match="57014"):
        await (await sink.open(claim(11))).write(output(rows(9, FEW), "1", "2"), Open())
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (FEW,)
