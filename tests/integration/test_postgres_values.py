"""The sink `postgres`: every value arrives as it was, or is refused by the name of its column."""

from __future__ import annotations

import asyncio
import math
import random
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins_bank import BALANCES, EXECUTORS_ENV, ONE, Make, Open, claim, output, staged
from plugins_pg import Postgres

from leasehold.pipeline.connectors.postgres import PostgresOutputSink, copy
from leasehold.pipeline.connectors.postgres.copy import FEW_ROWS, columns_of
from leasehold.pipeline.errors import OutputRefused, SinkRejected

TIMES = [1, FEW_ROWS]
"""How often the rows of a batch are there: few in the message that decides, more are copied."""


@pytest.mark.parametrize("is_merge", [False, True])
@pytest.mark.parametrize("times", [*TIMES, "staged"])
async def test_every_kind_of_value_arrives_as_it_was(
    postgres: Postgres, sink_of: Make, times: int | Literal["staged"], is_merge: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    is_staged = times == "staged"
    times = 1 if times == "staged" else times
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
    columns = [pa.array([value, None] * times, arrow) for _, arrow, value, _ in values]
    names = [f"c{i}" for i in range(len(values))]
    defined = ", ".join(f"{name} {kind}" for name, (kind, *_) in zip(names, values, strict=True))
    target = {"merge": "INSERT INTO kinds SELECT * FROM batch"} if is_merge else {"table": "kinds"}
    sink = sink_of(setup=f"CREATE TABLE kinds ({defined})", executors_env=EXECUTORS_ENV, **target)
    await sink.prepare()
    writer, table = await sink.open(claim()), pa.table(columns, names)
    await writer.write(await staged(writer, [table]) if is_staged else output(table), Open())
    expected = tuple(value if read is None else read for _, _, value, read in values)
    assert postgres.fetch("SELECT * FROM kinds") == [expected, (None,) * len(values)] * times


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    texts=st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1)
)
def test_any_text_arrives_as_it_was(postgres: Postgres, texts: list[str | None]) -> None:
    async def arrive() -> None:
        sink = PostgresOutputSink(
            postgres.dsn, setup="DROP TABLE IF EXISTS t; CREATE TABLE t (x text, i serial)", table="t"
        )
        await sink.prepare()
        partition = f"{texts!r}"[:500]
        writer = await sink.open(claim(partition=partition))
        for times in TIMES:
            start, events = int(writer.position or 0), pa.table({"x": pa.array(texts * times, pa.string())})
            await writer.write(output(events, writer.position, str(start + 1)), Open())
        await sink.close()
        assert [x for (x,) in postgres.fetch("SELECT x FROM t ORDER BY i")] == texts * sum(TIMES)

    asyncio.run(arrive())


Way = Literal["few", "copy", "staged"]
WAYS: tuple[Way, ...] = ("few", "copy", "staged")


