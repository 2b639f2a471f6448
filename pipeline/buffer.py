"""Pages that were read ahead, bounded in bytes, and the batches that are cut from them.

The reader puts pages in and waits while the buffer is full; the transformer takes a batch out as soon as one is due. A feed's
error takes its place in the line behind the pages that came before it.
"""

from __future__ import annotations

import asyncio
from collections import deque

from pipeline.batch import Batch, BatchLimits, is_due, is_full
from pipeline.clock import Clock
from pipeline.errors import FeedError
from pipeline.event import Page


class PageBuffer:
    """One partition's read-ahead. One reader, one taker."""

    def __init__(self, partition: str, start: str | None, *, limits: BatchLimits, bytes_max: int, clock: Clock) -> None:
        self._partition = partition
        self._position = start
        self._limits = limits
        self._bytes_max = bytes_max
        self._clock = clock
        self._pages: deque[tuple[Page, float]] = deque()
        self._bytes = 0
        self._end: FeedError | None = None
        self._changed = asyncio.Condition()

    @property
    def is_empty(self) -> bool:
        return not self._pages

    async def put(self, page: Page) -> None:
        """Waits while `bytes_max` bytes are waiting already; a page larger than that still gets in when it is alone."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._pages or self._bytes + page.bytes <= self._bytes_max)
            self._pages.append((page, self._clock.monotonic()))
            self._bytes += page.bytes
            self._changed.notify_all()

    async def end(self, error: FeedError) -> None:
        """No page follows: the feed failed, or the partition has ended."""
        async with self._changed:
            self._end = error
            self._changed.notify_all()

    async def batch(self) -> Batch:
        """The next batch, as soon as it is due. Raises the feed's error once everything before it has been taken."""
        await self._until_due()
        async with self._changed:
            if not self._pages and self._end is not None:
                raise self._end
            page, came_at = self._pages.popleft()
            batch = Batch(self._partition, self._position, (page,), came_at)
            while self._pages and not is_full(batch, self._limits) and self._fits(batch):
                batch = batch.joined(self._pages.popleft()[0])
            self._bytes -= batch.bytes
            self._position = batch.to
            self._changed.notify_all()
            return batch

    def _fits(self, batch: Batch) -> bool:
        following = self._pages[0][0]
        return (
            batch.events + following.events.num_rows <= self._limits.events_max
            and batch.bytes + following.bytes <= self._limits.bytes_max
        )

    async def _until_due(self) -> None:
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self._pages) or self._end is not None)
                if self._end is not None or self._bytes >= self._limits.bytes_max:
                    return
                waiting = Batch(
                    self._partition, self._position, tuple(page for page, _ in self._pages), self._pages[0][1]
                )
                now = self._clock.monotonic()
                if is_due(waiting, self._limits, now):
                    return
            await self._filled_within(waiting.opened_at + self._limits.age_max_s - now)

    async def _filled_within(self, seconds: float) -> None:
        """Until something changes or the time is up."""
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait()
        except TimeoutError:
            return
