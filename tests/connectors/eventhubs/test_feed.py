"""What the Event Hubs feed delivers: bodies, properties and places of whatever is sent, from busy, empty and new partitions."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp.message import Message, Properties
from azure.eventhub._pyamqp.types import TYPE, VALUE, AMQPTypes
from connectors.eventhubs.clients import HUB, producer
from connectors.eventhubs.feeds import bodies, events, feed, pages, sent, sent_raw
from patience import PATIENCE_S, until_async
from plugins_eventhubs import EventHubs
from unit.pipeline.bounds import BATCH_EVENTS_MAX, batch_sizes

from leasehold.pipeline.connectors.eventhubs.amqp.encode import data, section_of_properties, text
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.event import EVENT_SCHEMA


def typed(kind: AMQPTypes, value: Any) -> dict[str, Any]:
    return {TYPE: kind, VALUE: value}


async def test_an_event_has_its_place_its_key_and_what_the_producer_said(eventhubs: EventHubs) -> None:
    event = EventData("hello")
    event.properties = {"kind": "deposit", "amount": 12}
    event.content_type = "text/plain"
    event.correlation_id = "c-1"
    event.message_id = "m-1"
    async with producer(eventhubs) as client:
        await client.send_batch([event], partition_key="alice")
    [where] = [p.id for p in eventhubs.control.partitions(HUB) if p.end]
    [stored] = eventhubs.control.events(HUB, where)
    async with feed(eventhubs) as made:
        [page] = await pages(made, 1, where)
    assert page.events.schema.equals(EVENT_SCHEMA, check_metadata=True)
    assert page.events.to_pylist() == [
        {
            "partition": where,
            "sequence": 0,
            "offset": stored.offset,
            "enqueued_time": datetime.fromtimestamp(stored.time_ms / 1000, UTC),
            "key": "alice",
            "body": b"hello",
            "properties": [
                ("kind", "deposit"),
                ("amount", "12"),
                ("sys.message-id", "m-1"),
                ("sys.correlation-id", "c-1"),
                ("sys.content-type", "text/plain"),
            ],
            "operation": None,
        }
    ]
    assert page.to == f"0@{stored.offset}"


TYPED = {
    "null": (typed(AMQPTypes.null, None), None),
    "true": (typed(AMQPTypes.boolean, True), "true"),
    "false": (typed(AMQPTypes.boolean, False), "false"),
    "ubyte": (typed(AMQPTypes.ubyte, 255), "255"),
    "byte": (typed(AMQPTypes.byte, -128), "-128"),
    "ushort": (typed(AMQPTypes.ushort, 65_535), "65535"),
    "short": (typed(AMQPTypes.short, -32_768), "-32768"),
    "uint": (typed(AMQPTypes.uint, 2**32 - 1), "4294967295"),
    "int": (typed(AMQPTypes.int, -(2**31)), "-2147483648"),
    "ulong": (typed(AMQPTypes.ulong, 2**64 - 1), "18446744073709551615"),
    "long": (typed(AMQPTypes.long, -(2**63)), "-9223372036854775808"),
    "float": (typed(AMQPTypes.float, 0.1), "0.1"),
    "double": (typed(AMQPTypes.double, 0.1), "0.1"),
    "timestamp": (typed(AMQPTypes.timestamp, 1_700_000_000_123), "2023-11-14T22:13:20.123000Z"),
    "uuid": (typed(AMQPTypes.uuid, UUID(int=7)), "00000000-0000-0000-0000-000000000007"),
    "binary": (typed(AMQPTypes.binary, b"\x00\xff"), "AP8="),
    "string": (typed(AMQPTypes.string, "çà €"), "çà €"),
    "symbol": (typed(AMQPTypes.symbol, b"a:b"), "a:b"),
    "list": (typed(AMQPTypes.list, [typed(AMQPTypes.int, 1), typed(AMQPTypes.string, "x")]), '[1, "x"]'),
    "map": (typed(AMQPTypes.map, {"a": typed(AMQPTypes.long, 1)}), '{"a": 1}'),
    "array": (typed(AMQPTypes.array, [typed(AMQPTypes.int, 1), typed(AMQPTypes.int, 2)]), "[1, 2]"),
}


async def test_properties_of_every_type_are_delivered_as_text(eventhubs: EventHubs) -> None:
    properties = {name: value for name, (value, _) in TYPED.items()}
    await sent(eventhubs, Message(data=[b"x"], application_properties=properties))
    async with feed(eventhubs) as made:
        [event] = await events(made, 1)
    assert dict(event["properties"]) == {name: text for name, (_, text) in TYPED.items()}


async def test_types_that_no_client_of_python_sends_are_delivered_too(eventhubs: EventHubs) -> None:
    """char (of .NET also half of one) and the decimals, which .NET and Java send: here octet by octet."""
    one, many = Decimal("12.3"), Decimal("-1234567890.12345")
    values = {
        "char": b"\x73" + "é".encode("utf-32-be"),
        "half": b"\x73\x00\x00\xd8\x3d",
        "decimal32": b"\x74" + _decimal(one, bits=32, exponent_bits=8),
        "decimal64": b"\x84" + _decimal(many, bits=64, exponent_bits=10),
        "decimal128": b"\x94" + _decimal(many, bits=128, exponent_bits=14),
    }
    raw = section_of_properties([text(name) + value for name, value in values.items()]) + data(b"x")
    await sent_raw(eventhubs, raw)
    async with feed(eventhubs) as made:
        [event] = await events(made, 1)
    assert dict(event["properties"]) == {
        "char": "é",
        "half": "\N{REPLACEMENT CHARACTER}",
        "decimal32": "12.3",
        "decimal64": "-1234567890.12345",
        "decimal128": "-1234567890.12345",
    }


def _decimal(number: Decimal, *, bits: int, exponent_bits: int) -> bytes:
    """IEEE 754, its digits as one integer."""
    sign, digits, exponent = number.as_tuple()
    bias = {32: 101, 64: 398, 128: 6176}[bits]
    whole = int("".join(map(str, digits)))
    return ((sign << bits - 1) | ((int(exponent) + bias) << bits - 1 - exponent_bits) | whole).to_bytes(bits // 8)


@pytest.mark.parametrize(
    ("message", "body", "kind"),
    [
        (Message(data=[b"one, ", b"", b"two"]), b"one, two", None),
        (Message(data=[b""]), b"", None),
        (Message(value="text"), b"text", "value"),
        (Message(value=b"\x00\xff"), b"\x00\xff", "value"),
        (Message(value={"a": 1}), b'{"a": 1}', "value"),
        (Message(value=UUID(int=7)), b'"00000000-0000-0000-0000-000000000007"', "value"),
        (Message(sequence=[[typed(AMQPTypes.int, 1)], [typed(AMQPTypes.string, "x")]]), b'[1, "x"]', "sequence"),
    ],
)
async def test_bodies_of_every_kind_are_delivered(
    eventhubs: EventHubs, message: Message, body: bytes, kind: str | None
) -> None:
    await sent(eventhubs, message, Message(data=[b"next"]))
    async with feed(eventhubs) as made:
        first, second = await events(made, 2)
    assert first["body"] == body
    assert dict(first["properties"]).get("sys.body") == kind
    assert second["body"] == b"next"


async def test_properties_of_a_message_that_are_no_text_are_delivered_too(eventhubs: EventHubs) -> None:
    properties = Properties(message_id=UUID(int=7), user_id=b"me", creation_time=1_700_000_000_000, group_sequence=3)
    await sent(eventhubs, Message(data=[b"x"], properties=properties))
    async with feed(eventhubs) as made:
        [event] = await events(made, 1)
    assert dict(event["properties"]) == {
        "sys.message-id": "00000000-0000-0000-0000-000000000007",
        "sys.user-id": "bWU=",
        "sys.creation-time": "2023-11-14T22:13:20Z",
        "sys.group-sequence": "3",
    }


async def test_an_event_of_many_frames_is_whole_and_alone_in_its_page(eventhubs: EventHubs) -> None:
    large = "x" * 900_000
    eventhubs.control.append(HUB, "0", ["a", large, "b"])
    async with feed(eventhubs, limits=ReceiverLimits(page_bytes=100_000)) as made:
        found = await pages(made, 3)
    assert [page.events["body"].to_pylist() for page in found] == [[b"a"], [large.encode()], [b"b"]]


async def test_an_empty_partition_among_busy_ones_is_no_stall(eventhubs: EventHubs) -> None:
    for partition in "123":
        eventhubs.control.fill(HUB, partition, 3000)
    async with feed(eventhubs) as made:
        waiting = asyncio.create_task(bodies(made, 1, "0"))
        read = await asyncio.gather(*(pages(made, 3000, partition) for partition in "123"))
        assert not waiting.done()
        eventhubs.control.append(HUB, "0", ["at last"])
        assert await waiting == ["at last"]
    for each in read:
        numbers = [number for page in each for number in page.events["sequence"].to_pylist()]
        assert numbers == list(range(3000))


async def test_a_hub_that_grows_has_more_partitions(eventhubs: EventHubs) -> None:
    async with feed(eventhubs) as made:
        assert [each.name for each in await made.partitions()] == list("0123")
        eventhubs.control.grow(HUB, 12)
        assert {each.name for each in await made.partitions()} == {str(number) for number in range(12)}
        eventhubs.control.append(HUB, "11", ["new"])
        assert await bodies(made, 1, "11") == ["new"]


async def test_a_reader_that_does_not_take_is_sent_no_more_than_it_may_hold(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 20_000)
    async with feed(eventhubs, limits=ReceiverLimits(prefetch=500)) as made, aclosing(made.open("0", None)) as read:
        first = await anext(read)
        await until_async(lambda: eventhubs.control.count("delivered") >= first.events.num_rows + 250)
        assert eventhubs.control.count("delivered") <= first.events.num_rows + 500
        seen = first.events.num_rows
        async with asyncio.timeout(PATIENCE_S):
            while seen < 20_000:
                page = await anext(read)
                assert page.events["sequence"][0].as_py() == seen
                seen += page.events.num_rows


async def test_lag_counts_what_is_there_to_read(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", [str(n) for n in range(10)])
    eventhubs.control.trim(HUB, "0", 4)
    offset = eventhubs.control.events(HUB, "0")[-1].offset
    async with feed(eventhubs) as made:
        lags = [await made.lag("0", position) for position in (None, "3", "6", "9", f"@{offset}", "@1")]
    assert lags == [6, 6, 3, 0, 0, 6]


async def test_bodies_are_what_json_made_them(eventhubs: EventHubs) -> None:
    texts = [json.dumps({"n": n, "text": "çà"}) for n in range(100)]
    eventhubs.control.append(HUB, "0", texts)
    async with feed(eventhubs) as made:
        assert await bodies(made, 100) == texts


async def test_batches_hold_at_most_so_many_events_of_the_feeds_own_pages(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 12_345, body_bytes=20)
    async with feed(eventhubs) as made:
        assert max(await batch_sizes(made, "0", 12_345)) == BATCH_EVENTS_MAX
