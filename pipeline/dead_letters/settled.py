"""Which dead letters still need attention: derived from how far the replay has read them, and from the letters themselves.

A replay moves its position only past letters whose events it has processed, or has written as dead letters again. So a letter
after the position is open. A letter before it was replayed, or a later letter of the same event has replaced it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Literal

import pyarrow as pa

from leasehold.pipeline.dead_letters.box import LetterBox, StoredLetter, read_until, read_until_now
from leasehold.pipeline.dead_letters.record import Letter, event_of, letter_of
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start
from leasehold.pipeline.limits import REPLAY

# A pipeline's dead letters as a feed: their events, as they were, from the first letter up to the one that is last now.
#
# A replay is a pipeline like any other, with a name of its own: its position among the letters is kept by its leases and, if the
# sink holds positions, by the sink. So each letter is sent through once. One that fails again becomes a letter after the end.
#
# If a replay dies between such a letter and its batch's output, the next one reads the event twice. The old letter is left out,
# because it is buried; the new one is not. Both have the same sequence. So the new one is read under a claim of its own.


class ReplayFeed(ChangeFeed):
    """Reads a box. partition: the one of the pipeline's feed whose letters are read; None for all.

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
        async with aclosing(read_until(self._feed, partition, continuation, end)) as pages:
            async for page in pages:
                letters = self._letters(page, end)
                again = self._first_again(letters, continuation, read)
                if again is None:
                    yield _replayed(page, partition, letters, page.to if len(letters) == len(page.events) else str(end))
                    continue
                if again > 0:
                    yield _replayed(page, partition, letters[:again], str(page.position_after(again)))
                raise FeedUnavailable(
                    f"partition '{partition}': the next letters were written by an interrupted replay; they are read under a"
                    " claim of their own"
                )
        await asyncio.get_running_loop().create_future()  # what comes later is for the next replay

    async def latest(self, partition: str) -> str | None:
        """The end as it was at the first call."""
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
        """The letters of a page before the end; None for other pipelines' events and for discarded letters."""
        events = page.events.slice(0, self._count(page, end)).to_pylist()
        if self._discarded_to is not None:
            return [None] * len(events)
        return [
            found if found is not None and found.pipeline == self._pipeline else None
            for found in map(letter_of, events)
        ]

    def _first_again(self, letters: Sequence[Letter | None], continuation: str | None, read: set[int]) -> int | None:
        """The place of the first letter that an interrupted batch of a replay wrote for an event that was read before.

        read: the sequences of all events that were read since `continuation`; this adds to it.
        """
        for place, letter in enumerate(letters):
            if letter is not None:
                is_again = letter.by == self._pipeline + REPLAY and letter.sequence in read
                if is_again and self.compare(letter.to, continuation) > 0:
                    return place
                read.add(letter.sequence)
        return None

    def _count(self, page: Page, end: str | None) -> int:
        """How many of a page's events are before the end."""
        if self.compare(page.to, end) <= 0:
            return int(page.events.num_rows)
        count = 1
        while self.compare(page.position_after(count), end) < 0:
            count += 1
        return count


def _replayed(page: Page, partition: str, letters: Sequence[Letter | None], to: str) -> Page:
    """The letters' events as a page up to `to`. letters: those of the page's first events."""
    places = [place for place, letter in enumerate(letters) if letter is not None]
    rows = [{**event_of(letter), "partition": partition} for letter in letters if letter is not None]
    events = pa.Table.from_pylist(rows, schema=EVENT_SCHEMA)
    return Page(events, to, lambda n: page.position_after(places[n - 1] + 1))


LetterState = Literal["open", "replayed", "failed_again", "unknown"]
"""open: no replay has processed it yet. replayed: its event went through. failed_again: a newer letter has replaced it.
unknown: how far the replay got could not be found out."""

NO_REASONS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Replayed:
    """How far a pipeline's letters were replayed, by the partition of its feed.

    positions: among the letters. A partition that is missing was never replayed.
    unknown: partitions whose position could not be found out, and why. everything: why no position could be found out, or None.
    """

    positions: Mapping[str, str | None]
    unknown: Mapping[str, str] = field(default_factory=lambda: NO_REASONS)
    everything: str | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """again: the number of the letter that has replaced one that failed again."""

    kept: StoredLetter
    state: LetterState
    again: int | None = None


