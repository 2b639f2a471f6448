"""From a connection's octets to events: the quick way, the thorough one and the SDK agree, however the octets are cut."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp._encode import encode_frame, encode_payload
from azure.eventhub._pyamqp.message import Message
from azure.eventhub._pyamqp.performatives import TransferFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.pipeline.connectors.eventhubs.amqp.decode import ReceivedEvent, event_at, event_of
from leasehold.pipeline.connectors.eventhubs.amqp.frames import Columns, Frame, Frames, Read
from leasehold.pipeline.connectors.eventhubs.amqp.values import Malformed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import pages_of
from leasehold_emulators.eventhubs.codec import encode
from leasehold_emulators.eventhubs.messages import (
    data_event,
    delivery_annotations,
    event,
    placed,
    runtime_metrics,
    with_delivery_annotations,
)
from leasehold_emulators.eventhubs.values import Described, Symbol, Timestamp, UInt, ULong

NUMBERS = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, 2**45)
BODIES = st.one_of(st.binary(max_size=40), st.integers(200, 70_000).map(bytes))
KEYS = st.one_of(st.none(), st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
PROPERTIES = st.dictionaries(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**31), 2**31 - 1), st.text(st.characters(exclude_categories=("Cs",)))
    ),
    max_size=3,
)
CHANNEL, HANDLE = 1, 5


def encoded(**sections: Any) -> bytes:
    out = bytearray()
    encode_payload(out, Message(**sections))
    return bytes(out)


def text(value: Any) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


@given(NUMBERS, NUMBERS, TIMES, KEYS, BODIES, PROPERTIES)
def test_an_event_is_what_the_sdk_decodes(
    number: int, offset: int, time_ms: int, key: str | None, body: bytes, properties: dict[str, Any]
) -> None:
    one = event(encoded(data=[body], application_properties=properties or None))
    message = placed(one._replace(key=key), number, offset, time_ms)
    theirs = decode_payload(memoryview(message))
    found = event_at(b"before" + message + b"behind", 6, 6 + len(message))
    annotations = theirs.message_annotations
    assert found.sequence == annotations[b"x-opt-sequence-number"] == number
    assert found.offset == annotations[b"x-opt-offset"] == str(offset).encode()
    assert found.time_ms == annotations[b"x-opt-enqueued-time"] == time_ms
    assert (None if found.key is None else found.key.encode()) == annotations.get(b"x-opt-partition-key")
    assert found.body == b"".join(theirs.data) == body
    assert dict(found.properties) == {name: text(value) for name, value in properties.items()}
    assert len(theirs.application_properties or {}) == len(found.properties)


@given(NUMBERS, NUMBERS, TIMES, KEYS, BODIES, PROPERTIES)
def test_the_quick_way_and_the_thorough_one_agree(
    number: int, offset: int, time_ms: int, key: str | None, body: bytes, properties: dict[str, Any]
) -> None:
    one = event(encoded(data=[body], application_properties=properties or None))._replace(key=key)
    message = placed(one, number, offset, time_ms)
    assert event_at(message, 0, len(message)) == event_of(message)


def sections(*more: tuple[int, Any], **annotations: Any) -> bytes:
    """A message with its place, and further sections by their codes."""
    own = {
        Symbol("x-opt-sequence-number"): 7,
        Symbol("x-opt-offset"): "70",
        Symbol("x-opt-enqueued-time"): Timestamp(9),
    }
    own |= {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return b"".join(encode(Described(ULong(code), value)) for code, value in ((0x72, own), *more))


def found(message: bytes) -> ReceivedEvent:
    return event_at(message, 0, len(message))


def test_annotations_of_other_clients_are_properties_of_the_system() -> None:
    message = sections((0x75, b"x"), x_opt_publisher="me", x_other=[1])
    assert found(message).properties == (("sys.x-opt-publisher", "me"), ("sys.x-other", "[1]"))


def test_sections_may_be_called_by_their_names() -> None:
    message = sections() + encode(Described(Symbol("amqp:data:binary"), b"x"))
    assert found(message).body == b"x"


def test_header_delivery_annotations_and_footer_are_left_out() -> None:
    head = encode(Described(ULong(0x70), [True])) + encode(Described(ULong(0x71), {Symbol("a"): 1}))
    assert found(head + sections((0x75, b"x"), (0x78, {Symbol("b"): 1}))) == ReceivedEvent(7, b"70", 9, None, b"x")


def test_an_offset_that_is_a_number_is_taken_too() -> None:
    assert found(sections((0x75, b"x"), x_opt_offset=70)).offset == b"70"


def test_an_application_property_hides_one_of_the_system_with_its_name() -> None:
    message = sections((0x73, ["m"]), (0x74, {"sys.message-id": "mine"}), (0x75, b"x"))
    assert found(message).properties == (("sys.message-id", "mine"),)


OURS = {"leasehold-key": "mine", "leasehold-operation": "delete"}


@pytest.mark.parametrize(
    ("key", "expected"), [(None, ("mine", ())), ("routed", ("routed", (("leasehold-key", "mine"),)))]
)
def test_a_partition_key_is_the_key_whatever_a_trusted_property_says(key: str | None, expected: object) -> None:
    own = {} if key is None else {"x_opt_partition_key": key}
    message = sections((0x74, OURS), (0x75, b"x"), **own)
    event = event_at(message, 0, len(message), trusts_properties=True)
    assert (event.key, event.properties) == expected
    assert event.operation == "delete"


@pytest.mark.parametrize("key", [None, "routed"])
def test_properties_of_any_publisher_are_neither_key_nor_operation(key: str | None) -> None:
    """Such as of a forwarder that copies all properties from a hub that a sink of ours wrote."""
    message = placed(event(encoded(data=[b"x"], application_properties=OURS))._replace(key=key), 7, 70, 9)
    one = found(message)
    assert (one.key, one.operation, dict(one.properties)) == (key, None, OURS)


def test_a_message_without_a_body_is_an_event_without_one() -> None:
    assert found(sections()).body is None
    assert found(sections((0x77, None))) == ReceivedEvent(7, b"70", 9, None, None, (("sys.body", "value"),))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (encode(Described(ULong(0x75), b"x")), "it lacks its place"),
        (sections((0x75, b"x"), x_opt_sequence_number="7"), "it lacks its place"),
        (sections((0x75, b"x"), x_opt_sequence_number=ULong(2**63)), "its place is invalid: .* 9223372036854775808"),
        (placed(data_event(b"x"), 7, 70, 2**60), "its place is invalid: .* 1152921504606846976 ms"),
        (sections((0x75, "text")), "data that is not binary"),
        (sections((0x75, b"x"), (0x77, 1)), "bodies of two kinds"),
        (sections((0x77, 1), (0x77, 2)), "more than one value"),
        (sections((0x76, 1)), "a sequence that is not a list"),
        (sections((0x74, [1])), "that are not a map"),
        (sections((0x73, [None] * 14)), "not a list of message properties"),
        (sections((0x79, b"x")), "a section that no message has"),
        (sections() + encode("text"), "a section that no message has"),
        (sections((0x75, b"xyz"))[:-1], "it ends early"),
    ],
)
def test_what_is_no_event_is_told(message: bytes, told: str) -> None:
    with pytest.raises(Malformed, match=told):
        found(message)


def test_an_offset_that_is_not_as_long_as_it_says_is_malformed() -> None:
    message = placed(data_event(b"x"), 7, 70, 9)
    assert found(message).offset == b"70"
    with pytest.raises(Malformed):
        found(message.replace(b"\xa1\x0270", b"\xa1\x0170"))


def test_a_key_that_is_longer_than_its_message_is_malformed() -> None:
    message = placed(data_event(b"")._replace(key="k" * 99), 7, 70, 9)[:-40]
    with pytest.raises(Malformed):
        event_at(message + b"k" * 100, 0, len(message))


@given(st.data())
def test_a_message_with_an_octet_changed_is_an_event_or_malformed_and_nothing_else(draw: st.DataObject) -> None:
    message = bytearray(sections((0x73, ["m", b"u"]), (0x74, {"a": 1, "b": [1, {"c": 2.5}]}), (0x75, b"body")))
    message[draw.draw(st.integers(0, len(message) - 1))] = draw.draw(st.integers(0, 255))
    try:
        assert isinstance(found(bytes(message)), ReceivedEvent)
    except Malformed:
        return


# --- frames ------------------------------------------------------------------------------------------------------------


def frame(channel: int, performative: bytes) -> bytes:
    return (8 + len(performative)).to_bytes(4) + b"\x02\x00" + channel.to_bytes(2) + performative


def transfers(
    number: int, parts: int = 1, *, handle: int = HANDLE, tag: bytes = b"\0\0\0\1", more_fields: int = 0
) -> list[bytes]:
    message = placed(data_event(b"body %d" % number), number, number * 100, 1_700_000_000_000)
    size = -(-len(message) // parts)
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return [
        frame(
            CHANNEL,
            encode(
                Described(
                    ULong(0x14),
                    [UInt(handle), UInt(number), tag, UInt(0), True, piece is not pieces[-1], *[None] * more_fields],
                )
            )
            + piece,
        )
        for piece in pieces
    ]


def sdks(number: int) -> bytes:
    message = placed(data_event(b"body %d" % number), number, number * 100, 1_700_000_000_000)
    fields = {"handle": HANDLE, "delivery_id": number, "delivery_tag": b"abcd", "message_format": 0, "more": False}
    head, performative = encode_frame(TransferFrame(**fields, settled=True, payload=message))
    return bytes(head + CHANNEL.to_bytes(2) + performative)


EMPTY = frame(0, b"")
OTHERS = [
    frame(CHANNEL, encode(Described(ULong(0x13), [None]))),
    frame(CHANNEL, encode(Described(ULong(0x16), [HANDLE]))),
    frame(0, encode(Described(ULong(0x18), []))),
    frame(2, transfers(1)[0][8:]),
    transfers(1, handle=HANDLE + 1)[0],
]


def events_of(read: Read) -> list[dict[str, Any]]:
    pages = pages_of("0", read.runs, events_max=10**6, bytes_max=2**31)
    for page in pages:
        page.events.validate(full=True)
    return [event for page in pages for event in page.events.to_pylist()]


def read_all(pieces: list[bytes]) -> Read:
    frames, whole = Frames(CHANNEL, HANDLE), Read()
    for piece in pieces:
        read = frames.read(piece)
        whole.runs += read.runs
        whole.others += read.others
        whole.transfers += read.transfers
        whole.deliveries += read.deliveries
    return whole


@settings(max_examples=60)
@given(st.randoms(use_true_random=False))
def test_frames_are_read_the_same_however_they_are_cut(rng: random.Random) -> None:
    stream: list[bytes] = []
    foreign: list[Frame] = []
    count = 0
    for number in range(40):
        parts = rng.choice([1, 1, 1, 3])
        tag = rng.randbytes(rng.choice([0, 1, 2, 3, 4, 8, 16, 20]))
        stream += (
            [sdks(number)] if rng.random() < 0.3 else transfers(number, parts, tag=tag, more_fields=rng.randrange(6))
        )
        if rng.random() < 0.3:
            stream.append(EMPTY)
        if rng.random() < 0.3:
            other = rng.choice(OTHERS)
            stream.append(other)
            foreign.append(Frame(int.from_bytes(other[6:8]), other[8:]))
    count = sum(1 for each in stream if each not in (EMPTY, *OTHERS))
    data = b"".join(stream)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(12)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    read = read_all(pieces)
    assert [one["body"] for one in events_of(read)] == [b"body %d" % number for number in range(40)]
    assert [one["sequence"] for one in events_of(read)] == list(range(40))
    assert read.others == foreign
    assert (read.transfers, read.deliveries) == (count, 40)


PIECE_BYTES = 4096
"""Of what is read event by event."""


def event_frames(rng: random.Random, count: int) -> Iterator[bytes]:
    """As a service sends them, whose fields change in size now and then; and rarely something else."""
    number, offset, tag_bytes, has_report = rng.choice([0, 100, 2**40]), rng.choice([0, 900, 10**12]), 4, True
    handle = encode(UInt(HANDLE))
    has_keys = rng.choice([0, 0.5, 1])
    odd = rng.choice([0, 0, 0.02, 0.5])
    for _ in range(count):
        number, offset = number + 1, offset + rng.randrange(1, 300)
        if rng.random() < 0.01:
            tag_bytes, has_report = rng.choice([0, 1, 4, 16]), rng.random() < 0.7
        one = data_event(rng.randbytes(rng.choice([0, 1, 9, 150, 255, 256, 700])))
        if rng.random() < odd:
            one = event(encoded(data=[b"x"], application_properties={"n": number % 9, "leasehold-operation": "delete"}))
        elif rng.random() < odd / 2:
            one = event(encoded(data=[b"x", b"y"], message_annotations={b"x-other": 1}))
        if rng.random() < has_keys:
            one = one._replace(key=rng.choice(["", "k", "kunde-12", "K\xf6nig" * rng.randrange(9)]))
        message = placed(one, number, offset, rng.choice([1_700_000_000_000, 2**44]))
        if has_report:
            report = runtime_metrics(number + rng.randrange(3), offset, 1_700_000_000_000, 1_700_000_000_000)
            message = with_delivery_annotations(message, delivery_annotations(report))
        if rng.random() < odd / 9:
            message = message.replace("K\xf6".encode(), b"K\xff\xff")
        tag = encode(rng.randbytes(tag_bytes))
        cuts = [0, len(message)] if rng.random() > odd / 3 else [0, len(message) // 2, len(message)]
        for begin, end in pairwise(cuts):
            fields = [
                handle,
                encode(UInt(number & 0xFFFF)),
                tag,
                b"\x43",
                b"\x41",
                b"\x41" if end < cuts[-1] else b"\x42",
            ]
            body = b"\x00\x53\x14\xc0%c\x06" % (1 + len(b"".join(fields))) + b"".join(fields)
            yield frame(CHANNEL, body + message[begin:end])
        if rng.random() < odd / 2:
            yield rng.choice([EMPTY, *OTHERS])


def read_until_malformed(pieces: list[bytes]) -> tuple[object, int | None, bool]:
    """What is read of them, the partition's end, and whether some events are in columns."""
    frames, whole, malformed = Frames(CHANNEL, HANDLE), Read(), ""
    for piece in pieces:
        try:
            read = frames.read(piece)
        except Malformed:
            return "it is no connection", None, False
        for name in ("runs", "others", "transfers", "deliveries"):
            setattr(whole, name, getattr(whole, name) + getattr(read, name))
        if read.malformed is not None:
            malformed = str(read.malformed)
            break
    found = events_of(whole), whole.others, whole.transfers, whole.deliveries, malformed
    return found, frames.end, any(isinstance(run, Columns) for run in whole.runs)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_events_read_as_columns_are_those_read_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    data = b"".join(event_frames(rng, 200))
    one_by_one, their_end, is_in_columns = read_until_malformed(in_pieces(data, PIECE_BYTES))
    assert not is_in_columns
    found, end, _ = read_until_malformed(in_pieces(data, rng.choice([30_000, len(data)])))
    assert (found, end) == (one_by_one, their_end)


