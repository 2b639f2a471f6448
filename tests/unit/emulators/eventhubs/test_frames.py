"""Frames and messages, ours and the SDK's, read by the other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from azure.eventhub._pyamqp import performatives
from azure.eventhub._pyamqp._decode import decode_frame, decode_payload
from azure.eventhub._pyamqp._encode import encode_frame, encode_payload
from azure.eventhub._pyamqp.endpoints import Source, Target
from azure.eventhub._pyamqp.message import BatchMessage, Header, Message, Properties
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import given
from hypothesis import strategies as st

from leasehold_emulators.eventhubs import frames, messages
from leasehold_emulators.eventhubs.attaching import fields
from leasehold_emulators.eventhubs.codec import encode
from leasehold_emulators.eventhubs.frames import Attach, Flow, Frame, Frames, Transfer, framed
from leasehold_emulators.eventhubs.messages import BATCH, Event, Numbered, contents, events, placed
from leasehold_emulators.eventhubs.values import Described, Int, Long, Malformed, Short, Symbol, UInt, ULong

ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40)
BODIES = st.binary(max_size=700)
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-(2**31), 2**31 - 1), st.uuids(), st.binary(max_size=20), ASCII)


def theirs(frame: Any) -> bytes:
    header, data = encode_frame(frame)
    return header + (0).to_bytes(2, "big") + data


def ours(data: bytes, *cuts: int) -> list[Frame | bytes]:
    """What comes of the octets, however they are cut."""
    cutter = Frames()
    cutter.expects_header = False
    found = []
    for begin, end in pairwise((0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data))):
        cutter.arrived(data[begin:end])
        while (one := cutter.next()) is not None:
            found.append(one)
    return found


def encoded(message: Message) -> bytes:
    out = bytearray()
    encode_payload(out, message)
    return bytes(out)


def test_the_attach_of_the_sdk_is_read_field_by_field() -> None:
    properties = {b"com.microsoft:epoch": {TYPE: AMQPTypes.long, VALUE: 7}}
    said = {
        "name": "link",
        "handle": 3,
        "role": True,
        "source": Source(address="hub/ConsumerGroups/g/Partitions/0"),
        "target": Target(address="t"),
        "desired_capabilities": [b"one", b"two"],
        "properties": properties,
    }
    sent = performatives.AttachFrame(**dict.fromkeys(performatives.AttachFrame._fields) | said)
    [frame] = ours(theirs(sent))
    assert isinstance(frame, Frame)
    assert isinstance(frame.performative, Attach)
    attach = frame.performative
    assert (attach.name, attach.handle, attach.role) == ("link", 3, True)
    assert fields(attach.source)[0] == "hub/ConsumerGroups/g/Partitions/0"
    assert attach.desired_capabilities == [Symbol("one"), Symbol("two")]
    assert attach.properties == {Symbol("com.microsoft:epoch"): Long(7)}


def test_our_frames_have_all_the_fields_that_the_sdk_counts_on() -> None:
    flow = Flow(UInt(1), UInt(2), UInt(3), UInt(4), handle=UInt(5), delivery_count=UInt(300), link_credit=UInt(7))
    code, values = decode_frame(memoryview(framed(9, flow))[8:])
    assert (code, values[:7], len(values)) == (0x13, [1, 2, 3, 4, 5, 300, 7], 11)
    code, values = decode_frame(memoryview(framed(9, Transfer(UInt(1), UInt(2), b"tag"), b"payload"))[8:])
    assert (code, len(values), bytes(values[11])) == (0x14, 12, b"payload")


@given(st.lists(st.binary(max_size=80), max_size=6), st.lists(st.integers(0, 10_000), max_size=5))
def test_frames_come_whole_however_the_socket_cuts_them(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frames.EMPTY + framed(i, Transfer(UInt(i)), each) for i, each in enumerate(payloads))
    assert ours(data, *cuts) == [Frame(i, Transfer(UInt(i)), each) for i, each in enumerate(payloads)]


@pytest.mark.parametrize(
    "octets", ["00000007020000000000", "000000080100000000", "ffffffff02000000", "0000000b0200000045aabb"]
)
def test_what_is_no_frame_is_malformed(octets: str) -> None:
    with pytest.raises(Malformed):
        ours(bytes.fromhex(octets))


@given(st.lists(st.tuples(BODIES, st.dictionaries(ASCII, PLAIN, max_size=3)), min_size=1, max_size=5))
def test_a_batch_of_the_sdk_comes_apart_into_its_events(inside: list[tuple[bytes, dict[str, Any]]]) -> None:
    each = [encoded(Message(data=[body], application_properties=properties)) for body, properties in inside]
    found = events(encoded(BatchMessage(data=each)), BATCH)
    assert [one.rest for one in found] == each


@given(BODIES, st.integers(0, 2**40), st.integers(0, 2**50), st.one_of(st.none(), ASCII))
def test_a_placed_event_is_what_the_sdk_reads_a_place_from(
    body: bytes, number: int, offset: int, key: str | None
) -> None:
    sent = encoded(
        Message(
            header=Header(durable=True),
            properties=Properties(message_id="m"),
            message_annotations={b"x-opt-mine": {TYPE: AMQPTypes.string, VALUE: "own" * 80}},
            data=[body],
        )
    )
    [event] = events(sent, 0)
    if key is not None:
        event = messages.keyed(event, key)
    seen = decode_payload(memoryview(placed(event, number, offset, 1_700_000_000_123)))
    annotations = seen.message_annotations
    assert annotations[b"x-opt-sequence-number"] == number
    assert annotations[b"x-opt-offset"] == str(offset).encode()
    assert annotations[b"x-opt-enqueued-time"] == 1_700_000_000_123
    assert annotations.get(b"x-opt-partition-key") == (None if key is None else key.encode())
    assert annotations[b"x-opt-mine"] == b"own" * 80
    assert (seen.data, seen.properties.message_id, seen.header.durable) == ([body], b"m", True)


def test_the_numbers_of_an_idempotent_event_are_read_and_not_delivered() -> None:
    marks = {
        Symbol(messages.PRODUCER_ID): Long(5),
        Symbol(messages.PRODUCER_LEVEL): Short(2),
        Symbol(messages.PRODUCER_NUMBER): Int(9),
    }
    sent = encode(Described(ULong(0x72), marks)) + messages.data_event(b"x").rest
    [event] = events(sent, 0)
    assert event.numbered == Numbered(5, 2, 9)
    assert not [name for name in contents(placed(event, 0, 0, 0)).annotations if "producer" in name]


def test_the_key_of_an_envelope_is_the_key_of_its_events() -> None:
    inside = encoded(Message(data=[b"x"]))
    batch = BatchMessage(
        message_annotations={b"x-opt-partition-key": {TYPE: AMQPTypes.string, VALUE: "k"}}, data=[inside]
    )
    assert events(encoded(batch), BATCH) == [Event(rest=inside, key="k")]


@given(st.binary(max_size=60))
def test_a_message_of_octets_at_random_is_malformed_or_comes_apart(data: bytes) -> None:
    for message_format in (0, BATCH):
        try:
            found = events(data, message_format)
        except Malformed:
            continue
        assert isinstance(found, list)


def test_our_answers_are_what_the_sdk_takes_for_answers() -> None:
    asked = messages.Request(id="7", reply_to=None, what={}, body=None)
    seen = decode_payload(memoryview(messages.answer(asked, 202, "Accepted", {"a": 1})))
    assert seen.application_properties == {b"status-code": 202, b"status-description": b"Accepted"}
    assert (seen.properties.correlation_id, seen.value) == (b"7", {b"a": 1})
