"""Idempotent producers on the wire server, by the private parts of azure-eventhub that still know how."""

from __future__ import annotations

import pytest
from azure.eventhub._pyamqp.error import AMQPLinkError, MessageException
from connectors.eventhubs.clients import HUB, Idempotent, idempotent, received, send
from plugins_eventhubs import EventHubs

OUT_OF_ORDER = b"com.microsoft:out-of-order-sequence"
STOLEN = b"com.microsoft:producer-epoch-stolen"
OUT_OF_RANGE = b"com.microsoft:argument-out-of-range"
Asked = tuple[int | None, int | None, int | None]


async def refusal(sender: Idempotent, bodies: list[str], first: int) -> object:
    with pytest.raises(MessageException) as refused:
        await sender.publish(bodies, first)
    return refused.value.condition


async def refused_attach(eventhubs: EventHubs, asked: Asked, partition: str = "0") -> object:
    with pytest.raises(AMQPLinkError) as refused:
        async with idempotent(eventhubs, partition, asked):
            pass
    return refused.value.condition


@pytest.mark.parametrize("asked", [None, (None, None, None)])
async def test_the_service_chooses_what_is_not_asked_for(eventhubs: EventHubs, asked: Asked | None) -> None:
    async with idempotent(eventhubs, asked=asked) as one, idempotent(eventhubs, asked=asked) as two:
        assert one.state[1:] == two.state[1:] == (0, 0)
        assert one.state[0] != two.state[0]
        await one.publish(["a", "b", "c"], 1)
        await one.publish(["d"], 4)
        await two.publish(["e"], 1)
    stored = eventhubs.control.events(HUB, "0")
    assert [(event.body, event.producer) for event in stored] == [
        *((body, [one.state[0], 0, number]) for number, body in enumerate("abcd", 1)),
        ("e", [two.state[0], 0, 1]),
    ]
    events = await received(eventhubs, 5)
    assert [event.body_as_str() for event in events] == list("abcde")


async def test_what_is_asked_for_is_granted(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs, asked=(2**40, 32_767, 0x7FFFFFFF)) as sender:
        assert sender.state == (2**40, 32_767, 0x7FFFFFFF)
        await sender.publish(["a", "b"], 0)
    assert [event.producer for event in eventhubs.control.events(HUB, "0")] == [[2**40, 32_767, 0], [2**40, 32_767, 1]]


async def test_numbers_wrap_inside_a_batch(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs, asked=(7, 0, 0x7FFFFFFD)) as sender:
        await sender.publish(["a", "b", "c", "d"], 0x7FFFFFFE)
        await sender.publish(["e"], 2)
    assert [event.producer[2] for event in eventhubs.control.events(HUB, "0") if event.producer] == [
        *(0x7FFFFFFE, 0x7FFFFFFF, 0, 1, 2)
    ]


async def test_a_batch_that_is_sent_again_is_taken_and_not_stored(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs) as sender:
        await sender.publish(["a", "b"], 1)
        await sender.publish(["a", "b"], 1)
        assert await refusal(sender, ["b"], 2) == OUT_OF_ORDER
        await sender.publish(["c"], 3)
    assert eventhubs.control.bodies(HUB, "0") == ["a", "b", "c"]
    assert eventhubs.control.partition(HUB, "0").repeated == 1


async def test_a_gap_is_refused(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs) as sender:
        assert await refusal(sender, ["a"], 2) == OUT_OF_ORDER
        assert await refusal(sender, ["a"], 0) == OUT_OF_ORDER
    assert eventhubs.control.bodies(HUB, "0") == []
    assert eventhubs.control.count("refused", detail=OUT_OF_ORDER.decode()) == 2


async def test_a_higher_level_fences_the_lower_one(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs, asked=(7, 0, None)) as old:
        await old.publish(["a"], 1)
        async with idempotent(eventhubs, asked=(7, 1, None)) as new:
            assert new.state == (7, 1, 0)
            assert await refusal(old, ["zombie"], 2) == STOLEN
            await new.publish(["b"], 1)
    assert await refused_attach(eventhubs, (7, 0, None)) == STOLEN
    assert eventhubs.control.bodies(HUB, "0") == ["a", "b"]


async def test_a_link_that_is_made_again_learns_what_was_stored(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs) as first:
        await first.publish(["a", "b"], 1)
    state = first.state
    async with idempotent(eventhubs, asked=(state[0], 0, None)) as second:
        assert second.state == (state[0], 0, 2)
    async with idempotent(eventhubs, asked=(state[0], 0, 0)) as third:  # as one that has lost the acknowledgement
        assert third.state == (state[0], 0, 2)
        await third.publish(["c"], 3)
    assert await refused_attach(eventhubs, (state[0], 0, 9)) == OUT_OF_ORDER


@pytest.mark.parametrize("asked", [(None, -1, None), (None, None, -1)])
async def test_a_level_or_number_below_0_is_out_of_range(eventhubs: EventHubs, asked: Asked) -> None:
    assert await refused_attach(eventhubs, asked) == OUT_OF_RANGE


async def test_the_state_of_a_producer_is_kept_per_partition(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs, "0", (7, 3, None)) as one, idempotent(eventhubs, "1", (7, 1, None)) as two:
        await one.publish(["a"], 1)
        await two.publish(["b"], 1)
    assert [eventhubs.control.bodies(HUB, partition) for partition in "01"] == [["a"], ["b"]]


async def test_other_senders_stand_beside_idempotent_ones(eventhubs: EventHubs) -> None:
    async with idempotent(eventhubs) as sender:
        await sender.publish(["a"], 1)
        await send(eventhubs, "b", partition_id="0")
        await sender.publish(["c"], 2)
    assert [(event.body, event.producer is None) for event in eventhubs.control.events(HUB, "0")] == [
        *(("a", False), ("b", True), ("c", False))
    ]
