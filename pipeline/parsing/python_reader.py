"""Reads body after body with Python's own JSON reader: it is slow, but defines what fits. Pure."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Context, Decimal, Inexact, InvalidOperation
from math import isfinite
from typing import Any, NoReturn

import pyarrow as pa

from leasehold.common.nesting import NestedTooDeeply, parsed_json
from leasehold.pipeline.limits import JSON_LEVELS_MAX
from leasehold.pipeline.parsing.schema import Array, Field, Leaf, Map, Struct, Type, arrow_schema

VALUE_CHARS_MAX = 80
_NUMBER = re.compile(r"[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})"
    r"([T ](?P<hour>[0-9]{2})(:(?P<minute>[0-9]{2})(:(?P<second>[0-9]{2})([.](?P<fraction>[0-9]{1,6})0*)?)?)?"
    r"(?P<zone>Z|[-+][0-9]{2}(:?[0-9]{2})?)?)?"
)


class Misfit(Exception):
    """The body at `index` does not fit the schema. Its text is the reason."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index


class _DoesNotFit(Exception):
    """Its text is the reason."""


class _Number(str):
    """A number as the body writes it, digit for digit."""

    __slots__ = ()


class _Twice:
    """The value of a field that an object has more than once."""


def read_exactly(schema: Struct, bodies: pa.BinaryArray, misfits: list[Misfit]) -> pa.Table:
    """A row for each body that fits. For each of the others, a Misfit is added to `misfits`."""
    rows = []
    for index, body in enumerate(bodies):
        try:
            rows.append(_row(schema, index, body.as_py()))
        except Misfit as misfit:
            misfits.append(misfit)
    return pa.Table.from_pylist(rows, schema=arrow_schema(schema))


