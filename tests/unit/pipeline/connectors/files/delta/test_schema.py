"""Output is taken if no value is lost and only columns are added; anything else is refused with the column's name."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from leasehold.pipeline.connectors.files.delta.schema import (
    added,
    check_key,
    check_output,
    columns_of,
    fitted,
    last_per_key,
    stats_of,
)
from leasehold.pipeline.errors import OutputRefused, SinkRejected

UTC_US = pa.timestamp("us", "UTC")
TABLE = pa.schema([("a", pa.int64()), ("b", pa.string()), ("d", pa.decimal128(10, 2)), ("f", pa.float64())])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (pa.uint32(), pa.int64()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int8(), pa.string()), pa.string()),
        (pa.binary(4), pa.binary()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ms", "Europe/Berlin"), UTC_US),
        (pa.timestamp("s"), pa.timestamp("us")),
        (pa.timestamp("ns", "UTC"), UTC_US),
        (pa.decimal256(38, 0), pa.decimal128(38, 0)),
        (pa.large_list(pa.uint8()), pa.list_(pa.field("element", pa.int16()))),
        (pa.struct([("x", pa.large_string())]), pa.struct([("x", pa.string())])),
        (pa.map_(pa.string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    ],
)
def test_types_that_delta_has_in_another_form_are_taken(given: pa.DataType, kept: pa.DataType) -> None:
    assert columns_of(pa.schema([("c", given)])).field("c").type == kept


@pytest.mark.parametrize(
    "type",
    [
        *(pa.uint64(), pa.float16(), pa.time64("us"), pa.duration("us"), pa.null()),
        *(pa.month_day_nano_interval(), pa.decimal256(40, 0), pa.list_(pa.uint64()), pa.decimal128(4, -2)),
    ],
    ids=str,
)
def test_types_that_delta_lacks_are_refused(type: pa.DataType) -> None:
    with pytest.raises(SinkRejected, match="column 'c"):
        columns_of(pa.schema([("c", type)]))


@pytest.mark.parametrize("names", [[], ["a", "a"], ["a", "A"]])
def test_each_name_is_there_once_whatever_its_case(names: list[str]) -> None:
    with pytest.raises(SinkRejected, match="takes each name once"):
        columns_of(pa.schema([(name, pa.int64()) for name in names]))


@pytest.mark.parametrize(
    ("output", "new"),
    [
        ([("a", pa.int64())], []),
        ([("a", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(9, 2))], []),
        ([("c", pa.bool_()), ("a", pa.uint8())], ["c"]),
    ],
)
def test_columns_may_be_missing_narrower_and_new(output: Any, new: list[str]) -> None:
    assert [field.name for field in added(TABLE, pa.schema(output))] == new


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (("a", pa.string()), "'a' is string, and the table's is int64"),
        (("b", pa.int64()), "'b' is int64, and the table's is string"),
        (("f", pa.int32()), "'f' is int32"),
        (("d", pa.decimal128(11, 2)), r"'d' is decimal128\(11, 2\)"),
        (("d", pa.decimal128(9, 1)), r"'d' is decimal128\(9, 1\)"),
        (("A", pa.int64()), "'A' is 'a' in the table"),
        (("t", pa.timestamp("us")), "'t' is a time without a zone"),
    ],
)
def test_anything_but_a_new_column_is_refused(output: Any, why: str) -> None:
    with pytest.raises(SinkRejected, match=why):
        added(TABLE, pa.schema([output]))


def test_a_column_that_is_not_null_has_to_be_there_and_filled() -> None:
    table = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.string())])
    with pytest.raises(SinkRejected, match="lacks the column 'a'"):
        added(table, pa.schema([("b", pa.string())]))
    with pytest.raises(
        OutputRefused, match="'a' is NOT NULL in the table, and is NULL in row 2 of 2: filter"
    ) as refused:
        fitted(pa.table({"a": pa.array([1, None], pa.int64())}), table)
    assert refused.value.sequences == ()


def test_rows_whose_key_is_null_are_refused_by_their_events() -> None:
    rows = pa.table({"sequence": [7, 8, 8, 9], "a": [1, None, None, None], "b": ["x", None, "y", "z"]})
    with pytest.raises(
        OutputRefused, match=r"'a' is in `key_columns`, and is NULL in row 2 of 4 \(sequence 8\)"
    ) as refused:
        fitted(rows, TABLE, ["a"])
    assert refused.value.sequences == (8, 9)
    assert fitted(rows, TABLE).num_rows == 4
    untold = rows.set_column(0, "sequence", pa.array([7, None, 8, 9]))
    with pytest.raises(OutputRefused, match="in row 2 of 4: filter") as refused:
        fitted(untold, TABLE, ["a"])
    assert refused.value.sequences == ()


@pytest.mark.parametrize(
    ("number", "type"),
    [
        (-719_163, pa.date32()),
        (2_932_897, pa.date32()),
        *(
            (number, kind)
            for number in (-62_135_596_800_000_001, 253_402_300_800_000_000)
            for kind in (UTC_US, pa.timestamp("us"))
        ),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_a_year_outside_1_to_9999_is_refused_with_its_row(number: int, type: pa.DataType, is_nested: bool) -> None:
    whole = pa.int32() if type == pa.date32() else pa.int64()

    def rows(first: int) -> pa.Table:
        times = pa.array([first, None, first + 1], whole).cast(type)
        column = pa.StructArray.from_arrays([times], ["t"]) if is_nested else times
        return pa.table({"c": column, "sequence": [4, 5, 6]})

    columns = columns_of(rows(0).schema)
    bad = [4, 6] if number > 0 else [4]
    with pytest.raises(
        OutputRefused, match=r"'c', which has a year outside of 1 to 9999, in row 1 of 3 \(sequence 4\)"
    ) as refused:
        fitted(rows(number), columns)
    assert list(refused.value.sequences) == bad
    inside = rows(number + 1 if number < 0 else number - 2)
    assert fitted(inside, columns).num_rows == 3


def test_a_value_without_a_place_in_the_type_is_refused_as_a_value() -> None:
    rows = pa.table({"t": pa.array([2**62], pa.timestamp("s", "UTC"))})
    with pytest.raises(OutputRefused, match="'t', which has a year outside of 1 to 9999"):
        fitted(rows, pa.schema([("t", UTC_US)]))


def test_rows_are_cast_to_the_table_s_types() -> None:
    rows = fitted(
        pa.table({"d": pa.array([Decimal("1.50")], pa.decimal128(4, 2)), "a": pa.array([7], pa.int8())}), TABLE
    )
    assert rows.schema == pa.schema([("a", pa.int64()), ("d", pa.decimal128(10, 2))])
    assert rows.to_pylist() == [{"a": 7, "d": Decimal("1.50")}]


def test_statistics_are_of_types_whose_order_all_readers_share() -> None:
    table = pa.table(
        {
            "n": pa.array([3, None, 1], pa.int64()),
            "t": pa.array([datetime(2026, 1, 1, 0, 0, 0, 1, UTC), datetime(2026, 1, 2, tzinfo=UTC), None], UTC_US),
            "day": pa.array([date(2026, 1, 31)] * 3),
            "s": pa.array(["x", "y", None]),
            "f": pa.array([1.0, float("nan"), None]),
            "l": pa.array([[1], None, []], pa.list_(pa.int64())),
            "none": pa.array([None] * 3, pa.int64()),
        }
    )
    assert json.loads(stats_of(table)) == {
        "numRecords": 3,
        "minValues": {"n": 1, "t": "2026-01-01T00:00:00.000001Z", "day": "2026-01-31"},
        "maxValues": {"n": 3, "t": "2026-01-02T00:00:00.000000Z", "day": "2026-01-31"},
        "nullCount": {"n": 1, "t": 1, "day": 0, "s": 1, "f": 1, "none": 3},
    }


def test_statistics_leave_out_the_limits_of_years_that_readers_lack() -> None:
    day, time = pa.array([0, 2_932_897], pa.int32()).cast(pa.date32()), pa.array([0, 2**62], pa.int64()).cast(UTC_US)
    stats = json.loads(stats_of(pa.table({"day": day, "t": time, "n": [1, 2]})))
    assert (stats["minValues"], stats["maxValues"]) == ({"n": 1}, {"n": 2})
    assert stats["nullCount"] == {"day": 0, "t": 0, "n": 0}


def test_statistics_have_years_of_four_digits() -> None:
    first = pa.table({"t": pa.array([datetime(1, 1, 1, tzinfo=UTC)], UTC_US), "day": [date(1, 1, 1)]})
    assert json.loads(stats_of(first))["minValues"] == {"t": "0001-01-01T00:00:00.000000Z", "day": "0001-01-01"}


def test_of_rows_with_one_key_the_last_counts() -> None:
    rows = pa.table({"k": ["x", "y", "x"], "v": [1, 2, 3]})
    assert last_per_key(rows, ["k"]).to_pylist() == [{"k": "y", "v": 2}, {"k": "x", "v": 3}]


@pytest.mark.parametrize("name", ["__row", "row", "key0", "row_max"])
def test_a_key_may_have_any_name(name: str) -> None:
    rows = pa.table({name: ["x", "y", "x"], "key1": [1, 1, 1], "v": [1, 2, 3]})
    assert last_per_key(rows, [name, "key1"])["v"].to_pylist() == [2, 3]


@pytest.mark.parametrize(
    ("type", "why"),
    [
        (pa.struct([("x", pa.int64())]), "such as the fields of a STRUCT"),
        (pa.list_(pa.int64()), "single values"),
        (pa.map_(pa.string(), pa.int64()), "single values"),
        (pa.float32(), r"0\.0 and -0\.0.*cast it to DECIMAL"),
        (pa.float64(), r"0\.0 and -0\.0.*cast it to DECIMAL"),
        (pa.dictionary(pa.int8(), pa.float64()), r"0\.0 and -0\.0.*cast it to DECIMAL"),
    ],
    ids=str,
)
def test_a_key_is_of_single_values_that_are_equal_or_not(type: pa.DataType, why: str) -> None:
    columns = pa.schema([("a", pa.int64()), ("k", type)])
    check_key(columns, ["a"])
    with pytest.raises(SinkRejected, match=rf"column 'k' is .*cannot be one of `key_columns`.*{why}") as refused:
        check_key(columns, ["a", "k"])
    assert not isinstance(refused.value, OutputRefused)


def test_output_is_checked_without_a_table() -> None:
    check_output(TABLE, ["a"])
    with pytest.raises(SinkRejected, match="no column 'z'"):
        check_output(TABLE, ["z"])
