"""Time as an argument: what this package needs of a clock."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The running loop's own time, as its timers and `asyncio.timeout` have it."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