def alike(count: int, key: str | None = None, fields: bytes = b"\x41\x42", last: bytes = b"") -> list[bytes]:
    """Transfers of events that differ in their numbers and bodies alone. fields: settled, more ... last: of the last message."""
    found = []
    for number in range(1000, 1000 + count):
        message = placed(
            data_event(bytes(200 + number % 2 * 100))._replace(key=key), number, number * 100, 0x0123_4567_0053
        )
        if last and number == 999 + count:
            message = message[: message.index(b"\x00\x53\x75")] + last
        delivery = b"\x52\x05\x70" + number.to_bytes(4) + b"\xa0\x04" + number.to_bytes(4) + b"\x43" + fields
        head = b"\x00\x53\x14\xc0%c%c" % (1 + len(delivery), 4 + len(fields)) + delivery
        found.append(frame(CHANNEL, head + message))
    return found


def test_events_that_are_alike_are_read_as_columns() -> None:
    read = Frames(CHANNEL, HANDLE).read(b"".join(alike(300)))
    assert [len(run) if isinstance(run, list) else len(run.sequences) for run in read.runs] == [1, 299]
    assert [one["sequence"] for one in events_of(read)] == list(range(1000, 1300))


@pytest.mark.parametrize(("key", "count"), [(None, 40), ("kunde-1", 41)], ids=["long body", "key"])
@pytest.mark.parametrize("octet", [0, 5, 0x7F, 0xFF])
def test_a_changed_octet_changes_columns_as_it_changes_the_event(octet: int, key: str | None, count: int) -> None:
    before, changed, after = alike(40, key), alike(count, key)[-1], alike(40, key)
    for place in range(changed.index(b"\x00\x53\x75") + 7):
        data = b"".join([*before, changed[:place], bytes([octet]), changed[place + 1 :], *after])
        columns, _, _ = read_until_malformed([b"".join(alike(40, key)), data])
        assert columns == read_until_malformed(in_pieces(b"".join(alike(40, key)) + data, PIECE_BYTES))[0]


