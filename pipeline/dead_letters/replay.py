"""A pipeline's dead letters as a feed: their events, as they were, from the first letter up to the last one of this moment.

A replay is a pipeline like any other, by a name of its own: its position among the letters is kept by its leases and, where the
sink keeps positions, by the sink. So each letter is sent through once. One that fails again becomes a letter behind the end.

If a replay dies between such a letter and its batch's output, the next one reads the event twice: as the old letter, which is
left out since it is buried, and as the new one. Both have one sequence. So the new one is read under a claim of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing

import pyarrow as pa

from pipeline.dead_letters.record import Letter, event_of, letter_of
from pipeline.dead_letters.store import LetterBox, until
from pipeline.errors import FeedUnavailable
from pipeline.event import EVENT_SCHEMA, Page
from pipeline.feed import FeedPartition, Start
from pipeline.limits import REPLAY


class ReplayFeed:
    """Implements pipeline.feed.ChangeFeed over a box. partition: of the pipeline's feed; None for all.

    discarded_to: if given, discard all letters up to these positions, by partition: their pages come without events. Partitions
    that it does not name are left alone.
    """

    def __init__(
        self,
        box: LetterBox,
        pipeline: str,
        *,
        partition: str | None = None,
        discarded_to: Mapping[str, str | None] | None = None,
    ) -> None:
        self._box = box
        self._feed = box.by_partition or box.feed
        self._pipeline = pipeline
        self._partition = partition
        self._discarded_to = discarded_to
        self._ends: dict[str, str | None] = {**(discarded_to or {})}

    @property
    def identity(self) -> str:
        return f"dead letters of '{self._pipeline}' in {self._feed.identity}"

    async def partitions(self) -> list[FeedPartition]:
        listed = await self._feed.partitions()
        if self._discarded_to is not None:
            listed = [each for each in listed if each.name in self._discarded_to]
        return [each for each in listed if self._partition in (None, each.name)]

    async def start_of(self, partition: str, start: Start) -> str | None:
        return await self._feed.start_of(partition, start)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        end, read = await self.latest(partition), set[int]()
        async with aclosing(until(self._feed, partition, continuation, end)) as pages:
            async for page in pages:
                letters = self._letters(page, end)
                again = self._first_again(letters, continuation, read)
                if again is None:
                    yield _replayed(page, partition, letters, page.to if len(letters) == len(page.events) else str(end))
                    continue
                if again > 0:
                    yield _replayed(page, partition, letters[:again], str(page.position_after(again)))
                raise FeedUnavailable(
                    f"partition '{partition}': letters follow that an interrupted replay wrote; they are read under a claim of"
                    " their own"
                )
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

    def _letters(self, page: Page, end: str | None) -> list[Letter | None]:
        """What a page holds before the end; None for what is no letter of the pipeline, or is discarded."""
        events = page.events.slice(0, self._count(page, end)).to_pylist()
        if self._discarded_to is not None:
            return [None] * len(events)
        return [
            found if found is not None and found.pipeline == self._pipeline else None
            for found in map(letter_of, events)
        ]

    def _first_again(self, letters: Sequence[Letter | None], continuation: str | None, read: set[int]) -> int | None:
        """The place of the first letter that an interrupted batch of a replay wrote, whose event was read before.

        read: the sequences of all that was read since `continuation`; added to.
        """
        for place, letter in enumerate(letters):
            if letter is not None:
                is_again = letter.by == self._pipeline + REPLAY and letter.sequence in read
                if is_again and self.compare(letter.to, continuation) > 0:
                    return place
                read.add(letter.sequence)
        return None

    def _count(self, page: Page, end: str | None) -> int:
        """How many of a page's events lie before the end."""
        if self.compare(page.to, end) <= 0:
            return int(page.events.num_rows)
        count = 1
        while self.compare(page.position_after(count), end) < 0:
            count += 1
        return count


def _replayed(page: Page, partition: str, letters: Sequence[Letter | None], to: str) -> Page:
    """letters: of the page's first events."""
    places = [place for place, letter in enumerate(letters) if letter is not None]
    rows = [{**event_of(letter), "partition": partition} for letter in letters if letter is not None]
    events = pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)
    return Page(events, to, lambda n: page.position_after(places[n - 1] + 1))
