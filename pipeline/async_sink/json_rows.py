"""Rows of an output as exact JSON: a value without a JSON type becomes a text, and what no text can hold is refused. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Literal

import pyarrow as pa

from leasehold.common.nesting import NestedTooDeeply, parsed_json
from leasehold.pipeline.async_sink.request_entry import Convert, Converted, refused
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.values import VALUE_ERRORS, checked, converted, is_text

SLICE = 100
"""Rows that are converted at once; renewals on the same event loop wait for no more than these."""
Content = Literal["row", "body"]


def row_slices(table: pa.Table, taker: str) -> Iterator[list[dict[str, Any]]]:
    """The rows as Python values, some at a time; maps are dicts at any depth. Raises SinkRejected, OutputRefused."""
    names = table.column_names
    if len(set(names)) < len(names):
        raise SinkRejected(
            f"the output has the columns {names}, and {taker} takes each name once: name them in the transform"
        )
    for field in table.schema:
        if (why := _not_held(field.type)) is not None:
            raise SinkRejected(f"{taker} cannot take column '{field.name}', which {why}: change it in the transform")
    table = checked(table, taker)
    for start in range(0, table.num_rows, SLICE):
        try:
            rows = table.slice(start, SLICE).to_pylist(maps_as_pydicts="strict")
        except (*VALUE_ERRORS, KeyError):
            for place in range(table.num_columns):
                converted(table, place, _listed, taker)
            raise
        yield rows


def _listed(values: pa.ChunkedArray) -> list[Any]:
    try:
        rows: list[Any] = values.to_pylist(maps_as_pydicts="strict")
        return rows
    except KeyError:
        raise ValueError("a map has a key twice") from None


def _not_held(type: pa.DataType) -> str | None:
    """Why values of this type cannot become dicts of Python; None if they can, or do not need to."""
    if pa.types.is_struct(type) and len({field.name for field in type}) < type.num_fields:
        return "has a struct with a field twice"
    if pa.types.is_map(type) and pa.types.is_nested(type.key_type):
        return f"has a map whose keys are {type.key_type}"
    return next(filter(None, map(_not_held, _inner(type))), None)


def _inner(type: pa.DataType) -> list[pa.DataType]:
    return [type.field(number).type for number in range(type.num_fields)]


def check_rows(table: pa.Table, convert: Convert, destination: str) -> None:
    """Raises OutputRefused for the first row that cannot become an entry, and as `row_slices` and `check_columns` do."""
    check_columns(table.schema, convert, destination)
    for number, row in enumerate(row for rows in row_slices(table, destination) for row in rows):
        try:
            convert(row, "")
        except VALUE_ERRORS as error:
            message = f"{destination} cannot take row {number + 1} of the output, which {error}"
            raise refused(message, sequence_of(row)) from error


def check_columns(columns: pa.Schema, convert: Convert, destination: str) -> None:
    """Raises SinkRejected if no row with these columns can become an entry, as far as that is known.

    A converter that knows has a method `check_columns(columns, destination)`.
    """
    if (check := getattr(convert, "check_columns", None)) is not None:
        check(columns, destination)


def check_json_columns(columns: pa.Schema, destination: str) -> None:
    """Raises SinkRejected for a column of a type that JSON has no form for."""
    for field in columns:
        if (why := _not_json(field.type)) is not None:
            raise SinkRejected(
                f"{destination} cannot take column '{field.name}', which has {why}: cast it to STRING in the transform"
            )


def sequence_of(row: Mapping[str, Any]) -> int | None:
    """The sequence of the row's event; None if it is unknown."""
    found = row.get("sequence")
    return found if isinstance(found, int) else None


def json_bytes(value: object) -> bytes:
    """Raises ValueError if a number is not finite, a text has a lone surrogate, or bytes are not UTF-8."""
    try:
        return _ENCODER.encode(value).encode()
    except UnicodeEncodeError:
        raise ValueError("has half a character (a lone surrogate), which UTF-8 does not hold") from None
    except UnicodeDecodeError:
        raise ValueError("has bytes that are not UTF-8: encode them with base64() in the transform") from None
    except ValueError as error:
        raise ValueError(f"JSON does not hold: {error}") from None


