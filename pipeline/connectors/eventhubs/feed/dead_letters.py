"""Dead letters in an event hub, as the strands of a feed: of each partition those in the hub's partitions.

A hub's partition has letters of many partitions, and of other pipelines perhaps, which is only known by reading all of it: once,
and what comes later is for the next reading. A letter's number is its event's sequence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pyarrow as pa

from pipeline.connectors.eventhubs.feed.feed import EventHubsFeed
from pipeline.connectors.eventhubs.position import position_of
from pipeline.dead_letters.merged_feed import NONE_READ, Stretch
from pipeline.dead_letters.record import letter_of
from pipeline.dead_letters.store import until, until_now


class HubLetters:
    """Implements pipeline.dead_letters.merged_feed.Strands over `feed`, which is somebody else's to close."""

    def __init__(self, feed: EventHubsFeed, pipeline: str) -> None:
        self._feed = feed
        self._pipeline = pipeline
        self._found: dict[str, list[str]] | None = None

    @property
    def identity(self) -> str:
        return f"{self._feed.identity} dead letters of {self._pipeline}"

    async def partitions(self) -> Sequence[str]:
        return list(await self._places())

    async def of(self, partition: str) -> Sequence[str]:
        return (await self._places()).get(partition, [])

    async def end(self, partition: str, strand: str) -> int:
        return _number(await self._feed.latest(strand))

    async def count(self, partition: str, strand: str, behind: int) -> int:
        """Others' events count too."""
        return max(0, await self.end(partition, strand) - max(behind, await self._before(strand)))

    async def read(self, partition: str, strand: str, behind: int, end: int) -> AsyncGenerator[Stretch, None]:
        """What retention has forgotten is passed over: nobody can read it any more."""
        start = max(behind, await self._before(strand))
        async with aclosing(until(self._feed, strand, _position(start), str(end))) as pages:
            async for page in pages:
                places = [n for n, each in enumerate(self._partitions_in(page.events)) if each == partition]
                events = page.events.take(pa.array(places, pa.int64()))
                kept = [number for number in events["sequence"].to_pylist() if number <= end]
                if kept:
                    yield Stretch(kept, events.slice(0, len(kept)))

    async def close(self) -> None:
        """The feed is not ours."""

    async def _places(self) -> dict[str, list[str]]:
        if self._found is None:
            found: dict[str, list[str]] = {}
            for place in await self._feed.partitions():
                for partition in await self._partitions_of(place.name):
                    found.setdefault(partition, []).append(place.name)
            self._found = found
        return self._found

    async def _partitions_of(self, place: str) -> list[str]:
        found: set[str] = set()
        async with aclosing(until_now(self._feed, place)) as pages:
            async for page in pages:
                found |= {each for each in self._partitions_in(page.events) if each is not None}
        return sorted(found)

    def _partitions_in(self, events: pa.Table) -> list[str | None]:
        """Of each event the partition of its letter, where it is one of this pipeline's."""
        letters = map(letter_of, events.to_pylist())
        return [each.partition if each is not None and each.pipeline == self._pipeline else None for each in letters]

    async def _before(self, place: str) -> int:
        return _number(await self._feed.start_of(place, "earliest"))


def _number(position: str | None) -> int:
    found = position_of(position).sequence
    return NONE_READ if found is None else found


def _position(number: int) -> str | None:
    return None if number == NONE_READ else str(number)
