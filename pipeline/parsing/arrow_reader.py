"""Many bodies at once through Arrow's JSON reader, or None if they are not plainly fine. Pure.

In addition to Arrow's own checks, it verifies that every body is one object, that no body has values that JSON does not know
(NaN), and that texts are UTF-8. It also refuses what Arrow would take although `python_reader` does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.parsing.schema import Array, Field, Leaf, Map, Struct, Type, arrow_schema, arrow_type

BLOCK_BYTES = 1 << 20
OPENERS_MAX = JSON_LEVELS_MAX
"""The most objects and arrays in one body. A body that nests too deeply for `python_reader` has more."""
_DUBIOUS = r'[:\[,]\s*(-?(NaN|Inf|[0-9.]+[eE])|"[-+]?[0-9.]+[eE][-+]?[0-9]+"|"[-+0-9.eE]*\\u00[2346])'
"""A value that is not JSON, or a number with an exponent, also in quotes or with escapes: Arrow's decimals overflow silently on
some of those."""
_RARE = ("NaN", "Inf", r"\\u")
"""Every dubious value has one of them, except numbers with an exponent. A search for an expression with a literal prefix is many
times as fast as one without."""
NAMES_MAX = 3
"""With more names to search for, one search for all dubious values is faster."""
_EXPONENT = r'"\s*:\s*"?[-+0-9.]*[eE]'
"""What follows a column's name. The opening quote is not searched for: quotes are everywhere, so a search would stop at each."""
DECIMAL128_DIGITS = 38
_FIRST, _LAST = "0001-01-01T00:00:00", "9999-12-31T23:59:59.999999"
_NO_ZONE = r"^\d{4}-\d{2}-\d{2}([T ][0-9:.]+)?$"
_FRACTION = r"^[-+]?(\d+[.]?\d*|[.]\d+)([eE][-+]?\d+)?$"


class _Unsure(Exception):
    """Not for this reader to decide."""


@dataclass(frozen=True, slots=True)
class _ColumnReading:
    """The type as which Arrow reads a column, and a function that makes the final column from that."""

    type: pa.DataType
    column: Callable[[pa.Array], pa.Array]


def read_fast(schema: Struct, bodies: pa.BinaryArray) -> pa.Table | None:
    """As `python_reader.read_exactly`, or None if that reader has to decide."""
    try:
        return _read(schema, bodies)
    except (_Unsure, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _read(schema: Struct, bodies: pa.BinaryArray) -> pa.Table:
    wanted = arrow_schema(schema)
    if len(bodies) == 0:
        return wanted.empty_table()
    first = _first(bodies)
    fields = [(field, _reading(field, first.get(field.name))) for field in schema.fields]
    found = _rows(bodies, pa.schema([(field.name, reading.type) for field, reading in fields]), _hints(schema))
    columns = [reading.column(found.column(field.name).combine_chunks()) for field, reading in fields]
    for (field, _), column in zip(fields, columns, strict=True):
        _require(_fits(field, column, outside=0))
    return pa.Table.from_arrays([column.cast(f.type) for column, f in zip(columns, wanted, strict=True)], schema=wanted)


def _require(condition: bool) -> None:
    if not condition:
        raise _Unsure


def _first(bodies: pa.BinaryArray) -> Mapping[str, Any]:
    """The first body: a guess at how the others are written. A wrong guess only costs time."""
    try:
        first = parsed_json(bodies[0].as_py() or b"", JSON_LEVELS_MAX)
    except ValueError:
        raise _Unsure from None
    _require(isinstance(first, dict))
    return dict(first)


def _rows(bodies: pa.BinaryArray, schema: pa.Schema, hints: Sequence[str]) -> pa.Table:
    """One row per body. hints: see `_hints`.

    Every body begins with { and ends with }: between two of them is `}` newline `{`, which JSON allows only between two
    objects. So each body is one object or several, and as there are no more rows than bodies, each is one.
    """
    _require(bodies.null_count == 0 and _all(pc.starts_with(bodies, b"{")) and _all(pc.ends_with(bodies, b"}")))
    bodies.cast(pa.string())  # raises if it is not UTF-8
    _require(_is_shallow(bodies))
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies), b"\n")
    _require(not any(_holds(text, hint) for hint in hints) or not _holds(text, _DUBIOUS))
    found = pj.read_json(
        pa.BufferReader(text[0].as_buffer()),
        read_options=pj.ReadOptions(block_size=max(BLOCK_BYTES, 2 * pc.max(pc.binary_length(bodies)).as_py() + 2)),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    _require(found.num_rows == len(bodies))
    return found


def _hints(schema: Struct) -> Sequence[str]:
    """What to search for first: if no body contains one of these, no column is made from a dubious value."""
    names = _numbers_in(schema)
    if len(names) > NAMES_MAX or not all(map(_is_plain, names)):
        return [_DUBIOUS]
    return [*_RARE, *(re.escape(name) + _EXPONENT for name in sorted(names))]


def _is_plain(name: str) -> bool:
    """Whether JSON can only write the name as it is, or with `\\u`."""
    return name != "" and name.isascii() and name.isprintable() and not set(name) & set('"\\/')


def _numbers_in(type: Type, name: str = "") -> set[str]:
    """The names that numbers may follow; "" if some are in an array, without a name."""
    match type:
        case Struct(fields):
            return {found for field in fields for found in _numbers_in(field.type, field.name)}
        case Array(element):
            return _numbers_in(element)
        case Leaf() if type.is_number:
            return {name}
    return set()


def _holds(text: pa.BinaryArray, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(text, pattern)).as_py())


