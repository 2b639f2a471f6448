"""A batch's output as the bytes of one file: Parquet, or JSON lines. Pure.

In JSON lines nothing is lost or rounded. Decimals are texts with all their digits (`"12.50"`), and whole numbers are numbers.
Bytes are base64, dates and times ISO 8601 (`"2026-01-31T12:00:00.000001Z"`; without a zone no `Z`), and maps are objects. Floats
for which JSON has no number are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`. A null is `null`: every line has every column.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.values import checked, converted

Format = Literal["parquet", "jsonl"]
Compression = Literal["zstd", "snappy", "none"]
Convert = Callable[[Any], Any]
TAKERS: Mapping[Format, str] = {"parquet": "a Parquet file", "jsonl": "a file of JSON lines"}
ROW_GROUP_ROWS_MAX = 128 * 1024
SAMPLED_RUNS = 40
RUN_ROWS = 100
PARQUET_LEVELS_MAX = 99
"""Arrow writes more levels, but does not read them."""
REPEATED = 0.9
"""A column gets a dictionary if less than this share of a sample is distinct. The sample is runs of rows all over the table."""


def ordered(table: pa.Table) -> pa.Table:
    """The rows ordered by `sequence`, if the table has that column."""
    if "sequence" not in table.column_names or table.num_rows < 2:
        return table
    sequence = table["sequence"].combine_chunks()
    if pc.all(pc.less_equal(sequence[:-1], sequence[1:]), skip_nulls=False).as_py():
        return table
    return table.take(pc.sort_indices(sequence))


def encoded(table: pa.Table, format: Format, compression: Compression = "zstd") -> bytes:
    """The rows in their order. compression: of Parquet. Raises SinkRejected, OutputRefused."""
    names = table.column_names
    if not names or len(set(names)) < len(names):
        raise SinkRejected(
            f"the output has the columns {names}, and a file takes each name once: name them in the transform"
        )
    table = checked(table, TAKERS[format])
    return _lines(table) if format == "jsonl" else parquet(table, compression)


def decoded(content: bytes, format: str) -> pa.Table:
    """The rows of a file. pyarrow infers the column types of JSON lines.

    It starts no threads: a process may abort if it ends while Arrow's threads do (apache/arrow#34314, #50482).
    """
    if format == "parquet":
        return pq.ParquetFile(pa.BufferReader(content)).read(use_threads=False)
    from pyarrow import json as pj

    try:
        return pj.read_json(pa.BufferReader(content), read_options=pj.ReadOptions(use_threads=False))
    except pa.ArrowInvalid:  # texts among numbers: NaN and infinities
        rows = [parsed_json(line, JSON_LEVELS_MAX) for line in content.split(b"\n") if line]
        return pa.table({name: pa.array(_as_floats([row[name] for row in rows])) for name in rows[0]})


_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def _as_floats(values: list[Any]) -> list[Any]:
    """Values of one column. Texts of floats become floats if all others are numbers, also within lists, objects and maps."""
    if any(isinstance(value, dict) for value in values):
        names = list(dict.fromkeys(name for value in values if value for name in value))
        fields = {
            name: iter(_as_floats([value[name] for value in values if value and name in value])) for name in names
        }
        return [value and {name: next(fields[name]) for name in value} for value in values]
    if any(isinstance(value, list) for value in values):
        items = iter(_as_floats([item for value in values for item in value or ()]))
        return [value and [next(items) for _ in value] for value in values]
    texts = {value for value in values if isinstance(value, str)}
    is_number = texts <= _FLOATS.keys() and any(isinstance(value, int | float) for value in values)
    return [_FLOATS.get(value, value) for value in values] if texts and is_number else values


def parquet(table: pa.Table, compression: Compression) -> bytes:
    """As `encoded`, for a table whose columns and values are checked. Raises SinkRejected, OutputRefused."""
    for field in table.schema:
        if _levels(field.type) > PARQUET_LEVELS_MAX:
            raise SinkRejected(
                f"the output's column '{field.name}' is nested too deeply for readers of Parquet, which take"
                f" {PARQUET_LEVELS_MAX} levels (a list or map is two): cast it to STRING in the transform"
            )
        if pa.types.is_decimal(field.type) and field.type.scale < 0:
            raise SinkRejected(
                f"the output's column '{field.name}' is {field.type}, and Parquet has no negative scale: cast it in the transform"
            )
    try:
        return _parquet(table, compression)
    except (pa.ArrowException, OSError) as error:  # pyarrow raises OSError if the format lacks a type
        for place in range(table.num_columns if isinstance(error, pa.ArrowInvalid) else 0):
            converted(
                table, place, lambda values: _parquet(pa.table({"column": values}), compression), TAKERS["parquet"]
            )
        raise SinkRejected(f"the output cannot be written as Parquet ({error}): cast it in the transform") from error


def _levels(type: pa.DataType) -> int:
    """How deep the column is in Parquet's schema. Lists and maps have a group for their items."""
    if pa.types.is_dictionary(type):
        return _levels(type.value_type)
    inner = max((_levels(type.field(number).type) for number in range(type.num_fields)), default=0)
    is_one = not type.num_fields or pa.types.is_struct(type) or pa.types.is_map(type)  # a map's entries are a struct
    return inner + (1 if is_one else 2)


