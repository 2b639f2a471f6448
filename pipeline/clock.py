"""Time as an argument: what this package needs of a clock."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None: ...
