"""Messages (OASIS amqp-core-messaging): events out of a batch, an event with its place written into it, requests, answers."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from leasehold_emulators.eventhubs.codec import encode, put, take
from leasehold_emulators.eventhubs.values import Described, Int, Malformed, Symbol, Timestamp, ULong

BATCH = 0x80013700  # the message format of an envelope of events

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE = range(0x70, 0x78)

NUMBER, OFFSET, TIME, KEY = "x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time", "x-opt-partition-key"
PRODUCER_ID = "com.microsoft:producer-id"
PRODUCER_LEVEL = "com.microsoft:producer-epoch"
PRODUCER_NUMBER = "com.microsoft:producer-sequence-number"
NOT_THE_CLIENTS = frozenset((NUMBER, OFFSET, TIME, KEY, PRODUCER_ID, PRODUCER_LEVEL, PRODUCER_NUMBER))

U32 = struct.Struct(">I")
I64 = struct.Struct(">q")

SHORT_DATA, LONG_DATA = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"


# The annotations of an idempotent event, read at once if they are these three in this order and nothing else. Other events are
# read section by section, which takes five times as long.
MARKS = re.compile(
    rb"((?:\x00\x53\x70\x45)?)\x00\x53\x72(?:\xc1.|\xd1.{4}\x00\x00\x00)\x06"
    rb"\xa3\x19com\.microsoft:producer-id(?:\x55(.)|\x81(.{8}))"
    rb"\xa3\x1ccom\.microsoft:producer-epoch\x61(..)"
    rb"\xa3\x26com\.microsoft:producer-sequence-number(?:\x54(.)|\x71(.{4}))",
    re.DOTALL,
)


class Numbered(NamedTuple):
    """The marks that an event of an idempotent producer carries; None for a missing one."""

    producer: int | None
    level: int | None
    number: int | None


class Event(NamedTuple):
    """An event as it was sent. head: the encoded header. rest: encoded, from the properties on. annotations: the client's own."""

    rest: bytes
    head: bytes = b""
    annotations: dict[Any, Any] | None = None
    key: str | None = None
    numbered: Numbered | None = None


def sections(message: bytes) -> Iterator[tuple[int, int, int]]:
    """(code, begin, end) of each section, its descriptor included. Raises Malformed."""
    at, end = 0, len(message)
    while at < end:
        begin = at
        try:
            if message[at] or message[at + 1] not in (0x53, 0x80):
                raise Malformed(f"no section at octet {at}")
            code, body = (message[at + 2], at + 3) if message[at + 1] == 0x53 else (message[at + 9], at + 10)
            constructor = message[body]
            if constructor == 0xB0:
                at = body + 5 + U32.unpack_from(message, body + 1)[0]
            elif constructor == 0xA0:
                at = body + 2 + message[body + 1]
            else:
                _, at = take(message, body)
        except (IndexError, struct.error) as problem:
            raise Malformed(f"a section that ends early, at octet {begin}") from problem
        if at > end:
            raise Malformed(f"a section that ends early, at octet {begin}")
        yield code, begin, at


def value_of(message: bytes, begin: int) -> Any:
    described, _ = take(message, begin)
    return described.value


def events(message: bytes, message_format: int) -> list[Event]:
    """The events in an envelope, or the message as one. Those without a key get the envelope's. Raises Malformed."""
    if message_format != BATCH:
        return [event(message)]
    inside, key = [], None
    at, end = 0, len(message)
    while at < end:
        if message.startswith(SHORT_DATA, at) and at + 4 < end:
            begin, stop = at + 5, at + 5 + message[at + 4]
        elif message.startswith(LONG_DATA, at) and at + 7 < end:
            begin, stop = at + 8, at + 8 + U32.unpack_from(message, at + 4)[0]
        else:
            code, _, begin = next(sections(message[at:]))
            if code == ANNOTATIONS:
                key = (value_of(message, at) or {}).get(KEY)
            at += begin
            continue
        if stop > end:
            raise Malformed(f"a section that ends early, at octet {at}")
        inside.append(event(message[begin:stop]))
        at = stop
    return inside if key is None else [keyed(one, key) for one in inside]


def keyed(one: Event, key: str) -> Event:
    return one if one.key is not None else one._replace(key=key)


def event(message: bytes) -> Event:
    """Raises Malformed."""
    if message[:2] == b"\x00\x53" and message[2:3] > b"\x72":
        return Event(message)
    if found := MARKS.match(message):
        head, short_id, id_, level, short_number, number = found.groups()
        numbered = Numbered(_signed(short_id or id_), _signed(level), _signed(short_number or number))
        return Event(message[found.end() :], head, numbered=numbered)
    return _event_of_sections(message)


def _signed(octets: bytes) -> int:
    return int.from_bytes(octets, "big", signed=True)


