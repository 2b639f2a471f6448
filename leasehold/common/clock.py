"""Time as an argument: clocks, paces and pauses.

A host judges expiry on its own clock only, and never compares two clocks. CLOCK_BOOTTIME continues while a machine
sleeps, so an owner that was suspended knows on waking that its trust has expired.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

# A pace for requests that a service limits: callers pass one after another, evenly.


class Turnstile:
    """Callers pass in the order in which they arrived. One that gives up costs the others no time. monotonic: in seconds."""

    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._passed_at = -inf

    async def wait(self, per_s: float) -> None:
        """Wait until 1 / per_s seconds after the previous caller passed."""
        async with self._turn:
            pause_s = self._passed_at + 1 / per_s - self._monotonic()
            if pause_s > 0:
                await self._sleep(pause_s)
            self._passed_at = self._monotonic()


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point of this machine; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class BootClock:
    """The machine's clock."""

    def __init__(self) -> None:
        self._id = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # macOS has no CLOCK_BOOTTIME

    def monotonic(self) -> float:
        return time.clock_gettime(self._id)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class LoopClock:
    """The time of the running event loop, which its timers and `asyncio.timeout` use."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


# How long to wait before a retry. Pure: the caller draws the jitter and sleeps.
#
# Clients that share a container must back off together. A listing that is refused at its last page costs as much as one
# that succeeds, so retries at a constant pace can keep a throttled container throttled forever.


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses in seconds: `first_s`, doubled after each failure, up to `max_s`."""

    first_s: float
    max_s: float
    spread: float = 0.5

    def pause_s(self, failures: int, jitter: float, at_least_s: float = 0.0) -> float:
        """The pause after `failures` failures in a row (from 1). `jitter` is 0..1.

        at_least_s: the minimum that the service requested.
        """
        grown = min(self.first_s * 2.0 ** min(failures - 1, 32), self.max_s)
        return max(grown * (1 - self.spread * jitter), at_least_s)


def retry_after_s(error: BaseException) -> float:
    """How long the service asked its clients to wait; 0 if it did not say."""
    return getattr(error, "retry_after_s", None) or 0.0


# How long one reader waits before it tries again, and when it has waited long enough to report the error.


@dataclass(frozen=True, slots=True, kw_only=True)
class Pauses:
    """first_s, longest_s: pauses between tries, doubled each time, with jitter; at least `retry_after_s` if the source names it.

    throttled_longest_s: replaces longest_s if the source names a time. The source serves others meanwhile, and an unlucky reader
    should not sleep through that. At this pace, it asks no more often than a reader that polls.
    patience_s: how long nothing may succeed before the error reaches the caller.
    """

    first_s: float = 0.1
    longest_s: float = 10.0
    throttled_longest_s: float = 1.0
    patience_s: float = 30.0
    rng: random.Random = field(default_factory=random.Random)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    monotonic: Callable[[], float] = time.monotonic

    def jittered(self, seconds: float) -> float:
        return seconds * (0.5 + self.rng.random() / 2)


class Patience:
    """The patience of one reader: call `pause` after each failure, and `served` after each success."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._failures = 0
        self._since = 0.0

    def served(self) -> None:
        self._failures = 0

    async def pause(self, error: Exception) -> None:
        """Wait before the next try. Raises the error instead if this pause would use up the patience."""
        pauses = self._pauses
        now = pauses.monotonic()
        self._since = now if self._failures == 0 else self._since
        self._failures += 1
        at_least_s = retry_after_s(error) * (1 + pauses.rng.random() / 10)
        is_throttled = getattr(error, "retry_after_s", None) is not None
        longest_s = min(pauses.longest_s, pauses.throttled_longest_s) if is_throttled else pauses.longest_s
        backoff = Backoff(first_s=pauses.first_s, max_s=longest_s)
        pause = backoff.pause_s(self._failures, pauses.rng.random(), at_least_s)
        if now + pause - self._since > pauses.patience_s:
            raise error
        await pauses.sleep(pause)
