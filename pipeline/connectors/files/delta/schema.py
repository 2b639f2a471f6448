"""Which output a Delta table takes, and as which columns. Pure.

The sink never changes or removes a table's columns. Output may lack columns that may be null, and have new ones, which are added.
Values are cast if no value can be lost: to a wider integer, from FLOAT to DOUBLE, to more digits before a decimal point.

SinkRejected is about columns: all rows of such output would be refused. OutputRefused is about values: other rows would be taken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.values import checked, converted, refused_rows

TAKER = "a Delta table"
STATS_COLUMNS_MAX = 32
"""By default, Delta collects statistics of this many columns."""
_UTC = pa.timestamp("us", "UTC")
_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_PLAIN = {
    **{each: each for each in (*_WHOLE, pa.float32(), pa.float64(), pa.bool_(), pa.date32())},
    **_SIGNED,
    **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), pa.string()),
    **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), pa.binary()),
    pa.date64(): pa.date32(),
}


def type_of(type: pa.DataType, column: str) -> pa.DataType:
    """The Arrow type of Delta's column for values of this type. Raises SinkRejected if there is none."""
    if pa.types.is_dictionary(type):
        return type_of(type.value_type, column)
    if pa.types.is_fixed_size_binary(type):
        return pa.binary()
    if pa.types.is_timestamp(type):
        return _UTC if type.tz else pa.timestamp("us")
    if pa.types.is_decimal(type) and type.precision <= 38 and 0 <= type.scale <= type.precision:
        return pa.decimal128(type.precision, type.scale)
    if pa.types.is_list(type) or pa.types.is_large_list(type) or pa.types.is_fixed_size_list(type):
        return pa.list_(pa.field("element", type_of(type.value_type, f"{column}[]")))
    if pa.types.is_map(type):
        return pa.map_(type_of(type.key_type, f"{column}{{}}"), type_of(type.item_type, f"{column}{{}}"))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(each.name, type_of(each.type, f"{column}.{each.name}")) for each in type])
    if (found := _PLAIN.get(type)) is None:
        raise SinkRejected(
            f"the output's column '{column}' is {type}, and Delta has no such type: cast it in the transform"
        )
    return found


def columns_of(output: pa.Schema) -> pa.Schema:
    """The output's columns as a table of Delta has them. Raises SinkRejected."""
    names = output.names
    if not names or len({name.casefold() for name in names}) < len(names):
        raise SinkRejected(
            f"the output has the columns {names}, but a Delta table needs columns, and takes each name once, whatever its case:"
            " name them in the transform"
        )
    return pa.schema([pa.field(each.name, type_of(each.type, each.name)) for each in output])


def check_output(output: pa.Schema, key: Sequence[str]) -> None:
    """Check that some Delta table can take such output. Raises SinkRejected."""
    columns_of(output)
    check_key(output, key)


def added(table: pa.Schema, output: pa.Schema) -> list[pa.Field]:
    """The output's columns that the table lacks. Checks that the others fit. Raises SinkRejected."""
    wanted = columns_of(output)
    cases = {name.casefold(): name for name in table.names}
    new = []
    for column in wanted:
        if column.name in table.names:
            _check_fits(column, table.field(column.name))
        elif (other := cases.get(column.name.casefold())) is not None:
            raise SinkRejected(
                f"the output's column '{column.name}' is '{other}' in the table, and Delta ignores the case of names: rename"
                " it in the transform"
            )
        else:
            if pa.types.is_timestamp(column.type) and column.type.tz is None:
                raise SinkRejected(
                    f"the output's column '{column.name}' is a time without a zone, and the sink adds no such column: cast it to"
                    " TIMESTAMP in the transform, or add the column with another program"
                )
            new.append(column)
    for field in table:
        if not field.nullable and field.name not in wanted.names:
            raise SinkRejected(
                f"the output lacks the column '{field.name}', which is NOT NULL in the table: add it in the transform"
            )
    return new


