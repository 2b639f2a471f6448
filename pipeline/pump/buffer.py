"""Pages that were read ahead, bounded in bytes, and the batches that are cut from them. Or ranges that executors will read.

The reader waits for room, puts a page in, and waits while the buffer is full; the transformer takes a batch out as soon as one
is due. An error of the reader is raised once all pages before it have been taken.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from leasehold.common.clock import Clock
from leasehold.pipeline.batch import Batch, due_in_s, fitting, is_full
from leasehold.pipeline.errors import PipelineError
from leasehold.pipeline.event import Page
from leasehold.pipeline.limits import BatchLimits, Share
from leasehold.pipeline.ranges import RangedBatch


class PageBuffer:
    """One partition's read-ahead. One reader, one taker. Taking a batch frees its bytes in `share`."""

    def __init__(
        self, partition: str, start: str | None, *, limits: BatchLimits, bytes_max: int, share: Share, clock: Clock
    ) -> None:
        self._partition = partition
        self._position = start
        self._limits = limits
        self._bytes_max = bytes_max
        self._share = share
        self._clock = clock
        self._pages: deque[tuple[Page, float]] = deque()
        self._events = 0
        self._bytes = 0
        self._is_blocked = False
        self._ranged: RangedBatch | None = None
        self._end: PipelineError | None = None
        self._filled = asyncio.Event()
        self._taken = asyncio.Event()

    @property
    def is_empty(self) -> bool:
        return not self._pages and self._ranged is None

    @property
    def bytes(self) -> int:
        """How much waits here."""
        return self._bytes

    async def wait_for_room(self) -> None:
        """Waits while this partition's share has no room for another page. Call it before the page is read."""
        while not self._share.has_room:
            self._block()
            await self._share.wait_until_freed()
        self._is_blocked = False

    async def put(self, page: Page) -> None:
        """Waits while there is no room below `bytes_max`; a page larger than that gets in if the buffer is empty."""
        while self._pages and self._bytes + page.bytes > self._bytes_max:
            self._block()
            self._taken.clear()
            await self._taken.wait()
        self._is_blocked = False
        self._pages.append((page, self._clock.monotonic()))
        self._count(page, 1)
        self._share.hold(page.bytes)
        self._filled.set()

    async def wait_until_taken(self) -> None:
        """Waits until nothing is left here."""
        while not self.is_empty:
            self._block()
            self._taken.clear()
            await self._taken.wait()
        self._is_blocked = False

    def put_ranged(self, batch: RangedBatch) -> None:
        """Put ranges in, if nothing is left here: they are a batch of their own."""
        assert self.is_empty, "ranges follow what was read before them"
        self._ranged = batch
        self._filled.set()

    def end(self, error: PipelineError) -> None:
        """No page follows: the feed failed, or the partition has ended."""
        self._end = error
        self._filled.set()

    async def take_batch(self) -> Batch | RangedBatch:
        """The next batch, as soon as it is due. Raises the reader's error once everything before it has been taken."""
        while (wait_s := self._due_in_s()) != 0:
            self._filled.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._filled.wait()
        if self.is_empty and self._end is not None:
            raise self._end
        batch: Batch | RangedBatch
        if self._ranged is not None:
            batch, self._ranged = self._ranged, None
        else:
            batch = self._cut()
        self._position = batch.to
        self._is_blocked = False  # until the reader finds that it still is
        self._taken.set()
        return batch

    def _block(self) -> None:
        self._is_blocked = True
        self._filled.set()

    def _due_in_s(self) -> float | None:
        """Seconds until a batch is due if nothing else comes; None if there is nothing to wait for yet."""
        if self._end is not None or self._ranged is not None:
            return 0
        if not self._pages:
            return None
        if self._is_blocked:  # nothing can join what is here
            return 0
        return due_in_s(self._events, self._bytes, self._pages[0][1], self._limits, self._clock.monotonic())

    def _cut(self) -> Batch:
        """As many events as the limits allow; more only if the feed cannot be cut earlier, or if a single page has more bytes."""
        opened_at = self._pages[0][1]
        pages: list[Page] = []
        events = bytes_ = 0
        while self._pages and not is_full(events, bytes_, self._limits):
            part = self._part(self._limits.events_max - events, at_least_one=not pages)
            if part is None or (pages and bytes_ + part.bytes > self._limits.bytes_max):
                break
            self._take(part)
            events += part.events.num_rows
            bytes_ += part.bytes
            pages.append(part)
        return Batch(self._partition, self._position, tuple(pages), opened_at)

    def _part(self, room: int, *, at_least_one: bool) -> Page | None:
        """As much of the first page as has room: all of it, its first events, or nothing."""
        page, _ = self._pages[0]
        if page.events.num_rows <= room:
            return page
        count = fitting(page, room, at_least_one=at_least_one)
        return page if count == page.events.num_rows else page.first(count) if count else None

    def _take(self, part: Page) -> None:
        """Take this part out of the first page; the rest of the page stays."""
        page, came_at = self._pages.popleft()
        self._count(page, -1)
        if part is not page:
            rest = page.behind(part.events.num_rows)
            self._count(rest, 1)
            self._pages.appendleft((rest, came_at))
            self._share.hold(part.bytes + rest.bytes - page.bytes)  # Arrow counts two parts differently from the whole

    def _count(self, page: Page, sign: int) -> None:
        self._events += sign * page.events.num_rows
        self._bytes += sign * page.bytes
