"""A receiving connection's octets -> the events of one link, and all other frames. Pure.

https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-transport-v1.0-os.html: a frame is its size, four more octets, a
performative, and in a transfer the message, or a piece of it.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from leasehold.pipeline.connectors.eventhubs.amqp.decode import (
    FIRST_MS,
    HEAD,
    LAST_MS,
    LONG,
    SHORT,
    SIZES,
    ReceivedEvent,
    behind_report,
    event_at,
    reported_end,
)
from leasehold.pipeline.connectors.eventhubs.amqp.values import Described, Malformed, value_at

_BEGINS = b"\x00\x53\x14"
"""How the performative of a transfer begins."""
FRAME_BYTES_MIN = 8
_TAILS_MAX = 64
_RUN_MIN, _RUN_BYTES_MIN = 32, 8192
"""The fewest frames and octets that are worth numpy's overhead."""
_LAYOUTS_MAX = 4
"""How many layouts are tried within one piece: the frames of some links are all different."""
_TRANSFER = re.compile(
    rb"\x00\x53\x14(?:\xc0(.).|\xd0(.{4}).{4})"  # the length of its fields
    rb"(\x43|\x52.|\x70.{4})(?:\x43|\x52.|\x70.{4})"  # handle, delivery id
    rb"\xa0(?:\x01.|\x02..|\x03...|\x04.{4}|\x08.{8}|\x10.{16})",  # delivery tag
    re.DOTALL,
)
"""The part in which all transfers of a link differ. The rest (format, settled, more ...) has only a few variants."""
_SIZE, _U16 = struct.Struct(">I"), struct.Struct(">H")


Numbers: TypeAlias = NDArray[np.int64]
Truths: TypeAlias = NDArray[np.bool_]


class Columns(NamedTuple):
    """Events that have bodies and no properties, a column for each field."""

    data: bytes
    offsets: NDArray[np.uint8]
    """The digits of each offset; all are equally long."""
    keys: Numbers | None
    """The begin and end of each key in the data: two zeros if an event has no key. None if no event has one."""
    sequences: Numbers
    times_ms: Numbers
    bodies: Numbers
    """The begin and end of each body in the data."""

    def cut(self, begin: int, end: int) -> Columns:
        places = slice(begin, end)
        keys = None if self.keys is None else self.keys[places]
        rest = (column[places] for column in (self.sequences, self.times_ms, self.bodies))
        return Columns(self.data, self.offsets[places], keys, *rest)


_KEY = b"\xa3\x13x-opt-partition-key\xa1"
_KEY_LAYOUT = np.dtype([("name", f"S{len(_KEY)}"), ("size", "u1")])
_WITHOUT_KEY, _WITH_KEY = 6, 8
"""How many names and values, counted together, the annotations have."""
_HEAD = np.dtype(">u8")
"""A body's section and its length."""
_LAYOUT_BYTES_MAX = 2048


