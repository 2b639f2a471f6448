"""Delivers notifications one at a time and in order, concurrently with the host's work and without delaying it.

    notifier = Notifier(on, host=name, clock=clock, now=now, log=log, run_plain=thread.run)
    notifier.notify(LeaseLoss, lease.key, epoch=3, reason="stolen", taken_by="host-b")     # returns at once
    await notifier.close()

The queue is bounded. If callbacks are too slow, or one never returns, further events are dropped and counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from datetime import datetime
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from typing import Literal, get_args

from structlog.typing import FilteringBoundLogger as Log

from leasehold.common.clock import Clock
from leasehold.leases.lease import LeaseKey
from leasehold.service.failures import Streak
from leasehold.service.notifications import METHODS, BatchDelivered, Notification, Notifications, wanted_by

QUEUED_MAX = 10_000
BATCHES_MAX = 8_000
"""There are many batches. This limit leaves room for other events."""
DROPS_LOGGED_S = 60.0
"""The shortest time between two log lines about dropped notifications."""
CLOSING_S = 2.0
"""How long a stop waits for what is queued."""
CANCELLING_S = 0.5
"""How long it then waits for a callback that was cancelled."""

NotificationOutcome = Literal["delivered", "failed", "dropped"]
NOTIFICATION_OUTCOMES: tuple[NotificationOutcome, ...] = get_args(NotificationOutcome)


class Notifier:
    """counts: the number of notifications by outcome. Those that no method receives are not counted."""

    def __init__(
        self,
        on: Notifications,
        *,
        host: str,
        clock: Clock,
        now: Callable[[], datetime],
        log: Log,
        run_plain: Callable[[Callable[[], object]], Awaitable[object]],
    ) -> None:
        """now: wall clock, aware. run_plain: runs a plain callback where it may block."""
        self.counts: Counter[NotificationOutcome] = Counter()
        self._on = on
        self._wanted = wanted_by(on)
        self._host = host
        self._clock = clock
        self._now = now
        self._log = log
        self._run_plain = run_plain
        self._queue: deque[Notification] = deque()
        self._queued = asyncio.Event()
        self._delivery: asyncio.Task[None] | None = None
        self._callback: asyncio.Future[None] | None = None
        self._under_way: tuple[str, float] | None = None
        self._is_closing = False
        self._streaks: defaultdict[str, Streak] = defaultdict(lambda: Streak(clock))
        self._unlogged = 0
        self._quiet_until: float | None = None

    def notify(self, kind: type[Notification], key: LeaseKey | None = None, **fields: object) -> None:
        """Queue an event, if a method receives it. key: the partition that it is about. fields: those that only this kind of
        event has."""
        if kind not in self._wanted:
            return
        room = BATCHES_MAX if kind is BatchDelivered else QUEUED_MAX
        if self._is_closing or len(self._queue) >= room:
            self._drop(1)
            return
        about = {} if key is None else {"pipeline": key.pipeline, "partition": key.partition}
        self._queue.append(
            kind(host=self._host, at=self._now(), **about, **fields)
        )  # fields differ by kind; tests make each
        self._queued.set()
        if self._delivery is None:
            self._delivery = asyncio.create_task(self._deliver(), name="notifications")

    async def close(self) -> None:
        """Deliver what is queued, within a bound, and drop the rest. Returns in time, whatever a callback does."""
        self._is_closing = True
        self._queued.set()
        if self._delivery is not None:
            _, late = await asyncio.wait({self._delivery}, timeout=CLOSING_S)
            if late:
                await self._give_up(self._delivery)
        self._log_drops()

    async def _give_up(self, delivery: asyncio.Task[None]) -> None:
        unfinished = [delivery] if self._callback is None else [delivery, self._callback]
        for each in unfinished:
            each.cancel()
        await asyncio.wait(unfinished, timeout=CANCELLING_S)
        self._drop(len(self._queue) + (self._under_way is not None))
        self._queue.clear()

    async def _deliver(self) -> None:
        while self._queue or not self._is_closing:
            self._queued.clear()
            while self._queue:
                event = self._queue.popleft()
                name = METHODS[type(event)]
                self._under_way = name, self._clock.monotonic()
                await self._call(name, event)
                self._under_way = None
            if not self._is_closing:
                await self._queued.wait()

    async def _call(self, name: str, event: Notification) -> None:
        callback, streak = getattr(self._on, name), self._streaks[name]
        try:
            if iscoroutinefunction(callback):
                answer = callback(event)
            else:
                answer = await self._run_plain(partial(callback, event))
            if isawaitable(answer):
                await self._finish(answer)
        except Exception as error:  # a user's code may raise anything
            self.counts["failed"] += 1
            streak.log_failure(self._log, "notification failed", error, callback=name)
        else:
            self.counts["delivered"] += 1
            streak.log_end(self._log, "notification recovered", callback=name)

    async def _finish(self, answer: Awaitable[None]) -> None:
        """Await the callback in a task of its own, so that a cancellation which it raises ends nothing else."""
        self._callback = asyncio.create_task(_without_exit(answer))
        await asyncio.wait({self._callback})
        callback, self._callback = self._callback, None
        if callback.cancelled():
            raise RuntimeError("it was cancelled by something that it called")
        error = callback.exception()
        if error is not None:
            raise error if isinstance(error, Exception) else _as_failure(error)

    def _drop(self, count: int) -> None:
        """Count drops, and log them at most once a minute, with all that were dropped since the last line."""
        self.counts["dropped"] += count
        self._unlogged += count
        now = self._clock.monotonic()
        if self._quiet_until is None or now >= self._quiet_until:
            self._log_drops()
            self._quiet_until = now + DROPS_LOGGED_S

    def _log_drops(self) -> None:
        if not self._unlogged:
            return
        waits = {}
        if self._under_way is not None:
            name, since = self._under_way
            waits = {"waits_for": name, "for_s": round(self._clock.monotonic() - since, 1)}
        self._log.warning("notifications dropped", count=self._unlogged, **waits)
        self._unlogged = 0


async def _without_exit(answer: Awaitable[None]) -> None:
    """Turn SystemExit into a failure: asyncio would raise it out of the event loop, which is the program's, and end that."""
    try:
        await answer
    except SystemExit as error:
        raise _as_failure(error) from error


def _as_failure(error: BaseException) -> RuntimeError:
    return RuntimeError(f"it raised {type(error).__name__}: {error}")
