"""Rows as Parquet and as JSON lines: nothing is lost, rounded or reordered, and what cannot be written is refused by name."""

from __future__ import annotations

import base64
import json
import math
import subprocess
import sys
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S

from leasehold.pipeline.connectors.files.sink.formats import Format, decoded, encoded, ordered
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.errors import OutputRefused, SinkRejected


def lines_of(table: pa.Table) -> list[dict[str, Any]]:
    return [json.loads(line) for line in encoded(table, "jsonl").splitlines()]


def in_json(type: pa.DataType, value: Any) -> Any:
    return lines_of(pa.table({"v": pa.array([value], type)}))[0]["v"]


@pytest.mark.parametrize(
    ("type", "value", "expected"),
    [
        (pa.decimal128(20, 2), Decimal("12.50"), "12.50"),
        (pa.decimal128(38, 0), Decimal(10**37), str(10**37)),
        (pa.decimal128(38, 18), Decimal("0.000000000000000001"), "0.000000000000000001"),
        (pa.int64(), 2**63 - 1, 2**63 - 1),
        (pa.float64(), 0.1, 0.1),
        (pa.float64(), math.nan, "NaN"),
        (pa.float64(), -math.inf, "-Infinity"),
        (pa.bool_(), True, True),
        (pa.binary(), b"\xff\x00", base64.b64encode(b"\xff\x00").decode()),
        (pa.string(), 'é"\n\u2028', 'é"\n\u2028'),
        (pa.date32(), date(1, 1, 1), "0001-01-01"),
        (pa.time64("us"), time(1, 2, 3, 4), "01:02:03.000004"),
        (pa.timestamp("us", "UTC"), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), "9999-12-31T23:59:59.999999Z"),
        (pa.timestamp("us", "+02:00"), datetime(2026, 1, 1, 1, tzinfo=UTC), "2026-01-01T01:00:00Z"),
        (pa.timestamp("us"), datetime(2026, 1, 1), "2026-01-01T00:00:00"),  # noqa: DTZ001  # it has no zone
        (pa.map_(pa.string(), pa.decimal128(4, 1)), [("a", Decimal("1.5"))], {"a": "1.5"}),
        (pa.struct([("a", pa.list_(pa.binary()))]), {"a": [b"x", None]}, {"a": ["eA==", None]}),
        (pa.null(), None, None),
        (pa.decimal128(4, 1), None, None),
    ],
)
def test_json_lines_hold_every_value_exactly(type: pa.DataType, value: Any, expected: Any) -> None:
    assert in_json(type, value) == expected


@given(st.lists(st.decimals(min_value=-(10**17), max_value=10**17, places=3), min_size=1))
def test_a_decimal_comes_back_from_json_lines_with_all_its_digits(values: list[Decimal]) -> None:
    table = pa.table({"v": pa.array(values, pa.decimal128(38, 3))})
    assert [Decimal(row["v"]) for row in lines_of(table)] == values


@given(st.lists(st.datetimes(timezones=st.just(timezone(timedelta(hours=-7)))), min_size=1))
def test_an_instant_comes_back_from_json_lines(values: list[datetime]) -> None:
    values = [value for value in values if 1 < value.year < 9999]
    table = pa.table({"v": pa.array(values, pa.timestamp("us", "UTC"))})
    assert [datetime.fromisoformat(row["v"]) for row in lines_of(table)] == values


@pytest.mark.parametrize(
    ("type", "value"),
    [
        (pa.timestamp("ns"), 1),
        (pa.list_(pa.timestamp("ns")), [1]),
        (pa.duration("us"), timedelta(1)),
        (pa.map_(pa.int64(), pa.string()), [(1, "a")]),
        (pa.map_(pa.string(), pa.string()), [("a", "1"), ("a", "2")]),
    ],
)
def test_what_json_lines_would_lose_is_refused_by_its_name(type: pa.DataType, value: Any) -> None:
    with pytest.raises(SinkRejected, match="'v'"):
        in_json(type, value)


FLOATS = st.none() | st.floats()


