"""An Arrow table as COPY takes it: columns with PostgreSQL's types, and rows as CSV; a few rows as the texts of an INSERT. Pure.

CSV and not the binary format: Arrow writes it in C++, every value keeps its exact text (decimals, shortest floats), and the
server distinguishes null (nothing) from an empty text ("").
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


@dataclass(frozen=True, slots=True)
class Load:
    """What one batch brings to the table `batch`. few: its rows, where they are so few that they can be in the message itself."""

    columns: tuple[Column, ...]
    csv: bytes
    few: tuple[tuple[str | None, ...], ...] | None = None


FEW_ROWS = 50
FEW_BYTES = 16 * 1024
"""As CSV. To parse more takes the server longer than the three round trips of a COPY."""


def load(table: pa.Table) -> Load:
    """Raises SinkRejected, which names the column, where PostgreSQL has no type or no value for what it holds."""
    names = table.column_names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SinkRejected(f"the output has several columns named '{twice[0]}': give each its own name")
    converted = [_converted(field.name, column) for field, column in zip(table.schema, table.columns, strict=True)]
    columns = tuple(Column(name, kind) for name, (kind, _) in zip(names, converted, strict=True))
    buffer = pa.BufferOutputStream()
    texts = pa.table(
        [text for _, text in converted], names=names
    ).combine_chunks()  # an empty first chunk would be garbage
    csv.write_csv(texts, buffer, csv.WriteOptions(include_header=False))
    lines = buffer.getvalue().to_pybytes()
    is_few = table.num_rows <= FEW_ROWS and len(lines) <= FEW_BYTES
    return Load(columns, lines, _rows(texts) if is_few else None)


def _rows(texts: pa.Table) -> tuple[tuple[str | None, ...], ...]:
    """The same texts as in CSV."""
    columns = [column.cast(pa.large_string()).to_pylist() for column in texts.columns]
    return tuple(zip(*columns, strict=True))


def last_per_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """Only the last of the rows with one key: an upsert cannot touch a row twice. Raises SinkRejected."""
    check_key(table.column_names, key)
    keys = [f"key{i}" for i in range(len(key))]
    rows = pa.table([*(table[name] for name in key), pa.array(range(table.num_rows))], names=[*keys, "row"])
    try:
        last = rows.group_by(keys).aggregate([("row", "max")])["row_max"]
    except pa.ArrowNotImplementedError:
        raise SinkRejected(f"the columns {list(key)} cannot be a key: {table.select(list(key)).schema.types}") from None
    return table if len(last) == table.num_rows else table.take(last)


def check_key(names: Sequence[str], key: Sequence[str]) -> None:
    """Raises SinkRejected if the output's columns lack one."""
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


def _converted(name: str, column: pa.ChunkedArray) -> tuple[str, pa.ChunkedArray]:
    """PostgreSQL's type, and what Arrow writes so that PostgreSQL reads the same value."""
    try:
        return _typed(name, column)
    except (pa.ArrowInvalid, TypeError, ValueError) as error:
        raise SinkRejected(f"column '{name}' ({column.type}) cannot be written to PostgreSQL: {error}") from None


def _typed(name: str, column: pa.ChunkedArray) -> tuple[str, pa.ChunkedArray]:
    kind = column.type
    if arrow.is_dictionary(kind):
        return _typed(name, column.cast(kind.value_type))
    if kind in _AS_IT_IS:
        return _AS_IT_IS[kind], column
    if arrow.is_decimal(kind):
        return "numeric", column
    if arrow.is_timestamp(kind):
        return _timestamps(column)
    if arrow.is_time(kind):
        return "time", column.cast(pa.time64("us"))
    if arrow.is_string(kind) or arrow.is_large_string(kind) or arrow.is_string_view(kind):
        return "text", _texts(column)
    if arrow.is_binary(kind) or arrow.is_large_binary(kind) or arrow.is_fixed_size_binary(kind):
        return "bytea", _hex(column)
    if arrow.is_nested(kind):
        return "jsonb", _strings([None if v is None else _json(v, kind) for v in column.to_pylist()])
    raise TypeError("PostgreSQL has no such type; cast it")


def _timestamps(column: pa.ChunkedArray) -> tuple[str, pa.ChunkedArray]:
    """To the microsecond, never rounded. With a zone it is an instant, written in UTC whatever the session's zone is."""
    instants = column.cast(pa.timestamp("us", tz=column.type.tz))
    if column.type.tz is None:
        return "timestamp", instants
    utc = instants.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())  # no time zone database needed
    return "timestamptz", pc.binary_join_element_wise(utc, "Z", "")


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = column.cast(pa.large_string())
    if _may_hold_nul(texts) and pc.any(pc.match_substring(texts, "\0")).as_py():
        raise ValueError(
            "a text holds the character NUL, which PostgreSQL cannot store; replace it, or keep it as binary"
        )
    return texts


def _may_hold_nul(texts: pa.ChunkedArray) -> bool:
    """Nulls may have bytes too. To look at all bytes takes a tenth of a search in each text."""
    contents = [np.frombuffer(_content(chunk)[1], np.uint8) for chunk in texts.chunks if len(chunk)]
    return any(content.min() == 0 for content in contents if content.size)


def _hex(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """As bytea's input has it. All bytes of a chunk at once: a Python object for each value takes several times the memory."""
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
    return json.dumps(_plain(value, type), ensure_ascii=False, allow_nan=False, default=_leaf)


def _plain(value: object, type: pa.DataType) -> object:
    """Lists, structs and maps as JSON has them; Arrow hands a map over as pairs."""
    if value is None:
        return None
    if arrow.is_map(type):
        assert isinstance(value, list)
        return {key: _plain(item, type.item_type) for key, item in value}
    if arrow.is_struct(type):
        assert isinstance(value, dict)
        return {field.name: _plain(value[field.name], field.type) for field in type}
    if arrow.is_nested(type):
        assert isinstance(value, list)
        return [_plain(item, type.value_type) for item in value]
    return value


def _leaf(value: object) -> str:
    if isinstance(value, date | time):
        return value.isoformat()
    raise TypeError(f"JSON cannot hold a {value.__class__.__name__} exactly; make it a text with to_json()")
