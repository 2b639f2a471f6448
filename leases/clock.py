"""Time as an argument.

A host judges expiry on its own clock only, and never compares two clocks. CLOCK_BOOTTIME continues while a machine
sleeps, so an owner that was suspended knows on waking that its trust has expired.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


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
