"""Expected beside actual: exact values, rows in an order, and texts for people."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.service.cases.compare import ComparedTable, Order, Pair, missing_columns, paired, side_by_side
from leasehold.service.cases.values import is_same, shown

MONEY = pa.decimal128(20, 2)
INSTANT = pa.timestamp("us", tz="UTC")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("expected", "actual", "kind"),
    [
        (None, None, pa.string()),
        (1, 1, pa.int64()),
        ("123456789012345678901", Decimal("123456789012345678901.00"), pa.decimal128(30, 2)),
        (Decimal("1.5"), Decimal("1.50"), MONEY),
        (2, Decimal("2.00"), MONEY),
        (Decimal("0.1"), 0.1, pa.float64()),
        (Decimal("0.1"), pa.scalar(0.1, pa.float32()).as_py(), pa.float32()),
        ("NaN", float("nan"), pa.float64()),
        ("Infinity", float("inf"), pa.float64()),
        ("2026-01-31T12:00:00Z", NOON, INSTANT),
        ("2026-01-31T13:00:00.000000+01:00", NOON, INSTANT),
        ("2026-01-31T12:00:00", NOON.replace(tzinfo=None), pa.timestamp("us")),
        ("2026-01-31", date(2026, 1, 31), pa.date32()),
        ("text", b"text", pa.binary()),
        ("text", "text", pa.string()),
        (True, True, pa.bool_()),
        ({"a": Decimal("1.10"), "b": [1, None]}, '{"b": [1, null], "a": 1.1}', pa.string()),
        ({"a": 1}, b'{"a":1}', pa.binary()),
        ({"a": "b"}, [("a", "b")], pa.map_(pa.string(), pa.string())),
        ({"a": 1, "b": None}, {"a": 1, "b": None}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([1, None], [1, None], pa.list_(pa.int64())),
    ],
)
def test_values_are_equal(expected: Any, actual: Any, kind: pa.DataType) -> None:
    assert is_same(expected, actual, kind)


@pytest.mark.parametrize(
    ("expected", "actual", "kind"),
    [
        (None, "", pa.string()),
        (1, 2, pa.int64()),
        (True, 1, pa.int64()),
        (1, True, pa.bool_()),
        (Decimal("1.501"), Decimal("1.50"), MONEY),
        ("one", Decimal("1.50"), MONEY),
        (1, "1", pa.string()),
        ("2026-01-31T12:00:00", NOON, INSTANT),
        ("2026-01-31T12:00:00.000001Z", NOON, INSTANT),
        ("noon", NOON, INSTANT),
        ({"a": 1}, '{"a": true}', pa.string()),
        ({"a": 1}, '{"a": 1, "b": 1}', pa.string()),
        ({"a": 1}, "no JSON", pa.string()),
        ({"a": "b"}, [("a", "c")], pa.map_(pa.string(), pa.string())),
        ({"a": 1}, {"a": 1, "b": None}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ([1], [1, 2], pa.list_(pa.int64())),
    ],
)
def test_values_differ(expected: Any, actual: Any, kind: pa.DataType) -> None:
    assert not is_same(expected, actual, kind)


SCHEMA = pa.schema([("partition", pa.string()), ("a", pa.int64()), ("b", pa.int64())])


def table(*rows: tuple[str, int, int]) -> ComparedTable:
    return ComparedTable(SCHEMA, [dict(zip(SCHEMA.names, row, strict=True)) for row in rows])


def fit(expected: list[dict[str, Any]], actual: ComparedTable, order: Order) -> bool:
    return all(pair.is_same for pair in paired(expected, actual, order))


def test_rows_are_compared_in_any_order_unless_an_order_is_given() -> None:
    actual = table(("p", 1, 1), ("q", 2, 2), ("p", 3, 3))
    rows = [{"a": 3, "partition": "p"}, {"a": 1, "partition": "p"}, {"a": 2, "partition": "q"}]
    assert fit(rows, actual, "any")
    assert not fit(rows, actual, "partition")
    assert fit([rows[2], rows[1], rows[0]], actual, "partition")
    assert not fit([rows[2], rows[1], rows[0]], actual, "exact")
    assert fit([rows[1], rows[2], rows[0]], actual, "exact")


def test_output_without_partitions_is_compared_as_one_sequence() -> None:
    schema = pa.schema([("a", pa.int64())])
    output = ComparedTable(schema, [{"a": 1}, {"a": 2}])
    assert paired([], output, "partition") == [Pair(None, "{a: 1}", False), Pair(None, "{a: 2}", False)]
    assert fit([{"a": 1}, {"a": 2}], output, "partition")


def test_a_row_that_fits_several_does_not_take_the_only_one_of_another() -> None:
    assert fit([{"a": 1}, {"a": 1, "b": 1}], table(("p", 1, 1), ("p", 1, 2)), "any")


def test_equal_rows_are_counted() -> None:
    assert not fit([{"a": 1}], table(("p", 1, 1), ("p", 1, 1)), "any")
    assert not fit([{"a": 1}, {"a": 1}], table(("p", 1, 1)), "any")


@given(st.permutations(range(5)))
def test_no_order_of_the_output_changes_a_comparison_in_any_order(places: list[int]) -> None:
    assert fit([{"b": n} for n in range(5)], table(*(("p", 1, n) for n in places)), "any")


def test_a_wrong_row_is_shown_beside_the_one_that_is_most_like_it() -> None:
    pairs = paired([{"a": 1, "b": 1}, {"a": 2, "b": 2}], table(("p", 2, 3), ("p", 1, 1), ("p", 9, 9)), "any")
    assert pairs == [
        Pair("{a: 1, b: 1}", "{a: 1, b: 1}", True),
        Pair("{a: 2, b: 2}", "{a: 2, b: 3}", False),
        Pair(None, "{a: 9, b: 9}", False),
    ]


def test_columns_that_the_output_lacks_are_found() -> None:
    assert missing_columns([{"a": 1, "c": 1}, {"d": 1}], SCHEMA) == ["c", "d"]


def test_rows_are_side_by_side_or_below_each_other_if_they_are_wide() -> None:
    assert side_by_side([Pair("{a: 1}", "{a: 1}", True), Pair("{a: 2}", None, False)]) == [
        "  expected | actual",
        "  {a: 1}   | {a: 1}",
        "! {a: 2}   |",
    ]
    wide = "x" * 80
    assert side_by_side([Pair(wide, wide, True), Pair(wide, "y", False), Pair(None, wide, False)]) == [
        *("- expected", "+ actual", f"  {wide}", f"- {wide}", "+ y", f"+ {wide}"),
    ]


def test_values_are_shown_as_one_would_write_them() -> None:
    row = {"a": Decimal("1.50"), "b": None, "c": True, "d": NOON, "e": [1], "f": b"\xff", "g": "two\nlines", "h": ""}
    assert shown(row) == (
        '{a: 1.50, b: null, c: true, d: 2026-01-31T12:00:00Z, e: [1], f: "\ufffd", g: "two\\nlines", h: ""}'
    )
