"""A feed of dead letters with the partitions of the original events. The letters of one partition may be in several streams.

Each stream has its own numbers. In files, a pipeline and its replay write a manifest each; a hub's partition holds letters of
many partitions. A position contains the progress in each stream. Such a feed is read up to an end, stream by stream; later
letters are for the next reading.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from leasehold.common.clock import Clock, LoopClock
from leasehold.common.nesting import parsed_json
from leasehold.pipeline.dead_letters.box import BoundedFeed
from leasehold.pipeline.errors import PositionLost
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import FeedPartition, Start
from leasehold.pipeline.limits import JSON_LEVELS_MAX

POLL_S = 1.0
NONE_READ = -1


@dataclass(frozen=True, slots=True)
class LetterStretch:
    """Some letters of a stream. numbers: of the letters in the stream, ascending. events: the letters (EVENT_SCHEMA)."""

    numbers: Sequence[int]
    events: pa.Table


class LetterStreams(Protocol):
    """Where the letters are. Their numbers grow within a stream, and are no less than 0."""

    @property
    def identity(self) -> str: ...

    async def list_partitions(self) -> Sequence[str]:
        """The partitions that have letters, or may have some. Raises FeedUnavailable."""
        ...

    async def list_streams(self, partition: str) -> Sequence[str]:
        """The names of the partition's streams. Raises FeedUnavailable."""
        ...

    async def find_end(self, partition: str, stream: str) -> int:
        """The number of the last letter, or of whatever is last there; NONE_READ if there is nothing."""
        ...

    async def count(self, partition: str, stream: str, behind: int) -> int:
        """How many letters come after a number; an estimate, 0 only if there are none."""
        ...

    def read(self, partition: str, stream: str, behind: int, end: int) -> AsyncGenerator[LetterStretch, None]:
        """The letters of the partition after a number, up to `end`. Raises FeedUnavailable, PositionLost."""
        ...

    async def close(self) -> None: ...


class MergedLetters(BoundedFeed):
    def __init__(self, streams: LetterStreams, *, clock: Clock | None = None) -> None:
        self._streams = streams
        self._clock = clock or LoopClock()

    @property
    def identity(self) -> str:
        return self._streams.identity

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name) for name in sorted(await self._streams.list_partitions())]

    async def start_of(self, partition: str, start: Start) -> str | None:
        return await self.latest(partition) if start == "latest" else None

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        while True:
            async with aclosing(self.read_until(partition, continuation, await self.latest(partition))) as pages:
                async for page in pages:
                    continuation = page.to
                    yield page
            await self._clock.sleep(POLL_S)

    async def read_until(self, partition: str, behind: str | None, end: str | None) -> AsyncGenerator[Page, None]:
        at, ends = _numbers(behind), _numbers(end)
        for stream, last in ends.items():
            if at.get(stream, NONE_READ) >= last:
                continue
            async with aclosing(self._streams.read(partition, stream, at.get(stream, NONE_READ), last)) as stretches:
                async for stretch in stretches:
                    before, at = at, {**at, stream: stretch.numbers[-1]}
                    yield _page(stretch, stream, before)
            if at.get(stream) != last:  # the stream's last letters are of other partitions
                at = {**at, stream: last}
                yield Page(EVENT_SCHEMA.empty_table(), _position(at))

    async def latest(self, partition: str) -> str | None:
        ends = {
            name: await self._streams.find_end(partition, name) for name in await self._streams.list_streams(partition)
        }
        there = {name: end for name, end in ends.items() if end != NONE_READ}
        return _position(there) if there else None

    async def lag(self, partition: str, continuation: str | None) -> int:
        at = _numbers(continuation)
        streams = await self._streams.list_streams(partition)
        return sum([await self._streams.count(partition, each, at.get(each, NONE_READ)) for each in streams])

    def compare(self, a: str | None, b: str | None) -> int:
        """By sums, because a reader's later position is at least as far as its earlier one in every stream."""
        return _read(a) - _read(b)

    async def close(self) -> None:
        await self._streams.close()


def _page(stretch: LetterStretch, stream: str, before: Mapping[str, int]) -> Page:
    def position_after(count: int) -> str:
        return _position({**before, stream: stretch.numbers[count - 1]})

    return Page(stretch.events, position_after(len(stretch.numbers)), position_after)


def _position(numbers: Mapping[str, int]) -> str:
    return json.dumps(numbers, sort_keys=True, separators=(",", ":"))


def _numbers(position: str | None) -> dict[str, int]:
    """Raises PositionLost."""
    if position is None:
        return {}
    try:
        found: Any = parsed_json(position, JSON_LEVELS_MAX)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(type(each) is int and each >= 0 for each in found.values()):
        raise PositionLost(
            f"{position[:100]!r} is not a position among dead letters: reset the lease of the replay to the beginning"
        )
    return found


def _read(position: str | None) -> int:
    return sum(number + 1 for number in _numbers(position).values())