async def write_rows(sink: PostgresOutputSink, table: pa.Table, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second row is the odd one."""
    await sink.prepare()
    writer = await sink.open(claim(partition=way))
    if way == "staged":
        await writer.write(await staged(writer, [table]), Open())
        return
    monkeypatch.setattr(copy, "FEW_ROWS", 50 if way == "few" else 0)
    await writer.write(output(table), Open())


def not_utf8(*contents: bytes) -> pa.Array:
    return pa.array(contents, pa.binary()).view(pa.string())


FAR = 253402300800_000_000
"""The year 10000, in microseconds."""
ODD_VALUES: dict[str, tuple[pa.Array, str]] = {
    "nul": (pa.array(["ok", "n\0l", "ok"]), "NUL"),
    "nul in a dictionary": (pa.array(["ok", "n\0l", "ok"]).dictionary_encode(), "NUL"),
    "latin-1": (not_utf8(b"ok", b"caf\xe9", b"ok"), "UTF-8"),
    "half a character": (not_utf8(b"ok", b"\xed\xa0\x80", b"ok"), "UTF-8"),
    "latin-1 in a list": (pa.ListArray.from_arrays([0, 1, 2, 3], not_utf8(b"ok", b"caf\xe9", b"ok")), "UTF-8"),
    "nanoseconds": (pa.array([1000, 1, 1000], pa.timestamp("ns")), "would lose data"),
    "nanoseconds of a day": (pa.array([1000, 1, 1000], pa.time64("ns")), "would lose data"),
    "nanoseconds in a list": (pa.array([[1000], [1], [1000]], pa.list_(pa.timestamp("ns"))), "[Nn]anosecond"),
    "no microsecond so far": (pa.array([1, 2**60, 1], pa.timestamp("s")), "out of bounds|overflow"),
    "before the year 1": (pa.array([0, -62135596800_000_001, 0], pa.timestamp("us", "UTC")), "before the year 1"),
    "a day before the year 1": (pa.array([0, -719163, 0], pa.date32()), "before the year 1"),
    "a day too far away": (pa.array([0, 2**31 - 1, 0], pa.date32()), "too far away"),
    "more than a day": (pa.array([0, 86_400_000_000, 0], pa.time64("us")), "outside of a day"),
    "nan in a list": (pa.array([[1.0], [math.nan], [1.0]]), "not JSON compliant"),
    "infinity in a struct": (pa.array([{"a": 1.0}, {"a": -math.inf}, {"a": 1.0}]), "not JSON compliant"),
    "nul in a struct": (pa.array([{"a": "x"}, {"a": "n\0"}, {"a": "x"}]), "NUL"),
    "nul in a key": (pa.array([[("a", 1)], [("n\0", 1)], []], pa.map_(pa.string(), pa.int64())), "NUL"),
    "a key twice": (pa.array([[("a", 1)], [("a", 1), ("a", 2)], []], pa.map_(pa.string(), pa.int64())), "a key twice"),
    "year 10000 in a list": (pa.array([[0], [FAR], [0]], pa.list_(pa.timestamp("us"))), "out of range"),
}


@pytest.mark.parametrize("case", ODD_VALUES)
async def test_a_value_that_cannot_be_stored_is_refused_by_row_and_column(
    postgres: Postgres, sink_of: Make, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    odd, words = ODD_VALUES[case]
    (column,) = columns_of(pa.schema([("odd", odd.type)]))
    setup = f"CREATE TABLE IF NOT EXISTS t (sequence bigint, odd {column.type})"
    sink = sink_of(setup=setup, table="t", executors_env=EXECUTORS_ENV)
    table = pa.table({"sequence": [7, 8, 9], "odd": odd})
    for way in WAYS:
        with pytest.raises(OutputRefused, match=rf"column 'odd'.*{words}.* in row 2 of 3 \(sequence 8\)") as refused:
            await write_rows(sink, table, way, monkeypatch)
        assert refused.value.sequences == (8,)
    assert postgres.fetch("SELECT * FROM t") == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1], pa.duration("s")), "no such type"),
        (pa.array([[Decimal("1.2")]]), "JSON cannot hold a Decimal exactly"),
        (pa.array([[b"x"]]), "JSON cannot hold a binary exactly"),
        (pa.array([[(b"x", 1)]], pa.map_(pa.binary(), pa.int64())), "JSON has no keys of the type binary"),
        (pa.StructArray.from_arrays([[1], [2]], ["a", "a"]), "a struct has a field twice"),
    ],
)
async def test_a_type_that_cannot_be_stored_is_refused_for_all_rows(
    postgres: Postgres, sink_of: Make, column: pa.Array, words: str, way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    sink = sink_of(setup="CREATE TABLE t (odd text)", table="t", executors_env=EXECUTORS_ENV)
    with pytest.raises(SinkRejected, match=f"column 'odd'.*{words}") as refused:
        await write_rows(sink, pa.table({"odd": column}), way, monkeypatch)
    assert not isinstance(refused.value, OutputRefused)


def random_text() -> str:
    """Which cannot be compressed."""
    return random.Random(1).randbytes(5000).hex()


REFUSED_BY_SERVER: dict[str, tuple[str, str, pa.Array, str]] = {
    "too many digits": (
        "odd numeric(5, 2)",
        "",
        pa.array([Decimal(1), Decimal(1000), Decimal(1)], pa.decimal128(9, 2)),
        "22003",
    ),
    "too large": ("odd smallint", "", pa.array([1, 40_000, 1], pa.int64()), "22003"),
    "a check": ("odd bigint CHECK (odd < 5)", "", pa.array([1, 9, 1], pa.int64()), "23514"),
    "no null": ("odd bigint NOT NULL", "", pa.array([1, None, 1], pa.int64()), "23502"),
    "a domain": (
        "odd small",
        "CREATE DOMAIN small AS bigint CHECK (VALUE < 5)",
        pa.array([1, 9, 1], pa.int64()),
        "23514",
    ),
    "a trigger": ("odd bigint", "RAISE EXCEPTION 'odd'", pa.array([1, 9, 1], pa.int64()), "P0001"),
    "a code of a trigger": ("odd bigint", "RAISE 'odd' USING ERRCODE = 'LH042'", pa.array([1, 9, 1]), "LH042"),
    "a right that a trigger demands": (
        "odd bigint",
        "RAISE 'odd' USING ERRCODE = '42501'",
        pa.array([1, 9, 1]),
        "42501 odd",
    ),
    "what a trigger does not do": ("odd bigint", "RAISE feature_not_supported", pa.array([1, 9, 1]), "0A000"),
    "a policy": ("odd bigint", "POLICY", pa.array([1, 9, 1], pa.int64()), "42501 new row violates"),
    "no partition": ("odd bigint", "PARTITION", pa.array([1, 9, 1], pa.int64()), "23514 no partition"),
    "too large for an index": ("odd text UNIQUE", "", pa.array(["a", random_text(), "c"]), "54000"),
}


@pytest.mark.parametrize("case", REFUSED_BY_SERVER)
async def test_what_the_server_refuses_for_a_value_may_become_a_dead_letter(
    postgres: Postgres, sink_of: Make, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, more, odd, words = REFUSED_BY_SERVER[case]
    made = f"CREATE TABLE t (sequence bigint, {columns})"
    if more == "PARTITION":
        made += " PARTITION BY LIST (odd); CREATE TABLE one PARTITION OF t FOR VALUES IN (1)"
    elif more == "POLICY":
        made += "; ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY one ON t WITH CHECK (odd = 1);"
    elif more.startswith("RAISE"):
        made += f"""; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.odd = 9 THEN {more}; END IF; RETURN NEW; END $$;
            CREATE TRIGGER fails BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail()"""
    elif more:
        made = f"{more}; {made}"
    postgres.fetch(made)
    settings: dict[str, Any] = {"table": "t", "executors_env": EXECUTORS_ENV}
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    if more == "POLICY":
        await sink_of(**settings).prepare()
        role = f"clerk_{postgres.name}"
        grants = f"GRANT ALL ON SCHEMA public TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}"
        postgres.fetch(f"CREATE ROLE {role} LOGIN; {grants}")
        settings["dsn"] = postgres.dsn_of(role)
        monkeypatch.setenv(EXECUTORS_ENV, settings["dsn"])
    table = pa.table({"sequence": [7, 8, 9], "odd": odd})
    sink = sink_of(**settings)
    for way in WAYS:
        with pytest.raises(OutputRefused, match=words):
            await write_rows(sink, table, way, monkeypatch)
    assert postgres.fetch("SELECT * FROM t") == []
    if more == "POLICY":
        postgres.fetch(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("kind", "good", "odd", "words"),
    [
        ("tsquery", "a", "a & (", "42601 no operand in tsquery"),
        ("jsonpath", "$.a", "$.a[", "42601 syntax error at end of jsonpath"),
        ("regclass", "t", "gone", "42P01"),
        ("regclass", "t", "a.b.c.d", "42601|42602"),
        ("regclass", "t", "gone.t", "3F000|42P01"),
    ],
)
async def test_a_text_that_a_merge_casts_in_vain_may_become_a_dead_letter(
    postgres: Postgres, sink_of: Make, kind: str, good: str, odd: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These errors have the codes of a statement that is wrong."""
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    postgres.fetch(f"CREATE TABLE t (sequence bigint, odd {kind})")
    merge = f"INSERT INTO t SELECT sequence, odd::{kind} FROM batch"
    sink = sink_of(merge=merge, executors_env=EXECUTORS_ENV)
    for way in WAYS:
        with pytest.raises(OutputRefused, match=f"({words}).*: change the transform or the merge"):
            await write_rows(sink, pa.table({"sequence": [7, 8, 9], "odd": [good, odd, good]}), way, monkeypatch)
    assert postgres.fetch("SELECT * FROM t") == []
    await write_rows(sink, pa.table({"sequence": [7], "odd": [good]}), "few", monkeypatch)
    assert postgres.fetch("SELECT sequence FROM t") == [(7,)]


FIND = """CREATE FUNCTION find(bigint) RETURNS bigint LANGUAGE plpgsql AS
    $$ DECLARE found bigint; BEGIN SELECT n INTO found FROM lookup WHERE n = $1; RETURN found; END $$"""


@pytest.mark.parametrize(
    ("merge", "later", "words"),
    [
        ("INSERT INTO t SELECT sequence, odd FROM batch, lookup", "DROP TABLE lookup", "42P01"),
        ("INSERT INTO t SELECT sequence, find(odd) FROM batch", "DROP TABLE lookup", "42P01"),
        ("INSERT INTO t SELECT sequence, odd FROM batch", "ALTER TABLE t DROP odd", "42601"),
    ],
    ids=["a table is gone", "a table of a function is gone", "a column is gone"],
)
async def test_a_merge_that_is_wrong_by_now_stops_the_partition_and_makes_no_dead_letters(
    postgres: Postgres, sink_of: Make, merge: str, later: str, words: str
) -> None:
    postgres.fetch(
        f"CREATE TABLE t (sequence bigint, odd bigint); CREATE TABLE lookup AS SELECT 1::bigint AS n; {FIND}"
    )
    sink = sink_of(merge=merge)
    await sink.prepare()
    writer = await sink.open(claim())
    table = pa.table({"sequence": [7], "odd": [1]})
    await writer.write(output(table), Open())
    postgres.fetch(later)
    with pytest.raises(SinkRejected, match=words) as refused:
        await writer.write(output(table, "1", "2"), Open())
    assert not isinstance(refused.value, OutputRefused)


NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
LOSSES: dict[str, tuple[str, pa.DataType, Any, Any]] = {
    "a fraction of a whole number": ("integer", pa.decimal128(5, 1), Decimal(2), Decimal("2.5")),
    "a fraction of a double": ("bigint", pa.float64(), 2.0, 2.5),
    "digits of money": ("numeric(9, 2)", pa.decimal128(9, 3), Decimal("1.230"), Decimal("1.239")),
    "digits in a domain": ("money2", pa.decimal128(9, 3), Decimal("1.230"), Decimal("1.239")),
    "digits of a double": ("numeric(9, 2)", pa.float64(), 1.25, 1.239),
    "bits of a double": ("real", pa.float64(), 0.5, 0.1),
    "bits of a whole number": ("double precision", pa.int64(), 2**53, 2**53 + 1),
    "digits as a double": (
        "double precision",
        pa.decimal128(38, 20),
        Decimal("0.5"),
        Decimal("0.12345678901234567891"),
    ),
    "the time of a day": ("date", pa.timestamp("us"), datetime(2026, 1, 1), datetime(2026, 1, 1, 1)),  # noqa: DTZ001
    "the time of an instant": ("date", pa.timestamp("us", "UTC"), NEW_YEAR, NEW_YEAR.replace(hour=1)),
    "fractions of a second": (
        "timestamp(0)",
        pa.timestamp("us"),
        datetime(2026, 1, 1),  # noqa: DTZ001
        datetime(2026, 1, 1, 0, 0, 0, 1),  # noqa: DTZ001
    ),
    "fractions of a time": ("time(0)", pa.time64("us"), time(1), time(1, 0, 0, 1)),
    "letters of a text": ("varchar(3)", pa.string(), "abc", "abcd"),
    "blanks of a text": ("varchar(3)", pa.string(), "abc", "abc "),
    "letters of a name": ("name", pa.string(), "abc", "x" * 64),
}


@pytest.mark.parametrize("case", LOSSES)
async def test_a_value_that_the_table_would_change_is_refused_by_row_and_column(
    postgres: Postgres, sink_of: Make, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, arrow, fine, lossy = LOSSES[case]
    postgres.fetch("CREATE DOMAIN money2 AS numeric(9, 2)")
    postgres.fetch(f"CREATE TABLE t (sequence bigint PRIMARY KEY, odd {kind})")
    postgres.fetch(f"ALTER DATABASE {postgres.name} SET timezone = 'UTC'")
    monkeypatch.setenv(EXECUTORS_ENV, postgres.dsn)
    table = pa.table({"sequence": [7, 8, 9], "odd": pa.array([fine, lossy, None], arrow)})
    words = r"change a value of the event with sequence 8 in column 'odd', which is .* cast it"
    for more in ({}, {"key": ["sequence"]}):
        sink = sink_of(table="t", executors_env=EXECUTORS_ENV, **more)
        await sink.prepare()
        await sink.check_columns(table.schema)
        for way in WAYS:
            with pytest.raises(OutputRefused, match=words) as refused:
                await write_rows(sink, table, way, monkeypatch)
            assert refused.value.sequences == (8,)
        assert postgres.fetch("SELECT * FROM t") == []
        for way, row in zip(WAYS, (0, 2, 0), strict=True):
            await write_rows(sink, table.slice(row, 1).set_column(0, "sequence", [[WAYS.index(way)]]), way, monkeypatch)
        assert postgres.fetch("SELECT count(*), count(odd) FROM t") == [(3, 2)]
        postgres.fetch("TRUNCATE t, leasehold_positions")


async def test_a_refusal_without_sequences_names_the_column(sink_of: Make) -> None:
    sink = sink_of(setup="CREATE TABLE IF NOT EXISTS t (n int)", table="t")
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(
        OutputRefused, match="change a value in column 'n', which is numeric in the output and integer"
    ) as refused:
        await writer.write(output(pa.table({"n": [Decimal("2.5")]})), Open())
    assert refused.value.sequences == ()


async def test_a_position_that_postgresql_cannot_store_is_refused(sink_of: Make) -> None:
    sink = sink_of(setup=BALANCES, table="balances")
    await sink.prepare()
    writer = await sink.open(claim())
    with pytest.raises(SinkRejected, match="NUL"):
        await writer.write(output(ONE, to="a\0b"), Open())


async def test_a_negative_zero_loses_its_sign_where_the_type_has_none(postgres: Postgres, sink_of: Make) -> None:
    sink = sink_of(setup="CREATE TABLE IF NOT EXISTS t (f float8, n numeric, j jsonb)", table="t")
    await sink.prepare()
    await (await sink.open(claim())).write(output(pa.table({"f": [-0.0], "n": [-0.0], "j": [[-0.0]]})), Open())
    assert postgres.fetch("SELECT f::text, n::text, j::text FROM t") == [("-0", "0", "[0.0]")]