@given(
    st.lists(
        st.tuples(
            FLOATS, st.none() | st.lists(FLOATS), st.none() | st.fixed_dictionaries({"x": FLOATS, "t": st.just("NaN")})
        )
    )
)
def test_floats_of_json_lines_can_be_read_whatever_they_are(rows: list[tuple[Any, Any, Any]]) -> None:
    rows = [(1.5, [1.5], {"x": 1.5, "t": "NaN"}), *rows]  # a column without numbers has no type in JSON
    kinds = [pa.float64(), pa.list_(pa.float64()), pa.struct([("x", pa.float64()), ("t", pa.string())])]
    columns = [pa.array(list(column), kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    table = pa.table(columns, names=["a", "b", "c"])
    assert repr(decoded(encoded(table, "jsonl"), "jsonl").to_pylist()) == repr(table.to_pylist())


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_rows_are_in_the_order_of_sequence(format: Format) -> None:
    table = event_table("p", [3, 1, 2])
    assert decoded(encoded(ordered(table), format), format)["sequence"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
@pytest.mark.parametrize("names", [["a", "a"], []])
def test_a_column_that_is_there_twice_is_refused(format: Format, names: list[str]) -> None:
    with pytest.raises(SinkRejected, match="each name once"):
        encoded(pa.table([pa.array([1])] * len(names), names=names), format)


def test_parquet_keeps_the_types_of_events() -> None:
    table = event_table("p", [1, 2])
    assert decoded(encoded(table, "parquet"), "parquet").equals(table)


READ_FILES = """
import os
import pyarrow as pa
from leasehold.pipeline.connectors.files.sink.formats import decoded, encoded

table = pa.table({"a": list(range(10)), "b": ["x"] * 10})
contents = {format: encoded(table, format) for format in ("parquet", "jsonl")}
threads = set(os.listdir("/proc/self/task"))
for format, content in contents.items():
    assert decoded(content, format).equals(table)
print(set(os.listdir("/proc/self/task")) - threads or "none")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_reading_a_file_leaves_no_threads_that_abort_an_ending_process() -> None:
    # Two threads of Arrow's pool once aborted `leasehold files read` on its way out, after the output was complete.
    started = subprocess.run(
        [sys.executable, "-c", READ_FILES], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert (started.stdout, started.stderr) == ("none\n", "")


# Dictionaries


def with_dictionary(table: pa.Table) -> set[str]:
    group = pq.ParquetFile(pa.BufferReader(encoded(table, "parquet"))).metadata.row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    return {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}


def test_a_column_whose_values_repeat_has_a_dictionary() -> None:
    rows = range(50_000)
    table = pa.table(
        {"id": rows, "tenth": [str(n // 10) for n in rows], "same": ["x"] * 50_000, "none": pa.nulls(50_000, pa.int8())}
    )
    assert with_dictionary(table) == {"tenth", "same", "none"}
    assert decoded(encoded(table, "parquet"), "parquet") == table


def test_columns_that_cannot_be_compared_have_dictionaries() -> None:
    table = pa.table({"list": [[1], [2]], "id": [1, 2]})
    assert with_dictionary(table) == {"list.list.element", "id"}
    for odd in (pa.nulls(2), pa.array(["a", "b"], pa.string_view()), pa.array(["a", "b"]).dictionary_encode()):
        assert decoded(encoded(pa.table({"odd": odd}), "parquet"), "parquet").num_rows == 2


def test_a_table_without_rows_is_a_file() -> None:
    table = pa.schema([("id", pa.int64())]).empty_table()
    assert decoded(encoded(table, "parquet"), "parquet") == table


def nested(kind: str, levels: int) -> pa.DataType:
    found = pa.int64()
    for _ in range(levels):
        found = {
            "list": pa.list_(found),
            "map": pa.map_(pa.string(), found),
            "struct": pa.struct([("a", found)]),
        }[kind]
    return found


@pytest.mark.parametrize(("kind", "most"), [("list", 49), ("map", 49), ("struct", 98)])
def test_parquet_is_written_as_deep_as_it_can_be_read_and_no_deeper(kind: str, most: int) -> None:
    deepest = pa.table({"v": pa.nulls(1, nested(kind, most))})
    assert decoded(encoded(deepest, "parquet"), "parquet").equals(deepest)
    with pytest.raises(SinkRejected, match="column 'v' is nested too deeply"):
        encoded(pa.table({"v": pa.nulls(1, nested(kind, most + 1))}), "parquet")


def test_a_decimal_that_parquet_has_no_type_for_is_refused_by_its_name() -> None:
    table = pa.table({"v": pa.array([Decimal(12000)], pa.decimal128(20, -3))})
    with pytest.raises(SinkRejected, match="'v' is decimal128\\(20, -3\\)"):
        encoded(table, "parquet")


def test_a_decimal_within_another_type_that_parquet_has_none_for_is_refused() -> None:
    with pytest.raises(SinkRejected, match="cannot be written as Parquet"):
        encoded(pa.table({"v": pa.nulls(1, pa.list_(pa.decimal128(20, -3)))}), "parquet")


def test_json_lines_refuse_a_struct_with_a_field_twice_as_a_column() -> None:
    column = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(SinkRejected, match="'v' has a struct with a field twice") as error:
        encoded(pa.table({"sequence": [1], "v": column}), "jsonl")
    assert not isinstance(error.value, OutputRefused)
