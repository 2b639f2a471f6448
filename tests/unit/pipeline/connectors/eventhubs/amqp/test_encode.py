"""Events encoded by hand are what the SDK's own encoder makes of them, octet by octet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from azure.eventhub._pyamqp._encode import encode_payload
from azure.eventhub._pyamqp.message import BatchMessage, Message
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.connectors.eventhubs.amqp.encode import (
    BATCH_FORMAT,
    GROUP,
    LEVEL,
    MARKS_BYTES_MAX,
    NUMBER,
    PARTITION_KEY,
    SECTION_BYTES,
    body_of,
    data,
    enveloped,
    numbered,
)
from leasehold.pipeline.producer import NUMBER_MAX, Event, ProducerPosition, number_after
from leasehold.pipeline.producer.event import GROUP_MAX, OWNER_LEVEL_MAX

NUMBERS = st.builds(
    ProducerPosition,
    group=st.integers(0, GROUP_MAX) | st.sampled_from([0, 1, 127, 128, 255, GROUP_MAX]),
    level=st.integers(0, OWNER_LEVEL_MAX),
    number=st.integers(0, NUMBER_MAX) | st.integers(0, 260) | st.integers(NUMBER_MAX - 5, NUMBER_MAX),
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SAME = TEXTS | st.none() | st.integers(-(2**31), 2**31 - 1) | st.binary(max_size=300) | st.floats() | st.uuids()
TIMES = st.datetimes(datetime(1970, 1, 2), datetime(9999, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001  # bounds are naive


def by_the_sdk(event: Event, annotations: dict[bytes, Any] | None = None) -> bytes:
    out = bytearray()
    encode_payload(
        out,
        Message(
            data=[event.body], application_properties=dict(event.properties) or None, message_annotations=annotations
        ),
    )
    return bytes(out)


def marks(numbers: ProducerPosition, number: int) -> dict[bytes, Any]:
    return {
        GROUP: {TYPE: AMQPTypes.long, VALUE: numbers.group},
        LEVEL: {TYPE: AMQPTypes.short, VALUE: numbers.level},
        NUMBER: {TYPE: AMQPTypes.int, VALUE: number},
    }


@given(st.binary(max_size=600), st.dictionaries(TEXTS, SAME, max_size=200))
def test_an_event_is_encoded_as_the_sdk_encodes_it(body: bytes, properties: dict[str, Any]) -> None:
    event = Event(body=body, properties=properties)
    assert body_of(event) == by_the_sdk(event)


@given(st.lists(st.binary(max_size=3), min_size=1, max_size=300), NUMBERS)
def test_numbers_are_encoded_as_the_sdk_encodes_them(bodies: list[bytes], after: ProducerPosition) -> None:
    found = numbered([data(body) for body in bodies], after)
    assert found == [
        by_the_sdk(Event(body=body), marks(after, number_after(after.number, place)))
        for place, body in enumerate(bodies, 1)
    ]


@given(st.binary(max_size=600), st.dictionaries(TEXTS, SAME, max_size=20), NUMBERS)
def test_no_event_takes_more_than_it_was_measured_at(
    body: bytes, properties: dict[str, Any], after: ProducerPosition
) -> None:
    encoded = body_of(Event(body=body, properties=properties))
    (event,) = numbered([encoded], after)
    out = bytearray()
    encode_payload(out, Message(data=[event]))
    assert len(out) <= len(encoded) + MARKS_BYTES_MAX + SECTION_BYTES


@given(st.lists(st.binary(max_size=600)), TEXTS.filter(lambda key: len(key.encode()) < 256) | st.none())
def test_a_batch_is_encoded_as_the_sdk_encodes_it(events: list[bytes], key: str | None) -> None:
    out = bytearray()
    batch = BatchMessage(data=events, message_annotations=None if key is None else {PARTITION_KEY: key})
    encode_payload(out, batch)
    assert (enveloped(events, key), BATCH_FORMAT) == (bytes(out), batch._code)


@given(st.booleans() | TIMES | st.integers(-(2**63), 2**63 - 1))
def test_what_the_sdk_encodes_otherwise_is_decoded_by_it_as_it_was(value: Any) -> None:
    message = decode_payload(memoryview(body_of(Event(body=b"", properties={"x": value}))))
    found = message.application_properties[b"x"]
    if isinstance(value, datetime):
        assert abs(found - value.timestamp() * 1000) < 1
    else:
        assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("value", [[1], {"a": 1}, object(), 2**63, -(2**63) - 1])
def test_a_property_without_a_type_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="a property has to"):
        body_of(Event(body=b"", properties={"x": value}))


def test_the_largest_event_fits_its_measure_exactly() -> None:
    after = ProducerPosition(group=GROUP_MAX, level=OWNER_LEVEL_MAX, number=NUMBER_MAX - 1)
    (event,) = numbered([b""], after)
    assert len(event) == MARKS_BYTES_MAX
