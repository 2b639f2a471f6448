"""An Arrow table as COPY takes it: columns with PostgreSQL's types, and rows as CSV; a few rows as literals of an INSERT. Pure.

CSV and not the binary format: Arrow writes it in C++, every value keeps its exact text (decimals, shortest floats), and the
server distinguishes null (nothing) from an empty text ("").
All that the server could not read is refused here, by column and row. The server would name neither, and gets few rows by INSERT.
"""

from __future__ import annotations

import json
from binascii import hexlify
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyarrow import types as arrow

from leasehold.pipeline.connectors.postgres.sql import Column
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.values import converted


@dataclass(frozen=True, slots=True)
class Load:
    """The rows of one batch. few: the same as texts, if they are few enough for the message itself."""

    columns: tuple[Column, ...]
    csv: bytes
    few: tuple[tuple[str | None, ...], ...] | None = None


NUL = "a text holds the character NUL, which PostgreSQL cannot store; replace it, or keep it as binary"
FEW_ROWS = 50
FEW_BYTES = 16 * 1024
"""As CSV. Parsing more takes the server longer than the three round trips of a COPY."""


def load(table: pa.Table) -> Load:
    """Raises SinkRejected for a column that PostgreSQL has no type for, OutputRefused for a value that it cannot hold."""
    columns = columns_of(table.schema)
    buffer = pa.BufferOutputStream()
    texts = pa.table(
        [converted(table, place, _written, "PostgreSQL") for place in range(table.num_columns)],
        names=table.column_names,
    ).combine_chunks()  # an empty first chunk would be garbage
    csv.write_csv(texts, buffer, csv.WriteOptions(include_header=False))
    lines = buffer.getvalue().to_pybytes()
    is_few = table.num_rows <= FEW_ROWS and len(lines) <= FEW_BYTES
    return Load(columns, lines, _rows(texts) if is_few else None)


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """PostgreSQL's columns for such output. Raises SinkRejected."""
    names = schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SinkRejected(f"the output has several columns named '{twice[0]}': give each its own name")
    if not names:
        raise SinkRejected("the output has no columns: select some in the transform")
    return tuple(_column(field) for field in schema)


def _column(field: pa.Field) -> Column:
    """Raises SinkRejected."""
    scale = field.type.scale if arrow.is_decimal(field.type) else None
    return Column(field.name, _type_of(field), arrow.is_null(field.type), scale)


def _rows(texts: pa.Table) -> tuple[tuple[str | None, ...], ...]:
    """The same texts as in CSV."""
    columns = [column.cast(pa.large_string()).to_pylist() for column in texts.columns]
    return tuple(zip(*columns, strict=True))


def check_key(names: Sequence[str], key: Sequence[str]) -> None:
    """Raises SinkRejected if the output's columns lack a column of the key."""
    if missing := [name for name in key if name not in names]:
        raise SinkRejected(f"the output has no column '{missing[0]}', which `key` names: it has {list(names)}")


_NATIVE: list[tuple[str, Sequence[pa.DataType]]] = [
    ("boolean", [pa.bool_()]),
    ("smallint", [pa.int8(), pa.int16(), pa.uint8()]),
    ("integer", [pa.int32(), pa.uint16()]),
    ("bigint", [pa.int64(), pa.uint32()]),
    ("numeric", [pa.uint64()]),
    ("real", [pa.float16(), pa.float32()]),
    ("double precision", [pa.float64()]),
    ("date", [pa.date32(), pa.date64()]),
    ("text", [pa.null()]),
]
_AS_IT_IS = {native: name for name, natives in _NATIVE for native in natives}
_DAYS = (1 - date(1970, 1, 1).toordinal(), 2_145_042_541)
"""From 0001-01-01 to 5874897-12-31, the last day that PostgreSQL has."""
_DAY_US = 86_400_000_000
_INSTANTS = (_DAYS[0] * _DAY_US, 2**63 - 1)


def _type_of(field: pa.Field) -> str:
    """Raises SinkRejected."""
    kind = field.type.value_type if arrow.is_dictionary(field.type) else field.type
    if kind in _AS_IT_IS:
        return _AS_IT_IS[kind]
    if arrow.is_decimal(kind):
        return "numeric"
    if arrow.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "timestamptz"
    if arrow.is_time(kind):
        return "time"
    if _is_text(kind):
        return "text"
    if _is_bytes(kind):
        return "bytea"
    why = _why_not_json(kind) if arrow.is_nested(kind) else "PostgreSQL has no such type; cast it"
    if why is not None:
        raise SinkRejected(f"column '{field.name}' ({field.type}) cannot be written to PostgreSQL: {why}")
    return "jsonb"


