"""Hostile values for every sink, source and parser, and the tables in docs/guarantees.md that say what becomes of each.

A test tries a value and calls `check_cell` with what it found. With WRITE_VALUES=1 in the environment it writes the cell instead.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
from unit.pipeline.burials import NOW
from unit.pipeline.connectors.files.sink.places import Permit, claim
from unit.pipeline.destinations import Trusted

from leasehold.pipeline.connectors.files.sink import FilesOutputSink, snapshot_of
from leasehold.pipeline.connectors.files.sink.formats import Format
from leasehold.pipeline.connectors.files.sink.storage import Storage
from leasehold.pipeline.dead_letters import LetterBox
from leasehold.pipeline.dead_letters.box import read_kept
from leasehold.pipeline.dead_letters.record import LEASE, dead_events, event_of, letters_of
from leasehold.pipeline.errors import OutputRefused, Poison, SinkRejected
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.sink import Claim, Output, Sink

PAGE = Path(__file__).parents[1] / "docs" / "guarantees.md"
EXACT, ROW, COLUMN = "exact", "row refused", "column refused"
LONG = 300_000
TIMES = (1, 40)
"""Of how many times three rows a batch is made: few and many take different ways."""
MAP = pa.map_(pa.string(), pa.string())


def not_text(octets: bytes) -> pa.Array:
    """A STRING that is not UTF-8, as Spark's CAST of bytes makes it."""
    return pa.array([octets], pa.binary()).view(pa.string())