def row_bytes(row: Mapping[str, Any]) -> bytes:
    """A JSON object with the columns. Raises ValueError that names the column which JSON cannot hold."""
    try:
        return json_bytes(row)
    except ValueError:
        for name, value in row.items():
            try:
                json_bytes({name: value})
            except ValueError as error:
                raise ValueError(f"{error} (column '{name}')") from None
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRow:
    """What `json_row` makes."""

    content: Content
    key_field: str | None
    order_by: str | None

    def __call__(self, row: Mapping[str, Any], key: str) -> Converted:
        value = self._row_bytes(row, key) if self.content == "row" else _body_bytes(row)
        return Converted(value=value, bytes=len(value), order=order_of(row, self.order_by))

    def check_columns(self, columns: pa.Schema, destination: str) -> None:
        """Raises SinkRejected."""
        if self.content == "body":
            return
        if self.key_field in columns.names:
            raise SinkRejected(
                f"the output has a column '{self.key_field}', which `key_field` would replace: choose another"
                " `key_field`, or leave the column out in the transform"
            )
        check_json_columns(columns, destination)

    def _row_bytes(self, row: Mapping[str, Any], key: str) -> bytes:
        return row_bytes(row if self.key_field is None else {**row, self.key_field: key})


def json_row(content: Content = "row", *, key_field: str | None = None, order_by: str | None = None) -> JsonRow:
    """A converter into bytes of JSON.

    - `content`: "row" for an object of all columns, "body" for the column `body` as it is, which has to be JSON.
    - `key_field`: an additional field for the entry's key. A column of that name is refused.
    - `order_by`: the column whose rows keep their order.
    """
    return JsonRow(content=content, key_field=key_field, order_by=order_by)


def _not_json(type: pa.DataType) -> str | None:
    """What in this type has no form in JSON; None if all of it has one."""
    if pa.types.is_dictionary(type):
        return _not_json(type.value_type)
    if pa.types.is_map(type) and not _is_key(type.key_type):
        return f"a map whose keys are {type.key_type}, and keys of JSON are texts"
    if type.num_fields:
        return next(filter(None, map(_not_json, _inner(type))), None)
    return None if pa.types.is_struct(type) or any(is_one(type) for is_one in _JSON_TYPES) else str(type)


def _is_key(type: pa.DataType) -> bool:
    if pa.types.is_dictionary(type):
        return _is_key(type.value_type)
    return is_text(type) or any(
        is_one(type) for is_one in (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    )


def _is_binary(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
        or pa.types.is_binary_view(type)
        or pa.types.is_fixed_size_binary(type)
    )


_JSON_TYPES = (
    _is_key,
    _is_binary,
    pa.types.is_decimal,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
)


def order_of(row: Mapping[str, Any], column: str | None) -> str | None:
    """Raises ValueError if there is no such column."""
    if column is None:
        return None
    if column not in row:
        raise ValueError(f"has no column '{column}', which `order_by` names: select it, or name another")
    return None if row[column] is None else str(row[column])


def body_of(row: Mapping[str, Any]) -> bytes:
    """The column `body`. Raises ValueError if it is missing or null."""
    body = row.get("body")
    if body is None:
        raise ValueError("has no `body`: select one, or set `content: row`")
    return body if isinstance(body, bytes) else str(body).encode()


def _body_bytes(row: Mapping[str, Any]) -> bytes:
    """The body on one line, however many it had: it may become one line among others."""
    body = body_of(row)
    try:
        parsed_json(body.decode(), JSON_LEVELS_MAX, _FINITE)  # as text: the parser would guess the encoding of bytes
    except NestedTooDeeply as error:
        raise ValueError(f"has a `body` that is {error}") from None
    except ValueError as error:
        raise ValueError(
            f"has a `body` that is not JSON ({error}): select one that is, or set `content: row`"
        ) from None
    # JSON has line ends only between its tokens: everything else stays as it is
    return body.replace(b"\r", b" ").replace(b"\n", b" ")


def _refused(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_FINITE = json.JSONDecoder(parse_constant=_refused)


def _as_json_text(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    raise ValueError(f"JSON has no way to write {type(value).__name__}")


_ENCODER = json.JSONEncoder(default=_as_json_text, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
