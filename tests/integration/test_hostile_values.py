"""Each hostile value is stored exactly, refused with its row, or converted as docs/guarantees.md says: sinks on this machine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from hostile import (
    BODIES,
    COLUMN,
    COLUMNS,
    EVENTS,
    EXACT,
    LETTERS,
    RECORDS,
    ROW,
    TIMES,
    Write,
    cell,
    check_cell,
    check_letters,
    files,
    is_same,
    outcome,
    rows_of,
    rows_with,
    send,
    shown,
)
from patience import PATIENCE_S
from plugins_bank import Make
from plugins_pg import Postgres
from unit.pipeline.burials import files_box, lines_box, log_box
from unit.pipeline.connectors.files.delta.tables import sink_in
from unit.pipeline.connectors.files.sink.places import claim
from unit.pipeline.connectors.log.blocks import blocks_in

from leasehold.pipeline.connectors.cosmos.records import PageLimits, pages_of, records_of
from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.reader import Reading
from leasehold.pipeline.connectors.files.sink import Directory, FilesOutputSink
from leasehold.pipeline.connectors.handlers import HandlerSink
from leasehold.pipeline.connectors.log import LogOutputSink
from leasehold.pipeline.connectors.postgres import (
    PostgresLettersFeed,
    PostgresOutputSink,
    Tables,
    letters_merge,
    storable,
)
from leasehold.pipeline.connectors.python import PythonOutputSink
from leasehold.pipeline.dead_letters import LetterBox
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.limits import ParallelLimits
from leasehold.pipeline.parsing.arrow_reader import read_fast
from leasehold.pipeline.parsing.parse import parse
from leasehold.pipeline.parsing.schema import read_schema
from leasehold.pipeline.sink import Sink


def delta(path: Path, *key: str) -> Write:
    async def write(table: pa.Table) -> Sequence[Any]:
        await send(sink_in(path, key=key), table)
        return list(polars.read_delta(str(path)).sort("sequence")["v"].to_arrow())

    return write


def python(_: Path) -> Write:
    async def write(table: pa.Table) -> Sequence[Any]:
        found: list[Any] = []

        class Handler:
            async def open(self, context: Any) -> None: ...

            async def process(self, context: Any, table: pa.Table) -> None:
                found.extend(table["v"].to_pylist())

            async def close(self, context: Any, reason: str) -> None: ...

        await send(PythonOutputSink(Handler), table)
        return found

    return write


def parallel(_: Path) -> Write:
    async def write(table: pa.Table) -> Sequence[Any]:
        found: dict[int, Any] = {}

        async def handle(row: Any) -> None:
            found[row["sequence"]] = row["v"]

        await send(HandlerSink(handle, key="sequence", limits=ParallelLimits(max=4, window=200)), table)
        return [found[number] for number in sorted(found)]

    return write


SINKS: dict[str, Callable[[Path], Write]] = {
    "`files`, JSON lines": lambda path: files(lambda: Directory(path), "jsonl"),
    "`files`, Parquet": lambda path: files(lambda: Directory(path), "parquet"),
    "`files`, Delta": delta,
    "`python`": python,
    "`python`, `parallel`": parallel,
}


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", COLUMNS)
@pytest.mark.parametrize("sink", SINKS)
async def test_a_value_is_stored_or_refused_as_the_page_says(sink: str, value: str, times: int, tmp_path: Path) -> None:
    check_cell(value, sink, await outcome(SINKS[sink](tmp_path / "out"), rows_with(COLUMNS[value], times)))


@pytest.mark.parametrize("value", COLUMNS)
async def test_a_value_is_merged_into_a_delta_table_as_the_page_says(value: str, tmp_path: Path) -> None:
    check_cell(value, "`files`, Delta", await outcome(delta(tmp_path, "sequence"), rows_with(COLUMNS[value], 1)))


@pytest.mark.parametrize("value", COLUMNS)
@pytest.mark.parametrize("sink", ["`files`, JSON lines", "`files`, Parquet", "`files`, Delta"])
async def test_executors_stage_a_value_or_refuse_it_as_the_page_says(sink: str, value: str, tmp_path: Path) -> None:
    """After a refusal, the host reads the events itself."""
    made: Sink = sink_in(tmp_path)
    if not sink.endswith("Delta"):
        made = FilesOutputSink(Directory(tmp_path), format="jsonl" if sink.endswith("lines") else "parquet")
    await made.prepare()
    writer = await made.open(claim(1))

    async def stage(table: pa.Table) -> Sequence[Any]:
        stager = await writer.make_stager(None, table.schema)
        assert stager is not None
        assert stager.stage(table, "1").rows == table.num_rows
        return table["v"].to_pylist()

    expected = cell(value, sink)
    assert await outcome(stage, rows_with(COLUMNS[value], 1)) == (expected if expected in (ROW, COLUMN) else EXACT)
    await made.close()


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", EVENTS)
async def test_an_event_is_published_to_a_log_as_the_page_says(value: str, times: int, tmp_path: Path) -> None:
    name, given = EVENTS[value]

    async def write(table: pa.Table) -> Sequence[Any]:
        await send(LogOutputSink(tmp_path), table)
        return [each for block in blocks_in(tmp_path, claim(1).partition) for each in block.events[name].to_pylist()]

    table = rows_with(given, times, name, **({} if name == "body" else {"body": b"x"}))
    check_cell(value, "`log`", await outcome(write, table, name))


POSTGRES = {
    pa.float64(): "double precision",
    pa.int64(): "bigint",
    pa.binary(): "bytea",
    pa.date32(): "date",
    pa.decimal128(38, 10): "numeric",
}


def kind_of(type: pa.DataType) -> str:
    if pa.types.is_nested(type):
        return "jsonb"
    return "timestamptz" if pa.types.is_timestamp(type) else POSTGRES.get(type, "text")


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("value", COLUMNS)
async def test_a_value_is_stored_in_postgresql_or_refused_as_the_page_says(
    postgres: Postgres, sink_of: Make, value: str, times: int
) -> None:
    kind = kind_of(COLUMNS[value].type)

    async def write(table: pa.Table) -> Sequence[Any]:
        await send(sink_of(setup=f"CREATE TABLE hostile (sequence bigint, v {kind})", table="hostile"), table)
        read = "extract(epoch FROM v)::numeric * 1000000" if kind == "timestamptz" else "v - date '1970-01-01'"
        is_time = kind in ("timestamptz", "date")
        rows = postgres.fetch(f"SELECT {read if is_time else 'v'} FROM hostile ORDER BY sequence")
        if not is_time:
            return [each for (each,) in rows]
        number, kept = (pa.int64(), pa.timestamp("us", "UTC")) if kind == "timestamptz" else (pa.int32(), pa.date32())
        return [pa.scalar(None if each is None else int(each), number).cast(kept) for (each,) in rows]

    check_cell(value, "`postgres`", await outcome(write, rows_with(COLUMNS[value], times)))


def postgres_box(dsn: str) -> LetterBox:
    sink = PostgresOutputSink(dsn, merge=letters_merge("public"), tables=Tables(keeps_letters=True))
    return LetterBox(feed=PostgresLettersFeed(dsn, "pipe"), sink=sink, rows=storable)


BOXES: dict[str, Callable[[Path, str], LetterBox]] = {
    "letters in `log`": lambda path, _: log_box(path),
    "in `files`, Parquet": lambda path, _: files_box(path),
    "in `files`, JSON lines": lambda path, _: lines_box(path),
    "in `postgres`": lambda _, dsn: postgres_box(dsn),
}


@pytest.mark.parametrize("box", BOXES)
async def test_events_come_back_from_their_letters_as_the_page_says(
    box: str, tmp_path: Path, postgres: Postgres
) -> None:
    await check_letters(BOXES[box](tmp_path, postgres.dsn), box)


@pytest.mark.parametrize("times", [1, 400])
@pytest.mark.parametrize("value", BODIES)
def test_a_body_fits_the_schema_or_not_as_the_page_says_whichever_reader_takes_it(value: str, times: int) -> None:
    ddl, written, expected = BODIES[value]
    schema = read_schema(spark_schema(ddl))
    body = b'{"v":' + written + b"}"
    bodies = [b"{}", body, *[b"{}"] * times]
    parsed = parse(schema, pa.chunked_array([pa.array(bodies, pa.binary())]))
    if expected is None:
        assert [misfit.index for misfit in parsed.misfits] == [1]
        assert parsed.columns["v"].to_pylist() == [None] * (times + 1)
    else:
        assert not parsed.misfits
        assert is_same(pa.array([expected], parsed.columns["v"].type)[0], parsed.columns["v"][1])
    fast = read_fast(schema, pa.array([body], pa.binary()))
    assert fast is None or (expected is not None and is_same(fast["v"][0], parsed.columns["v"][1]))
    check_cell(value, "`schema`", EXACT if expected is not None else ROW)


def spark_schema(ddl: str) -> dict[str, Any]:
    """As Spark's parser writes the DDL of the column `v`."""
    simple = {"STRING": "string", "DOUBLE": "double", "FLOAT": "float", "BIGINT": "long", "DATE": "date"}
    nested: dict[str, Any] = {
        "TIMESTAMP": "timestamp",
        "DECIMAL(4,2)": "decimal(4,2)",
        "ARRAY<STRING>": {"type": "array", "elementType": "string", "containsNull": True},
        "STRUCT<a: INT>": {
            "type": "struct",
            "fields": [{"name": "a", "type": "integer", "nullable": True, "metadata": {}}],
        },
        "MAP<STRING, INT>": {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True},
    }
    return {
        "type": "struct",
        "fields": [{"name": "v", "type": {**simple, **nested}[ddl], "nullable": True, "metadata": {}}],
    }


