"""Values that no sink takes are refused as rows, whatever the column, the batch and the place in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.pipeline.async_sink import json_row
from leasehold.pipeline.async_sink.json_rows import check_rows, row_slices
from leasehold.pipeline.connectors.files.sink.formats import encoded
from leasehold.pipeline.errors import OutputRefused, SinkRejected
from leasehold.pipeline.values import MASK_BITS, NAMED_MAX, checked

NOT_UTF8 = pa.array([b"caf\xe9"], pa.binary()).view(pa.string())[0:1]
TEXTS = pa.concat_arrays([pa.array(["f"]), NOT_UTF8, pa.array(["t"])])
YEAR_10000 = 253_402_300_800
MAP = pa.map_(pa.string(), pa.int64())


def refused(table: pa.Table) -> OutputRefused:
    with pytest.raises(OutputRefused) as error:
        checked(table, "a test")
    return error.value


def with_sequence(column: Any) -> pa.Table:
    return pa.table({"sequence": pa.array(range(10, 10 + len(column)), pa.int64()), "t": column})


BAD = {
    "a text that is not UTF-8": (TEXTS, "not UTF-8"),
    "a large one": (TEXTS.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()), "not UTF-8"),
    "one in a view": (TEXTS.cast(pa.binary()).cast(pa.binary_view()).view(pa.string_view()), "not UTF-8"),
    "one in a list": (pa.ListArray.from_arrays([0, 1, 2, 3], TEXTS), "not UTF-8"),
    "one in a struct": (pa.StructArray.from_arrays([TEXTS], ["x"]), "not UTF-8"),
    "one as a map's value": (pa.MapArray.from_arrays([0, 1, 2, 3], pa.array(["k"] * 3), TEXTS), "not UTF-8"),
    "a map with a key twice": (pa.array([[("a", 1)], [("a", 1), ("b", 2), ("a", 2)], None], MAP), "a key twice"),
    "one in a list of maps": (
        pa.array([[[("a", 1)]], [[], [("a", 1), ("a", 2)]], None], pa.list_(MAP)),
        "a key twice",
    ),
    "a time behind the year 9999": (pa.array([0, YEAR_10000, 1], pa.timestamp("s", "UTC")), "year"),
    "one before the year 1": (pa.array([0, -62_135_596_801, None], pa.timestamp("s")), "year"),
    "a day": (pa.array([0, 2_932_897, 1], pa.date32()), "year"),
    "a time in a struct in a list": (
        pa.array([[{"x": 0}], [{"x": YEAR_10000}], []], pa.list_(pa.struct([("x", pa.timestamp("s"))]))),
        "year",
    ),
    "a nanosecond": (pa.array([1_000, 1_001, None], pa.timestamp("ns")), "does not fit"),
    "one in a list ": (pa.array([[1_000], [1_001], None], pa.list_(pa.timestamp("ns"))), "does not fit"),
}


@pytest.mark.parametrize(("column", "reason"), BAD.values(), ids=BAD)
def test_a_value_that_no_sink_takes_is_refused_with_its_column_and_row(column: pa.Array, reason: str) -> None:
    error = refused(with_sequence(column))
    assert error.sequences == (11,)
    for part in ("a test cannot take column 't'", reason, "in row 2 of 3 (sequence 11)"):
        assert part in str(error)


def test_rows_without_a_sequence_are_refused_without_naming_an_event() -> None:
    assert refused(pa.table({"t": TEXTS})).sequences == ()
    assert refused(pa.table({"sequence": pa.array([1, None, 3]), "t": TEXTS})).sequences == ()


def test_what_lies_around_a_slice_is_not_looked_at() -> None:
    table = with_sequence(TEXTS)
    assert checked(table.slice(2), "a test").equals(table.slice(2))
    times = with_sequence(BAD["one in a list "][0])
    assert checked(times.slice(2), "a test")["t"].null_count == 1
    maps = with_sequence(BAD["a map with a key twice"][0])
    assert checked(maps.slice(2), "a test").equals(maps.slice(2))


def test_whole_microseconds_in_nanoseconds_become_microseconds() -> None:
    column = pa.array([1_000, None], pa.timestamp("ns", "UTC"))
    assert checked(with_sequence(column), "a test")["t"].type == pa.timestamp("us", "UTC")


def test_the_limits_of_the_years_are_taken() -> None:
    first, last = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
    table = with_sequence(pa.array([first, last], pa.timestamp("us", "UTC")))
    assert checked(table, "a test").equals(table)


def test_very_many_bad_rows_are_named_in_steps() -> None:
    column = pa.array([YEAR_10000] * (NAMED_MAX + 5), pa.timestamp("s"))
    assert len(refused(with_sequence(column)).sequences) == NAMED_MAX


@given(
    st.lists(st.none() | st.lists(st.sampled_from([f"k{n}" for n in range(MASK_BITS + 20)]), max_size=5)), st.booleans()
)
def test_exactly_the_maps_with_a_key_twice_are_refused(rows: list[list[str] | None], is_wide: bool) -> None:
    given_rows = [None if row is None else [(key if is_wide else key[:2], 1) for key in row] for row in rows]
    table = with_sequence(pa.array(given_rows, MAP))
    bad = [10 + n for n, row in enumerate(given_rows) if row and len({key for key, _ in row}) < len(row)]
    if bad:
        assert list(refused(table).sequences) == bad
    else:
        assert checked(table, "a test").equals(table)


@given(st.lists(st.none() | st.binary(max_size=6)), st.integers(0, 3), st.integers(1, 4))
def test_exactly_the_texts_that_are_not_utf8_are_refused(rows: list[bytes | None], start: int, chunks: int) -> None:
    texts = pa.array(rows, pa.binary()).view(pa.string()).slice(start)
    size = max(1, len(texts) // chunks)
    column = pa.chunked_array([texts.slice(at, size) for at in range(0, len(texts), size)], pa.string())
    table, bad = with_sequence(column), []
    for number, row in enumerate(rows[start:]):
        try:
            (row or b"").decode()
        except UnicodeDecodeError:
            bad.append(10 + number)
    if bad:
        assert list(refused(table).sequences) == bad
    else:
        assert checked(table, "a test") is table


OCTETS = st.binary(max_size=4) | st.text(max_size=4).map(str.encode)
INSTANTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-(2**56), 2**56)
KINDS: dict[str, tuple[pa.DataType, pa.DataType, st.SearchStrategy[Any]]] = {
    "texts": (pa.binary(), pa.string(), OCTETS),
    "lists of texts": (pa.list_(pa.binary()), pa.list_(pa.string()), st.lists(OCTETS, max_size=2)),
    "instants": (pa.int64(), pa.timestamp("us", "UTC"), INSTANTS),
    "days": (pa.int32(), pa.date32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-(10**6), 3 * 10**6)),
    "floats": (pa.float64(), pa.float64(), st.floats()),
    "maps": (MAP, MAP, st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 1)), max_size=3)),
}
"""By the type that a value is drawn as, and the type that it is taken for, unchecked."""


def made(kind: str, rows: list[Any]) -> pa.Table:
    drawn, meant, _ = KINDS[kind]
    given_rows = pa.array(rows, drawn)
    if pa.types.is_list(meant):
        texts = given_rows.values.view(pa.string())
        return with_sequence(pa.ListArray.from_arrays(given_rows.offsets, texts, mask=given_rows.is_null()))
    return with_sequence(given_rows if drawn == meant else given_rows.view(meant))


TAKERS: dict[str, Any] = {
    "JSON lines": lambda table: encoded(table, "jsonl"),
    "Parquet": lambda table: encoded(table, "parquet"),
    "rows as JSON": lambda table: check_rows(table, json_row(), "a test"),
    "handlers": lambda table: list(row_slices(table, "a test")),
}


def named(taker: str, table: pa.Table) -> set[int]:
    try:
        TAKERS[taker](table)
    except OutputRefused as error:
        return set(error.sequences) or {-1}
    return set()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(list(KINDS)), st.sampled_from(list(TAKERS)))
def test_a_row_is_refused_for_what_is_in_it_wherever_the_batch_is_cut(
    data: st.DataObject, kind: str, taker: str
) -> None:
    table = made(kind, data.draw(st.lists(st.none() | KINDS[kind][2], max_size=8)))
    alone = {10 + n for n in range(table.num_rows) if named(taker, table.slice(n, 1))}
    cut = data.draw(st.integers(0, table.num_rows))
    for part in (table, table.slice(0, cut), table.slice(cut)):
        here = alone & set(part["sequence"].to_pylist())
        found = named(taker, part)
        assert found == (here if taker != "rows as JSON" else found & here)
        assert bool(found) == bool(here)
    if not alone:
        table.to_pylist()  # what is taken, anybody can read


@pytest.mark.parametrize("taker", TAKERS)
@pytest.mark.parametrize(
    "column",
    [
        pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array(["a"]), pa.array([1])]),
        pa.RunEndEncodedArray.from_arrays([1], ["a"]),
    ],
)
def test_a_type_that_no_sink_takes_is_refused_as_a_column(taker: str, column: Any) -> None:
    with pytest.raises(SinkRejected, match="column 't'") as error:
        TAKERS[taker](with_sequence(column))
    assert not isinstance(error.value, OutputRefused)


def posted(column: Any) -> None:
    check_rows(with_sequence(column), json_row(), "a test")


TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1], pa.duration("us")),
        pa.array([[1]], pa.list_(pa.duration("us"))),
        pa.array([[(1, 1)]], pa.map_(pa.date32(), pa.int64())),
        pa.array([[(1, 1)]], pa.map_(pa.timestamp("us"), pa.int64())),
        pa.array([[(b"1", 1)]], pa.map_(pa.binary(), pa.int64())),
        pa.array([[(1, 1)]], pa.map_(pa.decimal128(3, 1), pa.int64())),
        pa.array([[({"a": 1}, 1)]], pa.map_(pa.struct([("a", pa.int64())]), pa.int64())),
        TWICE,
    ],
)
def test_a_type_that_json_has_no_form_for_is_refused_as_a_column(column: pa.Array) -> None:
    with pytest.raises(SinkRejected, match="column 't'") as error:
        posted(column)
    assert not isinstance(error.value, OutputRefused)


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.0, float("nan")]),
        pa.array([b"", b"\xff"]),
        pa.array([[], [(0.0, 1), (-0.0, 2)]], pa.map_(pa.float64(), pa.int64())),
        pa.array([0, 253_402_300_799], pa.timestamp("s", "Asia/Tokyo")),
    ],
)
def test_a_value_that_json_does_not_hold_is_refused_with_its_event(column: pa.Array) -> None:
    with pytest.raises(OutputRefused) as error:
        posted(column)
    assert error.value.sequences == (11,)


def test_a_column_that_the_key_field_would_replace_is_refused() -> None:
    with pytest.raises(SinkRejected, match="'t', which `key_field` would replace: choose another"):
        check_rows(with_sequence(pa.array([1])), json_row(key_field="t"), "a test")
    check_rows(with_sequence(pa.array([1])), json_row(key_field="key"), "a test")


# What a refusal carries, a plug-in's too


def test_a_refusal_names_sequences_as_whole_numbers_and_has_a_message() -> None:
    assert OutputRefused("no", sequences=np.array([1, 2])).sequences == (1, 2)
    for wrong in ("12", [1.0], [None], ["1"]):
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            OutputRefused("no", sequences=wrong)  # type: ignore[arg-type]  # as a plug-in may
    with pytest.raises(ValueError, match="a refusal needs a message: name the row, the column and the reason"):
        OutputRefused(" ")
