"""A box of dead letters: where they are put, and how they are read again, whatever system keeps them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

import pyarrow as pa

from pipeline.dead_letters.record import Letter, letter_of, published
from pipeline.event import Page
from pipeline.feed import ChangeFeed
from pipeline.offers import offers
from pipeline.sink import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterBox:
    """feed: the letters, as events whose property tells all but the body; its partitions need not be the letters' own.

    sink: where letters are put, on their own; None where the pipeline's sink takes them with its output. rows: the letters
    (LETTER_SCHEMA) as that sink takes them. by_partition: the same letters by the partitions of their events, where `feed` has
    several partitions' letters in one of its own: what is replayed.
    """

    feed: ChangeFeed
    sink: Sink | None = None
    rows: Callable[[pa.Table], pa.Table] = published
    by_partition: ChangeFeed | None = None

    async def close(self) -> None:
        """`by_partition` reads by `feed`, and is closed with it."""
        await self.feed.close()
        if self.sink is not None:
            await self.sink.close()


class Kept(NamedTuple):
    """A letter and where it lies: the box's partition, and the sequence there."""

    place: str
    number: int
    letter: Letter


@runtime_checkable
class BoundedFeed(Protocol):
    """What a feed of letters offers besides whose reader has to know beforehand up to where it reads."""

    def until(self, partition: str, behind: str | None, end: str | None) -> AsyncGenerator[Page, None]:
        """The pages behind a position, none of which passes `end`; the last one's `to` is that."""
        ...


async def until(feed: ChangeFeed, partition: str, behind: str | None, end: str | None) -> AsyncGenerator[Page, None]:
    """The pages behind a position, up to that with `end` in it. Raises FeedUnavailable, PositionLost."""
    if offers(feed, BoundedFeed):
        pages = cast(BoundedFeed, feed).until(partition, behind, end)
    elif feed.compare(behind, end) < 0:
        pages = feed.open(partition, behind)
    else:
        return
    async with aclosing(pages):
        async for page in pages:
            yield page
            if feed.compare(page.to, end) >= 0:
                return


async def until_now(feed: ChangeFeed, partition: str, since: str | None = None) -> AsyncGenerator[Page, None]:
    """The pages of a partition up to where it ends at this moment. since: behind which; None for all that are there."""
    end = await feed.latest(partition)
    behind = await feed.start_of(partition, "earliest") if since is None else since
    async with aclosing(until(feed, partition, behind, end)) as pages:
        async for page in pages:
            yield page


async def read_kept(box: LetterBox, pipeline: str, *, partition: str | None = None) -> AsyncIterator[Kept]:
    """All letters of a pipeline that are there now, or of one partition of its feed. Raises FeedUnavailable, PositionLost."""
    for place in await box.feed.partitions():
        async with aclosing(until_now(box.feed, place.name)) as pages:
            async for page in pages:
                for event in page.events.to_pylist():
                    found = letter_of(event)
                    if found is not None and found.pipeline == pipeline and partition in (None, found.partition):
                        yield Kept(place.name, event["sequence"], found)


async def find_buried(
    box: LetterBox, place: str, since: str | None, written: Callable[[Letter], bool]
) -> frozenset[int]:
    """The sequences of the letters for which `written` says so, among those of one of the box's partitions.

    since: no such letter lies before it. Raises FeedUnavailable, PositionLost.
    """
    found = set()
    async with aclosing(until_now(box.feed, place, since)) as pages:
        async for page in pages:
            letters = map(letter_of, page.events.to_pylist())
            found |= {letter.sequence for letter in letters if letter is not None and written(letter)}
    return frozenset(found)
