"""Hosts over an asynchronous sink: leases move and hosts stop, and nothing is missing or comes twice without a crash."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from patience import until_async

from leasehold.pipeline.async_sink import AsyncSink, Destination, Entry, Limits
from leasehold.pipeline.connectors.memory import MemoryChangeFeed

PARTITIONS = ("a", "b", "c", "d")


class Slow(Destination):
    """taken: (partition, sequence) of what arrived, some turns of the loop after it was sent."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []

    async def submit(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        for _ in range(10):
            await asyncio.sleep(0)
        rows = [json.loads(entry.value) for entry in entries]
        self.taken += [(row["partition"], row["sequence"]) for row in rows]
        return []


def sink_to(destination: Slow) -> AsyncSink:
    return AsyncSink(destination, identity="slow", limits=Limits(batch_entries_max=20, buffer_age_max_s=0.01))


async def test_a_lease_that_is_handed_over_and_a_host_that_stops_repeat_nothing(start: Any) -> None:
    destination, feed = Slow(), MemoryChangeFeed(PARTITIONS, page_events_max=50)
    ours = await start("host-a", feeds={"bank": feed}, sinks={"bank": sink_to(destination)})
    await until_async(lambda: len(ours.host.workers) == 4)
    theirs = await start("host-b", feeds={"bank": feed}, sinks={"bank": sink_to(destination)})
    sent = 0

    def has_taken_half() -> bool:
        nonlocal sent
        for partition in PARTITIONS:
            feed.append(partition, [b"x"] * 100)
        sent += 100
        return len(theirs.host.workers) == 2

    await until_async(has_taken_half)
    ours.host.stop()
    await until_async(lambda: len(theirs.host.workers) == 4)
    await until_async(lambda: len(destination.taken) >= 4 * sent)
    times = Counter(destination.taken)
    assert len(times) == 4 * sent
    assert set(times.values()) == {1}


async def test_the_lease_of_an_idle_partition_has_its_newest_position(start: Any) -> None:
    destination, feed = Slow(), MemoryChangeFeed(("a",))
    ours = await start("host-a", feeds={"bank": feed}, sinks={"bank": sink_to(destination)})
    feed.append("a", [b"x"] * 1000)

    async def kept() -> bool:
        return bool((await ours.keeper.read("bank", "a")).lease.continuation == "1000")

    await until_async(lambda: len(destination.taken) == 1000)
    await until_async(kept)
