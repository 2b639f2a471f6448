"""The progress of a runner: the stages in progress, for its supervisor, and the batches that its writer has not delivered yet.

Most writers deliver within `write`; then a batch is settled right after it. A buffering writer may hold several at a time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from leasehold.common.clock import Clock
from leasehold.pipeline.sink import SinkWriter

T = TypeVar("T")
Times = npt.NDArray[np.int64]
"""Microseconds since 1970."""
NO_TIMES: Times = np.empty(0, np.int64)
STOP_S_MAX = 10.0
"""How long a stop waits for a destination. Batches that are left then are repeated by the next owner."""
LOOK_S = 1.0
"""How often to see what is delivered while a write waits for room."""
DELIVER, SETTLE = "deliver", "waiting for acknowledgements"
"""The stages that wait for the sink."""


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(time: datetime) -> int:
    """Since 1970. time: aware."""
    return (time - _EPOCH) // timedelta(microseconds=1)


class TimedEvents(NamedTuple):
    """Consecutive events, and when each was enqueued: one time if it is the same for all, none if it is unknown."""

    events: int
    times: Times


class WaitingEvents:
    """When the events that were read and are not delivered yet were enqueued, in their order. It holds 8 bytes of each at most.

    position: everything up to it is delivered; None before the first run. run: how many have begun.
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
        """They were read."""
        if events.num_rows:
            self._runs.append(TimedEvents(events.num_rows, _times_of(events["enqueued_time"])))

    def add_unknown(self, count: int) -> None:
        """Executors read them."""
        self._runs.append(TimedEvents(count, NO_TIMES))

    def deliver(self, count: int, to: str) -> list[TimedEvents]:
        """The first `count` of them are safe: returns these."""
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
    """Which stages work since when, in Clock seconds. Waiting for events, for room or for a permit is not work.

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
        """Stage -> since when it has worked on its present batch, or advanced. It may be a time to come (`excuse_sink`)."""
        excused = self._excused_until
        return {name: max(at, excused) if name in (DELIVER, SETTLE) else at for name, at in self._busy.items()}

    @property
    def slowest(self) -> tuple[str, float] | None:
        """The stage that has not advanced for longest, and since when; None if none works."""
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
        """The stage works, if it did not before."""
        self._busy.setdefault(stage, now)
        self.idle_since = None

    def advance(self, stage: str, now: float) -> None:
        """The stage still runs, and has just advanced."""
        if stage in self._busy:
            self._busy[stage] = now

    def excuse_sink(self, until: float, *, is_new: bool = False) -> None:
        """The sink advances, or what it waits for ends by itself by then. is_new: what an earlier claim waited for is over."""
        self._excused_until = until if is_new else max(self._excused_until, until)

    def end(self, stage: str) -> None:
        self._busy.pop(stage, None)

    def deliver(self, events: int, to: str) -> None:
        """A batch of so many events, which ends at `to`, is safe."""
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


class InFlight(Generic[T]):
    """delivered: awaited for each batch once it is, in their order, with the seconds since its write began.

    progress: whose stage SETTLE starts again with each delivery.
    """

    def __init__(
        self,
        writer: SinkWriter,
        *,
        progress: Progress,
        clock: Clock,
        delivered: Callable[[T, float], Awaitable[None]],
    ) -> None:
        self._writer = writer
        self._progress = progress
        self._clock = clock
        self._delivered = delivered
        self._held: deque[tuple[str, float, T]] = deque()
        self._acknowledged = 0
        self._gives_up_at: float | None = None
        """Once told to stop: for all steps that follow."""

    @property
    def held(self) -> list[T]:
        """What is written and not delivered yet, in its order."""
        return [batch for _, _, batch in self._held]

    @property
    def is_empty(self) -> bool:
        return not self._held

    def add(self, to: str, began: float, batch: T) -> None:
        """A batch was written that ends at `to`."""
        self._held.append((to, began, batch))
        self._progress.begin(SETTLE, self._clock.monotonic())

    async def report(self) -> None:
        """Report every batch that is delivered by now."""
        if self._writer.acknowledged != self._acknowledged:
            self._acknowledged = self._writer.acknowledged
            for stage in (DELIVER, SETTLE):
                self._progress.advance(stage, self._clock.monotonic())
        for _ in range(self._count()):
            _, began, batch = self._held.popleft()
            self._idle()
            await self._delivered(batch, self._clock.monotonic() - began)

    async def wait_for_progress(self) -> None:
        """Returns once something was delivered, which may be no whole batch."""
        await self._writer.wait_for_progress()

    async def flush(self, stop: asyncio.Task[bool]) -> bool:
        """Whether all is delivered. Once told to stop, it is waited for a little longer, and then given up."""
        return await self.carry_out(self._writer.flush(), stop)

    async def carry_out(self, step: Coroutine[Any, Any, None], stop: asyncio.Task[bool]) -> bool:
        """A write or flush, and telling what is delivered meanwhile. False if a stop came and it did not end soon."""
        if not self._writer.is_buffering:
            await step
            return True
        task = asyncio.create_task(step, name="write or flush")
        try:
            return await self._wait_until_done(task, stop)
        finally:
            task.cancel()
            await asyncio.wait({task})
            _ = task.cancelled() or task.exception()  # where it matters it was raised above

    def close(self) -> None:
        """Forget all batches."""
        self._held.clear()
        self._idle()

    async def _wait_until_done(self, task: asyncio.Task[None], stop: asyncio.Task[bool]) -> bool:
        while True:
            now = self._clock.monotonic()
            if stop.done() and self._gives_up_at is None:
                self._gives_up_at = now + STOP_S_MAX
            left = None if self._gives_up_at is None else max(0.0, self._gives_up_at - now)
            waiting = {task} if stop.done() else {task, stop}
            timeout = LOOK_S if left is None else min(LOOK_S, left)
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            await self.report()
            if task.done():
                task.result()
                return True
            if left is not None and left <= LOOK_S:
                return False

    def _count(self) -> int:
        """How many of those held end at or before the writer's position."""
        position = self._writer.position
        return max((n for n, (to, _, _) in enumerate(self._held, 1) if to == position), default=0)

    def _idle(self) -> None:
        if not self._held:
            self._progress.end(SETTLE)