def fitted(output: pa.Table, table: pa.Schema, key: Sequence[str] = ()) -> pa.Table:
    """The output's rows in the table's types; columns that the output lacks are left out. Raises SinkRejected, OutputRefused."""
    output = checked(output, TAKER)
    present = [field for field in table if field.name in output.schema.names]
    columns = []
    for field in present:
        column = output[field.name]
        if column.null_count and (field.name in key or not field.nullable):
            why = "is in `key_columns`" if field.name in key else "is NOT NULL in the table"
            message = f"the output's column '{field.name}' {why}, and is NULL"
            rows = pc.indices_nonzero(column.is_null()).to_pylist()
            raise refused_rows(output, rows, message, "filter or fill it in the transform")
        columns.append(_cast(output, field))
    schema = pa.schema([pa.field(field.name, type_of(field.type, field.name)) for field in present])
    return pa.Table.from_arrays(columns, schema=schema)


def stats_of(table: pa.Table) -> str:
    """The statistics by which Delta's readers skip files: counts, and the least and largest whole numbers, dates and times."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in table.column_names[:STATS_COLUMNS_MAX]:
        column = table[name]
        if pa.types.is_nested(column.type):
            continue
        nulls[name] = column.null_count
        if _has_limits(column.type) and column.null_count < len(column):
            with suppress(OverflowError, ValueError):  # a year outside 1 to 9999: without limits, readers skip no file
                found = pc.min_max(column).as_py()
                lows[name], highs[name] = _as_json(found["min"]), _as_json(found["max"])
    return json.dumps({"numRecords": table.num_rows, "minValues": lows, "maxValues": highs, "nullCount": nulls})


def rows_only(rows: int) -> str:
    """The statistics of a file if only its number of rows is known."""
    return json.dumps({"numRecords": rows})


def last_per_key(table: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row for each key. The keys hold no NULL, and their types can be compared (`check_key`)."""
    names = [f"key{number}" for number in range(len(key))]  # no column of the table can clash with these
    numbers = pa.array(range(table.num_rows), pa.int64())
    rows = pa.table([*(table[name] for name in key), numbers], names=[*names, "row"])
    last = rows.group_by(names).aggregate([("row", "max")])["row_max"]
    return table if len(last) == table.num_rows else table.take(last.combine_chunks().sort())


def check_key(columns: pa.Schema, key: Sequence[str]) -> None:
    """Raises SinkRejected."""
    if missing := [name for name in key if name not in columns.names]:
        raise SinkRejected(
            f"the output has no column '{missing[0]}', which `key_columns` names: select it in the transform"
        )
    for name in key:
        kind = type_of(columns.field(name).type, name)
        if pa.types.is_nested(kind):
            raise SinkRejected(
                f"the output's column '{name}' is {kind}, which cannot be one of `key_columns`: name columns of single values,"
                " such as the fields of a STRUCT, which the transform selects"
            )
        if pa.types.is_floating(kind):
            raise SinkRejected(
                f"the output's column '{name}' is {kind}, which cannot be one of `key_columns`, because 0.0 and -0.0 would count"
                " as one key or as two: cast it to DECIMAL, BIGINT or STRING in the transform"
            )


def _has_limits(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_date32(type) or type == _UTC)


def _as_json(value: int | date | datetime | Decimal) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value.isoformat() if isinstance(value, date) else value


def _check_fits(column: pa.Field, field: pa.Field) -> None:
    """Raises SinkRejected."""
    wanted = type_of(field.type, field.name)
    if not _is_widened(column.type, wanted):
        raise SinkRejected(
            f"the output's column '{column.name}' is {column.type}, and the table's is {wanted}: cast it in the transform, or"
            " write to another table. Only new columns are added"
        )


def _is_widened(given: pa.DataType, wanted: pa.DataType) -> bool:
    if given == wanted:
        return True
    if given in _WHOLE and wanted in _WHOLE:
        return _WHOLE.index(given) < _WHOLE.index(wanted)
    if pa.types.is_decimal(given) and pa.types.is_decimal(wanted):
        return bool(given.scale == wanted.scale and given.precision < wanted.precision)
    return bool(given == pa.float32() and wanted == pa.float64())


def _cast(output: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    wanted, place = type_of(field.type, field.name), output.schema.get_field_index(field.name)
    column = output.column(place)
    try:
        return column if column.type == wanted else converted(output, place, lambda values: values.cast(wanted), TAKER)
    except pa.ArrowNotImplementedError as error:
        raise SinkRejected(
            f"the output's column '{field.name}' does not fit the table's {wanted} ({error}): cast it in the transform"
        ) from error
