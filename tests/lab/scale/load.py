"""A feed and a sink for whole groups: no events at all, or always more than the sink takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from leasehold.pipeline.connectors.memory import MemoryFeed
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import FeedPartition
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter

PAGE_EVENTS = 10
_EVENTS: list[dict[str, Any]] = [
    {"partition": "", "sequence": n, "offset": str(n), "enqueued_time": datetime(2026, 1, 1, tzinfo=UTC), "body": b"{}"}
    for n in range(PAGE_EVENTS)
]
_TABLE = pa.Table.from_pylist(_EVENTS, schema=EVENT_SCHEMA)


class SteadyFeed(MemoryFeed):
    """Without events until `begin`; then each partition always has another page."""

    def __init__(self, partitions: Iterable[str]) -> None:
        names = sorted(partitions)
        super().__init__(names)
        self._partitions = [FeedPartition(name, ()) for name in names]
        self._is_busy = False

    def begin(self) -> None:
        self._is_busy = True
        for log in self._logs.values():
            log.notify()

    def end(self) -> None:
        self._is_busy = False

    async def partitions(self) -> list[FeedPartition]:
        return self._partitions

    def _index(self, partition: str, continuation: str | None) -> int:
        return int(continuation or 0)

    def _page(self, partition: str, index: int) -> Page | None:
        return Page(_TABLE, str(index + PAGE_EVENTS)) if self._is_busy else None


class SteadySink(Sink):
    """Takes `batch_s` for each batch, and holds no position. batches: those that arrived. repeated: those of them that had
    arrived before."""

    holds_position = False

    batch_s = 0.2

    def __init__(self) -> None:
        self.batches = self.repeated = 0
        self._arrived: dict[str, int] = {}

    @property
    def identity(self) -> str:
        return "steady"

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        """Nothing is needed."""

    async def open(self, claim: Claim) -> SinkWriter:
        return _Writer(self, claim)

    async def close(self) -> None:
        """Nothing is held."""

    async def take(self, partition: str, output: Output) -> None:
        self.batches += 1
        self.repeated += int(output.start or 0) < self._arrived.get(partition, 0)
        self._arrived[partition] = max(int(output.to), self._arrived.get(partition, 0))
        await asyncio.sleep(self.batch_s)


class _Writer(SinkWriter):
    position: str | None = None
    state: str = ""

    def __init__(self, sink: SteadySink, claim: Claim) -> None:
        self.position, self.state = claim.continuation, claim.state
        self._sink = sink
        self._partition = claim.partition

    async def write(self, output: Output, permit: Permit) -> None:
        permit.check()
        await self._sink.take(self._partition, output)
        self.position = output.to

    async def end(self, permit: Permit) -> None:
        """No partition ends here."""

    async def close(self, reason: CloseReason) -> None:
        """Nothing is held."""
