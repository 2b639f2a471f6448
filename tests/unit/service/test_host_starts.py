"""Where the partitions of a pipeline begin."""

from __future__ import annotations

from typing import Any

from patience import until_async

from leasehold.pipeline.connectors.memory import MemoryChangeFeed


async def test_a_single_partition_begins_where_its_own_start_says(start: Any) -> None:
    feed = MemoryChangeFeed(("a", "b"))
    feed.append("a", [b"old"] * 2)
    feed.append("b", [b"old"] * 4)
    running = await start(feeds={"bank": feed}, starts={"b": "latest"})
    await until_async(lambda: len(running.host.workers) == 2)
    feed.append("b", [b"new"])
    await until_async(lambda: {key.partition for key in running.host.workers} == {"a", "b"})
    await until_async(lambda: running.host.stats.events["bank"] >= 3)
    rows = [row for partition in "ab" for row in running.destination.rows(partition)]
    assert sorted(row["body"] for row in rows) == [b"new", b"old", b"old"]