def _parquet(table: pa.Table, compression: Compression) -> bytes:
    to = pa.BufferOutputStream()
    pq.write_table(
        table,
        to,
        compression=compression,
        row_group_size=ROW_GROUP_ROWS_MAX,
        use_dictionary=_with_dictionary(table),
    )
    return bytes(to.getvalue().to_pybytes())


def _with_dictionary(table: pa.Table) -> bool | list[str]:
    """The columns whose values repeat, by a sample. For all others a dictionary takes longer to write, and more space.

    True, for all columns, if Arrow cannot compare the values of one, such as lists.
    """
    apart = max(RUN_ROWS, table.num_rows // SAMPLED_RUNS)
    sample = pa.concat_tables(table.slice(start, RUN_ROWS) for start in range(0, max(table.num_rows, 1), apart))
    try:
        return [name for name in sample.column_names if _repeats(sample[name])]
    except pa.ArrowNotImplementedError:
        return True


def _repeats(values: pa.ChunkedArray) -> bool:
    return bool(pc.count_distinct(values, mode="all").as_py() < REPEATED * len(values))


def _lines(table: pa.Table) -> bytes:
    names = table.column_names
    converters = [_converter(field.type, field.name) for field in table.schema]  # types first: they refuse all rows
    columns = [
        converted(table, place, partial(_values, convert=convert), TAKERS["jsonl"])
        for place, convert in enumerate(converters)
    ]
    rows = (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
    return b"".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for row in rows)


def _values(column: pa.ChunkedArray, convert: Convert | None) -> list[Any]:
    values = column.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(type: pa.DataType, name: str) -> Convert | None:
    """None if a value is JSON as it is. Raises SinkRejected."""
    if pa.types.is_map(type):
        return _map_converter(type, name)
    if pa.types.is_struct(type):
        if len({field.name for field in type}) < type.num_fields:
            raise SinkRejected(
                f"the output's column '{name}' has a struct with a field twice: rename one in the transform"
            )
        fields = {field.name: _converter(field.type, f"{name}.{field.name}") for field in type}
        return lambda value: {key: _with(fields[key], each) for key, each in value.items()}
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        convert = _converter(type.value_type, f"{name}[]")
        return lambda value: [_with(convert, each) for each in value]
    for is_one, found in _CONVERTERS:
        if is_one(type):
            return found
    raise SinkRejected(f"the output's column '{name}' is {type}, which JSON lines have no form for: cast it to STRING")


def _map_converter(type: pa.DataType, name: str) -> Convert:
    if not _is_text(type.key_type):
        raise SinkRejected(
            f"the output's column '{name}' is {type}, and an object's keys are texts: cast them to STRING"
        )
    convert = _converter(type.item_type, f"{name}{{}}")

    return lambda pairs: {key: _with(convert, each) for key, each in pairs}


def _with(convert: Convert | None, value: Any) -> Any:
    return value if convert is None or value is None else convert(value)


def _is_text(type: pa.DataType) -> bool:
    return type in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(type: pa.DataType) -> bool:
    return type in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(type)


def _is_plain(type: pa.DataType) -> bool:
    return _is_text(type) or any(
        is_one(type) for is_one in (pa.types.is_integer, pa.types.is_boolean, pa.types.is_null)
    )


def _is_time(type: pa.DataType) -> bool:
    return bool(pa.types.is_date(type) or pa.types.is_time(type) or pa.types.is_timestamp(type))


def _iso(value: Any) -> str:
    zone = getattr(value, "tzinfo", None)
    return str(
        value.isoformat() if zone is None else (value - value.utcoffset()).replace(tzinfo=None).isoformat() + "Z"
    )


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _decimal(value: Decimal) -> str:
    return format(value, "f")


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_CONVERTERS: tuple[tuple[Callable[[pa.DataType], bool], Convert | None], ...] = (
    (_is_plain, None),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _decimal),
    (_is_bytes, _base64),
    (_is_time, _iso),
)
