"""A handler of 100 ms: how many times as many events one partition handles if calls run side by side.

A host in this process reads one partition of a `MemoryChangeFeed` and keeps its leases in SQLite. The serial handler
is called with batches, and handles their events one after the other. Both take the same time for each event, in one run.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from results import Figure, finish, say

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.handlers import HandlerSink
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.connectors.python import PythonOutputSink
from leasehold.pipeline.handlers.changes import Context
from leasehold.pipeline.limits import BatchLimits, ParallelLimits
from leasehold.pipeline.sink import CloseReason, Sink
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

CALL_S = 0.1
KEYS = 1000
MAX = 64
SERIAL_EVENTS, EVENTS = 50, 3200
FASTER = 57.0


class Serial:
    async def open(self, context: Context) -> None: ...

    async def process(self, context: Context, table: pa.Table) -> None:
        for _ in range(table.num_rows):
            await asyncio.sleep(CALL_S)

    async def close(self, context: Context, reason: CloseReason) -> None: ...


async def call(event: Any) -> None:
    await asyncio.sleep(CALL_S)


def block(event: Any) -> None:
    time.sleep(CALL_S)


async def rate(folder: Path, sink: Sink, events: int, batch_events_max: int) -> float:
    """Events a second, from the first call to the last checkpoint."""
    feed = MemoryChangeFeed(["a"])
    pipeline = PipelineParts(name="p", feed=feed, sink=sink, limits=BatchLimits(events_max=batch_events_max))
    store = SqliteStore(folder / "leases.db")
    processor = ProcessorCore([pipeline], store, host="bench", timing=Timing())
    await processor.start()
    await until(lambda: bool(processor.host.workers))
    began = time.monotonic()
    for key in range(KEYS):
        feed.append("a", [b"{}"] * (events // KEYS + (key < events % KEYS)), key=str(key))
    await until(lambda: processor.stats.events["p"] == events)
    took_s = time.monotonic() - began
    await processor.stop()
    return events / took_s


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # counters set no event
        await asyncio.sleep(0.002)


def measured(sink: Callable[[], Sink], events: int, batch_events_max: int) -> float:
    with tempfile.TemporaryDirectory(prefix="leasehold-bench-") as folder:
        work: Awaitable[float] = rate(Path(folder), sink(), events, batch_events_max)
        return asyncio.run(work)  # type: ignore[arg-type]


def main() -> int:
    limits = ParallelLimits(max=MAX)
    serial = measured(lambda: PythonOutputSink(Serial), SERIAL_EVENTS, SERIAL_EVENTS)
    say(f"one after the other: {serial:.1f} events/s")
    figures = []
    for name, function in (("async def", call), ("plain function", block)):
        found = measured(
            lambda function=function: HandlerSink(function, key="key", limits=limits), EVENTS, limits.batch_events_max
        )
        say(f"{name}, {MAX} calls at a time: {found:.1f} events/s, {found / serial:.1f} times as many")
        figures.append(
            Figure(
                name=f"handler of 100 ms, {MAX} calls at a time: {name}",
                unit="events/s",
                ours=found,
                others={"one after the other": serial, "at best": MAX / CALL_S},
                beside="one after the other",
                bound=FASTER,
            )
        )
    return finish("handlers", figures)


if __name__ == "__main__":
    sys.exit(main())
