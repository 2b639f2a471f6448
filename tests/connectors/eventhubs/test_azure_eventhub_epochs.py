"""Receivers with epochs on the wire server, as azure-eventhub meets them."""

from __future__ import annotations

import pytest
from azure.eventhub._pyamqp.error import AMQPLinkError, ErrorCondition
from connectors.eventhubs.clients import HUB, Receiver, received, receiver
from plugins_eventhubs import EventHubs


async def is_stolen(one: Receiver) -> bool:
    with pytest.raises(AMQPLinkError) as lost:
        await one.take(1)
    return bool(lost.value.condition == ErrorCondition.LinkStolen)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (1, 1), (None, 0)])
async def test_a_receiver_with_a_higher_or_the_same_epoch_takes_the_link(
    eventhubs: EventHubs, first: int | None, second: int
) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with receiver(eventhubs, epoch=first) as one:
        assert len(await one.take(1)) == 1
        async with receiver(eventhubs, epoch=second) as two:
            assert await is_stolen(one)
            assert [event.body_as_str() for event in await two.take(1)] == ["a"]
            assert [link["epoch"] for link in eventhubs.control.links(partition="0")] == [second]


@pytest.mark.parametrize("second", [1, None])
async def test_a_lower_epoch_and_none_at_all_are_refused_beside_a_higher_one(
    eventhubs: EventHubs, second: int | None
) -> None:
    async with receiver(eventhubs, epoch=2) as one:
        with pytest.raises(AMQPLinkError) as refused:
            async with receiver(eventhubs, epoch=second) as two:
                await two.take(1)
        assert refused.value.condition == ErrorCondition.LinkStolen
        eventhubs.control.append(HUB, "0", ["a"])
        assert len(await one.take(1)) == 1


async def test_epochs_are_kept_apart_by_partition_and_group(eventhubs: EventHubs) -> None:
    eventhubs.control.make_hub(HUB, 2, groups=["other"])
    async with (
        receiver(eventhubs, "0", epoch=5) as one,
        receiver(eventhubs, "1", epoch=1) as two,
        receiver(eventhubs, "0", group="other", epoch=1) as three,
    ):
        eventhubs.control.append(HUB, "0", ["a"])
        eventhubs.control.append(HUB, "1", ["b"])
        assert [(await each.take(1))[0].body_as_str() for each in (one, two, three)] == ["a", "b", "a"]


async def test_a_lower_epoch_is_welcome_once_the_higher_one_has_gone(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    assert len(await received(eventhubs, 1, epoch=9)) == 1
    assert len(await received(eventhubs, 1, epoch=3)) == 1


async def test_five_may_receive_without_an_epoch_and_no_sixth(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    async with (
        receiver(eventhubs),
        receiver(eventhubs),
        receiver(eventhubs),
        receiver(eventhubs),
        receiver(eventhubs) as fifth,
    ):
        assert len(await fifth.take(1)) == 1
        with pytest.raises(AMQPLinkError) as refused:
            await received(eventhubs, 1)
        assert refused.value.condition == ErrorCondition.ResourceLimitExceeded
