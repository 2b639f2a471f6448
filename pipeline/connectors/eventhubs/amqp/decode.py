"""One message of Event Hubs -> one event: in one step if its parts are in their usual places, else section by section.

https://learn.microsoft.com/azure/event-hubs/event-hubs-amqp-protocol-guide names the annotations.
"""

from __future__ import annotations

import json
import math
import re
import struct
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

from leasehold.pipeline.connectors.eventhubs.amqp.values import AmqpMap, Described, Malformed, Timestamp, value_at
from leasehold.pipeline.markers import PREFIX

# How AMQP's values appear in the event table, in which a property is a text. Pure.
#
# Texts and symbols are themselves; numbers as they are written, true and false; a time in ISO 8601; octets in base64; lists, maps
# and arrays in JSON; null stays null. The known types of .NET are the address, the time and the span (in seconds).


KEYS_WITHIN_KEYS_MAX = 4
"""A map that is a key is a text in a text, and each such level doubles its backslashes: 30 of them would fill any memory."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICKS = 10_000_000
"""The ticks of .NET in a second; its times begin with the year 1."""


def text_of(value: Any) -> str | None:
    """A property's text; None only for null. value: as `values.value_at` reads it, which bounds its depth. Raises Malformed."""
    return _as_text(value, 0)


def _as_text(value: Any, keys: int) -> str | None:
    plain = _as_json(value, keys)
    return plain if plain is None or isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _as_json(value: Any, keys: int) -> Any:
    """The value in JSON's types. Nothing is lost: JSON has no NaN, so NaN is a text. keys: how many keys the value is within."""
    match value:
        case Described():
            return _described(value, keys)
        case AmqpMap():
            return {_key(key, keys + 1): _as_json(each, keys) for key, each in value}
        case list():
            return [_as_json(each, keys) for each in value]
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
    return str(_as_text(key, keys))


def _described(described: Described, keys: int) -> Any:
    match described:
        case Described("com.microsoft:datetime-offset", int(ticks)):
            return _time_of(ticks - _ticks_of_epoch())
        case Described("com.microsoft:timespan", int(ticks)):
            return f"{Decimal(ticks) / _TICKS:f}"
    return _as_json(described.value, keys)


def _ticks_of_epoch() -> int:
    return (_EPOCH - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) * _TICKS


