"""Faults of the wire server, as azure-eventhub meets them, and what has been stored all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub._pyamqp.error import AMQPConnectionError, AMQPException, AMQPLinkError, MessageException
from azure.eventhub.exceptions import AuthenticationError, ConnectError, EventDataSendError, EventHubError
from connectors.eventhubs import clients
from connectors.eventhubs.clients import HUB, idempotent, producer, published, received, receiver
from patience import until_async
from plugins_eventhubs import EventHubs

BUSY = b"com.microsoft:server-busy"
FORCED = b"amqp:link:detach-forced"


@pytest.mark.parametrize(
    ("do", "more", "is_stored", "condition"),
    [
        ("cut", {}, False, None),
        ("cut_after", {}, True, None),
        ("throttle", {}, False, BUSY),
        ("refuse", {"condition": "com.microsoft:entity-disabled"}, False, b"com.microsoft:entity-disabled"),
        ("detach", {}, False, None),
        ("detach_after", {}, True, None),
    ],
)
async def test_a_send_that_fails_and_whether_it_was_stored(
    eventhubs: EventHubs, do: str, more: dict[str, Any], is_stored: bool, condition: bytes | None
) -> None:
    number = eventhubs.control.fault(do, times=1, **more)
    error = await published(eventhubs)
    assert isinstance(error, AMQPException)
    if condition:
        assert error.condition == condition
    assert eventhubs.control.bodies(HUB, "0") == (["a"] if is_stored else [])
    [fault] = eventhubs.control.faults()
    assert (fault["number"], fault["taken"]) == (number, 1)
    assert await published(eventhubs) is None


async def test_a_lost_acknowledgement_leaves_the_client_waiting(
    eventhubs: EventHubs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "PATIENCE_S", 0.3)
    eventhubs.control.fault("lose_ack", times=1)
    assert isinstance(await published(eventhubs), TimeoutError)
    eventhubs.control.fault("hang", times=1)
    assert isinstance(await published(eventhubs), TimeoutError)
    assert eventhubs.control.bodies(HUB, "0") == ["a"]


async def test_a_delayed_batch_is_stored_though_its_sender_has_gone(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("delay", times=1, delay_s=5)
    async with idempotent(eventhubs, asked=(7, 0, None)) as sender:
        task = asyncio.create_task(sender.publish(["late"], 1))
        await until_async(lambda: eventhubs.control.count("batches") == 1)
        eventhubs.control.cut()
        await asyncio.gather(task, return_exceptions=True)
    assert eventhubs.control.bodies(HUB, "0") == []
    await until_async(lambda: eventhubs.control.bodies(HUB, "0") == ["late"])


async def test_a_delayed_batch_of_a_lower_level_is_refused_when_it_arrives(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("delay", times=1, delay_s=5)
    async with idempotent(eventhubs, asked=(7, 0, None)) as sender:
        task = asyncio.create_task(sender.publish(["zombie"], 1))
        await until_async(lambda: eventhubs.control.count("batches") == 1)
        async with idempotent(eventhubs, asked=(7, 1, None)) as new:
            await new.publish(["new"], 1)
            with pytest.raises(MessageException):
                await task
    assert eventhubs.control.bodies(HUB, "0") == ["new"]


async def test_a_fault_takes_the_calls_that_it_was_ordered_for(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("throttle", partition="1", hub=HUB, after=1, times=1)
    outcomes = []
    async with idempotent(eventhubs, "1") as sender:
        for _ in range(3):
            try:
                await sender.publish(["x"], 1)
                outcomes.append(True)
            except MessageException:
                outcomes.append(False)
    assert outcomes == [True, False, True]
    with pytest.raises(ValueError, match="cannot be done"):
        eventhubs.control.fault("lose_ack", of="receive")
    with pytest.raises(ValueError, match="fits none"):
        eventhubs.control.fault("cut", of="nothing")


async def test_the_sdk_gives_a_throttled_send_up_and_the_next_one_goes_through(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("throttle", times=1)
    async with producer(eventhubs, retry_total=2) as client:
        with pytest.raises(EventDataSendError, match="throttled"):
            await client.send_batch([EventData("a")], partition_id="0")
        await client.send_batch([EventData("b")], partition_id="0")
    assert eventhubs.control.bodies(HUB, "0") == ["b"]


async def test_the_sdk_stores_twice_what_it_has_lost_the_acknowledgement_of(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("cut_after", times=1)
    async with producer(eventhubs, retry_total=2, retry_backoff_factor=0.01) as client:
        await client.send_batch([EventData("a")], partition_id="0")
    assert eventhubs.control.bodies(HUB, "0") == ["a", "a"]


@pytest.mark.parametrize("do", ["cut", "detach"])
async def test_a_receiver_loses_its_link_after_as_many_events_as_ordered(eventhubs: EventHubs, do: str) -> None:
    eventhubs.control.append(HUB, "0", [str(n) for n in range(10)])
    eventhubs.control.fault(do, of="receive", after=4, times=1)
    async with receiver(eventhubs) as one:
        assert [event.sequence_number for event in await one.take(4)] == [0, 1, 2, 3]
        with pytest.raises((AMQPConnectionError, AMQPLinkError)):
            await one.take(1)
    assert len(await received(eventhubs, 6, position="sequence-number > '3'")) == 6


async def test_links_are_stolen_detached_and_cut_by_order(eventhubs: EventHubs) -> None:
    for order, condition in (
        (eventhubs.control.steal, b"amqp:link:stolen"),
        (eventhubs.control.detach, FORCED),
    ):
        async with receiver(eventhubs, "0", epoch=1) as one, receiver(eventhubs, "1", epoch=1) as two:
            assert order(hub=HUB, partition="0") == 1
            with pytest.raises(AMQPLinkError) as lost:
                await one.take(1)
            assert lost.value.condition == condition
            eventhubs.control.append(HUB, "1", ["still there"])
            assert len(await two.take(1)) == 1
    async with receiver(eventhubs) as one:
        assert eventhubs.control.cut(role="sender") == 0
        assert eventhubs.control.cut(role="receiver") == 1
        with pytest.raises(AMQPException):
            await one.take(1)
    async with receiver(eventhubs) as one:
        assert eventhubs.control.close() == 1
        with pytest.raises(AMQPException):
            await one.take(1)


async def test_attaching_is_refused_and_throttled_by_order(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    eventhubs.control.fault("throttle", of="attach.receiver", times=1)
    with pytest.raises(AMQPLinkError) as refused:
        await received(eventhubs, 1)
    assert refused.value.condition == BUSY
    eventhubs.control.fault("refuse", of="attach.sender", times=1, condition="com.microsoft:entity-disabled")
    with pytest.raises(AMQPLinkError) as refused:
        await published(eventhubs)
    assert refused.value.condition == b"com.microsoft:entity-disabled"


async def test_tokens_and_properties_are_refused_by_order(eventhubs: EventHubs) -> None:
    eventhubs.control.fault("throttle", of="management", times=1)
    async with producer(eventhubs) as client:
        with pytest.raises(ConnectError, match="503"):
            await client.get_eventhub_properties()
        assert len(await client.get_partition_ids()) == 4
    eventhubs.control.fault("refuse", of="cbs", times=1)
    async with producer(eventhubs) as client:
        with pytest.raises((AuthenticationError, EventHubError)):
            await client.send_batch([EventData("x")], partition_id="0")
