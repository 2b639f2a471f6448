"""The server's connections without sockets: what a client that is not well-behaved, or in a hurry, meets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from leasehold_emulators.eventhubs.codec import encode
from leasehold_emulators.eventhubs.connection import Connection, State
from leasehold_emulators.eventhubs.faults import Fault
from leasehold_emulators.eventhubs.frames import (
    AMQP,
    EMPTY,
    SASL,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    Flow,
    Frame,
    Frames,
    Init,
    Mechanisms,
    Open,
    Outcome,
    Performative,
    Transfer,
    framed,
)
from leasehold_emulators.eventhubs.messages import contents, data_event
from leasehold_emulators.eventhubs.namespace import Namespace
from leasehold_emulators.eventhubs.tokens import Keys
from leasehold_emulators.eventhubs.values import Described, Symbol, UInt, ULong, UShort

NOW_MS = 1_700_000_000_000
PLAIN = framed(0, Init(Symbol("PLAIN"), b"\0name\0key"))


@dataclass(slots=True)
class Wire:
    written: bytearray = field(default_factory=bytearray)
    waiting: list[Callable[[], None]] = field(default_factory=list)
    is_full: bool = False
    is_closed: bool = False
    is_aborted: bool = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True

    def later(self, delay_s: float, act: Callable[[], None]) -> None:
        self.waiting.append(act)


class Client:
    """Says what it is told to, and reads what comes back."""

    def __init__(self, frame_bytes_max: int = 65_536) -> None:
        self.wire = Wire()
        self.namespace = Namespace(keys=Keys(keys={"name": "key"}), now_ms=lambda: NOW_MS)
        self.hub = self.namespace.make_hub("hub", 1)
        self.connection = Connection(namespace=self.namespace, wire=self.wire)
        self.frames = Frames()
        self.frame_bytes_max = frame_bytes_max

    @property
    def stored(self) -> int:
        return self.hub.partitions[0].end

    def say(self, *performatives: Performative, payload: bytes = b"") -> None:
        self.connection.receive(b"".join(framed(1, each, payload) for each in performatives))

    def heard(self) -> list[Performative | bytes]:
        self.frames.arrived(bytes(self.wire.written))
        self.wire.written.clear()
        found: list[Performative | bytes] = []
        while (one := self.frames.next()) is not None:
            found.append(one.performative if isinstance(one, Frame) else one)
            if isinstance(found[-1], Outcome):
                self.frames.expects_header = True
        return found

    def open(self, window: int = 1000) -> Client:
        self.connection.receive(SASL + PLAIN + AMQP)
        self.say(
            Open("client", "host", UInt(self.frame_bytes_max), UShort(1), UInt(60_000)),
            Begin(None, UInt(0), UInt(window), UInt(window)),
        )
        self.heard()
        return self

    def send_link(self) -> Client:
        target = Described(ULong(0x29), ["hub/Partitions/0"])
        self.say(Attach("sender", UInt(0), False, target=target, initial_delivery_count=UInt(0)))
        self.heard()
        return self

    def receive_link(self) -> Client:
        source = Described(ULong(0x28), ["hub/ConsumerGroups/$Default/Partitions/0"])
        self.say(Attach("receiver", UInt(0), True, source=source))
        self.heard()
        return self

    def credit(self, credit: int, window: int = 1000, known: int = 0, **more: bool) -> None:
        ids = (UInt(known), UInt(window), UInt(0), UInt(0))
        self.say(Flow(*ids, handle=UInt(0), delivery_count=UInt(known), link_credit=UInt(credit), **more))

    def fill(self, count: int, size: int = 10) -> Client:
        self.hub.partitions[0].append([data_event(b"x" * size)] * count, NOW_MS)
        return self


def kinds(performatives: list[Performative | bytes]) -> list[type]:
    return [type(each) for each in performatives]


def transfer(id_: int, *, more: bool = False) -> Transfer:
    return Transfer(UInt(0), UInt(id_), b"%d" % id_, UInt(0), False, more)


def test_a_client_is_greeted_as_the_standard_has_it() -> None:
    client = Client()
    client.connection.receive(SASL + PLAIN)
    header, mechanisms, outcome = client.heard()
    assert header == SASL
    assert isinstance(mechanisms, Mechanisms)
    assert isinstance(outcome, Outcome)
    assert outcome.code == 0
    client.connection.receive(AMQP + framed(0, Open("client")))
    assert kinds(client.heard()) == [bytes, Open]


def test_a_wrong_password_and_a_mechanism_that_is_not_spoken_are_refused() -> None:
    for init in (Init(Symbol("PLAIN"), b"\0name\0wrong"), Init(Symbol("SCRAM"))):
        client = Client()
        client.connection.receive(SASL + framed(0, init))
        outcome = client.heard()[-1]
        assert isinstance(outcome, Outcome)
        assert outcome.code == 1


def test_another_protocol_is_told_which_one_is_spoken() -> None:
    client = Client()
    client.connection.receive(b"GET / HTTP/1.1\r\n\r\n")
    assert client.heard() == [SASL]
    assert client.wire.is_closed


@pytest.mark.parametrize("octets", [b"\x00\x00\x00\x09\x02\x00\x00\x00\xff", b"\xff" * 16])
def test_what_is_no_frame_ends_the_connection_with_the_reason(octets: bytes) -> None:
    client = Client().open()
    client.connection.receive(octets)
    [close] = client.heard()
    assert isinstance(close, Close)
    assert close.error.value[0] == "amqp:decode-error"
    assert client.wire.is_closed


def test_a_link_without_a_token_is_refused_with_both_ends_null() -> None:
    client = Client()
    client.connection.receive(SASL + framed(0, Init(Symbol("ANONYMOUS"))) + AMQP)
    client.say(Open("client"), Begin(None, UInt(0), UInt(9), UInt(9)))
    client.heard()
    client.say(Attach("sender", UInt(0), False, target=Described(ULong(0x29), ["hub"])))
    attach, detach = client.heard()
    assert isinstance(attach, Attach)
    assert isinstance(detach, Detach)
    assert (attach.source, attach.target, detach.closed) == (None, None, True)
    assert detach.error.value[0] == "amqp:unauthorized-access"


def test_nothing_is_sent_without_credit_nor_beyond_the_window() -> None:
    client = Client().open(window=3).receive_link().fill(10)
    assert client.heard() == []
    client.credit(5, window=3)
    assert len(client.heard()) == 3
    client.credit(5, window=3, known=3)
    assert len(client.heard()) == 3
    client.credit(0, window=9, known=6)
    assert client.heard() == []
    client.credit(100, window=100, known=6)
    assert len(client.heard()) == 4


def test_a_flow_that_crossed_what_was_sent_counts_it() -> None:
    client = Client().open(window=3).receive_link().fill(20)
    client.credit(20, window=3)
    assert len(client.heard()) == 3
    client.credit(20, window=3, known=1)  # said when it had only seen one
    assert len(client.heard()) == 1
    client.credit(5, window=1000, known=1)
    assert len(client.heard()) == 2


def test_what_comes_later_goes_out_once_and_without_being_asked_for() -> None:
    client = Client().open().receive_link()
    client.credit(10)
    client.fill(2).fill(1)
    assert client.heard() == []
    [act] = client.wire.waiting
    act()
    assert kinds(client.heard()) == [Transfer] * 3


def test_a_drained_link_has_no_credit_left() -> None:
    client = Client().open().receive_link().fill(2)
    client.credit(10, drain=True)
    *sent, flow = client.heard()
    assert kinds(sent) == [Transfer, Transfer]
    assert isinstance(flow, Flow)
    assert (flow.delivery_count, flow.link_credit, flow.drain) == (10, 0, True)


def test_a_full_wire_is_left_alone_until_it_has_emptied() -> None:
    client = Client().open().receive_link().fill(5)
    client.wire.is_full = True
    client.credit(10)
    assert client.heard() == []
    client.wire.is_full = False
    client.connection.pump()
    assert len(client.heard()) == 5


def test_a_message_larger_than_the_clients_frames_is_cut() -> None:
    client = Client(frame_bytes_max=600).open().receive_link().fill(1, size=1500)
    client.credit(10)
    sent = client.heard()
    assert [each.more for each in sent if isinstance(each, Transfer)] == [True, True, False]
    assert {each.delivery_id for each in sent if isinstance(each, Transfer)} == {0}


def test_a_delivery_in_parts_is_one_and_an_aborted_one_is_none() -> None:
    client = Client().open().send_link()
    whole = data_event(b"x" * 100).rest
    client.say(transfer(0, more=True), payload=whole[:50])
    client.say(transfer(0), payload=whole[50:])
    client.say(transfer(1, more=True), payload=whole[:50])
    client.say(transfer(1)._replace(aborted=True))
    [settled] = client.heard()
    assert isinstance(settled, Disposition)
    assert (settled.first, settled.settled, client.stored) == (0, True, 1)


def test_credit_for_sending_is_renewed_before_it_is_used_up() -> None:
    client = Client().open().send_link()
    for id_ in range(400):
        client.say(transfer(id_), payload=data_event(b"x").rest)
    flows = [each for each in client.heard() if isinstance(each, Flow)]
    assert [(flow.delivery_count, flow.link_credit) for flow in flows] == [(150, 300), (300, 300)]


def test_nothing_behind_a_cut_is_stored_though_it_has_arrived() -> None:
    client = Client().open().send_link()
    client.namespace.faults.order(Fault(do="cut", of="send", times=1))
    client.say(transfer(0), transfer(1), payload=data_event(b"x").rest)
    assert client.wire.is_aborted
    assert (client.heard(), client.stored) == ([], 0)


@pytest.mark.parametrize("token", [None, "SharedAccessSignature sr=hub&sig=wrong&se=9999999999&skn=name", "unknown"])
def test_properties_are_not_read_without_a_token_that_is_right(token: str | None) -> None:
    client = Client()
    client.connection.receive(SASL + framed(0, Init(Symbol("ANONYMOUS"))) + AMQP)
    node = Described(ULong(0x29), ["$management"])
    client.say(
        Open("client"),
        Begin(None, UInt(0), UInt(99), UInt(99)),
        Attach("asks", UInt(0), False, target=node, initial_delivery_count=UInt(0)),
        Attach("hears", UInt(1), True, source=node),
        Flow(UInt(0), UInt(99), UInt(0), UInt(99), UInt(1), UInt(0), UInt(9)),
    )
    client.heard()
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"}
    if token:
        asked["security_token"] = token
    client.say(transfer(0), payload=encode(Described(ULong(0x74), asked)))
    client.frames.arrived(bytes(client.wire.written))
    frames = [client.frames.next() for _ in range(2)]
    answers = [
        frame.payload for frame in frames if isinstance(frame, Frame) and isinstance(frame.performative, Transfer)
    ]
    assert [contents(answer).application["status-code"] for answer in answers] == [401]


def test_a_client_that_wants_signs_of_life_gets_them_and_gives_up_its_links_when_it_goes() -> None:
    client = Client().open().receive_link()
    assert client.connection.heartbeat_s == 30
    client.connection.heartbeat()
    assert client.wire.written == EMPTY
    client.connection.receive(framed(0, Close()))
    assert client.connection.state is State.CLOSED
    assert client.hub.partitions[0].watchers == set()
    assert client.hub.receivers == {("$default", "0"): []}
