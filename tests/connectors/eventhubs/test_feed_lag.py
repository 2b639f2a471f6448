"""How far readers of a hub are behind, without asking the service, which allows few questions."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import UTC, datetime

import pytest
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import feed
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.errors import FeedUnavailable
from leasehold.pipeline.feed import KnownLag


async def test_a_reader_knows_its_lag_by_what_it_reads_and_asks_nothing(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 100)
    async with feed(eventhubs, limits=ReceiverLimits(page_events=40)) as read:
        assert read.known_lag("0", None) is None  # no reader is open
        async with aclosing(read.open_as(1, "0", None)) as pages:
            page = await anext(pages)
            at_first = read.known_lag("0", None)
            assert at_first is not None
            assert at_first.events == 100
            assert (page.events.num_rows, read.known_lag("0", page.to).events) == (40, 60)  # type: ignore[union-attr]
            for _ in range(2):
                page = await anext(pages)
            following = asyncio.ensure_future(anext(pages))
            await until_async(lambda: read.known_lag("0", page.to) == KnownLag(0, 0.0))
            eventhubs.control.fill(HUB, "0", 7)
            await following
            assert read.known_lag("0", page.to).events == 7  # type: ignore[union-attr]
        assert read.known_lag("0", page.to) is None
    assert eventhubs.control.count("reads") == 0


async def test_a_reader_that_finds_nothing_asks_once_and_knows_that_its_lag_is_none(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "1", 5)
    async with (
        feed(eventhubs) as read,
        aclosing(read.open_as(1, "0", None)) as empty,
        aclosing(read.open_as(1, "1", "4")) as drained,
    ):
        waiting = [asyncio.ensure_future(anext(pages)) for pages in (empty, drained)]
        await until_async(lambda: read.known_lag("0", None) == KnownLag(0, 0.0))
        await until_async(lambda: read.known_lag("1", "4") == KnownLag(0, 0.0))
        assert read.known_lag("1", "1") == KnownLag(3, 0.0)  # as its lease has it, which may lag
        assert read.known_lag("1", "5") is None  # behind the end: `lag` tells what is wrong
        assert read.known_lag("1", "@77") is None  # an offset alone
        assert eventhubs.control.count("reads") == 2
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_reader_that_is_not_attached_knows_how_old_its_lag_is(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 5)
    async with feed(eventhubs) as read, aclosing(read.open_as(1, "0", None)) as pages:
        page = await anext(pages)
        following = asyncio.ensure_future(anext(pages))
        await until_async(lambda: read.known_lag("0", page.to) == KnownLag(0, 0.0))
        eventhubs.control.fault("refuse", of="attach.receiver", condition="amqp:internal-error")
        eventhubs.control.cut(role="receiver")
        await until_async(lambda: read.known_lag("0", page.to).age_s > 0)  # type: ignore[union-attr]
        eventhubs.control.heal()
        await until_async(lambda: read.known_lag("0", page.to) == KnownLag(0, 0.0))
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_the_last_events_time_is_known_by_a_question_and_an_earlier_ones_by_receiving_it(
    eventhubs: EventHubs,
) -> None:
    control = eventhubs.control
    for _ in range(3):
        control.fill(HUB, "0", 1)
        control.order("clock", move_s=10)
    times = [datetime.fromtimestamp(event.time_ms / 1000, UTC) for event in control.events(HUB, "0")]
    async with feed(eventhubs) as read:
        assert await read.find_enqueued_time("0", "1") == times[2]
        assert (control.count("delivered"), control.count("reads")) == (0, 1)
        assert [await read.find_enqueued_time("0", at) for at in (None, "0", "2")] == [times[0], times[1], None]
        assert control.count("reads") == 4
        assert await read.find_enqueued_time("1", None) is None
        control.trim(HUB, "0", 2)
        assert await read.find_enqueued_time("0", None) == times[2]


async def test_while_its_owner_reads_a_partition_no_other_reader_looks_for_a_time(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 5)
    async with feed(eventhubs) as owner, feed(eventhubs) as other, aclosing(owner.open_as(1, "0", None)) as pages:
        await anext(pages)
        with pytest.raises(FeedUnavailable, match="no other receiver can search"):
            await other.find_enqueued_time("0", "1")


async def test_a_service_that_is_asked_too_often_is_busy(eventhubs: EventHubs) -> None:
    eventhubs.control.rules(reads_per_s_max=3)
    async with feed(eventhubs) as read:

        async def ask_on() -> None:
            for _ in range(200):  # of which four come within a second, unless the machine is busy
                await read.latest("0")

        with pytest.raises(FeedUnavailable, match="throttled"):
            await ask_on()
    assert eventhubs.control.count("reads") >= 3
    assert eventhubs.control.count("reads.throttled") == 1
