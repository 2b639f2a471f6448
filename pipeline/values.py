"""Values that no sink takes: found in whole columns, refused as rows. Pure.

All sinks refuse in this way. A refusal of a type is SinkRejected, because all rows would be refused. A refusal of a value is
OutputRefused, with the column, the row and the `sequence` of its event. Only a column that fails is searched for failing rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.errors import OutputRefused, SinkRejected

T = TypeVar("T")
VALUE_ERRORS = (ValueError, OverflowError, TypeError)
"""What converters raise for a value: pa.ArrowInvalid and UnicodeDecodeError are kinds of ValueError."""
NAMED_MAX = 1000
"""The most rows that a refusal names; those after them are refused the next time."""
REMEDY = "correct, cast or filter it in the transform"
MASK_BITS = 62
_A_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}
_FIRST_DAY, _LAST_DAY = (each.toordinal() - date(1970, 1, 1).toordinal() for each in (date.min, date.max))


def checked(output: pa.Table, taker: str) -> pa.Table:
    """The output, unless it has values that no sink takes; times in nanoseconds become microseconds. taker: "a log", for people.

    Arrow can hold more than other systems: texts that are not UTF-8 (Spark's CAST of bytes makes them), maps with a key twice,
    years outside 1 to 9999, nanoseconds. Unions and run-end-encoded columns are refused. Raises SinkRejected, OutputRefused.
    """
    for place, field in enumerate(output.schema):
        if _is_odd(field.type):
            raise SinkRejected(
                f"{taker} cannot take column '{field.name}', which is {field.type}: cast it in the transform"
            )
        if _is_doubtful(field.type):
            converted(output, place, _check, taker)
        if (wanted := _in_microseconds(field.type)) != field.type:
            column = converted(output, place, partial(_cast, type=wanted), taker)
            output = output.set_column(place, field.with_type(wanted), column)
    return output


def converted(output: pa.Table, place: int, convert: Callable[[pa.ChunkedArray], T], taker: str) -> T:
    """The column at `place` as `convert` returns it, which has to treat each value on its own. Raises OutputRefused."""
    values = output.column(place)
    with suppress(*VALUE_ERRORS):
        return convert(values)
    try:
        return convert(_part(values, 0, len(values)))
    except VALUE_ERRORS as error:
        subject = f"{taker} cannot take column '{output.column_names[place]}'"
        if rows := list(_failing(values, convert)):
            reason = reason_of(_error_of(_part(values, rows[0], 1), convert) or error)
            raise refused_rows(output, rows, f"{subject}, which {reason},", REMEDY) from error
        raise OutputRefused(f"{subject} ({error}): {REMEDY}") from error


def refused_rows(output: pa.Table, rows: Sequence[int], what: str, remedy: str) -> OutputRefused:
    """The refusal of the rows at these places, at least one. It names their events if all of the rows have a `sequence`."""
    sequences = _sequences(output, rows)
    event = f" (sequence {sequences[0]})" if sequences else ""
    message = f"{what} in row {rows[0] + 1} of {output.num_rows}{event}: {remedy}"
    return OutputRefused(message, sequences=sequences)


def reason_of(error: Exception) -> str:
    """Why a value is refused, worded to follow "which"."""
    text = str(error)
    if isinstance(error, UnicodeEncodeError):
        return "has half a character (a lone surrogate)"
    if isinstance(error, UnicodeDecodeError) or "UTF8" in text:
        return "has a text that is not UTF-8"
    return text if isinstance(error, _ValueRefused) else f"has a value that does not fit ({text})"


class _ValueRefused(ValueError):
    """Its text is the reason."""


def _sequences(output: pa.Table, rows: Sequence[int]) -> list[int]:
    if "sequence" not in output.column_names or not pa.types.is_integer(output.schema.field("sequence").type):
        return []
    found = output["sequence"].take(pa.array(rows, pa.int64()))
    return [] if found.null_count else list(dict.fromkeys(found.to_pylist()))


def _failing(values: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], object]) -> Iterator[int]:
    """The places of values that fail alone, at most NAMED_MAX, found by halving."""
    spans, found = [(0, len(values))], 0
    while spans and found < NAMED_MAX:
        first, count = spans.pop()
        if count == 0 or _error_of(_part(values, first, count), convert) is None:
            continue
        if count == 1:
            found += 1
            yield first
        else:
            spans += [(first + count // 2, count - count // 2), (first, count // 2)]


def _part(values: pa.ChunkedArray, first: int, count: int) -> pa.ChunkedArray:
    """A copy: in a slice, Arrow also looks at the values around it."""
    try:
        return values.take(pa.array(np.arange(first, first + count)))
    except pa.ArrowNotImplementedError:  # for string views
        return pa.chunked_array([pa.concat_arrays([each]) for each in values.slice(first, count).chunks], values.type)


def _error_of(values: pa.ChunkedArray, convert: Callable[[pa.ChunkedArray], object]) -> Exception | None:
    try:
        convert(values)
    except VALUE_ERRORS as error:
        return error
    return None


def is_text(type: pa.DataType) -> bool:
    return bool(pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type))


def _is_doubtful(type: pa.DataType) -> bool:
    if pa.types.is_dictionary(type):
        return _is_doubtful(type.value_type)
    is_one = is_text(type) or pa.types.is_date(type) or pa.types.is_timestamp(type) or pa.types.is_map(type)
    return is_one or any(_is_doubtful(type.field(number).type) for number in range(type.num_fields))


def _is_odd(type: pa.DataType) -> bool:
    if pa.types.is_union(type) or pa.types.is_run_end_encoded(type):
        return True
    return any(_is_odd(type.field(number).type) for number in range(type.num_fields))


def _check(values: pa.ChunkedArray) -> None:
    """Raises ArrowInvalid, _ValueRefused."""
    values.validate(full=True)
    for chunk in values.chunks:
        _check_array(chunk)


def _check_array(values: pa.Array) -> None:
    """Check maps and times, however deeply nested. Raises _ValueRefused."""
    kind = values.type
    if not _is_doubtful(kind):
        return
    if pa.types.is_map(kind):
        if _has_a_key_twice(values):
            raise _ValueRefused("has a map with a key twice")
        for side in (values.keys, values.items):
            _check_array(_within(side, values.offsets))
    elif pa.types.is_struct(kind):
        for each in values.flatten():
            _check_array(each)
    elif pa.types.is_dictionary(kind):
        _check_array(values.dictionary_decode())
    elif kind.num_fields:
        _check_array(values.flatten())
    elif not is_text(kind):
        _check_years(values)


def _check_years(times: pa.Array) -> None:
    """Raises _ValueRefused."""
    unit = getattr(times.type, "unit", "day" if pa.types.is_date32(times.type) else "ms")
    if unit == "ns":  # nanoseconds end in the year 2262
        return
    a_day = _A_DAY.get(unit, 1)
    limits = pc.min_max(times.cast(pa.int32() if unit == "day" else pa.int64())).as_py()
    if limits["min"] is not None and not (
        _FIRST_DAY * a_day <= limits["min"] <= limits["max"] < (_LAST_DAY + 1) * a_day
    ):
        raise _ValueRefused("has a year outside of 1 to 9999")


def _within(side: pa.Array, offsets: pa.Array) -> pa.Array:
    first, end = offsets[0].as_py(), offsets[-1].as_py()
    return side.slice(first, end - first)


def _has_a_key_twice(maps: pa.MapArray) -> bool:
    """Each key is a bit: the sum of a map's bits equals their disjunction, unless a key is there twice."""
    offsets = maps.offsets.to_numpy()
    if len(offsets) < 2 or offsets[-1] == offsets[0] or (np.diff(offsets) < 2).all():
        return False
    keys = _within(maps.keys, maps.offsets).dictionary_encode()
    codes = keys.indices.to_numpy().astype(np.int64)
    starts = (offsets - offsets[0]).astype(np.int64)
    if len(keys.dictionary) > MASK_BITS:
        rows = np.repeat(np.arange(len(maps)), np.diff(starts))
        pairs = rows * len(keys.dictionary) + codes
        return len(np.unique(pairs)) < len(pairs)
    bits, begins = np.left_shift(1, codes), starts[:-1][np.diff(starts) > 0]
    return bool((np.add.reduceat(bits, begins) != np.bitwise_or.reduceat(bits, begins)).any())


def _cast(values: pa.ChunkedArray, type: pa.DataType) -> pa.ChunkedArray:
    return values.cast(type)


def _in_microseconds(type: pa.DataType) -> pa.DataType:
    """The same type without nanoseconds."""
    if pa.types.is_timestamp(type) and type.unit == "ns":
        return pa.timestamp("us", type.tz)
    if pa.types.is_time(type) and type.unit == "ns":
        return pa.time64("us")
    if not type.num_fields or pa.types.is_union(type):
        return type
    if pa.types.is_map(type):
        return pa.map_(_in_microseconds(type.key_type), _in_microseconds(type.item_type))
    inner = [
        type.field(number).with_type(_in_microseconds(type.field(number).type)) for number in range(type.num_fields)
    ]
    if pa.types.is_struct(type):
        return pa.struct(inner)
    if pa.types.is_fixed_size_list(type):
        return pa.list_(inner[0], type.list_size)
    return (
        pa.large_list(inner[0])
        if pa.types.is_large_list(type)
        else pa.list_(inner[0])
        if pa.types.is_list(type)
        else type
    )
