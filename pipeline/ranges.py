"""Ranges of a partition's events, which executors read instead of the host (docs/protocol.md, executors).

A host plans ranges, and a `RangeReader` reads one wherever Spark has a core. Nothing here moves a position: only the owner of a
lease does that, once it has the output of all ranges of a batch.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from leasehold.pipeline.errors import FeedError
from leasehold.pipeline.limits import RangeLimits

SHORT_S, LONG_S = 10.0, 60.0
"""A batch that took less than SHORT_S may be followed by one of twice the size; after LONG_S, by one of half the size."""
DOUBLINGS_MAX = 6
FAILURES_MAX = 3
"""How often a batch fails because of Spark or the sink before the host reads its events."""


class EventRange(NamedTuple):
    """The events after `start` up to `to`. events: how many these are, or an estimate.

    check: what else the feed's own reader needs to recognize them, such as a digest. No secrets.
    """

    start: str | None
    to: str
    events: int
    check: str = ""


class RangeReader(ABC):
    """Reads ranges in another process. It is sent there by pickle, so it holds no secrets and no connections."""

    readers_max: int | None = None
    """How many ranges of a partition may be read at the same time. None: any number."""
    counts_events: bool = True
    """Whether `events` of a range is the exact number. If not, it is an estimate."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a range has the same events each time it is read. If not, a job may read each range only once."""
        return True

    @abstractmethod
    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        """Exactly the planned events, in order: EVENT_SCHEMA, in tables of bounded size. Blocks.

        The owner commits `to` after this. So a reader must verify that it yields all of these events, and no others.
        Raises FeedUnavailable, PositionLost, MalformedRecord, also if the range cannot be read to its end.
        """


@dataclass(frozen=True, slots=True)
class RangeReads:
    """How a transform's job reads ranges.

    times: how often it reads each, 1 if that is unknown. why_again: why its output may be made from two reads of one range. None:
    each row is made by the task that read its event.
    """

    times: int = 1
    why_again: str | None = None


def why_for_host(reader: RangeReader, reads: RangeReads) -> str | None:
    """Why executors must not read with this reader; None if they may. Pure."""
    if reader.is_repeatable or reads.why_again is None:
        return None
    return f"a range of this feed may have other events when it is read again, and {reads.why_again}"


def range_events_for(reader: RangeReader, reads: RangeReads, *, events_max: int, range_events: int) -> int:
    """How many events each range needs, so that a job over `events_max` events has no more readers than are permitted. Pure."""
    if reader.readers_max is None:
        return range_events
    return max(range_events, -(-events_max // max(1, reader.readers_max // reads.times)))


def secret_in(variable: str) -> str:
    """The value of an environment variable of the executor, for readers that need a secret. Raises FeedError."""
    found = os.environ.get(variable, "")
    if not found:
        raise FeedError(
            f"the environment variable {variable} of Spark's executors is not set: set it where they start"
            " (`executors_env` of the feed names it)"
        )
    return found


def iterate(tables: AsyncGenerator[pa.Table, None]) -> Iterator[pa.Table]:
    """The tables of an asynchronous reader. Its event loop runs only while a table is awaited, and closes it at the end."""

    async def take() -> pa.Table | None:
        return await anext(tables, None)

    with asyncio.Runner() as runner:
        while (table := runner.run(take())) is not None:
            yield table


@dataclass(frozen=True, slots=True)
class RangedBatch:
    """Consecutive ranges of one partition that are committed together, at least one.

    epoch: of the lease. opened_at: when it was planned (Clock seconds).
    """

    partition: str
    epoch: int
    ranges: tuple[EventRange, ...]
    opened_at: float

    @property
    def start(self) -> str | None:
        return self.ranges[0].start

    @property
    def to(self) -> str:
        return self.ranges[-1].to

    @property
    def events(self) -> int:
        return sum(each.events for each in self.ranges)


class RangePlan:
    """Who reads the next events of a partition, and how many events executors read at once. Pure. It outlives the runs.

    compare: orders the feed's positions.
    """

    def __init__(self, compare: Callable[[str | None, str | None], int], limits: RangeLimits) -> None:
        self._compare = compare
        self.limits = limits
        self._host_until: str | None = None
        self._refusals = 0
        self._failures: dict[str | None, int] = {}
        """By start, how often each undelivered batch has failed: one is sent while the next is under way."""
        self.events_max = self._first

    @property
    def asks_after(self) -> int:
        """How many events the host reads before it looks for ranges again: more after each refusal in a row."""
        return self.limits.from_events << min(self._refusals, DOUBLINGS_MAX)

    @property
    def _first(self) -> int:
        return min(2 * self.limits.from_events, self.limits.events_max)

    def is_for_host(self, start: str | None) -> bool:
        """Whether the executors have failed on what follows `start`."""
        return self._host_until is not None and self._compare(start, self._host_until) < 0

    def refuse(self, batch: RangedBatch) -> None:
        """The executors could not process a batch: the host reads these events."""
        self._host_until = batch.to
        self._forget_failures(batch.to)
        self._refusals += 1
        self.events_max = self._first

    def shrink(self, batch: RangedBatch) -> None:
        """The sink cannot take the output of a batch in one step: the host reads these events, and later batches are smaller."""
        self.limits = replace(self.limits, events_max=max(self.limits.from_events, batch.events // 2))
        self.refuse(batch)

    def fail(self, batch: RangedBatch) -> bool:
        """A batch failed, perhaps without a fault in it: Spark or the sink is away, or it is too large for one of them.

        Returns whether the host reads it, because it failed again and again. Then later batches begin small, but their limit
        stays as it is: an outage shows nothing about their sizes.
        """
        self._failures[batch.start] = self._failures.get(batch.start, 0) + 1
        if self._failures[batch.start] < FAILURES_MAX:
            return False
        self.refuse(batch)
        self.events_max = max(self.limits.from_events, min(self._first, batch.events // 2))
        return True

    def accept(self, batch: RangedBatch, took_s: float) -> None:
        """A batch of the executors is delivered. took_s: how long they and the sink took."""
        self._refusals = 0
        self._forget_failures(batch.to)
        if took_s > LONG_S:
            self.events_max = max(self.limits.from_events, self.events_max // 2)
        elif took_s < SHORT_S and batch.events >= self.events_max // 2:
            self.events_max = min(self.limits.events_max, self.events_max * 2)

    def _forget_failures(self, until: str) -> None:
        self._failures = {start: times for start, times in self._failures.items() if self._compare(start, until) >= 0}
