"""A box of dead letters: where they are put, and how they are read again, in any system."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from leasehold.pipeline.dead_letters.record import Letter, letter_of, published
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterBox:
    """Where a pipeline's dead letters are read and written.

    - `feed`: the letters, as events with a property that holds all but the body. Its partitions may differ from the letters' own.
    """

    feed: ChangeFeed
    sink: Sink | None = None
    """The sink for letters on their own; None if the pipeline's sink takes them with its output."""
    rows: Callable[[pa.Table], pa.Table] = published
    """The letters (LETTER_SCHEMA) as that sink takes them."""
    by_partition: ChangeFeed | None = None
    """The same letters by the partitions of their events, for replays; None if a partition of `feed` never has the letters of
    several."""

    async def close(self) -> None:
        """`by_partition` reads through `feed`, and is closed with it."""
        await self.feed.close()
        if self.sink is not None:
            await self.sink.close()


class StoredLetter(NamedTuple):
    """A letter and its place: the box's partition, and the sequence there."""

    place: str
    number: int
    letter: Letter


class BoundedFeed(ChangeFeed):
    """A feed of letters whose reader has to know in advance where it ends."""

    @abstractmethod
    def read_until(self, partition: str, behind: str | None, end: str | None) -> AsyncGenerator[Page, None]:
        """The pages after a position. No page passes `end`, and the last one's `to` is `end`."""


async def read_until(
    feed: ChangeFeed, partition: str, behind: str | None, end: str | None
) -> AsyncGenerator[Page, None]:
    """The pages after a position, up to the one that contains `end`. Raises FeedUnavailable, PositionLost."""
    if isinstance(feed, BoundedFeed):
        pages = feed.read_until(partition, behind, end)
    elif feed.compare(behind, end) < 0:
        pages = feed.open(partition, behind)
    else:
        return
    async with aclosing(pages):
        async for page in pages:
            yield page
            if feed.compare(page.to, end) >= 0:
                return


async def read_until_now(feed: ChangeFeed, partition: str, since: str | None = None) -> AsyncGenerator[Page, None]:
    """The pages of a partition up to its present end. since: the position that they follow; None for all of them."""
    end = await feed.latest(partition)
    behind = await feed.start_of(partition, "earliest") if since is None else since
    async with aclosing(read_until(feed, partition, behind, end)) as pages:
        async for page in pages:
            yield page


async def read_kept(box: LetterBox, pipeline: str, *, partition: str | None = None) -> AsyncIterator[StoredLetter]:
    """All current letters of a pipeline, or of one partition of its feed. Raises FeedUnavailable, PositionLost."""
    for place in await box.feed.partitions():
        async with aclosing(read_until_now(box.feed, place.name)) as pages:
            async for page in pages:
                for event in page.events.to_pylist():
                    found = letter_of(event)
                    if found is not None and found.pipeline == pipeline and partition in (None, found.partition):
                        yield StoredLetter(place.name, event["sequence"], found)


async def find_buried(
    box: LetterBox, place: str, since: str | None, written: Callable[[Letter], bool]
) -> frozenset[int]:
    """The sequences of those letters in one of the box's partitions that `written` accepts.

    since: no such letter is before it. Raises FeedUnavailable, PositionLost.
    """
    found = set()
    async with aclosing(read_until_now(box.feed, place, since)) as pages:
        async for page in pages:
            letters = map(letter_of, page.events.to_pylist())
            found |= {letter.sequence for letter in letters if letter is not None and written(letter)}
    return frozenset(found)
