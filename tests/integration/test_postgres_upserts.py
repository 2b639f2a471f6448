"""The sink `postgres`, `mode: upsert`: what its unique index makes of the rows one by one, wherever a batch is cut."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

import psycopg
import pyarrow as pa
import pytest
from plugins_bank import EXECUTORS_ENV, Make, Open, claim, output, staged
from plugins_pg import Postgres

from leasehold.pipeline.connectors.postgres import copy
from leasehold.pipeline.connectors.postgres.writer import PostgresWriter
from leasehold.pipeline.errors import OutputRefused, SinkRejected

Way = Literal["one by one", "few", "copy", "staged"]
WAYS: tuple[Way, ...] = ("one by one", "few", "copy", "staged")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
MIDNIGHT = datetime(2026, 1, 2)  # noqa: DTZ001  # without a zone is the point


@pytest.fixture(autouse=True)
def variable(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)


async def write_rows(writer: PostgresWriter, table: pa.Table, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "staged":
        parts = [table.slice(0, 1), table.slice(1)]
        await writer.write(await staged(writer, parts), Open())
        return
    monkeypatch.setattr(copy, "FEW_ROWS", 0 if way == "copy" else 50)
    rows = [table.slice(n, 1) for n in range(table.num_rows)] if way == "one by one" else [table]
    for number, each in enumerate(rows, 1):
        await writer.write(output(each, writer.position, str(number)), Open())


KEYS: list[tuple[str, str, pa.DataType, Sequence[Any], list[tuple[str | None, int]]]] = [
    ("char(8) PRIMARY KEY", "blanks", pa.string(), ["a", "ab ", "ab", "c"], [("a", 1), ("ab", 3), ("c", 4)]),
    ("text UNIQUE", "nulls", pa.string(), [None, None, "x", None], [("x", 3), (None, 1), (None, 2), (None, 4)]),
    ("text UNIQUE NULLS NOT DISTINCT", "one null", pa.string(), [None, "x", None], [("x", 2), (None, 3)]),
    ("float8 PRIMARY KEY", "zeros", pa.float64(), [0.0, -0.0, 1.0], [("0", 2), ("1", 3)]),
    ("float8 PRIMARY KEY", "nan", pa.float64(), [float("nan"), 1.0, float("nan")], [("1", 2), ("NaN", 3)]),
    (
        "integer PRIMARY KEY",
        "whole",
        pa.decimal128(5, 2),
        [Decimal("1.00"), Decimal(2), Decimal(1)],
        [("1", 3), ("2", 2)],
    ),
    ("date PRIMARY KEY", "midnight", pa.timestamp("us"), [MIDNIGHT, MIDNIGHT], [("2026-01-02", 2)]),
    (
        "timestamptz PRIMARY KEY",
        "zones",
        pa.timestamp("us", "Asia/Tokyo"),
        [NOON, NOON],
        [("2026-01-02 12:00:00+00", 2)],
    ),
    ("folded PRIMARY KEY", "a type that folds case", pa.string(), ["a", "B", "A", "b"], [("a", 3), ("B", 4)]),
    ("text NOT NULL", "an index that folds case", pa.string(), ["B", "a", "b", "A"], [("a", 4), ("B", 3)]),
    ("varchar(3) PRIMARY KEY", "short", pa.string(), ["abc", "a", "abc"], [("a", 2), ("abc", 3)]),
    ("bytea PRIMARY KEY", "bytes", pa.binary(), [b"\x01", b"", b"\x01"], [("\\x", 2), ("\\x01", 3)]),
    ("jsonb PRIMARY KEY", "json", pa.list_(pa.int64()), [[1], [2], [1]], [("[1]", 3), ("[2]", 2)]),
    ("lowered PRIMARY KEY", "a trigger", pa.string(), ["A", "b", "a"], [("a", 3), ("b", 2)]),
    ('text COLLATE "C" PRIMARY KEY', "a trigger, by bytes", pa.string(), ["a", "b", "A"], [("a", 3), ("b", 2)]),
    ('text COLLATE "C" UNIQUE', "two indexes", pa.string(), ["a", "b", "A"], [("a", 3), ("b", 2)]),
]
SETUP = """CREATE TABLE IF NOT EXISTS kv (k {}, v bigint);
    CREATE OR REPLACE FUNCTION lower_key() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.k := lower(NEW.k); RETURN NEW; END $$;
    {}"""
LOW = "CREATE OR REPLACE TRIGGER low BEFORE INSERT ON kv FOR EACH ROW EXECUTE FUNCTION lower_key()"
MORE = {
    "a trigger": LOW,
    "a trigger, by bytes": LOW,
    "two indexes": "CREATE UNIQUE INDEX IF NOT EXISTS kv_k ON kv (k text_folded)",
    "an index that folds case": "CREATE UNIQUE INDEX IF NOT EXISTS kv_k ON kv (k text_folded)",
}
FOLDED = (
    """
