"""Time as an argument.

A host judges expiry on its own clock only, and never compares two clocks. CLOCK_BOOTTIME continues while a machine
sleeps, so an owner that was suspended knows on waking that its trust has expired.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol

# A pace for questions that a source limits: callers pass one after another, evenly.


class Pace:
    """monotonic: seconds. Callers pass in the order in which they came. One that gives up waiting costs the others nothing."""

    def __init__(self, monotonic: Callable[[], float], sleep: Callable[[float], Awaitable[None]]) -> None:
        self._monotonic = monotonic
        self._sleep = sleep
        self._turn = asyncio.Lock()
        self._passed_at = -inf

    async def wait(self, per_s: float) -> None:
        """Until 1 / per_s seconds after the one before has passed."""
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
    """The running loop's own time, as its timers and `asyncio.timeout` have it."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