async def judge(
    box: LetterBox, pipeline: str, letters: Sequence[StoredLetter], replayed: Replayed
) -> tuple[list[Judged], list[str]]:
    """The state of each letter, and why some are unknown.

    letters: read after `replayed` was. A letter that failed again is written before the position moves, so it is among them.
    """
    if replayed.everything is not None:
        return [Judged(kept, "unknown") for kept in letters], [replayed.everything] if letters else []
    names = sorted({kept.letter.partition for kept in letters})
    unknown = {name: replayed.unknown[name] for name in names if name in replayed.unknown}
    unread: set[tuple[object, ...]] = set()
    for name in names:
        if name in replayed.positions and name not in unknown:
            try:
                unread |= await _find_unread(box, pipeline, name, replayed.positions[name])
            except FeedError as error:
                unknown[name] = str(error)
        elif name not in unknown:
            unread |= {_id(kept.number, kept.letter) for kept in letters if kept.letter.partition == name}
    return judged(letters, unread, unknown), [f"partition '{name}': {why}" for name, why in unknown.items()]


def judged(
    letters: Sequence[StoredLetter], unread: Collection[tuple[object, ...]], unknown: Collection[str]
) -> list[Judged]:
    """unread: the letters after the replay's position. unknown: partitions whose position is not known. Pure."""
    of_event = defaultdict[tuple[str, int], list[StoredLetter]](list)
    for kept in letters:
        of_event[kept.letter.partition, kept.letter.sequence].append(kept)

    def is_unread(kept: StoredLetter) -> bool:
        return _id(kept.number, kept.letter) in unread

    def judged_one(kept: StoredLetter) -> Judged:
        if kept.letter.partition in unknown:
            return Judged(kept, "unknown")
        again = _again(kept, of_event[kept.letter.partition, kept.letter.sequence])
        if is_unread(kept):
            # It may have a newer letter although its batch was not finished. The next replay leaves out events that have one.
            again = again if again is not None and is_unread(again) else None
        if again is not None:
            return Judged(kept, "failed_again", again.number)
        return Judged(kept, "open" if is_unread(kept) else "replayed")

    return [judged_one(kept) for kept in letters]


def _again(kept: StoredLetter, of_event: Iterable[StoredLetter]) -> StoredLetter | None:
    """The next letter of the same event that a replay wrote; None if there is none.

    The numbers of a replay's letters grow. In files, the pipeline's letters are numbered separately: if an operator's reset made
    the pipeline write several letters of one event, the time decides.
    """
    written = sorted((other for other in of_event if _by_replay(other)), key=lambda other: other.number)
    if _by_replay(kept):
        return next((other for other in written if other.number > kept.number), None)
    if sum(not _by_replay(other) for other in of_event) == 1:
        return next(iter(written), None)
    return next((other for other in written if _failed_at(other) > _failed_at(kept)), None)


def _by_replay(kept: StoredLetter) -> bool:
    return kept.letter.by == kept.letter.pipeline + REPLAY


def _failed_at(kept: StoredLetter) -> datetime:
    return datetime.fromisoformat(kept.letter.failed_at)


async def _find_unread(box: LetterBox, pipeline: str, partition: str, position: str | None) -> set[tuple[object, ...]]:
    """What a replay that begins now would read. Raises FeedUnavailable, PositionLost."""
    feed = box.by_partition or box.feed
    if await feed.lag(partition, position) == 0:
        return set()
    found = set()
    async with aclosing(read_until_now(feed, partition, position)) as pages:
        async for page in pages:
            for event in page.events.to_pylist():
                letter = letter_of(event)
                if letter is not None and letter.pipeline == pipeline:
                    found.add(_id(event["sequence"], letter))
    return found


def _id(number: int, letter: Letter) -> tuple[object, ...]:
    """A hub numbers the letters of each of its partitions separately, and one feed partition's letters may be in several."""
    return letter.partition, number, letter.by, letter.sequence, letter.generation, letter.failed_at