CREATE DOMAIN lowered AS text;
CREATE TYPE folded;
CREATE FUNCTION folded_in(cstring) RETURNS folded LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION folded_out(folded) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE folded (INPUT = folded_in, OUTPUT = folded_out, LIKE = text, CATEGORY = 'S');
CREATE CAST (folded AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text AS folded) WITHOUT FUNCTION AS ASSIGNMENT;
"""
    + "".join(
        f"""
CREATE FUNCTION fold_{name}({kind}, {kind}) RETURNS boolean LANGUAGE sql IMMUTABLE STRICT AS
    $$ SELECT lower($1::text) {operator} lower($2::text) $$;
CREATE OPERATOR {sign} (LEFTARG = {kind}, RIGHTARG = {kind}, FUNCTION = fold_{name});
"""
        for kind, prefix in (("text", "~"), ("folded", ""))
        for name, operator in (("lt", "<"), ("le", "<="), ("eq", "="), ("ge", ">="), ("gt", ">"))
        for sign in (prefix + operator,)
    )
    + "".join(
        f"""
CREATE FUNCTION fold_cmp({kind}, {kind}) RETURNS integer LANGUAGE sql IMMUTABLE STRICT AS
    $$ SELECT CASE WHEN lower($1::text) < lower($2::text) THEN -1 WHEN lower($1::text) = lower($2::text) THEN 0 ELSE 1 END $$;
CREATE OPERATOR CLASS {kind}_folded {default} FOR TYPE {kind} USING btree AS
    OPERATOR 1 {prefix}<, OPERATOR 2 {prefix}<=, OPERATOR 3 {prefix}=, OPERATOR 4 {prefix}>=, OPERATOR 5 {prefix}>,
    FUNCTION 1 fold_cmp({kind}, {kind});
"""
        for kind, prefix, default in (("text", "~", ""), ("folded", "", "DEFAULT"))
    )
)
"""As the extension citext makes its type; and a class of operators by which an index of texts folds case."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "case", "arrow", "keys", "expected"), KEYS, ids=[case for _, case, *_ in KEYS])
async def test_rows_are_one_if_the_unique_index_says_so(
    postgres: Postgres,
    sink_of: Make,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    case: str,
    arrow: pa.DataType,
    keys: Sequence[Any],
    expected: list[tuple[str | None, int]],
    way: Way,
) -> None:
    postgres.fetch(FOLDED)
    setup = SETUP.format(kind, MORE.get(case, ""))
    sink = sink_of(setup=setup, table="kv", key=["k"], executors_env=EXECUTORS_ENV)
    await sink.prepare()
    writer = await sink.open(claim())
    table = pa.table({"k": pa.array(keys, arrow), "v": range(1, len(keys) + 1)})
    await write_rows(writer, table, way, monkeypatch)
    found = postgres.fetch("SELECT rtrim(k::text), v FROM kv")
    assert sorted(found, key=lambda row: (row[0] is None, str(row[0]).lower(), row[1])) == expected