def _is_text(kind: pa.DataType) -> bool:
    return bool(arrow.is_string(kind) or arrow.is_large_string(kind) or arrow.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    is_list = arrow.is_binary(kind) or arrow.is_large_binary(kind) or arrow.is_binary_view(kind)
    return bool(is_list or arrow.is_fixed_size_binary(kind))


def _why_not_json(kind: pa.DataType) -> str | None:
    """Why no value of this type could be JSON, or None."""
    if arrow.is_dictionary(kind):
        return _why_not_json(kind.value_type)
    if arrow.is_struct(kind) and len({each.name for each in kind}) < kind.num_fields:
        return "a struct has a field twice; give each its own name"
    if arrow.is_map(kind) and not (
        _is_text(kind.key_type) or _AS_IT_IS.get(kind.key_type) not in (None, "date", "text")
    ):
        return f"JSON has no keys of the type {kind.key_type}; cast them to texts"
    if arrow.is_nested(kind) and not arrow.is_union(kind):
        inner = (_why_not_json(kind.field(place).type) for place in range(kind.num_fields))
        return next((why for why in inner if why is not None), None)
    if kind in _AS_IT_IS or arrow.is_timestamp(kind) or arrow.is_time(kind) or _is_text(kind):
        return None
    what = "Decimal" if arrow.is_decimal(kind) else kind
    return f"JSON cannot hold a {what} exactly; make it a text with to_json()"


def _written(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """What Arrow writes so that PostgreSQL reads the same value. Raises ArrowInvalid, ValueError, OverflowError for a value."""
    kind = column.type
    if arrow.is_dictionary(kind):
        return _written(column.cast(kind.value_type))
    if arrow.is_date(kind):
        return _within(column.cast(pa.date32()), pa.int32(), _DAYS, "a date before the year 1, or too far away")
    if arrow.is_timestamp(kind):
        return _timestamps(column)
    if arrow.is_time(kind):
        times = column.cast(pa.time64("us"))
        return _within(times, pa.int64(), (0, _DAY_US - 1), "a time outside of a day")
    if _is_text(kind):
        return _texts(column)
    if _is_bytes(kind):
        return _hex(column)
    if arrow.is_nested(kind):
        return _strings([None if v is None else _json(v, kind) for v in column.to_pylist()])
    return column


def _within(column: pa.ChunkedArray, number: pa.DataType, limits: tuple[int, int], what: str) -> pa.ChunkedArray:
    found = pc.min_max(column.cast(number)).as_py()
    if found["min"] is not None and not limits[0] <= found["min"] <= found["max"] <= limits[1]:
        raise ValueError(f"{what}, which PostgreSQL does not read")
    return column


def _timestamps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """To the microsecond, never rounded. With a zone it is an instant, written in UTC whatever the session's zone is."""
    instants = column.cast(pa.timestamp("us", tz=column.type.tz))
    _within(instants, pa.int64(), _INSTANTS, "a time before the year 1")
    if column.type.tz is None:
        return instants
    utc = instants.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())  # no time zone database needed
    return pc.binary_join_element_wise(utc, "Z", "")


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.large_string())
    texts.validate(full=True)  # UTF-8
    if _may_hold_nul(texts) and pc.any(pc.match_substring(texts, "\0")).as_py():
        raise ValueError(NUL)
    return texts


def _may_hold_nul(texts: pa.ChunkedArray) -> bool:
    """Nulls may have bytes too. Looking at all bytes takes a tenth of the time of a search in each text."""
    contents = [np.frombuffer(_content(chunk)[1], np.uint8) for chunk in texts.chunks if len(chunk)]
    return any(content.min() == 0 for content in contents if content.size)


def _hex(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """In bytea's input format. A chunk is converted at once: a Python object for each value takes several times the memory."""
    chunks = [_digits(chunk) for chunk in column.cast(pa.large_binary()).chunks if len(chunk)]
    prefix, nothing = (pa.scalar(text, pa.large_string()) for text in ("\\x", ""))
    return pc.binary_join_element_wise(prefix, pa.chunked_array(chunks, pa.large_string()), nothing)


def _digits(chunk: pa.Array) -> pa.Array:
    offsets, content = _content(chunk)
    digits = pa.LargeStringArray.from_buffers(
        len(chunk), pa.py_buffer((offsets - offsets[0]) * 2), pa.py_buffer(hexlify(content))
    )
    return pc.if_else(chunk.is_valid(), digits, None) if chunk.null_count else digits


def _content(chunk: pa.Array) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], memoryview]:
    """The offsets of large texts or binaries, and the bytes from the first to the last of them: a slice shares its buffers."""
    _, positions, values = chunk.buffers()
    offsets = np.frombuffer(positions, np.int64, len(chunk) + 1, chunk.offset * 8)
    return offsets, memoryview(b"" if values is None else values)[offsets[0] : offsets[-1]]


def _strings(values: list[str | None]) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, pa.large_string())])


def _json(value: object, type: pa.DataType) -> str:
    return json.dumps(_json_value(value, type), ensure_ascii=False, allow_nan=False, default=_leaf)


def _json_value(value: object, type: pa.DataType) -> object:
    """Lists, structs and maps as JSON has them; Arrow hands a map over as pairs. Raises ValueError."""
    if isinstance(value, str):
        return _without_nul(value)
    if value is None:
        return None
    if arrow.is_dictionary(type):
        return _json_value(value, type.value_type)
    if arrow.is_map(type):
        assert isinstance(value, list)
        pairs = {_key(key): _json_value(item, type.item_type) for key, item in value}
        if len(pairs) < len(value):
            raise ValueError("a map with a key twice, which JSON holds once")
        return pairs
    if arrow.is_struct(type):
        assert isinstance(value, dict)
        return {_without_nul(field.name): _json_value(value[field.name], field.type) for field in type}
    if arrow.is_nested(type):
        assert isinstance(value, list)
        return [_json_value(item, type.value_type) for item in value]
    return value


def _key(key: object) -> str:
    return _without_nul(key if isinstance(key, str) else json.dumps(key, allow_nan=False))


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError(NUL)
    return text


def _leaf(value: object) -> str:
    """Raises ValueError."""
    assert isinstance(value, date | time), "columns_of has refused other types"
    if getattr(value, "nanosecond", 0):  # of pandas, if it is installed; else to_pylist() refuses them
        raise ValueError("nanoseconds would be lost")
    return value.isoformat()
