"""What all links have in common: credit, messages joined from incoming transfers, messages cut into outgoing transfers."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold_emulators.eventhubs.frames import ACCEPTED, HEADER, Disposition, Flow, Transfer, framed, rejected
from leasehold_emulators.eventhubs.producers import Refusal
from leasehold_emulators.eventhubs.values import UInt

if TYPE_CHECKING:
    from leasehold_emulators.eventhubs.session import Session

CREDIT = 300
ID_MASK = 0xFFFF_FFFF
# A settled transfer of one frame: all eleven fields, the id as number and as tag.
TRANSFER = struct.Struct(">IBBH6s2sBIHI8s")
START = b"\x00\x53\x14\xc0\x16\x0b"
REST = b"\x43\x41\x42\x40\x40\x42\x42\x42"
UINT, TAG = 0x70, 0xA004


@dataclass(slots=True, kw_only=True, eq=False)
class Link(ABC):
    """is_attached: until either side has detached it."""

    session: Session
    handle: int
    name: str
    is_attached: bool = True

    @property
    def entity(self) -> str | None:
        """The hub for which the link needs a token."""
        return None

    @abstractmethod
    def flow_fields(self) -> tuple[int, int]:
        """Delivery count and credit."""

    def detach(self, refusal: Refusal) -> None:
        if self.is_attached:
            self.is_attached = False
            self.session.refuse(self.handle, refusal)
            self.on_gone()

    def on_gone(self) -> None:
        """Called when either side has detached the link, or the connection has ended."""


@dataclass(slots=True, kw_only=True, eq=False)
class Incoming(Link):
    """A link on which the client sends. bytes_max: a longer message is rejected, and not kept."""

    bytes_max: int
    credit: int = CREDIT
    delivery_count: int = 0
    _parts: list[bytes] = field(default_factory=list)
    _length: int = 0
    _first: Transfer | None = None

    def flow_fields(self) -> tuple[int, int]:
        return self.delivery_count, self.credit

    def begun(self) -> None:
        self.session.send_flow(self)

    def on_transfer(self, transfer: Transfer, payload: bytes) -> None:
        if not self.is_attached:
            return
        if self._first is None:
            self._first = transfer
        self._length += len(payload)
        if self._length <= self.bytes_max:
            self._parts.append(payload)
        if transfer.more and not transfer.aborted:
            return
        first, message, length = self._first, b"".join(self._parts), self._length
        self._first, self._parts, self._length = None, [], 0
        self._used()
        if not transfer.aborted:
            self._whole(first, message, length)

    def _used(self) -> None:
        self.delivery_count = (self.delivery_count + 1) & ID_MASK
        self.credit -= 1
        if self.credit <= CREDIT // 2:
            self.credit = CREDIT
            self.session.send_flow(self)

    def _whole(self, first: Transfer, message: bytes, length: int) -> None:
        id_, is_settled = first.delivery_id or UInt(0), bool(first.settled)
        if length > self.bytes_max:
            text = f"The received message (delivery-id:{id_}, size:{length} bytes) exceeds the limit ({self.bytes_max} bytes)."
            self.settle(id_, Refusal(condition="amqp:link:message-size-exceeded", description=text), is_settled)
        else:
            self.on_message(id_, first.message_format or 0, message, is_settled)

    @abstractmethod
    def on_message(self, id_: int, message_format: int, message: bytes, is_settled: bool) -> None: ...

    def settle(self, id_: int, refusal: Refusal | None, is_settled: bool = False) -> None:
        """Accept a message, or reject it for a reason; a client that sent it settled gets no answer."""
        if is_settled or not self.is_attached:
            return
        state = rejected(refusal.condition, refusal.description) if refusal else ACCEPTED
        self.session.send(Disposition(True, UInt(id_), UInt(id_), settled=True, state=state, batchable=False))


@dataclass(slots=True, kw_only=True, eq=False)
class Outgoing(Link):
    """A link on which the client receives as many messages as it has given credit for."""

    credit: int = 0
    delivery_count: int = 0

    def flow_fields(self) -> tuple[int, int]:
        return self.delivery_count, self.credit

    def on_flow(self, flow: Flow) -> None:
        known = flow.delivery_count if flow.delivery_count is not None else 0
        given = flow.link_credit if flow.link_credit is not None else 0
        self.credit = max(0, given - ((self.delivery_count - known) & ID_MASK))
        if flow.drain:
            self.pump()
            self.delivery_count = (self.delivery_count + self.credit) & ID_MASK
            self.credit = 0
        if flow.drain or flow.echo:
            self.session.send_flow(self, drain=bool(flow.drain))

    @abstractmethod
    def pump(self) -> bool:
        """Send some of what waits, and return whether anything waited."""

    @property
    def room(self) -> int:
        """How many transfers may be sent now."""
        return min(self.credit, self.session.room) if self.is_attached else 0

    def transfer(self, messages: list[bytes]) -> None:
        """Send messages, at most as many as there is room for."""
        session = self.session
        limit = session.connection.frame_bytes_max - TRANSFER.size
        if any(len(message) > limit for message in messages):
            frames = [frame for message in messages for frame in self._frames(message, limit)]
        else:
            id_ = session.next_outgoing
            channel, handle, size = session.channel, bytes((0x52, self.handle)), TRANSFER.size
            pack = TRANSFER.pack
            frames = []
            for message in messages:
                frames.append(pack(size + len(message), 2, 0, channel, START, handle, UINT, id_, TAG, id_, REST))
                frames.append(message)
                id_ = (id_ + 1) & ID_MASK
            session.next_outgoing = id_
            session.room -= len(messages)
        self.delivery_count = (self.delivery_count + len(messages)) & ID_MASK
        self.credit -= len(messages)
        session.connection.wire.write(b"".join(frames))

    def _frames(self, message: bytes, limit: int) -> list[bytes]:
        """The frames of one message: each names the delivery, and takes one place in the session's window."""
        session = self.session
        id_ = session.next_outgoing
        frames = []
        for at in range(0, len(message), limit):
            more = at + limit < len(message)
            head = Transfer(UInt(self.handle), UInt(id_), id_.to_bytes(4, "big"), UInt(0), True, more)
            frames.append(
                framed(
                    session.channel,
                    head._replace(resume=False, aborted=False, batchable=False),
                    message[at : at + limit],
                )
            )
        session.next_outgoing = (session.next_outgoing + len(frames)) & ID_MASK
        session.room -= len(frames)
        return frames


assert HEADER.size + 27 == TRANSFER.size
