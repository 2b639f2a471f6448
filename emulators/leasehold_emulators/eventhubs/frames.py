"""Frames and their performatives (OASIS amqp-core-transport): what comes off a socket, and what goes onto it."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from leasehold_emulators.eventhubs.codec import put, take
from leasehold_emulators.eventhubs.values import Described, Malformed, Symbol, UByte, UInt, ULong, UShort

AMQP = b"AMQP\x00\x01\x00\x00"
SASL = b"AMQP\x03\x01\x00\x00"
EMPTY = b"\x00\x00\x00\x08\x02\x00\x00\x00"
HEADER = struct.Struct(">IBBH")
FRAME_BYTES_MAX = 65_536

Properties = dict[Any, Any]


class Open(NamedTuple):
    container_id: str
    hostname: str | None = None
    max_frame_size: UInt | None = None
    channel_max: UShort | None = None
    idle_time_out: UInt | None = None
    outgoing_locales: Any = None
    incoming_locales: Any = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: Properties | None = None


class Begin(NamedTuple):
    remote_channel: UShort | None
    next_outgoing_id: UInt
    incoming_window: UInt
    outgoing_window: UInt
    handle_max: UInt | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: Properties | None = None


class Attach(NamedTuple):
    """role: True for a receiver."""

    name: str
    handle: UInt
    role: bool
    snd_settle_mode: UByte | None = None
    rcv_settle_mode: UByte | None = None
    source: Any = None
    target: Any = None
    unsettled: Any = None
    incomplete_unsettled: bool | None = None
    initial_delivery_count: UInt | None = None
    max_message_size: ULong | None = None
    offered_capabilities: Any = None
    desired_capabilities: Any = None
    properties: Properties | None = None


class Flow(NamedTuple):
    next_incoming_id: UInt | None
    incoming_window: UInt
    next_outgoing_id: UInt
    outgoing_window: UInt
    handle: UInt | None = None
    delivery_count: UInt | None = None
    link_credit: UInt | None = None
    available: UInt | None = None
    drain: bool | None = None
    echo: bool | None = None
    properties: Properties | None = None


class Transfer(NamedTuple):
    handle: UInt
    delivery_id: UInt | None = None
    delivery_tag: bytes | None = None
    message_format: UInt | None = None
    settled: bool | None = None
    more: bool | None = None
    rcv_settle_mode: UByte | None = None
    state: Any = None
    resume: bool | None = None
    aborted: bool | None = None
    batchable: bool | None = None


class Disposition(NamedTuple):
    role: bool
    first: UInt
    last: UInt | None = None
    settled: bool | None = None
    state: Any = None
    batchable: bool | None = None


class Detach(NamedTuple):
    handle: UInt
    closed: bool | None = None
    error: Any = None


class End(NamedTuple):
    error: Any = None


class Close(NamedTuple):
    error: Any = None


class Mechanisms(NamedTuple):
    mechanisms: Any


class Init(NamedTuple):
    mechanism: Symbol
    initial_response: bytes | None = None
    hostname: str | None = None


class Outcome(NamedTuple):
    code: UByte
    additional_data: bytes | None = None


Performative = (
    Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close | Mechanisms | Init | Outcome
)
CODES: dict[type, int] = {
    Open: 0x10,
    Begin: 0x11,
    Attach: 0x12,
    Flow: 0x13,
    Transfer: 0x14,
    Disposition: 0x15,
    Detach: 0x16,
    End: 0x17,
    Close: 0x18,
    Mechanisms: 0x40,
    Init: 0x41,
    Outcome: 0x44,
}
PERFORMATIVES: dict[int, Any] = {code: kind for kind, code in CODES.items()}
SASL_CODES = frozenset((Mechanisms, Init, Outcome))


class Frame(NamedTuple):
    channel: int
    performative: Performative
    payload: bytes


def framed(channel: int, performative: Performative, payload: bytes = b"") -> bytes:
    """The frame. Its list has all fields: not every client accepts the shorter lists that the standard permits."""
    kind = type(performative)
    body = bytearray((0x00, 0x53, CODES[kind]))
    put(body, list(performative))
    size = HEADER.size + len(body) + len(payload)
    return b"".join((HEADER.pack(size, 2, kind in SASL_CODES, channel), body, payload))


def error(condition: str, description: str) -> Described:
    return Described(ULong(0x1D), [Symbol(condition), description, {}])


ACCEPTED = Described(ULong(0x24), [])


def rejected(condition: str, description: str) -> Described:
    return Described(ULong(0x25), [error(condition, description)])


class Frames:
    """Cuts what arrives into protocol headers (bytes) and frames; empty frames are only signs of life, and are skipped."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.expects_header = True

    def arrived(self, data: bytes) -> None:
        self._data += data

    def next(self) -> Frame | bytes | None:
        """The next header or frame; None until more data arrives. Raises Malformed."""
        while len(self._data) >= HEADER.size:
            if self.expects_header:
                self.expects_header = False
                return self._taken(HEADER.size)
            size, offset, _, channel = HEADER.unpack_from(self._data)
            if not HEADER.size <= size <= FRAME_BYTES_MAX or offset < 2:
                raise Malformed(f"a frame of {size} octets with its body at {4 * offset}")
            if len(self._data) < size:
                return None
            data = self._taken(size)
            if size > 4 * offset:
                return _frame(data, 4 * offset, channel)
        return None

    def _taken(self, size: int) -> bytes:
        data = bytes(self._data[:size])
        del self._data[:size]
        return data


def _frame(data: bytes, at: int, channel: int) -> Frame:
    value, end = take(data, at)
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise Malformed("a frame without a performative")
    kind = PERFORMATIVES.get(value.descriptor)
    if kind is None:
        raise Malformed(f"no performative has the code {value.descriptor!r}")
    try:
        return Frame(channel, kind(*value.value), data[end:])
    except TypeError as problem:
        raise Malformed(str(problem)) from problem
