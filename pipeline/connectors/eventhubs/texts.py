"""What AMQP's values are in the event table, where a property is a text. Pure.

Texts and symbols are themselves; numbers as they are written, true and false; a time in ISO 8601; octets in base64; lists, maps
and arrays in JSON; null stays null. Of .NET's own types the address, the time and the span (in seconds) are known.
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pipeline.connectors.eventhubs.values import Described, Malformed, Map, Timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = 10_000_000
"""Of .NET, in a second; its times begin with the year 1."""


def text_of(value: Any) -> str | None:
    """A property's text; None of null alone. Raises Malformed."""
    try:
        plain = _plain(value)
        return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    except RecursionError:  # arrays of arrays are read with less of a stack than they are written
        raise Malformed("it is nested too deeply") from None


def _plain(value: Any) -> Any:
    """As JSON knows it. Nothing is lost that a text can hold: JSON has no NaN, so it is a text."""
    match value:
        case Described():
            return _described(value)
        case Map():
            return {str(text_of(key)): _plain(each) for key, each in value}
        case list():
            return [_plain(each) for each in value]
        case Timestamp():
            return _time(int(value))
        case bool() | int() | str() | None:
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case bytes():
            return b64encode(value).decode()
        case Decimal():
            return str(value)
    return str(value)


def _described(described: Described) -> Any:
    match described:
        case Described("com.microsoft:datetime-offset", int(ticks)):
            return _time_of(ticks - _ticks_of_epoch())
        case Described("com.microsoft:timespan", int(ticks)):
            return f"{Decimal(ticks) / _TICKS:f}"
    return _plain(described.value)


def _ticks_of_epoch() -> int:
    return (_EPOCH - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * _TICKS


def _time(milliseconds: int) -> str:
    return _time_of(milliseconds * _TICKS // 1000)


def _time_of(ticks: int) -> str:
    """Ticks since 1970. What no calendar of Python's has is the number of milliseconds."""
    try:
        return (_EPOCH + timedelta(microseconds=ticks // 10)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return str(ticks * 1000 // _TICKS)
