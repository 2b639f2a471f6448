"""What a user may bound of a pipeline, with its defaults. Pure, and without Arrow or Spark, so that settings are read at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from leasehold.common.clock import Backoff

# What all partitions of a host may hold between them, so that its memory does not grow with their number.
#
# What counts is what was read and is not delivered yet: events, and in their place the output that they became. A partition that
# holds nothing may always read a page. So a partition whose sink does not answer takes room from the others, but never all of it.


BYTES_MAX = 128 * 1024 * 1024


class Budget:
    """For the partitions of one event loop. They hold at most `bytes_max`, one page each, and by how much outputs are larger
    than the events they came from."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.held = 0
        self.freed = asyncio.Event()

    def share(self) -> Share:
        return Share(self)


class Share:
    """What one partition holds, in bytes."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.held = 0

    @property
    def has_room(self) -> bool:
        """Whether to read another page."""
        return not self.held or self._budget.held < self._budget.bytes_max

    def hold(self, bytes: int) -> None:
        self.held += bytes
        self._budget.held += bytes

    def free(self, bytes: int) -> None:
        self.hold(-bytes)
        self._budget.freed.set()

    async def wait_until_freed(self) -> None:
        """Returns once anybody has freed something. All who wait are woken, and so take turns page by page."""
        self._budget.freed.clear()
        await self._budget.freed.wait()

    def close(self) -> None:
        self.free(self.held)


REPLAY = ".replay"
"""What the name of a pipeline ends with that sends another one's dead letters through again."""
BACKOFF_S_MAX = 60.0
JSON_LEVELS_MAX = 500
"""How deep JSON may nest: half of what Python's parser takes at most on 3.11, whatever the stack below it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """A batch closes when it holds `events_max` events or `bytes_max` bytes, or `age_max_s` after its first event.

    age_max_s = 0 (the default) closes as soon as the transform is ready for the batch: batches are small while the stream
    is slow and grow by themselves while it is fast.
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
    """The pause before it is tried on its own once more; it doubles each time."""
    most: int = 1
    """How many poison events of one batch are found before they are reported."""

    def pause_s(self, again: int) -> float:
        return Backoff(first_s=self.backoff_s, max_s=BACKOFF_S_MAX).pause_s(again, 0.0) if again else 0.0


FIRST_ONE = Isolation()


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncLimits:
    """How much an asynchronous sink holds, sends at once, and waits for; of each partition on its own.

    - `batch_entries_max`, `batch_bytes_max`: of one request.
    """

    batch_entries_max: int = 100
    batch_bytes_max: int = 1024 * 1024
    entry_bytes_max: int = 256 * 1024
    """A larger entry is refused."""
    in_flight_max: int = 8
    """Requests at a time."""
    buffered_entries_max: int = 10_000
    """Entries that were taken, and are not acknowledged without a gap; taking waits beyond it."""
    buffer_age_max_s: float = 0.1
    """How long an entry waits for its request to fill."""
    request_timeout_s: float = 10.0
    """How long an answer may take."""

    @property
    def in_flight_entries_max(self) -> int:
        return self.batch_entries_max * self.in_flight_max

    @property
    def buffered_bytes_max(self) -> int:
        """The default for entries that wait: as many as all simultaneous requests can carry."""
        return self.batch_bytes_max * self.in_flight_max

    def problems(self) -> Iterator[str]:
        """What cannot work, for people; nothing where all is well."""
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0 and name != "buffer_age_max_s":
                yield f"{name} ({getattr(self, name)}) has to be above 0"
        if self.entry_bytes_max > self.batch_bytes_max:
            yield (
                f"entry_bytes_max ({self.entry_bytes_max}) is above batch_bytes_max ({self.batch_bytes_max}), so that an entry"
                " could fit no request: lower the one, or raise the other"
            )
        if self.buffered_entries_max < self.batch_entries_max:
            yield (
                f"buffered_entries_max ({self.buffered_entries_max}) is below batch_entries_max ({self.batch_entries_max}), so"
                " that no request could fill up: raise the one, or lower the other"
            )


JOB_SHARE = 0.8
"""A job over ranges may take this share of `batch_timeout_s`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLimits:
    """When executors read, and how much."""

    from_events: int = 200_000
    """So many events have to wait. With fewer, the start of a job takes most of its time (docs/scaling.md)."""
    events_max: int = 4_000_000
    """A batch has about so many at most."""
    range_events: int = 100_000
    """A range, which is one task, has about so many."""
    job_s_max: float = 240.0
    """How long a batch may take in Spark. After that the host reads its events, in batches of its own."""

    @classmethod
    def beginning_at(cls, from_events: int, batch_timeout_s: float = 300.0) -> RangeLimits:
        """With batches and ranges in proportion."""
        return cls(
            from_events=from_events,
            events_max=20 * from_events,
            range_events=max(1, from_events // 2),
            job_s_max=JOB_SHARE * batch_timeout_s,
        )
