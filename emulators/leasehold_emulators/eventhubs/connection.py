"""A connection as a state machine without sockets: it gets what arrives, and writes its answers to its wire."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from enum import Enum, auto

from leasehold_emulators.eventhubs.asking import UNAUTHORIZED
from leasehold_emulators.eventhubs.frames import (
    AMQP,
    EMPTY,
    FRAME_BYTES_MAX,
    SASL,
    Begin,
    Close,
    End,
    Frame,
    Frames,
    Init,
    Mechanisms,
    Open,
    Outcome,
    error,
    framed,
)
from leasehold_emulators.eventhubs.links import Link, Outgoing
from leasehold_emulators.eventhubs.namespace import Namespace
from leasehold_emulators.eventhubs.producers import Refusal
from leasehold_emulators.eventhubs.session import HANDLE_MAX, WINDOW, Session
from leasehold_emulators.eventhubs.tokens import Grant, Grants, plain
from leasehold_emulators.eventhubs.values import Array, Malformed, Symbol, UByte, UInt, UShort
from leasehold_emulators.eventhubs.wire import Wire

IDLE_MS = 240_000
MECHANISMS = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")


class State(Enum):
    HEADER = auto()
    SASL = auto()
    OPEN = auto()
    CLOSED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class Connection:
    """frame_bytes_max: the client's limit. heartbeat_s: how often the client wants a frame; None until that is known."""

    namespace: Namespace
    wire: Wire
    frames: Frames = field(default_factory=Frames)
    state: State = State.HEADER
    sessions: dict[int, Session] = field(default_factory=dict)
    grants: Grants = field(default_factory=Grants)
    frame_bytes_max: int = FRAME_BYTES_MAX
    heartbeat_s: float | None = None
    container: str = ""
    _is_woken: bool = False

    def receive(self, data: bytes) -> None:
        self.frames.arrived(data)
        try:
            while self.state is not State.CLOSED and (arrived := self.frames.next()) is not None:
                if isinstance(arrived, bytes):
                    self._on_header(arrived)
                else:
                    self._on_frame(arrived)
        except Malformed as problem:
            self.close(Refusal(condition="amqp:decode-error", description=str(problem)))

    def _on_header(self, header: bytes) -> None:
        if header == SASL and self.state is State.HEADER:
            self.state = State.SASL
            mechanisms = Mechanisms(Array([Symbol(name) for name in MECHANISMS]))
            self.wire.write(SASL + framed(0, mechanisms))
        elif header == AMQP:
            self.state = State.OPEN
            self.wire.write(AMQP)
        else:
            self.wire.write(SASL)
            self.gone()
            self.wire.close()

    def _on_frame(self, frame: Frame) -> None:
        match frame.performative:
            case Init():
                self._on_init(frame.performative)
            case Open():
                self._on_open(frame.performative)
            case Begin():
                self._on_begin(frame.channel, frame.performative)
            case End():
                session = self.sessions.pop(frame.channel, None)
                if session:
                    session.gone()
                    self.wire.write(framed(frame.channel, End()))
            case Close():
                self.close()
            case performative:
                session = self.sessions.get(frame.channel)
                if session:
                    session.on(performative, frame.payload)

    def _on_init(self, init: Init) -> None:
        is_known = init.mechanism in MECHANISMS
        if init.mechanism == "PLAIN":
            name, key = plain(init.initial_response or b"")
            is_known = self.namespace.keys.keys.get(name) == key
            if is_known:
                self.grants.put(Grant(path="", until_s=float("inf")))
        self.frames.expects_header = True
        self.wire.write(framed(0, Outcome(UByte(0 if is_known else 1))))

    def _on_open(self, asked: Open) -> None:
        self.container = asked.container_id
        if asked.max_frame_size is not None:
            self.frame_bytes_max = min(max(512, asked.max_frame_size), FRAME_BYTES_MAX)
        if asked.idle_time_out:
            self.heartbeat_s = asked.idle_time_out / 2000
        self.wire.write(
            framed(
                0,
                Open(
                    uuid.uuid4().hex,
                    asked.hostname,
                    UInt(FRAME_BYTES_MAX),
                    UShort(4999),
                    UInt(IDLE_MS),
                ),
            )
        )

    def _on_begin(self, channel: int, asked: Begin) -> None:
        self.sessions[channel] = Session(
            connection=self, channel=channel, room=asked.incoming_window, next_incoming=asked.next_outgoing_id
        )
        most = UInt(min(HANDLE_MAX, asked.handle_max if asked.handle_max is not None else HANDLE_MAX))
        self.wire.write(framed(channel, Begin(UShort(channel), UInt(0), UInt(WINDOW), UInt(WINDOW), most)))

    # --- for sessions and edges ---

    def is_granted(self, hub: str) -> bool:
        return self.grants.cover(hub, self.namespace.now_ms() / 1000)

    def grant(self, grant: Grant) -> None:
        self.grants.put(grant)
        self.wire.later(max(0.0, grant.until_s - self.namespace.now_ms() / 1000), self.expire)

    def expire(self) -> None:
        """Detach the links whose token has expired."""
        for link in self.links():
            if link.is_attached and link.entity is not None and not self.is_granted(link.entity):
                text = f"ExpiredToken: The token of '{link.entity}' is expired."
                link.detach(Refusal(condition=UNAUTHORIZED, description=text))

    def links(self) -> list[Link]:
        return [link for session in self.sessions.values() for link in session.links.values()]

    def heartbeat(self) -> None:
        if self.state is State.OPEN:
            self.wire.write(EMPTY)

    def wake(self) -> None:
        """Pump soon, once for all callers."""
        if not self._is_woken:
            self._is_woken = True
            self.wire.later(0, self._woken)

    def _woken(self) -> None:
        self._is_woken = False
        self.pump()

    def pump(self) -> None:
        """Let every link send in turn, until nothing is left or the wire is full."""
        goes_on = True
        while goes_on and self.state is State.OPEN:
            goes_on = False
            for link in self.links():
                if self.wire.is_full:
                    return
                if isinstance(link, Outgoing):
                    goes_on |= link.pump()

    def close(self, refusal: Refusal | None = None) -> None:
        """Close the connection, with a close frame that gives the reason."""
        if self.state is State.OPEN:
            reason = error(refusal.condition, refusal.description) if refusal else None
            self.wire.write(framed(0, Close(reason)))
        self.gone()
        self.wire.close()

    def abort(self) -> None:
        """End the connection without reading or writing any more data."""
        self.gone()
        self.wire.abort()

    def gone(self) -> None:
        """End all sessions: the client is no longer there."""
        self.state = State.CLOSED
        for session in self.sessions.values():
            session.gone()
        self.sessions.clear()