@pytest.mark.parametrize("value", RECORDS)
async def test_a_line_becomes_an_event_as_the_page_says(value: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"{}\n" + RECORDS[value] + b"\n{}\n")
    feed = FilesChangeFeed(
        str(tmp_path / "a.jsonl"), key="k", reading=Reading(accepts_unterminated=True, yields_malformed=True)
    )
    [partition] = await feed.partitions()
    found: list[tuple[dict[str, Any], str | None]] = []
    async with asyncio.timeout(PATIENCE_S), aclosing(feed.open(partition.name, None)) as pages:
        while len(found) < 3:
            page = await anext(pages)
            found += [(event, page.malformed) for event in page.events.to_pylist()]
    await feed.close()
    event, malformed = found[1]
    assert event["body"] == RECORDS[value]  # a letter has it byte for byte
    assert [trouble for _, trouble in found[::2]] == [None, None]
    if malformed is None:
        assert event["key"] == json.loads(RECORDS[value])["k"]
    check_cell(value, "`files`, lines", EXACT if malformed is None else ROW)


@pytest.mark.parametrize("value", RECORDS)
def test_a_document_becomes_an_event_as_the_page_says(value: str) -> None:
    document = RECORDS[value][:-1] + b',"id":"x","_lsn":7,"_ts":1}'
    try:
        [record] = records_of(b'{"Documents":[' + document + b"]}", ("/k",), all_versions=False)
    except FeedUnavailable:
        check_cell(value, "`cosmos`, documents", "never sent")
        return
    [page] = pages_of("0", [record], '"7"', PageLimits(items_max=10, bytes_max=10**6))
    [event] = page.events.to_pylist()
    assert event["body"] == document
    key = json.loads(document)["k"]
    check_cell(value, "`cosmos`, documents", EXACT if event["key"] == key else f"key {shown(event['key'])}")


def test_the_page_names_every_hostile_value_and_no_other() -> None:
    for sink in SINKS:
        assert rows_of(sink) == list(COLUMNS)
    assert rows_of("`log`") == list(EVENTS)
    assert all(rows_of(box) == list(LETTERS) for box in BOXES)
    assert rows_of("`schema`") == list(BODIES)
    assert rows_of("`files`, lines") == rows_of("`cosmos`, documents") == list(RECORDS)
