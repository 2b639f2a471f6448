"""A session: its windows, and its links by the client's handles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leasehold_emulators.eventhubs.attaching import attach
from leasehold_emulators.eventhubs.frames import Attach, Detach, Flow, Performative, Transfer, error, framed
from leasehold_emulators.eventhubs.links import Incoming, Link, Outgoing
from leasehold_emulators.eventhubs.producers import Refusal
from leasehold_emulators.eventhubs.values import UInt

if TYPE_CHECKING:
    from leasehold_emulators.eventhubs.connection import Connection

WINDOW = 1 << 30  # of transfers: credit alone limits what clients send
HANDLE_MAX = 0xFF
ID_MASK = 0xFFFF_FFFF


def distance(later: int, earlier: int) -> int:
    """The steps between two serial numbers of 32 bits (RFC 1982); negative if `later` is in fact the earlier one."""
    steps = (later - earlier) & ID_MASK
    return steps if steps < 1 << 31 else steps - (1 << 32)


@dataclass(slots=True, kw_only=True, eq=False)
class Session:
    """room: how many transfers the client still takes. next_outgoing: the id of our next transfer."""

    connection: Connection
    channel: int
    room: int
    next_incoming: int
    next_outgoing: int = 0
    links: dict[int, Link] = field(default_factory=dict)

    def send(self, performative: Performative, payload: bytes = b"") -> None:
        self.connection.wire.write(framed(self.channel, performative, payload))

    def on(self, performative: Performative, payload: bytes) -> None:
        match performative:
            case Transfer():
                self.next_incoming = (self.next_incoming + 1) & ID_MASK
                link = self.links.get(performative.handle)
                if isinstance(link, Incoming):
                    link.on_transfer(performative, payload)
            case Flow():
                self._on_flow(performative)
            case Attach():
                attach(self, performative)
            case Detach():
                self._on_detach(performative)
            case _:
                pass  # dispositions: everything is sent settled

    def _on_flow(self, flow: Flow) -> None:
        known = flow.next_incoming_id if flow.next_incoming_id is not None else 0
        self.room = distance((known + flow.incoming_window) & ID_MASK, self.next_outgoing)
        link = None if flow.handle is None else self.links.get(flow.handle)
        if isinstance(link, Outgoing):
            link.on_flow(flow)
        elif flow.echo:
            self.send_flow()
        self.connection.pump()

    def _on_detach(self, detach: Detach) -> None:
        link = self.links.pop(detach.handle, None)
        if link is not None:
            link.on_gone()
            if link.is_attached:
                self.send(Detach(detach.handle, closed=bool(detach.closed)))

    def send_flow(self, link: Link | None = None, *, drain: bool = False) -> None:
        """Send the window of the session, and the credit of the link if one is given."""
        own = None if link is None else link.flow_fields()
        self.send(
            Flow(
                UInt(self.next_incoming),
                UInt(WINDOW),
                UInt(self.next_outgoing),
                UInt(WINDOW),
                handle=None if link is None else UInt(link.handle),
                delivery_count=None if own is None else UInt(own[0]),
                link_credit=None if own is None else UInt(own[1]),
                drain=drain,
                echo=False,
            )
        )

    def refuse(self, handle: int, refusal: Refusal) -> None:
        """End a link with an error; the client answers with a detach of its own."""
        self.send(Detach(UInt(handle), closed=True, error=error(refusal.condition, refusal.description)))

    def gone(self) -> None:
        for link in self.links.values():
            link.on_gone()
        self.links.clear()
