"""Whether two values of a case are the same, and how they are shown. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation

import pyarrow as pa
from pyarrow import types as arrow

from leasehold.common.nesting import parsed_json
from leasehold.pipeline.limits import JSON_LEVELS_MAX

_EXACT = json.JSONDecoder(parse_float=Decimal)


def is_same(expected: object, actual: object, kind: pa.DataType) -> bool:
    """Whether a value of YAML equals this value of an Arrow type, to the last digit."""
    if expected is None or actual is None:
        return expected is actual
    if arrow.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(expected, dict | list) and (_is_text(kind) or _is_bytes(kind)):
        return _is_same_json(expected, actual)
    if arrow.is_map(kind):
        return _is_same_map(expected, actual, kind)
    if arrow.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        return (
            isinstance(expected, dict)
            and isinstance(actual, Mapping)
            and expected.keys() == fields.keys()
            and all(is_same(each, actual[name], fields[name]) for name, each in expected.items())
        )
    if arrow.is_nested(kind):
        return (
            isinstance(expected, list)
            and isinstance(actual, list)
            and len(expected) == len(actual)
            and all(is_same(a, b, kind.value_type) for a, b in zip(expected, actual, strict=True))
        )
    return _is_same_scalar(expected, actual, kind)


def _is_same_scalar(expected: object, actual: object, kind: pa.DataType) -> bool:
    if isinstance(expected, bool) or arrow.is_boolean(kind):
        return expected is actual
    if arrow.is_integer(kind) or arrow.is_decimal(kind):
        return _decimal(expected) == actual
    if arrow.is_floating(kind):
        number = _decimal(expected)
        return number is not None and _is_same_float(pa.scalar(float(number), kind).as_py(), actual)
    if _is_bytes(kind):
        return isinstance(expected, str) and expected.encode() == actual
    for parse, is_one in _PARSERS:
        if is_one(kind):
            return bool(_parsed(parse, expected) == actual)
    return bool(expected == actual)


def _is_same_float(expected: float, actual: object) -> bool:
    return bool(expected == actual) or (isinstance(actual, float) and math.isnan(expected) and math.isnan(actual))


_PARSERS: tuple[tuple[Callable[[str], object], Callable[[pa.DataType], bool]], ...] = (
    (datetime.fromisoformat, arrow.is_timestamp),
    (date.fromisoformat, arrow.is_date),
    (time.fromisoformat, arrow.is_time),
)


def _parsed(parse: Callable[[str], object], text: object) -> object:
    try:
        return parse(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _decimal(value: object) -> Decimal | None:
    """Also from a text, which may have more digits than YAML accepts in a number."""
    if isinstance(value, int | Decimal | str):
        try:
            return Decimal(value)
        except InvalidOperation:
            return None
    return None


def _is_same_map(expected: object, actual: object, kind: pa.DataType) -> bool:
    if not isinstance(expected, dict) or not isinstance(actual, list):
        return False
    found = {str(key): value for key, value in actual}
    return expected.keys() == found.keys() and all(
        is_same(each, found[key], kind.item_type) for key, each in expected.items()
    )


def _is_same_json(expected: object, actual: object) -> bool:
    try:
        found = parsed_json(_decoded(actual), JSON_LEVELS_MAX, _EXACT)
    except ValueError:
        return False
    return _is_same_plain(expected, found)


def _is_same_plain(expected: object, found: object) -> bool:
    if isinstance(expected, dict) and isinstance(found, dict):
        return expected.keys() == found.keys() and all(_is_same_plain(each, found[k]) for k, each in expected.items())
    if isinstance(expected, list) and isinstance(found, list):
        return len(expected) == len(found) and all(map(_is_same_plain, expected, found))
    is_bool = isinstance(expected, bool), isinstance(found, bool)
    return is_bool[0] == is_bool[1] and expected == found


def _decoded(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _is_text(kind: pa.DataType) -> bool:
    return bool(arrow.is_string(kind) or arrow.is_large_string(kind) or arrow.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(arrow.is_binary(kind) or arrow.is_large_binary(kind) or arrow.is_binary_view(kind))


def shown(value: object) -> str:
    """A value as one would write it into the file of cases."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime | date | time):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {shown(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    text = _decoded(value)
    return text if text and text.isprintable() and "\ufffd" not in text else json.dumps(text, ensure_ascii=False)
