"""What `leasehold demo` shows while it runs: a bar for every pipeline, and the leases with their owners."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from leasehold.leases.lease import Lease
from leasehold.service.lag.measurement import measure_lag
from leasehold.service.processor import ProcessorCore

REFRESH_S = 0.2
LINES_S = 2.0
"""Without a terminal: how often a line is printed."""


async def count_done(processor: ProcessorCore) -> dict[str, int]:
    """How many events each pipeline has processed, by its leases, before the processor starts. Raises StoreError."""
    feeds = {pipeline.name: pipeline.feed for pipeline in processor.pipelines}
    leases = (await processor.keeper.scan(feeds)).leases
    left = await measure_lag(leases, feeds)
    whole = await measure_lag([replace(lease, continuation=None) for lease in leases], feeds)
    return {name: max(0, whole.of(name).events - left.of(name).events) for name in feeds}


class DemoView:
    """Redrawn in place on a terminal; a line now and then if output goes to a file.

    before: what each pipeline had done when this processor started.
    """

    def __init__(self, processor: ProcessorCore, transactions: int, before: Mapping[str, int], screen: Console) -> None:
        self._processor = processor
        self._screen = screen
        self._total = transactions
        self._before = before
        self._bars = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=screen
        )
        self._tasks: dict[str, TaskID] = {
            pipeline.name: self._bars.add_task(pipeline.name, total=transactions) for pipeline in processor.pipelines
        }

    @asynccontextmanager
    async def draw(self) -> AsyncIterator[None]:
        """Draw it again and again within this context."""
        draw = self._live() if self._screen.is_terminal else self._lines()
        task = asyncio.create_task(draw, name="demo view")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _live(self) -> None:
        with Live(console=self._screen, auto_refresh=False) as live:
            try:
                while True:
                    live.update(self._drawn(), refresh=True)
                    await asyncio.sleep(REFRESH_S)
            finally:
                live.update(self._drawn(), refresh=True)

    async def _lines(self) -> None:
        last = ""
        while True:
            done = self._done()
            line = ", ".join(f"{name} {count:,}/{self._total:,}" for name, count in done.items())
            if line != last:
                say(self._screen, line)
                last = line
            await asyncio.sleep(LINES_S)

    def _drawn(self) -> RenderableType:
        for name, count in self._done().items():
            self._bars.update(self._tasks[name], completed=count)
        return Group(self._bars, self._leases())

    def _leases(self) -> Table:
        table = Table.grid(padding=(0, 2))
        scan = self._processor.host.balancer.reader.scan
        for name in self._tasks:
            leases = [lease for lease in scan.leases if lease.pipeline == name] if scan else []
            table.add_row(name, "  ".join(_lease_text(lease) for lease in leases) or "waiting for its first partition")
        return table

    def _done(self) -> dict[str, int]:
        return {name: self._before[name] + self._processor.stats.events[name] for name in self._tasks}


def _lease_text(lease: Lease) -> str:
    return (
        f"{lease.partition.removesuffix('.csv').rsplit('-', 1)[-1]}: {lease.owner or 'no owner'} (epoch {lease.epoch})"
    )


def say(screen: Console, line: str) -> None:
    screen.print(line, markup=False, highlight=False, soft_wrap=True)