def _is_shallow(bodies: pa.BinaryArray) -> bool:
    long = bodies.filter(pc.greater(pc.binary_length(bodies), 2 * OPENERS_MAX))
    if len(long) == 0:
        return True
    openers = pc.add(pc.count_substring(long, b"{"), pc.count_substring(long, b"["))
    return bool(pc.max(openers).as_py() <= OPENERS_MAX)


def _all(found: pa.Array) -> bool:
    return bool(pc.all(found, min_count=0).as_py())


def _reading(field: Field, example: Any) -> _ColumnReading:
    if not isinstance(field.type, Leaf):
        return _ColumnReading(_nested(field.type), _as_it_is)
    is_text = isinstance(example, str)
    if field.type.bits is not None:
        return (
            _ColumnReading(pa.decimal128(38, 0), _as_it_is)
            if is_text
            else _ColumnReading(arrow_type(field.type), _as_it_is)
        )
    match field.type.name:
        case "FLOAT" | "DOUBLE":
            narrow = partial(_finite, type=arrow_type(field.type))
            return (
                _ColumnReading(pa.string(), lambda column: narrow(_fractions(column)))
                if is_text
                else _ColumnReading(pa.float64(), narrow)
            )
        case "BOOLEAN":
            return _ColumnReading(pa.string(), _booleans) if is_text else _ColumnReading(pa.bool_(), _as_it_is)
        case "DATE":
            return _ColumnReading(pa.string(), _dates)
        case "TIMESTAMP":
            return _ColumnReading(pa.timestamp("us", "UTC"), _instants)
        case "TIMESTAMP_NTZ":
            return _ColumnReading(pa.string(), _local_times)
    return _ColumnReading(_roomy(field.type), _as_it_is)


def _roomy(leaf: Leaf) -> pa.DataType:
    """The type of a column, with room for values that do not fit. Arrow accepts as many digits as the type has before the point,
    and appends those after it: with more than 38 in all, 128 bits overflow silently."""
    if leaf.precision is not None and leaf.scale is not None and leaf.precision + leaf.scale > DECIMAL128_DIGITS:
        return pa.decimal256(leaf.precision, leaf.scale)
    return arrow_type(leaf)


def _nested(type: Type) -> pa.DataType:
    """The type within arrays and structs, for what Arrow reads correctly without further checks. Raises _Unsure for the rest."""
    match type:
        case Leaf() if type.bits is not None or type.precision is not None or type.name in ("STRING", "BOOLEAN"):
            return _roomy(type)
        case Array(element):
            return pa.list_(_nested(element))
        case Struct(fields):
            return pa.struct([(field.name, _nested(field.type)) for field in fields])
        case Leaf() | Map():
            raise _Unsure


def _fits(field: Field, column: pa.Array, outside: int) -> bool:
    """Whether no required value is null, and every decimal is as narrow as its type.

    outside: how many values are null because the struct around them is.
    """
    return (field.nullable or column.null_count == outside) and _fits_within(field.type, column)


def _fits_within(type: Type, column: pa.Array) -> bool:
    match type:
        case Leaf(precision=int()):  # Arrow counts the digits that are written, not those of the column's scale
            most = pa.scalar(Decimal((0, (9,) * column.type.precision, -column.type.scale)), column.type)
            return _all(pc.less_equal(pc.abs(column), most))
        case Array(element):
            return _fits_within(element, pc.list_flatten(column))
        case Struct(fields):
            return all(_fits(each, pc.struct_field(column, each.name), column.null_count) for each in fields)
    return True


def _as_it_is(column: pa.Array) -> pa.Array:
    return column


def _finite(column: pa.Array, type: pa.DataType) -> pa.Array:
    """The column in its own type: what is finite in 64 bits may be infinite in 32."""
    narrowed = column.cast(type)
    _require(_all(pc.is_finite(narrowed)))
    return narrowed


def _fractions(column: pa.Array) -> pa.Array:
    _require(_all(pc.match_substring_regex(column, _FRACTION)))
    return column.cast(pa.float64())


def _booleans(column: pa.Array) -> pa.Array:
    truths = pc.equal(column, "true")
    _require(_all(pc.or_(truths, pc.equal(column, "false"))))
    return truths


def _dates(column: pa.Array) -> pa.Array:
    return _in_range(column.cast(pa.date32()))


def _instants(column: pa.Array) -> pa.Array:
    return _in_range(column)


def _local_times(column: pa.Array) -> pa.Array:
    _require(_all(pc.match_substring_regex(column, _NO_ZONE)))
    return _in_range(column.cast(pa.timestamp("us")))


def _in_range(column: pa.Array) -> pa.Array:
    first, last = (pa.scalar(each).cast(pa.timestamp("us")).cast(column.type) for each in (_FIRST, _LAST))
    _require(_all(pc.and_(pc.greater_equal(column, first), pc.less_equal(column, last))))
    return column