def test_a_message_that_begins_in_another_frame_is_not_read_as_a_column() -> None:
    piece = frame(
        CHANNEL, encode(Described(ULong(0x14), [UInt(HANDLE), None, None, None, True, True])) + b"\x00\x53\x75\xa0\x01x"
    )
    read = Frames(CHANNEL, HANDLE).read(b"".join([*alike(60), piece, *alike(60)]))
    bodies = [one["body"] for one in events_of(read)]
    assert len(bodies) == 120
    assert [number for number, body in enumerate(bodies) if body[:1] == b"x"] == [60]


def test_aborted_deliveries_are_not_read_as_columns() -> None:
    aborted = alike(60, fields=b"\x41\x42\x40\x40\x40\x41")
    assert events_of(Frames(CHANNEL, HANDLE).read(b"".join(aborted))) == []


def test_the_last_message_is_not_read_from_before_its_place() -> None:
    read = Frames(CHANNEL, HANDLE).read(b"".join(alike(60, last=b"\x75\xa0\x01xyz")))
    assert len(events_of(read)) == 59
    assert read.malformed is not None


def test_an_aborted_delivery_is_none() -> None:
    first = transfers(1, 3)[0]
    aborted = frame(
        CHANNEL, encode(Described(ULong(0x14), [HANDLE, None, None, None, True, False, None, None, None, True]))
    )
    read = read_all([first, aborted, *transfers(2)])
    assert [one["sequence"] for one in events_of(read)] == [2]
    assert (read.transfers, read.deliveries) == (3, 2)


def test_a_message_that_is_no_event_ends_what_is_read() -> None:
    bad = frame(
        CHANNEL,
        encode(Described(ULong(0x14), [UInt(HANDLE), UInt(2), b"\0\0\0\2", UInt(0), True, False]))
        + b"\x00\x53\x79\x40",
    )
    read = Frames(CHANNEL, HANDLE).read(b"".join([*transfers(1), bad, *transfers(3)]))
    assert [one["sequence"] for one in events_of(read)] == [1]
    assert "a section that no message has" in str(read.malformed)


@given(st.binary(max_size=80))
def test_octets_at_random_are_frames_or_malformed_and_nothing_else(data: bytes) -> None:
    try:
        Frames(CHANNEL, HANDLE).read(data)
    except Malformed:
        return


@given(st.data())
def test_a_frame_with_an_octet_changed_is_one_or_malformed_and_nothing_else(draw: st.DataObject) -> None:
    data = bytearray(b"".join([*transfers(1), sdks(2)]))
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    try:
        Frames(CHANNEL, HANDLE).read(bytes(data))
    except Malformed:
        return
