"""What takes its time at a hub: questions that keep a pace, and answers of the wire server that are late by order."""

from __future__ import annotations

import asyncio
import time

import pytest
from connectors.eventhubs.clients import HUB, published, received
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.amqp.management import LINES_MAX, QUESTIONS_PER_S
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker


async def test_questions_take_few_connections_and_keep_a_pace(eventhubs: EventHubs) -> None:
    eventhubs.control.make_hub("wide", 30)
    broker = EventHubsBroker(account_of(connection_string=eventhubs.connection_string, event_hub="wide"))
    eventhubs.control.fault("delay", of="management", delay_s=0.5)  # one after another they would take 15 s
    began = time.monotonic()
    ends = await asyncio.gather(*(broker.read_extent(str(n)) for n in range(30)))
    took_s = time.monotonic() - began
    assert len(ends) == eventhubs.control.count("reads") == 30
    assert eventhubs.control.statistics()["connections"] == LINES_MAX
    assert 29 / QUESTIONS_PER_S <= took_s < 12
    await broker.close()
    await until_async(lambda: eventhubs.control.statistics()["connections"] == 0)


@pytest.mark.parametrize("do", ["delay", "late_ack"])
async def test_a_late_acknowledgement_comes(eventhubs: EventHubs, do: str) -> None:
    eventhubs.control.fault(do, times=1, delay_s=0.3)
    began = time.monotonic()
    assert await published(eventhubs) is None
    assert time.monotonic() - began >= 0.3


async def test_a_receiver_waits_as_long_as_ordered(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a", "b"])
    eventhubs.control.fault("delay", of="receive", after=1, times=1, delay_s=0.3)
    began = time.monotonic()
    assert len(await received(eventhubs, 2)) == 2
    assert time.monotonic() - began >= 0.3


async def test_attaching_is_delayed_by_order(eventhubs: EventHubs) -> None:
    eventhubs.control.append(HUB, "0", ["a"])
    eventhubs.control.fault("delay", of="attach.*", times=1, delay_s=0.3)
    began = time.monotonic()
    assert len(await received(eventhubs, 1)) == 1
    assert time.monotonic() - began >= 0.3
