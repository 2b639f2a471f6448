"""The first stage: puts pages of the feed into the buffer, or ranges for executors if many events wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NoReturn

from leasehold.common.cancellation import heeding
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import PipelineError
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import check_forward
from leasehold.pipeline.pump.range_jobs import RangeJobs
from leasehold.pipeline.pump.run_parts import RunParts


class ReadStage:
    """jobs: of executors; None if the host reads everything."""

    def __init__(self, parts: RunParts, jobs: RangeJobs | None) -> None:
        self._jobs = jobs
        self._source, self._writer, self._buffer = parts.source, parts.writer, parts.buffer
        self._refusals = parts.failing.refusals
        self._progress, self._tap = parts.reporting.progress, parts.reporting.tap
        self._read_to = parts.writer.position
        self._last_sequence = -1

    async def run(self) -> NoReturn:
        """Raises what the feed does, or PipelineError at its end."""
        while await self._plan_ranges() or await self._read_pages():
            pass
        partition = self._source.partition
        raise PipelineError(f"the feed has no more pages for partition '{partition}', and does not say why")

    async def _plan_ranges(self) -> bool:
        """Pass ranges on if so many events wait that executors read them. Returns whether it did."""
        if self._jobs is None or self._is_for_host(self._jobs):
            return False
        batch = await self._jobs.next_batch(self._read_to)
        if batch is None:
            return False
        check_forward(self._source.feed, batch.partition, batch.start, batch.to, events=batch.events)
        self._progress.waiting.add_unknown(batch.events)
        await self._buffer.wait_until_taken()
        for watcher in self._tap.watchers:
            watcher.see_ranges(batch)
        self._buffer.put_ranged(batch)
        self._read_to = batch.to
        return True

    def _is_for_host(self, jobs: RangeJobs) -> bool:
        """Whether some of the next events failed before, or may be dead: the host decides one by one what becomes of those."""
        has_suspects = self._refusals is not None and self._refusals.has_suspects(self._read_to)
        has_buried = any(sequence > self._last_sequence for sequence in self._writer.buried or ())
        return has_suspects or has_buried or jobs.plan.is_for_host(self._read_to)

    async def _read_pages(self) -> bool:
        """Read pages until it is time to look for ranges; False if there are no more pages."""
        pages = self._source.feed.open_as(self._source.epoch, self._source.partition, self._read_to)
        read = 0
        async with aclosing(pages):
            while (events := await self._read_page(pages)) is not None:
                read += events
                if self._jobs is not None and read >= self._jobs.plan.asks_after:
                    return True
        return False

    async def _read_page(self, pages: AsyncGenerator[Page, None]) -> int | None:
        """How many events the next page had; None if there are no more. It is read as soon as there is room for it."""
        await self._buffer.wait_for_room()
        page = await heeding(anext(pages, None))
        if page is None:
            return None
        events = page.events.num_rows
        check_forward(self._source.feed, self._source.partition, self._read_to, page.to, events=events)
        self._read_to = page.to
        if events and self._writer.buried:
            self._last_sequence = page.events["sequence"][events - 1].as_py()
        self._progress.waiting.add(page.events)
        for watcher in self._tap.watchers:
            watcher.see_page(page)
        await self._buffer.put(page)
        crash_point("page read")
        return int(events)