KEEP = """CREATE OR REPLACE FUNCTION keep_key() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN NEW.came := NEW.k; NEW.k := lower(NEW.k); RETURN NEW; END $$;
    CREATE OR REPLACE TRIGGER keep BEFORE INSERT ON kv FOR EACH ROW EXECUTE FUNCTION keep_key()"""
FOLD = "CREATE UNIQUE INDEX IF NOT EXISTS kv_k ON kv (k text_folded)"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("folded PRIMARY KEY", ""),
        ("text NOT NULL", FOLD),
        ('text COLLATE "C" UNIQUE', FOLD),
        ('text COLLATE "C" PRIMARY KEY', KEEP),
    ],
    ids=["a type that folds case", "an index that folds case", "two indexes", "a trigger"],
)
async def test_of_rows_that_have_only_a_key_the_first_to_arrive_stays(
    postgres: Postgres, sink_of: Make, monkeypatch: pytest.MonkeyPatch, kind: str, more: str, way: Way
) -> None:
    postgres.fetch(FOLDED)
    setup = f"CREATE TABLE IF NOT EXISTS kv (k {kind}, came text); {more}"
    sink = sink_of(setup=setup, table="kv", key=["k"], executors_env=EXECUTORS_ENV)
    await sink.prepare()
    writer = await sink.open(claim())
    await write_rows(writer, pa.table({"k": ["b", "A", "B", "a", "b"]}), way, monkeypatch)
    assert sorted(postgres.fetch("SELECT coalesce(came, k::text) FROM kv")) == [("A",), ("b",)]


async def test_rows_that_have_only_a_key_are_locked_in_its_order_while_nothing_but_its_index_decides(
    postgres: Postgres, sink_of: Make
) -> None:
    """Partitions that bring the same keys then do not deadlock. A trigger that comes later is noticed."""
    postgres.fetch("CREATE TABLE kv (k text PRIMARY KEY, came text)")
    sink = sink_of(table="kv", key=["k"])
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(pa.table({"k": ["b", "c", "a"]}), None, "1"), Open())
    assert postgres.fetch("SELECT k FROM kv ORDER BY ctid") == [("a",), ("b",), ("c",)]
    postgres.fetch(KEEP)
    await writer.write(output(pa.table({"k": ["f", "e", "E", "F"]}), "1", "2"), Open())
    assert postgres.fetch("SELECT came FROM kv WHERE k > 'c' ORDER BY ctid") == [("f",), ("e",)]


