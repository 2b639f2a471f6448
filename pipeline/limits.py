"""The limits that a user may set for a pipeline, with defaults. Pure, and without Arrow or Spark, so that settings load fast."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from leasehold.common.clock import Backoff

# What all partitions of a host may hold together, so that its memory does not grow with their number.
#
# What was read and is not delivered yet counts: events, and later the output that replaces them. A partition that holds nothing
# may always read a page. So a partition whose sink does not answer takes room from the others, but never all of it.
# There is no such exception for what executors returned: their jobs wait while partitions that must not write hold all of it.
#
# The size of executors' output is known only at the end of their job. So a job waits for a turn, which reserves as much as it may
# return, in a second budget of the same size. Pages do not wait for what is only reserved: most jobs return far less.


BYTES_MAX = 128 * 1024 * 1024
RETURNED_BYTES_MAX = 128 * 1024 * 1024
"""How much the tasks of one job of executors return together at most, however much memory there is."""
RANGED_JOBS_MAX = 4
"""How many jobs of executors a host has under way at most. Each has many tasks, and all share one Spark."""


class Budget:
    """The budget of all partitions of one event loop.

    They hold at most `bytes_max`, plus one page each, plus the amount by which outputs are larger than their events, plus
    `bytes_max` of what executors returned.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.returned = 0
        """What jobs of executors have returned, or may return when they end."""
        self.turns = asyncio.Semaphore(RANGED_JOBS_MAX)
        self.freed = asyncio.Event()

    @property
    def job_bytes_max(self) -> int:
        """How much a job of executors may return."""
        return min(RETURNED_BYTES_MAX, self.bytes_max // RANGED_JOBS_MAX)

    def share(self) -> Share:
        return Share(self)


class Share:
    """What one partition holds, in bytes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held = 0
        self._returned = 0

    @property
    def has_room(self) -> bool:
        """Whether another page may be read."""
        return not self.held or self._budget.held < self._budget.bytes_max

    def hold(self, bytes: int) -> None:
        self.held += bytes
        self._budget.held += bytes

    def free(self, bytes: int) -> None:
        self.hold(-bytes)
        self._budget.freed.set()

    async def wait_until_freed(self) -> None:
        """Returns once any partition has freed something. All that wait are woken, and so take turns page by page."""
        self._budget.freed.clear()
        await self._budget.freed.wait()

    @asynccontextmanager
    async def take_turn(self) -> AsyncIterator[int]:
        """Waits for the turn of a job of executors. Yields how much the job may return, and reserves that until the job's end."""
        budget, bytes_max = self._budget, self._budget.job_bytes_max
        async with budget.turns:
            while budget.returned + bytes_max > budget.bytes_max:
                await self.wait_until_freed()
            self._count_returned(bytes_max)
            try:
                yield bytes_max
            finally:
                self._count_returned(-bytes_max)
                budget.freed.set()

    def hold_returned(self, bytes: int) -> None:
        """As `hold`, for what executors returned."""
        self._count_returned(bytes)
        self.hold(bytes)

    def free_returned(self, bytes: int) -> None:
        self._count_returned(-bytes)
        self.free(bytes)

    def close(self) -> None:
        self._count_returned(-self._returned)
        self.free(self.held)

    def _count_returned(self, bytes: int) -> None:
        self._returned += bytes
        self._budget.returned += bytes


EVENT_COLUMNS = ("partition", "sequence", "offset", "enqueued_time", "key", "body", "properties", "operation")
"""The names in leasehold.pipeline.event.EVENT_SCHEMA, which needs Arrow."""
REPLAY = ".replay"
"""The suffix of the name of a pipeline that replays another one's dead letters."""
BACKOFF_S_MAX = 60.0
JSON_LEVELS_MAX = 500
"""How deep JSON may nest: half of the most that Python 3.11's parser takes, so that it works on any stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch closes when it holds `events_max` events or `bytes_max` bytes, or `age_max_s` after its first event.

    age_max_s = 0 (the default) closes a batch as soon as the transform is ready for it: batches are small while the stream
    is slow, and grow while it is fast.
    """

    events_max: int = 100_000
    bytes_max: int = 32 * 1024 * 1024
    age_max_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """How the search for events that cannot be processed proceeds."""

    attempts: int = 2
    """How often an event must have failed before it is blamed."""
    backoff_s: float = 0.0
    """The pause before the event is tried alone once more; it doubles each time."""
    most: int = 1
    """How many poison events of one batch are found before they are reported."""

    def pause_s(self, again: int) -> float:
        return Backoff(first_s=self.backoff_s, max_s=BACKOFF_S_MAX).pause_s(again, 0.0) if again else 0.0


FIRST_ONE = Isolation()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLimits:
    """How much an asynchronous sink holds and sends at once, and how long it waits; for each partition separately.

    - `batch_entries_max`, `batch_bytes_max`: of one request.
    """

    batch_entries_max: int = 100
    batch_bytes_max: int = 1024 * 1024
    entry_bytes_max: int = 256 * 1024
    """A larger entry is refused."""
    in_flight_max: int = 8
    """The most requests at a time."""
    buffered_entries_max: int = 10_000
    """The most entries between the first that is not acknowledged and the last that was taken; taking waits at this limit."""
    buffer_age_max_s: float = 0.1
    """How long an entry waits for its request to fill."""
    request_timeout_s: float = 10.0
    """How long an answer may take."""

    @property
    def in_flight_entries_max(self) -> int:
        return self.batch_entries_max * self.in_flight_max

    @property
    def buffered_bytes_max(self) -> int:
        """For entries that wait to be sent: as much as all simultaneous requests can carry."""
        return self.batch_bytes_max * self.in_flight_max

    def problems(self) -> Iterator[str]:
        """What cannot work, for people; nothing if all is well."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0 and name != "buffer_age_max_s":
                yield f"{name} ({getattr(self, name)}) has to be above 0"
        if self.entry_bytes_max > self.batch_bytes_max:
            yield (
                f"entry_bytes_max ({self.entry_bytes_max}) is above batch_bytes_max ({self.batch_bytes_max}), so an entry"
                " might fit no request: lower the first, or raise the second"
            )
        if self.buffered_entries_max < self.batch_entries_max:
            yield (
                f"buffered_entries_max ({self.buffered_entries_max}) is below batch_entries_max ({self.batch_entries_max}), so"
                " no request could fill up: raise the first, or lower the second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLimits:
    """How many calls of a handler run side by side, and what becomes of failed ones; for each partition separately."""

    max: int = 64
    """The most calls at a time. Plain handlers of a pipeline share as many threads."""
    events_max: int | None = None
    """The most events of one key in a call, which the handler then takes as `Events`. None: one event per call, as a dict."""
    manual_ack: bool = False
    """Whether an event counts as processed only once the handler has acknowledged it."""
    window: int = 1000
    """The most events between the first that is not acknowledged and the last that was taken; taking waits at this limit."""
    window_bytes: int = 8 * 1024 * 1024
    """The most bytes of events that are not acknowledged; taking waits at this limit."""
    timeout_s: float | None = None
    """How long a call of an `async def` handler may take. None: for ever."""
    attempts: int = 5
    """How often a call may fail for an event."""
    backoff_s: float = 0.2
    """The pause of a key after its first failure; doubled after each further one."""
    park_s: float = 60.0
    """How long a key stays parked after one of its events became a dead letter."""

    @property
    def batch_events_max(self) -> int:
        """The position moves in whole batches: with smaller ones a crash repeats less."""
        return max(1, self.window // 4)

    def problems(self) -> Iterator[str]:
        """What cannot work, for people; nothing if all is well."""
        for name in ("max", "window", "window_bytes", "attempts"):
            if getattr(self, name) < 1:
                yield f"{name} ({getattr(self, name)}) has to be 1 or more"
        for name in ("backoff_s", "park_s"):
            if getattr(self, name) < 0:
                yield f"{name} ({getattr(self, name)}) has to be 0 or more"
        if self.events_max is not None and self.events_max < 1:
            yield f"events_max ({self.events_max}) has to be 1 or more"
        if self.timeout_s is not None and self.timeout_s <= 0:
            yield f"timeout_s ({self.timeout_s:g}) has to be above 0"
        if self.window < self.max:
            yield (
                f"window ({self.window}) is below max ({self.max}), so there could never be as many calls: raise the first, or"
                " lower the second"
            )
        if self.manual_ack and self.events_max is None:
            yield (
                "manual acknowledgement needs `events_max`, because handlers acknowledge by the `Events` that they are called"
                " with: set it (1 for one event a call)"
            )


JOB_SHARE = 0.8
"""A job over ranges may take this share of `batch_timeout_s`."""
RANGES_TIMEOUT_S_MIN = 60.0
"""The smallest `batch_timeout_s` if executors read: Spark may take 50 s to stop a job (pipeline/spark/runs.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLimits:
    """When executors read, and how much."""

    from_events: int = 200_000
    """Minimum backlog for reads by executors: they gain little from fewer events (docs/scaling.md)."""
    events_max: int = 4_000_000
    """About how many events a batch has at most."""
    range_events: int = 100_000
    """About how many events a range has, which is one task."""
    job_s_max: float = 240.0
    """How long a batch may take in Spark. After that the host reads its events, in batches of its own."""

    @classmethod
    def beginning_at(cls, from_events: int, batch_timeout_s: float = 300.0) -> RangeLimits:
        """The limits with batches and ranges in proportion to `from_events`."""
        return cls(
            from_events=from_events,
            events_max=20 * from_events,
            range_events=max(1, from_events // 2),
            job_s_max=JOB_SHARE * batch_timeout_s,
        )
