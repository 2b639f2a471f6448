"""Events as AMQP messages (OASIS amqp-core-messaging), encoded by hand for the one layout that is sent. Pure.

An event is: message annotations (of an idempotent producer: its group, level and number, in the order that brokers expect),
application properties, one data section. All but the annotations are the same in every send, and are encoded once. The SDK's
encoder takes ten times as long; tests compare the results of both, byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from leasehold.pipeline.producer import NUMBER_MAX, OutgoingEvent, ProducerPosition, number_after
from leasehold.pipeline.producer.event import Simple

U32 = struct.Struct(">I")
PAIR = struct.Struct(">II")
I32 = struct.Struct(">i")
I64 = struct.Struct(">q")
DOUBLE = struct.Struct(">d")

ANNOTATIONS, PROPERTIES = b"\x00\x53\x72", b"\x00\x53\x74"
BATCH_FORMAT = 0x80013700
"""The message format of `enveloped` events."""
GROUP, LEVEL, NUMBER = (b"com.microsoft:producer-" + name for name in (b"id", b"epoch", b"sequence-number"))
PARTITION_KEY = b"x-opt-partition-key"
SMALL = 128  # smaller numbers fit into one signed octet
MARKS_BYTES_MAX = 3 + 3 + sum(len(name) + 2 for name in (GROUP, LEVEL, NUMBER)) + 9 + 3 + 5
"""The annotations of an idempotent event, if all its numbers were the longest."""
ENVELOPE_KEY_BYTES = 3 + 3 + len(PARTITION_KEY) + 2 + 5
"""The annotations of an envelope with a partition key, without the key itself."""
SECTION_BYTES = 8
"""The most bytes that the envelope adds to an event."""


def body_of(event: OutgoingEvent) -> bytes:
    """All of the event but its annotations. Raises ValueError for a property for which AMQP has no type."""
    if not event.properties:
        return data(event.body)
    return section_of_properties([pair_of(name, value) for name, value in event.properties.items()]) + data(event.body)


def pair_of(name: str, value: Simple) -> bytes:
    """An application property."""
    if not isinstance(name, str):
        raise ValueError(f"a property's name has to be a text, and {name!r} is not")
    return text(name) + simple(value)


def section_of_properties(pairs: Sequence[bytes]) -> bytes:
    return PROPERTIES + amqp_map(b"".join(pairs), 2 * len(pairs)) if pairs else b""


def amqp_map(items: bytes, count: int) -> bytes:
    """count: of keys and values together."""
    if len(items) < 255 and count <= 255:
        return b"\xc1%c%c%b" % (len(items) + 1, count, items)
    return b"\xd1" + PAIR.pack(len(items) + 4, count) + items


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"\xa1%c%b" % (len(encoded), encoded) if len(encoded) < 256 else b"\xb1" + U32.pack(len(encoded)) + encoded


def binary(value: bytes) -> bytes:
    return b"\xa0%c%b" % (len(value), value) if len(value) < 256 else b"\xb0" + U32.pack(len(value)) + value


def data(body: bytes) -> bytes:
    size = len(body)
    return b"\x00\x53\x75\xa0%c%b" % (size, body) if size < 256 else b"\x00\x53\x75\xb0%b%b" % (U32.pack(size), body)


def enveloped(events: Sequence[bytes], key: str | None) -> bytes:
    """A batch is a message with a data section for each event. key: the partition key."""
    annotations = b"" if key is None else ANNOTATIONS + amqp_map(_symbol(PARTITION_KEY) + text(key), 2)
    return annotations + b"".join(map(data, events))


def simple(value: Simple) -> bytes:
    """Raises ValueError."""
    if isinstance(value, str):
        return text(value)
    if value is None:
        return b"\x40"
    if isinstance(value, bool):
        return b"\x41" if value else b"\x42"
    if isinstance(value, int):
        return _whole(value)
    if isinstance(value, float):
        return b"\x82" + DOUBLE.pack(value)
    if isinstance(value, bytes):
        return binary(value)
    if isinstance(value, datetime):
        return b"\x83" + I64.pack(_milliseconds(value))
    if isinstance(value, UUID):
        return b"\x98" + value.bytes
    raise ValueError(
        f"a property has to be a text, bytes, a number, a truth value, a time, a UUID or None, and not {type(value).__name__}"
    )


def _whole(value: int) -> bytes:
    if -SMALL <= value < SMALL:
        return b"\x54%c" % (value & 0xFF)
    if -(2**31) <= value < 2**31:
        return b"\x71" + I32.pack(value)
    if -(2**63) <= value < 2**63:
        return b"\x81" + I64.pack(value)
    raise ValueError(f"a property has to fit into 64 bits, and {value} does not")


def _milliseconds(time: datetime) -> int:
    moment = time if time.tzinfo else time.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def numbered(bodies: Sequence[bytes], after: ProducerPosition) -> list[bytes]:
    """Each body with its annotations; the first has the number that follows `after`."""
    group = b"\x55%c" % after.group if after.group < SMALL else b"\x81" + I64.pack(after.group)
    marks = b"".join((_symbol(GROUP), group, _symbol(LEVEL), b"\x61", after.level.to_bytes(2, "big"), _symbol(NUMBER)))
    short = ANNOTATIONS + b"\xc1%c\x06" % (len(marks) + 3) + marks + b"\x54"
    long = ANNOTATIONS + b"\xc1%c\x06" % (len(marks) + 6) + marks + b"\x71"
    first = number_after(after.number)
    if first >= SMALL and first + len(bodies) - 1 <= NUMBER_MAX:  # all are long, and none wraps
        pack = U32.pack
        return [long + pack(number) + body for number, body in enumerate(bodies, first)]
    numbers = (number_after(first, place) for place in range(len(bodies)))
    return [
        short + b"%c" % number + body if number < SMALL else long + U32.pack(number) + body
        for number, body in zip(numbers, bodies, strict=True)
    ]


def _symbol(name: bytes) -> bytes:
    return b"\xa3%c%b" % (len(name), name)


def string_pairs(pairs: Iterable[tuple[str, str | None]]) -> list[bytes]:
    """Application properties of a map of texts."""
    return [text(name) + (b"\x40" if value is None else text(value)) for name, value in pairs]


def constant_pairs(properties: Mapping[str, str]) -> bytes:
    return b"".join(text(name) + text(value) for name, value in properties.items())
