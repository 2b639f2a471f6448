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

from pipeline.connectors.eventhubs.amqp.values import Described, Malformed, Map, Timestamp

KEYS_WITHIN_KEYS_MAX = 4
"""A map that is a key is a text in a text, and each such level doubles its backslashes: 30 of them would fill any memory."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = 10_000_000
"""Of .NET, in a second; its times begin with the year 1."""


def text_of(value: Any) -> str | None:
    """A property's text; None of null alone. value: as `values.value_at` reads it, which bounds its depth. Raises Malformed."""
    return _text(value, 0)


def _text(value: Any, keys: int) -> str | None:
    plain = _plain(value, keys)
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any, keys: int) -> Any:
    """As JSON knows it. Nothing is lost that a text can hold: JSON has no NaN, so it is a text. keys: how many it is within."""
    match value:
        case Described():
            return _described(value, keys)
        case Map():
            return {_key(key, keys + 1): _plain(each, keys) for key, each in value}
        case list():
            return [_plain(each, keys) for each in value]
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


def _key(key: Any, keys: int) -> str:
    if keys > KEYS_WITHIN_KEYS_MAX:
        raise Malformed(f"it has keys within keys of maps, more than {KEYS_WITHIN_KEYS_MAX} levels deep")
    return str(_text(key, keys))


def _described(described: Described, keys: int) -> Any:
    match described:
        case Described("com.microsoft:datetime-offset", int(ticks)):
            return _time_of(ticks - _ticks_of_epoch())
        case Described("com.microsoft:timespan", int(ticks)):
            return f"{Decimal(ticks) / _TICKS:f}"
    return _plain(described.value, keys)


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