def _row(schema: Struct, index: int, body: bytes | None) -> dict[str, Any]:
    try:
        return _struct(schema, {} if body is None else _object(body), "")
    except _DoesNotFit as misfit:
        raise Misfit(index, "the body is null" if body is None else str(misfit)) from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise _DoesNotFit("the body is not UTF-8") from None
    try:
        found = parsed_json(text, JSON_LEVELS_MAX, _AS_WRITTEN)
    except NestedTooDeeply as error:
        raise _DoesNotFit(f"the body is {error}: {_clipped(text)}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _DoesNotFit(f"the body is not one JSON object: {_clipped(text)}")
    return found


def _no_json(constant: str) -> NoReturn:
    raise ValueError(constant)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        found.update((name, _Twice) for name, times in Counter(name for name, _ in pairs).items() if times > 1)
    return found


_AS_WRITTEN = json.JSONDecoder(
    parse_int=_Number, parse_float=_Number, parse_constant=_no_json, object_pairs_hook=_pairs
)


def _struct(struct: Struct, found: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {field.name: _field(field, found.get(field.name), f"{path}{field.name}") for field in struct.fields}


def _field(field: Field, found: Any, where: str) -> Any:
    if found is None and not field.nullable:
        raise _DoesNotFit(f"column '{where}' is missing or null")
    return _value(field.type, found, where)


def _value(type: Type, found: Any, where: str) -> Any:
    if found is None:
        return None
    if found is _Twice:
        raise _DoesNotFit(f"column '{where}' appears more than once")
    match type:
        case Leaf():
            return _scalar(type, found, where)
        case Array(element) if isinstance(found, list):
            return [_value(element, each, f"{where}[]") for each in found]
        case Map(value) if isinstance(found, dict):
            return [(_whole_text(name, where), _value(value, each, f"{where}{{}}")) for name, each in found.items()]
        case Struct() if isinstance(found, dict):
            return _struct(type, found, f"{where}.")
    raise _misfit(type.__class__.__name__.upper(), found, where)


def _scalar(leaf: Leaf, found: Any, where: str) -> Any:
    if isinstance(found, dict | list):
        raise _misfit(leaf.name, found, where)
    if leaf.name == "STRING":
        return _whole_text(found, where) if isinstance(found, str) else _shown_json(found)
    try:
        value = _boolean(found) if leaf.name == "BOOLEAN" else _of_text(leaf, found)
    except (ValueError, ArithmeticError):
        value = None
    if value is None:
        raise _misfit(leaf.name, found, where)
    return value


def _whole_text(found: str, where: str) -> str:
    try:
        found.encode()
    except UnicodeEncodeError:
        raise _DoesNotFit(f"column '{where}' has half a character (a lone surrogate)") from None
    return str(found)


def _boolean(found: Any) -> bool | None:
    return (
        found if isinstance(found, bool) else {"true": True, "false": False}.get(found) if type(found) is str else None
    )


def _of_text(leaf: Leaf, found: Any) -> Any:
    """The value of a text or number; None, ValueError or ArithmeticError if it does not fit."""
    if not isinstance(found, str):
        return None
    if leaf.is_number:
        return _parsed_number(leaf, found) if _NUMBER.fullmatch(found) else None
    if isinstance(found, _Number):
        return None
    if leaf.name == "DATE":
        return date.fromisoformat(found) if _DATE.fullmatch(found) else None
    return _instant(found, has_zone=leaf.name == "TIMESTAMP")


def _parsed_number(leaf: Leaf, text: str) -> Any:
    if leaf.bits is not None:
        whole = int(_decimal(text, 19, 0))
        return whole if -(1 << leaf.bits - 1) <= whole < 1 << leaf.bits - 1 else None
    if leaf.precision is not None and leaf.scale is not None:
        return _decimal(text, leaf.precision, leaf.scale)
    value = float(text)
    if leaf.name == "FLOAT":
        value = pa.scalar(value, pa.float32()).as_py()
    return value if isfinite(value) else None


def _decimal(text: str, precision: int, scale: int) -> Decimal:
    exact = Context(prec=precision, traps=[InvalidOperation, Inexact])
    return Decimal(text).quantize(Decimal(1).scaleb(-scale), context=exact)


def _instant(text: str, *, has_zone: bool) -> datetime | None:
    """ISO 8601 to the microsecond, within the years that Python knows; UTC if no zone is given."""
    found = _INSTANT.fullmatch(text)
    if found is None or (found["zone"] and not has_zone):
        return None
    day = date.fromisoformat(found["day"])
    at = datetime(
        day.year,
        day.month,
        day.day,
        int(found["hour"] or 0),
        int(found["minute"] or 0),
        int(found["second"] or 0),
        int((found["fraction"] or "").ljust(6, "0")),
        tzinfo=_zone(found["zone"]),
    )
    return at.astimezone(UTC) if has_zone else at.replace(tzinfo=None)


def _zone(text: str | None) -> timezone:
    if text is None or text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if minutes > 59:
        raise ValueError(text)
    return timezone((-1 if text[0] == "-" else 1) * timedelta(hours=hours, minutes=minutes))


def _misfit(type: str, found: Any, where: str) -> _DoesNotFit:
    return _DoesNotFit(f"column '{where}' does not fit {type}: {_clipped(_shown_json(found))}")


def _shown_json(found: Any) -> str:
    return found if isinstance(found, str) else "".join(_tokens(found))


def _tokens(found: Any) -> Iterator[str]:
    """JSON without spaces, and with numbers as they were written."""
    if isinstance(found, _Number):
        yield found
    elif isinstance(found, dict):
        yield "{"
        for number, (name, value) in enumerate(found.items()):
            yield f"{',' if number else ''}{json.dumps(name)}:"
            yield from _tokens(value)
        yield "}"
    elif isinstance(found, list):
        yield "["
        for number, value in enumerate(found):
            yield "," if number else ""
            yield from _tokens(value)
        yield "]"
    else:
        yield '"…"' if found is _Twice else json.dumps(found, ensure_ascii=False)


def _clipped(text: str) -> str:
    """The text in quotes, cut, and on one line."""
    clipped = text[:VALUE_CHARS_MAX].translate(dict.fromkeys(map(ord, "\n\r\t"), " "))
    return "'" + clipped.encode(errors="replace").decode() + "'"