@pytest.mark.parametrize("way", WAYS)
async def test_keys_of_several_columns_with_nulls_are_one_if_the_unique_index_says_so(
    postgres: Postgres, sink_of: Make, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = "CREATE TABLE IF NOT EXISTS kv (a int, b char(4), v bigint, UNIQUE (b, a))"
    sink = sink_of(setup=setup, table="kv", key=["a", "b"], executors_env=EXECUTORS_ENV)
    await sink.prepare()
    writer = await sink.open(claim())
    rows = [(1, "x"), (None, "x"), (1, "x "), (None, "x"), (2, None), (2, None), (1, "y"), (1, "x")]
    table = pa.table(
        {
            "v": range(1, len(rows) + 1),
            "b": pa.array([b for _, b in rows], pa.string()),
            "a": pa.array([a for a, _ in rows], pa.int32()),
        }
    )
    await write_rows(writer, table, way, monkeypatch)
    found = postgres.fetch("SELECT a, trim(b), v FROM kv ORDER BY v")
    assert found == [(None, "x", 2), (None, "x", 4), (2, None, 5), (2, None, 6), (1, "y", 7), (1, "x", 8)]


@pytest.mark.parametrize("way", WAYS)
async def test_a_row_that_is_replaced_within_its_batch_is_checked_all_the_same(
    postgres: Postgres, sink_of: Make, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = "CREATE TABLE IF NOT EXISTS kv (k int PRIMARY KEY, v bigint CHECK (v < 10))"
    sink = sink_of(setup=setup, table="kv", key=["k"], executors_env=EXECUTORS_ENV)
    await sink.prepare()
    writer = await sink.open(claim())
    table = pa.table({"k": [1, 1, 1], "v": [99, 2, 3]})
    with pytest.raises(OutputRefused, match="23514"):
        await write_rows(writer, table, way, monkeypatch)
    assert postgres.fetch("SELECT * FROM kv") == []


async def test_columns_of_any_name_are_upserted(postgres: Postgres, sink_of: Make) -> None:
    """Within the block that takes the rows one by one, a name is always a column's."""
    names = ["leasehold_one", 'o"dd $leasehold$', "excluded", "k"]
    columns = ", ".join(f'"{name.replace(chr(34), chr(34) * 2)}" bigint' for name in names)
    setup = f"CREATE TABLE IF NOT EXISTS rows ({columns}, UNIQUE (leasehold_one, k))"
    sink = sink_of(setup=setup, table="rows", key=["k", "leasehold_one"])
    await sink.prepare()
    writer = await sink.open(claim())
    await writer.write(output(pa.table([[1, 1], [2, 3], [4, 5], [6, 6]], names)), Open())
    assert postgres.fetch("SELECT * FROM rows") == [(1, 3, 5, 6)]


async def test_a_key_without_a_unique_index_is_refused_at_the_start(sink_of: Make) -> None:
    sink = sink_of(setup="CREATE TABLE IF NOT EXISTS kv (k int, v int)", table="kv", key=["k"])
    with pytest.raises(SinkRejected, match="42P10"):
        await sink.prepare()


async def test_a_key_with_a_deferrable_constraint_is_refused_at_the_start(sink_of: Make) -> None:
    setup = "CREATE TABLE IF NOT EXISTS kv (a int, b int, v int, CONSTRAINT late UNIQUE (b, a) DEFERRABLE)"
    sink = sink_of(setup=setup, table="kv", key=["a", "b"])
    with pytest.raises(SinkRejected, match=r"constraint late on the columns in `key` is DEFERRABLE.* NOT DEFERRABLE"):
        await sink.prepare()


async def test_a_deferrable_constraint_by_another_key_is_none_of_an_upsert(postgres: Postgres, sink_of: Make) -> None:
    setup = "CREATE TABLE IF NOT EXISTS kv (a int UNIQUE, b int, UNIQUE (a, b) DEFERRABLE)"
    sink = sink_of(setup=setup, table="kv", key=["a"])
    await sink.prepare()
    await (await sink.open(claim())).write(output(pa.table({"a": [1, 1], "b": [1, 2]})), Open())
    assert postgres.fetch("SELECT * FROM kv") == [(1, 2)]


async def test_an_error_of_a_trigger_that_looks_like_a_key_twice_is_refused(sink_of: Make) -> None:
    setup = """CREATE TABLE IF NOT EXISTS kv (k int PRIMARY KEY, v int);
        CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE cardinality_violation USING MESSAGE = 'not twice'; END $$;
        CREATE OR REPLACE TRIGGER low BEFORE INSERT ON kv FOR EACH ROW EXECUTE FUNCTION fail()"""
    sink = sink_of(setup=setup, table="kv", key=["k"])
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(OutputRefused, match="21000 not twice"):
        await writer.write(output(pa.table({"k": [1], "v": [1]})), Open())


async def test_a_view_takes_upserts(postgres: Postgres, sink_of: Make) -> None:
    postgres.fetch("CREATE TABLE kv (k char(4) PRIMARY KEY, v int); CREATE VIEW seen AS SELECT k, v FROM kv")
    sink = sink_of(table="seen", key=["k"])
    await sink.prepare()
    writer = await sink.open(claim())
    table = pa.table({"k": ["a", "b", "a "], "v": [1, 2, 3]})
    await writer.write(output(table), Open())
    with psycopg.connect(postgres.dsn) as connection:
        assert connection.execute("SELECT trim(k), v FROM kv ORDER BY 1").fetchall() == [("a", 3), ("b", 2)]
