"""A receiving connection's octets -> the events of one link, and all other frames. Pure.

https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-transport-v1.0-os.html: a frame is its size, four octets more, a
performative, and in a transfer the message, or a piece of it.
"""

from __future__ import annotations

import re
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.connectors.eventhubs.amqp.decode import ReceivedEvent, behind_report, event_at, reported_end
from pipeline.connectors.eventhubs.amqp.values import Described, Malformed, value_at

_BEGINS = b"\x00\x53\x14"
"""A transfer, among frames."""
FRAME_BYTES_MIN = 8
_TAILS_MAX = 64
_TRANSFER = re.compile(
    rb"\x00\x53\x14(?:\xc0(.).|\xd0(.{4}).{4})"  # how long its fields are
    rb"(\x43|\x52.|\x70.{4})(?:\x43|\x52.|\x70.{4})"  # handle, delivery id
    rb"\xa0(?:\x01.|\x02..|\x03...|\x04.{4}|\x08.{8}|\x10.{16})",  # delivery tag
    re.DOTALL,
)
"""Up to where all transfers of a link differ; what follows (format, settled, more ...) is one of few."""
_SIZE, _U16 = struct.Struct(">I"), struct.Struct(">H")


class Transfer(NamedTuple):
    """The fields of a transfer. begin: the offset of its message. more: the message continues in the next transfer."""

    handle: int
    begin: int
    more: bool
    aborted: bool


class Frame(NamedTuple):
    """One that is not a transfer of our link. octets: its performative and all behind it."""

    channel: int
    octets: bytes


@dataclass(slots=True)
class Read:
    """What a piece of a connection held. transfers: of our link, for its session to count; some messages take several."""

    events: list[ReceivedEvent] = field(default_factory=list)
    others: list[Frame] = field(default_factory=list)
    transfers: int = 0
    deliveries: int = 0
    malformed: Malformed | None = None


class Frames:
    """The frames of one connection, whose octets arrive in pieces. Our link is the peer's `handle` on `channel`."""

    def __init__(self, channel: int, handle: int) -> None:
        self._channel = channel
        self._handle = handle
        self._left = b""
        self._message = bytearray()
        self._tails: dict[bytes, tuple[bool, bool]] = {}
        self._report: tuple[bytes, int] | None = None
        self.end: int | None = None
        """The partition's end, as it was reported last; None if it was not."""

    def read(self, octets: bytes) -> Read:
        """All complete frames. A message that is not an event ends it: only earlier events are returned."""
        data = self._left + octets if self._left else octets
        read, at, end = Read(), 0, len(data)
        while end - at >= FRAME_BYTES_MIN and read.malformed is None:
            size = _SIZE.unpack_from(data, at)[0]
            if size < FRAME_BYTES_MIN:
                raise Malformed("it is not an AMQP connection")
            if at + size > end:
                break
            self._read_frame(data, at, at + size, read)
            at += size
        self._left = data[at:]
        self._read_report()
        return read

    def _read_report(self) -> None:
        """From the last event alone: each has one, and the last is the newest."""
        report, self._report = self._report, None
        with suppress(Malformed):
            if report is not None and (end := reported_end(*report)) is not None:
                self.end = end

    def _read_frame(self, data: bytes, at: int, end: int, read: Read) -> None:
        begin = at + 4 * data[at + 4]
        if begin >= end:
            return  # an empty frame: the other side is alive
        channel = _U16.unpack_from(data, at + 6)[0]
        is_transfer = channel == self._channel and data.startswith(_BEGINS, begin, end)
        transfer = self._transfer(data, begin, end) if is_transfer else None
        if transfer is None or transfer.handle != self._handle:
            read.others.append(Frame(channel, data[begin:end]))
            return
        read.transfers += 1
        if transfer.aborted:
            self._message.clear()
        elif transfer.more:
            self._message += data[transfer.begin : end]
            return
        else:
            self._read_message(data, transfer.begin, end, read)
        read.deliveries += 1

    def _read_message(self, data: bytes, at: int, end: int, read: Read) -> None:
        if self._message:
            data = bytes(self._message + data[at:end])
            at, end = 0, len(data)
            self._message.clear()
        try:
            begin = behind_report(data, at)
            read.events.append(event_at(data, begin, end))
            self._report = (data, at) if begin > at else self._report
        except Malformed as malformed:
            read.malformed = malformed

    def _transfer(self, data: bytes, at: int, end: int) -> Transfer:
        """Raises Malformed."""
        found = _TRANSFER.match(data, at, end)
        if found is None:
            return _transfer_of(data[at:end], at)
        short, long, handle = found.groups()
        begin = at + (5 + short[0] if short is not None else 8 + _SIZE.unpack(long)[0])
        tail = data[found.end() : begin]
        flags = self._tails.get(tail)
        if flags is None:
            transfer = _transfer_of(data[at:end], at)
            if len(self._tails) < _TAILS_MAX:
                self._tails[tail] = (transfer.more, transfer.aborted)
            return transfer
        return Transfer(int.from_bytes(handle[1:]), begin, *flags)


def _transfer_of(performative: bytes, at: int) -> Transfer:
    """Field by field. at: the offset in the whole."""
    described, begin = value_at(performative)
    fields = described.value if isinstance(described, Described) else None
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise Malformed("a transfer names no link")
    more, aborted = (len(fields) > place and fields[place] is True for place in (5, 9))
    return Transfer(fields[0], at + begin, more, aborted)
