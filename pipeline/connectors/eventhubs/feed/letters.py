"""Dead letters in an event hub, as the streams of a feed. The letters of one partition may be in each of the hub's partitions.

A partition of the hub has letters of many partitions, and perhaps of other pipelines. To find out which, all of it is read once;
what arrives later is for the next reading. A letter's number is its event's sequence.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import pyarrow as pa

from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.position import position_of
from leasehold.pipeline.dead_letters.box import read_until, read_until_now
from leasehold.pipeline.dead_letters.merged_feed import NONE_READ, LetterStretch
from leasehold.pipeline.dead_letters.record import letter_of


class HubLetters:
    """Implements leasehold.pipeline.dead_letters.merged_feed.LetterStreams over `feed`, which the caller closes."""

    def __init__(self, feed: EventHubsChangeFeed, pipeline: str) -> None:
        self._feed = feed
        self._pipeline = pipeline
        self._found: dict[str, list[str]] | None = None

    @property
    def identity(self) -> str:
        return f"{self._feed.identity} dead letters of {self._pipeline}"

    async def list_partitions(self) -> Sequence[str]:
        return list(await self._places())

    async def list_streams(self, partition: str) -> Sequence[str]:
        return (await self._places()).get(partition, [])

    async def find_end(self, partition: str, stream: str) -> int:
        return _sequence_in(await self._feed.latest(stream))

    async def count(self, partition: str, stream: str, behind: int) -> int:
        """Events that are not letters of this partition count too."""
        return max(0, await self.find_end(partition, stream) - max(behind, await self._before(stream)))

    async def read(self, partition: str, stream: str, behind: int, end: int) -> AsyncGenerator[LetterStretch, None]:
        """Events that retention has deleted are skipped."""
        start = max(behind, await self._before(stream))
        async with aclosing(read_until(self._feed, stream, _position(start), str(end))) as pages:
            async for page in pages:
                places = [n for n, each in enumerate(self._partitions_in(page.events)) if each == partition]
                events = page.events.take(pa.array(places, pa.int64()))
                kept = [number for number in events["sequence"].to_pylist() if number <= end]
                if kept:
                    yield LetterStretch(kept, events.slice(0, len(kept)))

    async def close(self) -> None:
        """Nothing to do: the caller closes the feed."""

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
        async with aclosing(read_until_now(self._feed, place)) as pages:
            async for page in pages:
                found |= {each for each in self._partitions_in(page.events) if each is not None}
        return sorted(found)

    def _partitions_in(self, events: pa.Table) -> list[str | None]:
        """For each event the partition of its letter; None if it is not a letter of this pipeline."""
        letters = map(letter_of, events.to_pylist())
        return [each.partition if each is not None and each.pipeline == self._pipeline else None for each in letters]

    async def _before(self, place: str) -> int:
        return _sequence_in(await self._feed.start_of(place, "earliest"))


def _sequence_in(position: str | None) -> int:
    found = position_of(position).sequence
    return NONE_READ if found is None else found


def _position(number: int) -> str | None:
    return None if number == NONE_READ else str(number)
