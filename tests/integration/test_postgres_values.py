"""The sink `postgres`: every value arrives as it was, or is refused by the name of its column."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plugins_bank import BALANCES, EXECUTORS_ENV, ONE, Make, Open, claim, output, staged
from plugins_pg import Postgres

from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.connectors.postgres.copy import FEW_ROWS
from leasehold.pipeline.errors import SinkRejected

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
