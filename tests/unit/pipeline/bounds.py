"""A runner over a real feed with the feed's own page size, and how large the batches are that reach the sink."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from patience import PATIENCE_S
from unit.pipeline.destinations import Trust

from leasehold.common.clock import LoopClock
from leasehold.pipeline.connectors.memory import MemoryOutputSink
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.sink import Claim
from leasehold.pipeline.transform import NoTransform

BATCH_EVENTS_MAX = 200
BUFFER_BYTES_MAX = 64 * 1024 * 1024


async def batch_sizes(feed: ChangeFeed, partition: str, count: int) -> list[int]:
    """The events of each batch until `count` are delivered. Batches are contiguous, and no event is missing or repeated."""
    claim = Claim(
        pipeline="bounds",
        partition=partition,
        owner="a",
        epoch=1,
        generation=0,
        continuation=None,
        state="",
        compare=feed.compare,
    )
    sink = MemoryOutputSink()
    writer = await sink.open(claim)
    batches: list[DeliveredBatch] = []
    stopping = asyncio.Event()

    async def delivered(batch: DeliveredBatch) -> None:
        batches.append(batch)
        if sum(each.events for each in batches) >= count:
            stopping.set()

    runner = Runner(
        source=Source(feed, partition, 1),
        transform=NoTransform(),
        writer=writer,
        permit=Trust(),
        read_ahead=ReadAhead(
            limits=BatchLimits(events_max=BATCH_EVENTS_MAX), bytes_max=BUFFER_BYTES_MAX, budget=Budget()
        ),
        clock=LoopClock(),
        reporting=Reporting(progress=Progress()),
        delivered=delivered,
    )
    async with asyncio.timeout(PATIENCE_S):
        await runner.run(stopping)
    outputs = [commit.output for commit in sink.destination.commits]
    sequences = [number for output in outputs for number in output.table["sequence"].to_pylist()]
    assert len(sequences) == count
    assert all(a < b for a, b in pairwise(sequences))
    assert all(before.to == after.start for before, after in pairwise(outputs))
    return [output.events for output in outputs]
