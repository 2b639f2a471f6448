"""What all partitions of a host may hold between them, so that its memory does not grow with their number.

What counts is what was read and is not delivered yet: events, and in their place the output that they became. Who holds
nothing may always read a page. So a partition whose sink does not answer takes room from the others, but never all of it.
"""

from __future__ import annotations

import asyncio

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
