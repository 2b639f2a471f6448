"""The progress of a run: which stages are working, for its supervisor, and the events that are not delivered yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Times = npt.NDArray[np.int64]
"""Microseconds since 1970."""
NO_TIMES: Times = np.empty(0, np.int64)
DELIVER, SETTLE = "deliver", "waiting for acknowledgements"
"""The stages that wait for the sink."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(time: datetime) -> int:
    """Microseconds since 1970. time: aware."""
    return (time - _EPOCH) // timedelta(microseconds=1)


class TimedEvents(NamedTuple):
    """Consecutive events, and when each was enqueued: one time if it is the same for all, none if it is unknown."""

    events: int
    times: Times


class WaitingEvents:
    """When the events that were read and are not delivered yet were enqueued, in order. It holds at most 8 bytes per event.

    position: everything up to it is delivered; None before the first run. run: how many runs have begun.
    """

    def __init__(self) -> None:
        self.position: str | None = None
        self.run = 0
        self._runs: deque[TimedEvents] = deque()
        self._first_us: int | None = None

    @property
    def has_begun(self) -> bool:
        return self.run > 0

    @property
    def first_us(self) -> int | None:
        """When the first of them was enqueued; None if none was read, or if that is unknown. It stays while the position does."""
        known = self._runs[0].times if self._runs else NO_TIMES
        return int(known[0]) if len(known) else self._first_us

    @property
    def is_empty(self) -> bool:
        """Whether all that was read is delivered."""
        return not self._runs and self._first_us is None

    def begin(self, position: str | None) -> None:
        """A run begins there: what was read before is read again."""
        self._first_us = self.first_us if self.has_begun and position == self.position else None
        self._runs.clear()
        self.position = position
        self.run += 1

    def forget_first(self, run: int, position: str | None) -> None:
        """During this run, a measurement found no event after the position. So what an earlier run has read no longer exists,
        such as a document that was deleted or has expired."""
        if (run, position) == (self.run, self.position):
            self._first_us = None

    def add(self, events: pa.Table) -> None:
        """The host has read these events."""
        if events.num_rows:
            self._runs.append(TimedEvents(events.num_rows, _times_of(events["enqueued_time"])))

    def add_unknown(self, count: int) -> None:
        """Executors read this many events."""
        self._runs.append(TimedEvents(count, NO_TIMES))

    def deliver(self, count: int, to: str) -> list[TimedEvents]:
        """The first `count` events are safe: returns their times."""
        if to != self.position:
            self._first_us = None
        self.position = to
        delivered: list[TimedEvents] = []
        while count and self._runs:
            size, times = self._runs.popleft()
            taken = min(size, count)
            each = len(times) == size
            delivered.append(TimedEvents(taken, times[:taken] if each else times))
            if taken < size:
                self._runs.appendleft(TimedEvents(size - taken, times[taken:] if each else times))
            count -= taken
            self._first_us = None
        return delivered


def _times_of(column: pa.ChunkedArray) -> Times:
    """A copy, because a column of an Arrow table keeps the whole table in memory."""
    if column.null_count:  # a fault of the feed's, which the contract suite finds
        return NO_TIMES
    chunks = [chunk.view(pa.int64()).to_numpy() for chunk in column.chunks]
    times = chunks[0].copy() if len(chunks) == 1 else np.concatenate(chunks)
    return times[:1].copy() if times[0] == times[-1] and times.min() == times.max() else times


class Progress:
    """Which stages work, and since when, in Clock seconds. Waiting for events, for room or for a permit is not work.

    events, batches: delivered so far. idle_since: since when there has been nothing to do; None while there is, or may be.

    waiting: the events that are read and not delivered. delivered: those of the last batch.
    """

    def __init__(self) -> None:
        self.events = 0
        self.batches = 0
        self.waiting = WaitingEvents()
        self.delivered: list[TimedEvents] = []
        self.idle_since: float | None = None
        self._busy: dict[str, float] = {}
        self._excused_until = -inf

    @property
    def is_idle(self) -> bool:
        return self.idle_since is not None

    @property
    def busy(self) -> dict[str, float]:
        """Stage -> when it began its present batch, or last advanced. It may be in the future (`excuse_sink`)."""
        excused = self._excused_until
        return {name: max(at, excused) if name in (DELIVER, SETTLE) else at for name, at in self._busy.items()}

    @property
    def slowest(self) -> tuple[str, float] | None:
        """The stage that has not advanced for the longest time, and since when; None if none works."""
        return min(self.busy.items(), key=lambda item: item[1], default=None)

    @contextmanager
    def working(self, stage: str, now: float) -> Iterator[None]:
        self._busy[stage] = now
        self.idle_since = None
        try:
            yield
        finally:
            self.end(stage)

    def begin(self, stage: str, now: float) -> None:
        """The stage works from now on, if it did not before."""
        self._busy.setdefault(stage, now)
        self.idle_since = None

    def advance(self, stage: str, now: float) -> None:
        """The stage still runs, and has just advanced."""
        if stage in self._busy:
            self._busy[stage] = now

    def excuse(self, stage: str, more_s: float, now: float) -> None:
        """This much of the time since the stage last advanced does not count."""
        if stage in self._busy:
            self._busy[stage] = min(now, self._busy[stage] + more_s)

    def excuse_sink(self, until: float, *, is_new: bool = False) -> None:
        """By then the sink advances, or its present wait ends in any case. is_new: the waits of earlier claims are over."""
        self._excused_until = until if is_new else max(self._excused_until, until)

    def end(self, stage: str) -> None:
        self._busy.pop(stage, None)

    def deliver(self, events: int, to: str) -> None:
        """A batch of this many events, which ends at `to`, is safe."""
        self.events += events
        self.batches += 1
        self.delivered = self.waiting.deliver(events, to)

    def rest(self, now: float) -> None:
        """There is nothing to do, unless a stage works."""
        if not self._busy:
            self.idle_since = now

    def resume(self) -> None:
        """There is something to do, or it is unknown."""
        self.idle_since = None
