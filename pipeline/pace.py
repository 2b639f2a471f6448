"""A pace for questions that a source limits: callers pass one after another, evenly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf


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