class Layout:
    """Frames that equal one frame up to the enqueued time; only numbers, sizes and reports may differ.

    A key may follow, and then one data section. numpy reads all such frames at once.
    """

    def __init__(
        self, octets: bytes, free: list[tuple[int, int]], fields: dict[str, tuple[int, Any]], report: int | None
    ) -> None:
        """free: begins and ends of what differs. fields: offsets and types of what is read. report: its offset, or None."""
        size = -(-len(octets) // 8) * 8  # whole words are compared
        mask = bytearray(b"\xff" * len(octets)).ljust(size, b"\0")
        for begin, end in free:
            mask[begin:end] = bytes(end - begin)
        self.report = report
        self._end = len(octets)
        self._mask = np.frombuffer(mask, np.uint64)
        self._octets = np.frombuffer(octets.ljust(size, b"\0"), np.uint64) & self._mask
        offsets, kinds = zip(*fields.values(), strict=True)
        self._fields = np.dtype({"names": list(fields), "formats": kinds, "offsets": offsets, "itemsize": size})

    def read(self, data: bytes, begins: Numbers, ends: Numbers) -> tuple[Truths, Columns]:
        """Which of these frames have the layout, and the columns of all. Values of the other frames are arbitrary."""
        rows = _octets_at(data, begins, self._fields)
        words = rows.view(np.uint64).reshape(len(rows), -1)
        alike: Truths = ((words & self._mask) == self._octets).all(axis=1)
        digits, times_ms = rows["offset"], rows["time"].astype(np.int64)
        alike &= (digits - np.uint8(ord("0")) < 10).all(axis=1) & (times_ms >= FIRST_MS) & (times_ms <= LAST_MS)
        sequences, at, keys = rows["sequence"].astype(np.int64), begins + self._end, None
        has_key = rows["count"] == _WITH_KEY
        alike &= has_key | (rows["count"] == _WITHOUT_KEY)
        if has_key.any():
            key = _octets_at(data, at, _KEY_LAYOUT)
            alike &= (key["name"] == _KEY) | ~has_key
            key_at = at + _KEY_LAYOUT.itemsize
            keys = np.where(has_key, (key_at, key_at + key["size"]), 0).T
            at = np.where(has_key, keys[:, 1], at)
        head = _octets_at(data, at, _HEAD).astype(np.int64)
        is_short, is_long = (head >> 32 == int.from_bytes(section) for section in (SHORT, LONG))
        body = at + np.where(is_short, len(SHORT) + 1, len(LONG) + 4)
        body_end = body + np.where(is_short, head >> 24 & 0xFF, head & 0xFFFF_FFFF)
        alike &= (is_short | is_long) & (body_end == ends) & (at <= len(data) - _HEAD.itemsize)
        return alike, Columns(data, digits, keys, sequences, times_ms, np.stack((body, body_end), axis=1))


def _octets_at(data: bytes, places: Numbers, kind: np.dtype[Any]) -> NDArray[Any]:
    """The value that begins at each of the places; an arbitrary one for places too near to the end of the data."""
    last = len(data) - kind.itemsize
    whole = np.ndarray((last + 1,), f"V{kind.itemsize}", data, strides=(1,))
    return whole[np.minimum(places, last)].view(kind)


def layout_at(data: bytes, at: int, end: int) -> Layout | None:
    """The layout of a frame that held one whole event. None for a kind of frame that is rare."""
    transfer = _TRANSFER.match(data, at + 4 * data[at + 4], end)
    if transfer is None:
        return None
    short, long, _ = transfer.groups()
    message = transfer.start() + (5 + short[0] if short is not None else 8 + _SIZE.unpack(long)[0])
    head = HEAD.match(data, behind_report(data, message), end)
    if head is None or head[4][0] != len(head[5]) or head.end(6) - at > _LAYOUT_BYTES_MAX:
        return None
    report = message - at if message < head.start() else None
    if report is not None and data[message + 3] not in SIZES:
        return None
    delivery_id = transfer.end(3)
    tag = delivery_id + {0x43: 1, 0x52: 2, 0x70: 5}[data[delivery_id]]
    size, content = SIZES[data[head.start() + 3]]
    count = head.start() + content + size - 1
    sequence, kind = (head.start(2), "i1") if head[2] is not None else (head.start(3), ">i8")
    free = [
        (at, at + 4),
        (delivery_id + 1, tag),
        (tag + 2, transfer.end()),
        (head.start() + 4, head.start() + 4 + size),
        (count, count + 1),
        (sequence, head.end(2) if head[2] is not None else head.end(3)),
        head.span(5),
        head.span(6),
    ]
    if report is not None:
        free.append((message + 4 + SIZES[data[message + 3]][0], head.start()))
    fields = {
        "count": (count - at, "u1"),
        "sequence": (sequence - at, kind),
        "offset": (head.start(5) - at, ("u1", (len(head[5]),))),
        "time": (head.start(6) - at, ">i8"),
    }
    return Layout(data[at : head.end(6)], [(begin - at, end - at) for begin, end in free], fields, report)


class Transfer(NamedTuple):
    """The fields of a transfer. begin: the offset of its message. more: the message continues in the next transfer."""

    handle: int
    begin: int
    more: bool
    aborted: bool


class Frame(NamedTuple):
    """A frame that is not a transfer of our link. octets: its performative and all that follows."""

    channel: int
    octets: bytes


@dataclass(slots=True)
class Read:
    """What a piece of a connection held. transfers: those of our link, for its session to count; a message can take several."""

    runs: list[list[ReceivedEvent] | Columns] = field(default_factory=list)
    """The events, some of them as columns."""
    others: list[Frame] = field(default_factory=list)
    transfers: int = 0
    deliveries: int = 0
    malformed: Malformed | None = None

    def add(self, event: ReceivedEvent) -> None:
        if not self.runs or not isinstance(self.runs[-1], list):
            self.runs.append([])
        self.runs[-1].append(event)  # type: ignore[union-attr]  # a list, as checked above


class Frames:
    """The frames of one connection, whose octets arrive in pieces. Our link is the peer's `handle` on `channel`."""

    def __init__(self, channel: int, handle: int, *, trusts_properties: bool = False) -> None:
        """trusts_properties: as for `event_at`."""
        self._channel = channel
        self._handle = handle
        self._trusts_properties = trusts_properties
        self._left = b""
        self._message = bytearray()
        self._tails: dict[bytes, tuple[bool, bool]] = {}
        self._layout: Layout | None = None
        self._report: tuple[bytes, int] | None = None
        self.end: int | None = None
        """The partition's end that was reported last; None if none was."""

    def read(self, octets: bytes) -> Read:
        """Read all complete frames. A message that is not an event ends the reading: only earlier events are returned."""
        data = self._left + octets if self._left else octets
        read, bounds = Read(), _bounds_of_frames(data)
        at, end = 0, len(bounds) - 1
        if end >= _RUN_MIN and len(data) >= _RUN_BYTES_MIN:
            for _ in range(_LAYOUTS_MAX):
                at = self._read_alike(data, bounds, at, read)
        self._read_each(data, bounds[at:], read)
        if read.malformed is None and _is_no_frame(data, bounds[-1]):
            raise Malformed("it is not an AMQP connection")
        self._left = data[bounds[-1] :]
        self._read_report()
        return read

    def _read_each(self, data: bytes, bounds: Sequence[int], read: Read) -> None:
        for begin, end in pairwise(bounds):
            if read.malformed is not None:
                return
            self._read_frame(data, begin, end, read)

    def _read_alike(self, data: bytes, bounds: Sequence[int], at: int, read: Read) -> int:
        """Read from the frame `at` on, runs of the present layout at once. Returns at which frame another layout may begin."""
        last = len(bounds) - 1
        if self._layout is not None and last - at >= _RUN_MIN:
            places = np.array(bounds[at:], np.int64)
            alike, columns = self._layout.read(data, places[:-1], places[1:])
            first = at
            for begin, end in _runs(alike):
                self._read_each(data, bounds[at : first + begin + 1], read)
                at = first + begin
                if self._message or read.malformed is not None:
                    break
                read.runs.append(columns.cut(begin, end))
                read.transfers += end - begin
                read.deliveries += end - begin
                at = first + end
                if self._layout.report is not None:
                    self._report = (data, bounds[at - 1] + self._layout.report)
        if last - at >= _RUN_MIN and read.malformed is None:
            if self._read_frame(data, bounds[at], bounds[at + 1], read):
                self._layout = layout_at(data, bounds[at], bounds[at + 1])
            at += 1
        return at

    def _read_report(self) -> None:
        """Read only the report of the last event: each event has one, and the last is the newest."""
        report, self._report = self._report, None
        with suppress(Malformed):
            if report is not None and (end := reported_end(*report)) is not None:
                self.end = end

    def _read_frame(self, data: bytes, at: int, end: int, read: Read) -> bool:
        """Read one frame. Returns whether it was one whole event."""
        begin = at + 4 * data[at + 4]
        if begin >= end:
            return False  # an empty frame: the other side is alive
        channel = _U16.unpack_from(data, at + 6)[0]
        is_transfer = channel == self._channel and data.startswith(_BEGINS, begin, end)
        transfer = self._transfer(data, begin, end) if is_transfer else None
        if transfer is None or transfer.handle != self._handle:
            read.others.append(Frame(channel, data[begin:end]))
            return False
        read.transfers += 1
        is_whole = not (self._message or transfer.aborted or transfer.more)
        if transfer.aborted:
            self._message.clear()
        elif transfer.more:
            self._message += data[transfer.begin : end]
            return False
        else:
            self._read_message(data, transfer.begin, end, read)
        read.deliveries += 1
        return is_whole and read.malformed is None

    def _read_message(self, data: bytes, at: int, end: int, read: Read) -> None:
        if self._message:
            data = bytes(self._message + data[at:end])
            at, end = 0, len(data)
            self._message.clear()
        try:
            begin = behind_report(data, at)
            read.add(event_at(data, begin, end, trusts_properties=self._trusts_properties))
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
    """Read a transfer field by field. at: the offset of its performative."""
    described, begin = value_at(performative)
    fields = described.value if isinstance(described, Described) else None
    if not isinstance(fields, list) or not fields or type(fields[0]) is not int:
        raise Malformed("a transfer names no link")
    more, aborted = (len(fields) > place and fields[place] is True for place in (5, 9))
    return Transfer(fields[0], at + begin, more, aborted)


def _bounds_of_frames(data: bytes) -> list[int]:
    """The offsets at which complete frames begin, and at which the last one ends."""
    at, end, bounds, size_at = 0, len(data), [0], _SIZE.unpack_from
    while end - at >= FRAME_BYTES_MIN:
        size = size_at(data, at)[0]
        at += size
        if size < FRAME_BYTES_MIN or at > end:
            break
        bounds.append(at)
    return bounds


def _is_no_frame(data: bytes, at: int) -> bool:
    return len(data) - at >= FRAME_BYTES_MIN and _SIZE.unpack_from(data, at)[0] < FRAME_BYTES_MIN


def _runs(alike: Truths) -> Iterator[tuple[int, int]]:
    """Begin and end of each run that is worth numpy's overhead."""
    edges = np.flatnonzero(np.diff(alike, prepend=False, append=False))
    return ((begin, end) for begin, end in edges.reshape(-1, 2).tolist() if end - begin >= _RUN_MIN)
