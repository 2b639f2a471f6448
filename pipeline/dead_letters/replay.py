"""A pipeline's dead letters as a feed: their events, as they were, from the first letter up to the last one of this moment.

A replay is a pipeline like any other, by a name of its own: its position among the letters is kept by its leases and, where the
sink keeps positions, by the sink. So each letter is sent through once. One that fails again becomes a letter behind the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pyarrow as pa

from pipeline.dead_letters.box import LetterBox, until
from pipeline.dead_letters.letter import event_of, letter_of
from pipeline.event import EVENT_SCHEMA, Page
from pipeline.feed import FeedPartition, Start


class ReplayFeed:
    """Implements pipeline.feed.ChangeFeed over a box. partition: of the pipeline's feed; None for all."""

    def __init__(self, box: LetterBox, pipeline: str, *, partition: str | None = None) -> None:
        self._box = box
        self._feed = box.by_partition or box.feed
        self._pipeline = pipeline
        self._partition = partition
        self._ends: dict[str, str | None] = {}

    @property
    def identity(self) -> str:
        return f"dead letters of '{self._pipeline}' in {self._feed.identity}"

    async def partitions(self) -> list[FeedPartition]:
        return [each for each in await self._feed.partitions() if self._partition in (None, each.name)]

    async def start_of(self, partition: str, start: Start) -> str | None:
        return await self._feed.start_of(partition, start)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        end = await self.latest(partition)
        async with aclosing(until(self._feed, partition, continuation, end)) as pages:
            async for page in pages:
                yield self._replayed(page, partition, end)
        await asyncio.get_running_loop().create_future()  # what comes later is for the next replay

    async def latest(self, partition: str) -> str | None:
        """As it was when it was first asked for."""
        if partition not in self._ends:
            self._ends[partition] = await self._feed.latest(partition)
        return self._ends[partition]

    async def lag(self, partition: str, continuation: str | None) -> int:
        end = await self.latest(partition)
        if self.compare(continuation, end) >= 0:
            return 0
        return await self._feed.lag(partition, continuation) - await self._feed.lag(partition, end)

    def compare(self, a: str | None, b: str | None) -> int:
        return self._feed.compare(a, b)

    async def close(self) -> None:
        """A box with a sink of its own belongs to the pipeline's sink (`beside`), which closes both."""
        if self._box.sink is None:
            await self._box.close()

    def _replayed(self, page: Page, partition: str, end: str | None) -> Page:
        rows, places = [], []
        count = self._count(page, end)
        for place, event in enumerate(page.events.slice(0, count).to_pylist()):
            letter = letter_of(event)
            if letter is not None and letter.pipeline == self._pipeline:
                rows.append({**event_of(letter), "partition": partition})
                places.append(place)
        to = page.to if count == page.events.num_rows else str(end)
        events = pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)
        return Page(events, to, lambda n: page.position_after(places[n - 1] + 1))

    def _count(self, page: Page, end: str | None) -> int:
        """How many of a page's events lie before the end."""
        if self.compare(page.to, end) <= 0:
            return int(page.events.num_rows)
        count = 1
        while self.compare(page.position_after(count), end) < 0:
            count += 1
        return count
