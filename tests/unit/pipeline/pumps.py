"""A runner over numbered events and an asynchronous sink, on virtual time, as a worker would have it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from lab.simulation.loop import VirtualClock
from unit.pipeline.destinations import Scripted, Trust, claim

from leasehold.pipeline.async_sink import AsyncSink, Converted, Limits
from leasehold.pipeline.async_sink.writer import AsyncWriter
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.transform import NoTransform

PAGE = 500
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Numbers(MemoryChangeFeed):
    """A feed of the numbers from 1 up to `events`, a page at a time; then it ends, or waits for more."""

    def __init__(self, events: int, *, ends: bool = False) -> None:
        super().__init__(["7"])
        self.events = events
        self.ends = ends
        self.read = 0

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        at = int(continuation or 0)
        while at < self.events:
            to = min(at + PAGE, self.events)
            self.read = to
            yield Page(_events(at, to), str(to))
            at = to
        if self.ends:
            raise PartitionEnded("7", ())
        await asyncio.get_running_loop().create_future()

    def compare(self, a: str | None, b: str | None) -> int:
        return int(a or 0) - int(b or 0)


def _events(start: int, to: int) -> pa.Table:
    count = to - start
    columns = {field.name: pa.nulls(count, field.type) for field in EVENT_SCHEMA}
    columns |= {"partition": pa.repeat("7", count), "sequence": pa.array(range(start + 1, to + 1), pa.int64())}
    columns |= {
        "offset": pa.repeat("", count),
        "enqueued_time": pa.repeat(EPOCH, count).cast(pa.timestamp("us", "UTC")),
    }
    return pa.table(columns, schema=EVENT_SCHEMA)


class Sequences(NoTransform):
    """What it passes on is cheap to convert."""

    async def apply(self, batch: Batch) -> pa.Table:
        return batch.table.select(["sequence"])


def number(row: Mapping[str, Any], key: str) -> Converted:
    return Converted(value=b"%d" % row["sequence"], bytes=10)


@dataclass
class Pump:
    """checkpoints: the positions that the lease was given. most_unsettled: entries held at a time, as looked at on every send."""

    destination: Scripted
    feed: Any
    limits: Limits = field(default_factory=Limits)
    batch: int = 1000
    position: str | None = None
    trust: Trust = field(default_factory=Trust)
    checkpoints: list[str | None] = field(default_factory=list)
    delivered: list[str] = field(default_factory=list)
    most_unsettled: int = 0
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    progress: Progress = field(default_factory=Progress)
    writer: AsyncWriter | None = None

    async def run(self) -> PartitionEnded | None:
        """As a new owner: from the last checkpoint. Cancelled, it is a host that died."""
        sink = AsyncSink(self.destination, identity="scripted", limits=self.limits, convert=number)
        self.writer = writer = await sink.open(claim(self.position))
        self.destination.before = lambda entries: self._look(writer)
        try:
            return await self._runner(writer).run(self.stopping)
        finally:
            await writer.close("lost")

    def started(self) -> asyncio.Task[PartitionEnded | None]:
        return asyncio.create_task(self.run())

    @property
    def numbers(self) -> list[int]:
        return [int(taken.entry.value) for taken in self.destination.taken]

    def _look(self, writer: AsyncWriter) -> None:
        self.most_unsettled = max(self.most_unsettled, writer._desk.unsettled)

    def _runner(self, writer: AsyncWriter) -> Runner:
        return Runner(
            source=Source(self.feed, "7", 1),
            transform=Sequences(),
            writer=writer,
            permit=self.trust,
            read_ahead=ReadAhead(limits=BatchLimits(events_max=self.batch), bytes_max=1 << 20, budget=Budget()),
            clock=VirtualClock(),
            reporting=Reporting(progress=self.progress),
            delivered=self._kept,
        )

    async def _kept(self, delivered: DeliveredBatch) -> None:
        """A checkpoint takes its time, and is written before the next batch is told."""
        assert self.writer is not None
        position = self.writer.position
        await asyncio.sleep(0.005)
        self.position = position
        self.checkpoints.append(position)
        self.delivered.append(delivered.to)