def _time(milliseconds: int) -> str:
    return _time_of(milliseconds * _TICKS // 1000)


def _time_of(ticks: int) -> str:
    """ticks: since 1970. A time that Python's dates cannot hold becomes the number of its milliseconds."""
    try:
        return (_EPOCH + timedelta(microseconds=ticks // 10)).isoformat().replace("+00:00", "Z")
    except OverflowError:
        return str(ticks * 1000 // _TICKS)


Pairs = tuple[tuple[str, str | None], ...]
HEADER, DELIVERY, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE, FOOTER = range(0x70, 0x79)
SYSTEM = "sys."
"""The prefix of names that are not application properties."""
BODY = f"{SYSTEM}body"
"""The kind of a body that is not binary: `value` or `sequence`, which are converted to JSON."""
KEY, OPERATION = PREFIX + "key", PREFIX + "operation"
"""The properties with our sink's key and operation: a partition key would route the event away from its partition. Any publisher
can set them, and a forwarder copies them, so they are columns only for a feed that trusts properties."""

_SECTIONS: dict[Any, int] = {code: code for code in range(HEADER, FOOTER + 1)} | {
    f"amqp:{name}": code
    for code, name in zip(
        range(HEADER, FOOTER + 1),
        (
            "header:list",
            "delivery-annotations:map",
            "message-annotations:map",
            "properties:list",
            "application-properties:map",
            "data:binary",
            "amqp-sequence:list",
            "amqp-value:*",
            "footer:map",
        ),
        strict=True,
    )
}
_PROPERTY_NAMES = (
    "message-id",
    "user-id",
    "to",
    "subject",
    "reply-to",
    "correlation-id",
    "content-type",
    "content-encoding",
    "absolute-expiry-time",
    "creation-time",
    "group-id",
    "group-sequence",
    "reply-to-group-id",
)
_NUMBER, _OFFSET, _TIME, _KEY = (
    f"x-opt-{name}" for name in ("sequence-number", "offset", "enqueued-time", "partition-key")
)
_OWN = frozenset((_NUMBER, _OFFSET, _TIME, _KEY))


class ReceivedEvent(NamedTuple):
    """time_ms: since 1970. body: None for a message without one, or for a null.

    operation: the one that our sink sent, if properties are trusted.
    """

    sequence: int
    offset: bytes
    time_ms: int
    key: str | None
    body: bytes | None
    properties: Pairs = ()
    operation: str | None = None


HEAD = re.compile(
    rb"\x00\x53\x72(?:\xc1.|\xd1.{4}\x00\x00\x00)(?:(\x06)|\x08)"
    rb"\xa3\x15x-opt-sequence-number(?:\x55([\x00-\x7f])|\x81([\x00-\x7f].{7}))"
    rb"\xa3\x0cx-opt-offset\xa1(.)([0-9]{1,20})"
    rb"\xa3\x13x-opt-enqueued-time\x83(.{8})"
    rb"(\xa3\x13x-opt-partition-key\xa1)?",
    re.DOTALL,
)
"""The service's own annotations in the order in which it writes them, with or without a key, and none of the client's."""
SHORT, LONG = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"
"""How a data section begins: with a length of one octet, and of four."""
_DELIVERY = b"\x00\x53\x71"
END = "last_enqueued_sequence_number"
SIZES = {0xC1: (1, 5), 0xD1: (4, 8)}
"""For a map, by its constructor: octets of its size, and the offset of the counted content."""
_U32, _I64 = struct.Struct(">I"), struct.Struct(">q")
FIRST_MS, LAST_MS = -62_135_596_800_000, 253_402_300_799_999
"""The years 1 to 9999, which Python's dates have."""
_OF_64_BITS = range(-(2**63), 2**63)


def event_at(data: bytes, at: int, end: int, *, trusts_properties: bool = False) -> ReceivedEvent:
    """The event of the message at that place. Raises Malformed.

    trusts_properties: whether KEY and OPERATION among its properties are its key and operation. A partition key takes precedence.
    """
    event = _event_at(data, at, end)
    return _with_own_columns(event) if trusts_properties and event.properties else event


def _with_own_columns(event: ReceivedEvent) -> ReceivedEvent:
    own = {name: value for name, value in event.properties if name == OPERATION or (name == KEY and event.key is None)}
    if not own:
        return event
    properties = tuple(pair for pair in event.properties if pair[0] not in own)
    return event._replace(key=own.get(KEY, event.key), operation=own.get(OPERATION), properties=properties)


def _event_at(data: bytes, at: int, end: int) -> ReceivedEvent:
    found = HEAD.match(data, at, end)
    if found is None:
        return event_of(data[at:end])
    has_no_key, short, long, digits, offset, time, key_follows = found.groups()
    if digits[0] != len(offset) or (has_no_key is None) == (key_follows is None):
        return event_of(data[at:end])
    sequence = short[0] if short is not None else _I64.unpack(long)[0]
    begin, key = found.end(), None
    if key_follows is not None:
        begin += 1 + data[begin]
        key = data[found.end() + 1 : begin].decode("utf-8", "replace")
    time_ms = _I64.unpack(time)[0]
    if begin > end or not FIRST_MS <= time_ms <= LAST_MS:
        return event_of(data[at:end])
    if (only := _only_body(data, begin, end)) is not None:
        return ReceivedEvent(sequence, offset, time_ms, key, data[only:end])
    properties, body = _rest(_sections(data[begin:end]))
    return ReceivedEvent(sequence, offset, time_ms, key, body, properties)


def behind_report(data: bytes, at: int) -> int:
    """The offset at which a message begins, after what the service reports with it. Raises Malformed."""
    if not data.startswith(_DELIVERY, at):
        return at
    if data[at + 3] in SIZES:
        size, begin = SIZES[data[at + 3]]
        return at + begin + int.from_bytes(data[at + 4 : at + 4 + size])
    return value_at(data, at)[1]


def reported_end(data: bytes, at: int) -> int | None:
    """The sequence of the partition's last event, if it is reported there. Raises Malformed."""
    found = dict(_pairs(value_at(data, at)[0].value)).get(END)
    return found if type(found) is int else None


def _only_body(data: bytes, at: int, end: int) -> int | None:
    """The offset of the body, if it is one data section and nothing else follows."""
    if data.startswith(SHORT, at, end) and at + 5 <= end:
        return at + 5 if at + 5 + data[at + 4] == end else None
    if data.startswith(LONG, at, end) and at + 8 <= end:
        return at + 8 if at + 8 + _U32.unpack_from(data, at + 4)[0] == end else None
    return None


def event_of(message: bytes) -> ReceivedEvent:
    """The event of a message with any sections. Raises Malformed."""
    sections = _sections(message)
    annotations = {str(name): value for code, value in sections if code == ANNOTATIONS for name, value in _pairs(value)}
    sequence, offset, time, key = (annotations.get(name) for name in (_NUMBER, _OFFSET, _TIME, _KEY))
    if not isinstance(sequence, int) or not isinstance(offset, str | int) or not isinstance(time, int):
        raise Malformed(f"it lacks its place: the annotations {_NUMBER}, {_OFFSET} and {_TIME}")
    if sequence not in _OF_64_BITS or not FIRST_MS <= time <= LAST_MS:
        raise Malformed(f"its place is invalid: {_NUMBER} {sequence}, {_TIME} {int(time)} ms")
    properties, body = _rest(sections)
    system = tuple((SYSTEM + name, text_of(value)) for name, value in annotations.items() if name not in _OWN)
    return ReceivedEvent(int(sequence), str(offset).encode(), int(time), text_of(key), body, _once(properties + system))


def _sections(message: bytes) -> list[tuple[int, Any]]:
    """(code, value) of each section."""
    at, sections = 0, []
    while at < len(message):
        section, at = value_at(message, at)
        code = _SECTIONS.get(section.descriptor) if isinstance(section, Described) else None
        if code is None or not isinstance(section, Described):
            raise Malformed("it has a section that no message has")
        sections.append((code, section.value))
    return sections


def _rest(sections: list[tuple[int, Any]]) -> tuple[Pairs, bytes | None]:
    """Properties and body. The application's own names come first, and if a name is given twice, the first one counts."""
    application: list[tuple[str, str | None]] = []
    system: list[tuple[str, str | None]] = []
    data: list[bytes] = []
    others: list[tuple[int, Any]] = []
    for code, value in sections:
        if code == APPLICATION:
            application += ((str(text_of(name)), text_of(each)) for name, each in _pairs(value))
        elif code == PROPERTIES:
            system += _system(value)
        elif code == DATA:
            data.append(_octets(value))
        elif code in (SEQUENCE, VALUE):
            others.append((code, value))
    if data and others:
        raise Malformed("it has bodies of two kinds")
    if not others:
        return _once((*application, *system)), b"".join(data) if data else None
    kind, body = _other_body(others)
    return _once((*application, *system, (BODY, kind))), body


def _system(fields: Any) -> list[tuple[str, str | None]]:
    if not isinstance(fields, list) or len(fields) > len(_PROPERTY_NAMES):
        raise Malformed("its properties are not a list of message properties")
    names = zip(_PROPERTY_NAMES, fields, strict=False)
    return [(SYSTEM + name, text_of(value)) for name, value in names if value is not None]


def _other_body(sections: list[tuple[int, Any]]) -> tuple[str, bytes | None]:
    """The body of values and sequences: text and octets unchanged, anything else in JSON; sequences are joined."""
    if {code for code, _ in sections} == {SEQUENCE}:
        items = [item for _, value in sections for item in _list(value)]
        return "sequence", str(text_of(items)).encode()
    if len(sections) > 1:
        raise Malformed("it has more than one value for a body")
    value = sections[0][1]
    if isinstance(value, bytes):
        return "value", value
    if isinstance(value, str):
        return "value", value.encode()
    return "value", None if value is None else _json(value)


def _json(value: Any) -> bytes:
    """A value that is a text as a property (a time, a UUID) is a text in JSON, too."""
    text = str(text_of(value))
    is_json = isinstance(value, bool | int | float | list | AmqpMap) and text not in ("nan", "inf", "-inf")
    return (text if is_json else json.dumps(text)).encode()


def _once(pairs: Pairs) -> Pairs:
    """A map has each name once: the first pair counts."""
    return pairs if len(pairs) < 2 else tuple(dict(reversed(pairs)).items())[::-1]


def _pairs(value: Any) -> AmqpMap:
    if not isinstance(value, AmqpMap):
        raise Malformed("it has properties or annotations that are not a map")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Malformed("it has a sequence that is not a list")
    return value


def _octets(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise Malformed("it has data that is not binary")
    return value