_S, _D = pa.timestamp("s", "UTC"), pa.float64()
COLUMNS: Mapping[str, pa.Array] = {
    "text with NUL": pa.array(["a\0b"]),
    "text with other control characters": pa.array(["\x01\x1b\x7f\x85\r\n\t"]),
    "text with leading and trailing blanks": pa.array([" a \N{NO-BREAK SPACE} "]),
    "empty text": pa.array([""]),
    "text outside the Basic Multilingual Plane, and noncharacters": pa.array(["\U0010ffff\uffff\u2028😀"]),
    "text of 300,000 characters": pa.array(["é" * LONG]),
    "STRING in Latin-1": not_text(b"caf\xe9"),
    "STRING with a lone surrogate": not_text(b"\xed\xa0\x80"),
    "list with a STRING in Latin-1": pa.ListArray.from_arrays([0, 1], not_text(b"\xe9")),
    "bytes outside UTF-8": pa.array([b"\x00\xff"]),
    "empty bytes": pa.array([b""]),
    "NaN": pa.array([math.nan], _D),
    "Infinity": pa.array([math.inf], _D),
    "-Infinity": pa.array([-math.inf], _D),
    "-0.0": pa.array([-0.0], _D),
    "list with NaN": pa.array([[math.nan]], pa.list_(_D)),
    "smallest double": pa.array([5e-324], _D),
    "BIGINT beyond 2^53": pa.array([2**53 + 1]),
    "decimal of 38 digits": pa.array([Decimal("-1234567890123456789012345678.1234567890")], pa.decimal128(38, 10)),
    "list with a decimal": pa.array([[Decimal("1.20")]], pa.list_(pa.decimal128(38, 2))),
    "time before the year 1": pa.array([-62_135_596_801], _S).cast(pa.timestamp("us", "UTC")),
    "first time of the year 1": pa.array([datetime(1, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
    "last time of the year 9999": pa.array(
        [datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)], pa.timestamp("us", "UTC")
    ),
    "time after the year 9999": pa.array([253_402_300_800], _S).cast(pa.timestamp("us", "UTC")),
    "list with such a time": pa.array([[253_402_300_800]], pa.list_(pa.timestamp("s"))).cast(
        pa.list_(pa.timestamp("us"))
    ),
    "day after the year 9999": pa.array([2_932_897], pa.date32()),
    "last day of the year 9999": pa.array([date(9999, 12, 31)]),
    "time in nanoseconds, whole microseconds": pa.array([1_000], pa.timestamp("ns", "UTC")),
    "time in nanoseconds, not whole microseconds": pa.array([1_001], pa.timestamp("ns", "UTC")),
    "untyped null": pa.nulls(1),
    "null": pa.nulls(1, pa.string()),
    "struct of nulls": pa.array([{"a": None, "b": None}], pa.struct([("a", pa.string()), ("b", pa.int64())])),
    "list of nulls": pa.array([[None, None]], pa.list_(pa.string())),
    "map with a null": pa.array([[("a", None)]], MAP),
    "map with one key twice": pa.array([[("a", "1"), ("a", "2")]], MAP),
    "struct with such a map": pa.StructArray.from_arrays([pa.array([[("a", "1"), ("a", "2")]], MAP)], ["m"]),
}
"""Of a column `v`."""

IDS: Mapping[str, pa.Array] = {
    f"`{name}` as `id`": pa.array([given])
    for name, given in {
        "a": "a",
        ". in a name": "a.b.",
        "leading blank": " a",
        "trailing blank": "a ",
        ".": ".",
        "..": "..",
        "empty text": "",
        "NUL": "a\0",
        "line feed": "a\n",
        "tab": "a\tb",
        "other control character": "\x01",
        "/": "a/b",
        "\\": "a\\b",
        "? and #": "a?#",
        "%2e%2e": "%2e%2e",
        "+ and &": "a+b&c",
        "noncharacters and emoji": "\U0010ffff\uffff😀",
        "1,023 bytes": "é" * 511 + "a",
        "1,024 bytes": "é" * 512,
    }.items()
}
"""Of documents."""

EVENTS: Mapping[str, tuple[str, pa.Array]] = {
    "key with NUL and other control characters": ("key", pa.array(["a\0\x01\r\n "])),
    "key of 20,000 characters": ("key", pa.array(["é" * 20_000])),
    "empty key": ("key", pa.array([""])),
    "null as key": ("key", pa.nulls(1, pa.string())),
    "key in Latin-1": ("key", not_text(b"\xe9")),
    "body of any bytes": ("body", pa.array([bytes(range(256))])),
    "empty body": ("body", pa.array([b""])),
    "null as body": ("body", pa.nulls(1, pa.binary())),
    "body as a STRING in Latin-1": ("body", not_text(b"\xe9")),
    "body that is a number": ("body", pa.array([1.5])),
    "property with control characters": ("properties", pa.array([[("a\0\n", "b\0 ")]], MAP)),
    "property that is empty": ("properties", pa.array([[("", "")]], MAP)),
    "property that is null": ("properties", pa.array([[("a", None)]], MAP)),
    "property of 20,000 characters": ("properties", pa.array([[("a", "é" * 20_000)]], MAP)),
    "property twice": ("properties", pa.array([[("a", "1"), ("a", "2")]], MAP)),
    "property in Latin-1": (
        "properties",
        pa.MapArray.from_arrays([0, 1], pa.array(["a"]), not_text(b"\xe9")),
    ),
    "no properties": ("properties", pa.array([[]], MAP)),
    "null as properties": ("properties", pa.nulls(1, MAP)),
    "other operation": ("operation", pa.array(["other \0"])),
}
"""Of published events: the column, and its value."""


RECORDS: Mapping[str, bytes] = {
    "NUL in key and body": b'{"k":"a\\u0000","t":"\\u0000"}',
    "other control characters in the key": b'{"k":"\\u0001\\u007f\\r\\n "}',
    "key that is empty": b'{"k":""}',
    "lone surrogate in the key": b'{"k":"a\\ud83d"}',
    "lone surrogate in the body": b'{"k":"a","t":"\\ud83d"}',
    "long key": b'{"k":"' + "é".encode() * 20_000 + b'"}',
    "number with many digits": b'{"k":"a","n":0.10000000000000000000000000001}',
    "body that is not UTF-8": b'{"k":"a","t":"caf\xe9"}',
    "NaN in the body": b'{"k":"a","n":NaN}',
    "one key twice in an object": b'{"k":"a","n":1,"n":2}',
    "NUL byte": b'{"k":"a","t":"\0"}',
}
"""Of sources: what is read. The member `k` is the key."""

BODIES: Mapping[str, tuple[str, bytes, Any]] = {
    "NUL in a STRING": ("STRING", b'"a\\u0000"', "a\0"),
    "lone surrogate in a STRING": ("STRING", b'"\\ud83d"', None),
    "surrogate pair in a STRING": ("STRING", b'"\\ud83d\\ude00"', "😀"),
    "bytes of a STRING that are not UTF-8": ("STRING", b'"\xe9"', None),
    "UTF-8 of a lone surrogate": ("STRING", b'"\xed\xa0\x80"', None),
    "empty STRING": ("STRING", b'""', ""),
    "NaN as DOUBLE": ("DOUBLE", b"NaN", None),
    "text NaN as DOUBLE": ("DOUBLE", b'"NaN"', None),
    "1e400 as DOUBLE": ("DOUBLE", b"1e400", None),
    "-0.0 as DOUBLE": ("DOUBLE", b"-0.0", -0.0),
    "1e39 as FLOAT": ("FLOAT", b"1e39", None),
    "1.239 as DECIMAL(4,2)": ("DECIMAL(4,2)", b"1.239", None),
    "123.45 as DECIMAL(4,2)": ("DECIMAL(4,2)", b"123.45", None),
    "12.3400 as DECIMAL(4,2)": ("DECIMAL(4,2)", b"12.3400", Decimal("12.34")),
    "2^63 as BIGINT": ("BIGINT", b"9223372036854775808", None),
    "1.5 as BIGINT": ("BIGINT", b"1.5", None),
    "year 0 as TIMESTAMP": ("TIMESTAMP", b'"0000-12-31T23:59:59Z"', None),
    "year 10000 as TIMESTAMP": ("TIMESTAMP", b'"+10000-01-01T00:00:00Z"', None),
    "last second as TIMESTAMP west of UTC": ("TIMESTAMP", b'"9999-12-31T23:59:59-01:00"', None),
    "nanoseconds as TIMESTAMP": ("TIMESTAMP", b'"2026-01-01T00:00:00.000000001Z"', None),
    "30th of February as DATE": ("DATE", b'"2026-02-30"', None),
    "null in an array": ("ARRAY<STRING>", b"[null]", [None]),
    "key twice in a struct": ("STRUCT<a: INT>", b'{"a":1,"a":2}', None),
    "key twice in a map": ("MAP<STRING, INT>", b'{"a":1,"a":2}', None),
    "lone surrogate as a map's key": ("MAP<STRING, INT>", b'{"\\ud83d":1}', None),
}
"""Of a body's member `v`: its type, the JSON, and its value. None: it does not fit."""


def rows_with(value: pa.Array, times: int, name: str = "v", **more: Any) -> pa.Table:
    """Three rows so often, with the value in the middle one of the first three. The others are null."""
    count, null = 3 * times, pa.nulls(1, value.type)
    column = pa.concat_arrays([null, value, *[null] * (count - 2)])
    columns = {
        "sequence": pa.array(range(1, count + 1), pa.int64()),
        **{key: [each] * count for key, each in more.items()},
    }
    return pa.table({**columns, name: column})


async def outcome(write: Callable[[pa.Table], Awaitable[Sequence[Any]]], table: pa.Table, name: str = "v") -> str:
    """write: stores the rows, and returns the column as a third party reads it, by `sequence`."""
    try:
        found = list(await write(table))
    except OutputRefused as error:
        return ROW if error.sequences == (2,) else f"another row refused: {error}"
    except SinkRejected as error:
        return COLUMN if name in str(error) else f"refused without its column: {error}"
    assert len(found) == table.num_rows
    given = table[name][1]
    return EXACT if is_same(given, found[1]) else shown(found[1])


def is_same(given: pa.Scalar, found: Any) -> bool:
    """found: Python's value, or an Arrow scalar of what Python has no value for."""
    if isinstance(found, pa.Scalar) and pa.types.is_temporal(found.type):
        return bool(found.cast(given.type).equals(given)) if found.is_valid else not given.is_valid
    return _plain(given.as_py()) == _plain(found.as_py() if isinstance(found, pa.Scalar) else found)


def _plain(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):  # a map
        value = dict(value) if len(dict(value)) == len(value) else {"pairs": [list(pair) for pair in value]}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)).isoformat()
    return repr(value)