def _event_of_sections(message: bytes) -> Event:
    head, rest = b"", []
    annotations: dict[Any, Any] = {}
    for code, begin, end in sections(message):
        if code == HEADER:
            head = message[begin:end]
        elif code == ANNOTATIONS:
            annotations = value_of(message, begin) or {}
        elif code != DELIVERY_ANNOTATIONS:
            rest.append(message[begin:end])
    marks = [annotations.get(name) for name in (PRODUCER_ID, PRODUCER_LEVEL, PRODUCER_NUMBER)]
    return Event(
        rest=b"".join(rest),
        head=head,
        annotations={name: value for name, value in annotations.items() if name not in NOT_THE_CLIENTS} or None,
        key=annotations.get(KEY),
        numbered=None if marks == [None, None, None] else Numbered(*marks),
    )


# --- an event as consumers get it --------------------------------------------------------------------------------------


def _symbol(name: str) -> bytes:
    return encode(Symbol(name))


_NUMBER, _OFFSET, _KEY = (_symbol(name) for name in (NUMBER, OFFSET, KEY))
_TIME = _symbol(TIME) + b"\x83"


def placed(one: Event, number: int, offset: int, time_ms: int) -> bytes:
    """The message as it is stored: the service's annotations first, then the client's own."""
    digits = b"%d" % offset
    own = b"".join(
        (
            _NUMBER,
            b"\x55%c" % number if number < 128 else b"\x81" + I64.pack(number),
            _OFFSET,
            b"\xa1%c" % len(digits),
            digits,
            _TIME,
            I64.pack(time_ms),
        )
    )
    count = 6
    if one.key is not None:
        own += _KEY + encode(str(one.key))
        count += 2
    if one.annotations:
        own += b"".join(encode(part) for pair in one.annotations.items() for part in pair)
        count += 2 * len(one.annotations)
    size = len(own)
    if size < 255 and count < 256:
        start = b"\x00\x53\x72\xc1%c%c" % (size + 1, count)
    else:
        start = b"\x00\x53\x72\xd1" + U32.pack(size + 4) + U32.pack(count)
    return b"".join((one.head, start, own, one.rest))


def delivery_annotations(annotations: dict[Any, Any]) -> bytes:
    return _section(DELIVERY_ANNOTATIONS, annotations)


def with_delivery_annotations(message: bytes, annotations: bytes) -> bytes:
    """The message with annotations after its header, if it has one. The rest is not read."""
    # Nearly all messages begin with annotations. Reading these would take most of a receiver's time.
    if message.startswith(b"\x00\x53\x72"):
        return annotations + message
    code, _, end = next(sections(message))
    at = end if code == HEADER else 0
    return message[:at] + annotations + message[at:]


def _section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


# --- a message read again, for the control port ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    body: bytes
    annotations: dict[Any, Any]
    application: dict[Any, Any]


def contents(message: bytes) -> Contents:
    """body: the data sections, one after the other, or the encoding of another kind of body."""
    body, annotations, application = bytearray(), {}, {}
    for code, begin, end in sections(message):
        if code == DATA:
            body += value_of(message, begin)
        elif code in (SEQUENCE, VALUE):
            body += message[begin + 3 : end]
        elif code == ANNOTATIONS:
            annotations = value_of(message, begin)
        elif code == APPLICATION:
            application = value_of(message, begin)
    return Contents(body=bytes(body), annotations=annotations, application=application)


def data_event(body: bytes, key: str | None = None) -> Event:
    """An event with only a body and, if given, a key."""
    out = bytearray(b"\x00\x53\x75")
    put(out, body)
    return Event(rest=bytes(out), key=key)


# --- requests: $cbs and $management ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """id: of any type that AMQP permits. what: the application properties. body: the value, if the body is one."""

    id: Any
    reply_to: Any
    what: dict[str, Any]
    body: Any


def request(message: bytes) -> Request:
    """Raises Malformed."""
    found = {code: value_of(message, begin) for code, begin, _ in sections(message)}
    properties = [*found.get(PROPERTIES, []), *[None] * 13]
    return Request(id=properties[0], reply_to=properties[4], what=found.get(APPLICATION) or {}, body=found.get(VALUE))


def answer(asked: Request, status: int, description: str, value: Any = None, condition: str | None = None) -> bytes:
    what: dict[str, Any] = {"status-code": Int(status), "status-description": description}
    if condition:
        what["error-condition"] = Symbol(condition)
    properties = [None, None, None, None, None, asked.id]
    return b"".join((_section(PROPERTIES, properties), _section(APPLICATION, what), _section(VALUE, value)))


def runtime_metrics(number: int, offset: int, time_ms: int, now_ms: int) -> dict[Any, Any]:
    """The end of the partition, which a receiver gets with each event if it wants that."""
    return {
        Symbol("last_enqueued_sequence_number"): number,
        Symbol("last_enqueued_offset"): str(offset),
        Symbol("last_enqueued_time_utc"): Timestamp(time_ms),
        Symbol("runtime_info_retrieval_time_utc"): Timestamp(now_ms),
    }
