"""Executors read ranges of a hub beside its host, on the wire server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from connectors.eventhubs.clients import HUB
from connectors.eventhubs.feeds import feed, pages
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed, EventHubsRanges
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost
from leasehold.pipeline.ranges import EventRange

VARIABLE = "LEASEHOLD_TEST_HUB"
OPTIONS: dict[str, Any] = {
    "executors_group": "sinks",
    "executors_env": VARIABLE,
    "limits": ReceiverLimits(page_events=500, timeout_s=30),
}


@pytest.fixture(autouse=True)
def variable(eventhubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, eventhubs.connection_string)


def reader(made: EventHubsChangeFeed, silence_s: float = 20.0) -> EventHubsRanges:
    found = made.range_reader()
    assert isinstance(found, EventHubsRanges)
    return replace(found, silence_s=silence_s)


async def numbers(of: EventHubsRanges, planned: EventRange) -> list[int]:
    tables = await asyncio.to_thread(lambda: list(of.read_range("0", planned)))
    return [number for table in tables for number in table["sequence"].to_pylist()]


async def test_five_ranges_are_read_at_once_while_the_host_reads_with_its_epoch(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 20_000)
    async with feed(eventhubs, **OPTIONS) as made:
        ranges = await made.plan_ranges("0", None, 19_000, 100)
        async with aclosing(made.open_as(7, "0", ranges[-1].to)) as host:
            first = await anext(host)
            found = await asyncio.gather(*(numbers(reader(made), each) for each in ranges))
            assert first.events["sequence"][0].as_py() == 19_000
            assert (await anext(host)).events["sequence"][0].as_py() == 19_000 + first.events.num_rows
    assert [len(each) for each in found] == [3_800] * 5
    assert [number for each in found for number in each] == list(range(19_000))


async def test_a_range_that_the_partition_does_not_reach_is_refused_in_time(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 10)
    async with feed(eventhubs, **OPTIONS) as made:
        with pytest.raises(FeedUnavailable, match=r"no event after 9 arrived .*the range ends at 10"):
            await numbers(reader(made, 2), EventRange(None, "10", 11))


async def test_what_retention_forgot_since_it_was_planned_is_lost(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 100)
    async with feed(eventhubs, **OPTIONS) as made:
        ranges = await made.plan_ranges("0", None, 100, 50)
        eventhubs.control.trim(HUB, "0", 70)
        for each in ranges:
            with pytest.raises(PositionLost, match="retention has deleted"):
                await numbers(reader(made), each)


async def test_in_the_group_of_the_host_executors_are_refused(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 100)
    async with feed(eventhubs, **OPTIONS | {"executors_group": "$Default"}) as made:
        [planned] = await made.plan_ranges("0", None, 100, 100)
        async with aclosing(made.open_as(7, "0", None)) as host:
            await anext(host)
            with pytest.raises(FeedError, match="use another group"):
                await numbers(reader(made), planned)


async def test_a_cut_connection_costs_no_event(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 5_000)
    async with feed(eventhubs, **OPTIONS | {"limits": replace(OPTIONS["limits"], prefetch=600)}) as made:
        [planned] = await made.plan_ranges("0", None, 5_000, 5_000)
        tables = reader(made).read_range("0", planned)
        read = [await asyncio.to_thread(next, tables)]
        eventhubs.control.cut(hub=HUB)
        read += await asyncio.to_thread(lambda: list(tables))
    assert [number for table in read for number in table["sequence"].to_pylist()] == list(range(5_000))


async def test_reading_resumes_behind_each_range(eventhubs: EventHubs) -> None:
    eventhubs.control.fill(HUB, "0", 100)
    async with feed(eventhubs, **OPTIONS) as made:
        for each in await made.plan_ranges("0", None, 90, 30):
            [page, *_] = await pages(made, 10, continuation=each.to, epoch=1)
            assert page.events["sequence"][0].as_py() == int(each.to) + 1