def shown(value: Any) -> str:
    if value == b"":
        return "as empty bytes"
    try:
        text = json.dumps(value, ensure_ascii=True)
    except TypeError:
        text = str(value)
    return f"as `{text}`" if len(text) <= 60 else f"a text of {len(value):,} characters"


def check_cell(row: str, column: str, found: str) -> None:
    """The page has to say so."""
    if os.environ.get("WRITE_VALUES"):
        _write(row, column, found)
    assert cell(row, column) == found


def cell(row: str, column: str) -> str:
    lines = PAGE.read_text().splitlines()
    at, header = _table_with(lines, row, column)
    return _cells(lines[at])[header.index(column)]


def rows_of(column: str) -> list[str]:
    lines = PAGE.read_text().splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith("| value |") and column in _cells(line)]
    found = []
    for at in heads:
        found += [_cells(line)[0] for line in _body(lines, at)]
    return found


def _body(lines: Sequence[str], head: int) -> list[str]:
    found = []
    for line in lines[head + 2 :]:
        if not line.startswith("|"):
            break
        found.append(line)
    return found


def _cells(line: str) -> list[str]:
    return [each.strip() for each in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def _table_with(lines: Sequence[str], row: str, column: str) -> tuple[int, list[str]]:
    for head, line in enumerate(lines):
        if line.startswith("| value |") and column in _cells(line):
            for at, each in enumerate(_body(lines, head), head + 2):
                if _cells(each)[0] == row:
                    return at, _cells(line)
    raise AssertionError(f"docs/guarantees.md has no table of values with the row '{row}' and the column '{column}'")


def _write(row: str, column: str, found: str) -> None:
    lines = PAGE.read_text().splitlines()
    at, header = _table_with(lines, row, column)
    cells = _cells(lines[at])
    cells[header.index(column)] = found
    lines[at] = "| " + " | ".join(cells) + " |"
    PAGE.write_text("\n".join(lines) + "\n")


LETTERS = [
    *(name for name, (_, value) in EVENTS.items() if name != "body that is a number" and "Latin-1" not in name),
    "reason with NUL and a lone surrogate",
    "reason of 5,000 characters",
]
"""Of dead letters: events that a feed can have, and why they died."""
REASONS = {LETTERS[-2]: "a\0\ud83d", LETTERS[-1]: "é" * 5_000}


async def check_letters(box: LetterBox, column: str) -> None:
    """A batch of such letters, put into the box and read again."""
    given = [EVENTS.get(value, ("key", pa.array(["k"]))) for value in LETTERS]
    rows = [
        {"partition": "0", "sequence": n, "offset": str(n), "enqueued_time": NOW, "body": b"x", name: value[0].as_py()}
        for n, (name, value) in enumerate(given)
    ]
    events, reasons = pa.Table.from_pylist(rows, EVENT_SCHEMA), [REASONS.get(value, "why") for value in LETTERS]
    poison = [Poison(index=n, reason=reason) for n, reason in enumerate(reasons)]
    dead = dead_events(events, poison, NOW)
    output = Output(table=pa.table({}), start=None, to="99", events=len(rows), dead=dead)
    try:
        assert box.sink is not None
        await box.sink.prepare()
        letters = box.rows(letters_of(_claim("pipe"), output))
        writer = await box.sink.open(replace(_claim("pipe" + LEASE), state=box.sink.claimed("")))
        await writer.write(Output(table=letters, start=None, to="99", events=len(rows)), Trusted())
        await writer.close("shutdown")
        kept = [each.letter async for each in read_kept(box, "pipe")]
    finally:
        await box.close()
    assert [event_of(letter) for letter in kept] == events.to_pylist()
    for value, letter, reason in zip(LETTERS, kept, reasons, strict=True):
        check_cell(value, column, EXACT if letter.error == reason else shown(letter.error))


def _claim(pipeline: str) -> Claim:
    def compare(a: str | None, b: str | None) -> int:
        return int(a or 0) - int(b or 0)

    return Claim(
        pipeline=pipeline, partition="0", owner="h", epoch=1, generation=0, continuation=None, state="", compare=compare
    )


def files(place: Callable[[], Storage], format: Format) -> Write:
    async def write(table: pa.Table) -> Sequence[Any]:
        await send(FilesOutputSink(place(), format=format), table)
        [(_, content)] = list(snapshot_of(place()).contents())
        if format == "jsonl":
            return [json.loads(line)["v"] for line in content.split(b"\n") if line]
        found = polars.read_parquet(content)["v"].to_arrow()
        assert found.to_pylist() is not None  # every row can be read
        return list(found)

    return write


Write = Callable[[pa.Table], Awaitable[Sequence[Any]]]


async def check_published(sink: Sink, feed: ChangeFeed, value: str, times: int, column: str) -> None:
    """A value of EVENTS, published by the sink, and read by the feed. Both are closed."""
    name, given = EVENTS[value]

    async def write(table: pa.Table) -> Sequence[Any]:
        try:
            await send(sink, table, partition="0")
            reader, found = feed.open("0", None), list[Any]()
            while len(found) < table.num_rows:
                found += (await anext(reader)).events[name].to_pylist()
            await reader.aclose()
        finally:
            await feed.close()
        return found

    table = rows_with(given, times, name, **({} if name == "body" else {"body": b"x"}))
    check_cell(value, column, await outcome(write, table, name))


async def send(sink: Sink, table: pa.Table, partition: str = "p") -> None:
    try:
        await sink.prepare()
        writer = await sink.open(claim(1, partition=partition))
        try:
            await writer.write(Output(table=table, start=None, to="1", events=table.num_rows), Permit())
            await writer.flush()
        finally:
            await writer.close("shutdown")
    finally:
        await sink.close()
