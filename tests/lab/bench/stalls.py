"""How long the event loop of a real host stands still at most, and how often its session lapses meanwhile.

While it stands still, a host sends no heartbeat: a stall longer than the trust of its session, less the time between two
heartbeats, suspends it (`Timing`). The defaults are chosen by these figures (docs/decisions/0021).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path

import structlog
from results import say

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.log import LogChangeFeed, append
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

PARTITIONS = 32
BATCH_BYTES = 1 << 30
BODY_BYTES = 1000
BLOCK_EVENTS = 1_000
PROBE_S = 0.01
SESSION = Timing()
LIMIT_S = SESSION.trust_s - SESSION.beat_s
SQL = "SELECT partition, account, sum(value) AS value, count(*) AS events FROM events GROUP BY partition, account"
SCHEMA = "account STRING NOT NULL, value DECIMAL(20,2) NOT NULL, note STRING"


class Probe:
    """stalls: by what went on, the longest time that the loop came back too late to a sleep of `PROBE_S`."""

    def __init__(self) -> None:
        self.doing = "start"
        self.stalls: dict[str, float] = {}

    async def watch(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(PROBE_S)
            late = time.monotonic() - began - PROBE_S
            self.stalls[self.doing] = max(late, self.stalls.get(self.doing, 0.0))


def spin() -> None:
    while True:
        pass


def fill(path: Path, partition: str, count: int) -> None:
    note = "x" * (BODY_BYTES - 60)
    for begins in range(0, count, BLOCK_EVENTS):
        numbers = range(begins, min(count, begins + BLOCK_EVENTS))
        append(
            path,
            partition,
            [f'{{"account": "a{n % 100}", "value": "1.00", "note": "{note}"}}'.encode() for n in numbers],
        )


async def filled(path: Path, partition: str, count: int) -> None:
    process = multiprocessing.get_context("spawn").Process(target=fill, args=(path, partition, count))
    process.start()
    await asyncio.to_thread(process.join)


async def until_delivered(processor: ProcessorCore, events: int, within_s: float = 900) -> None:
    async with asyncio.timeout(within_s):
        while processor.stats.events["stalls"] < events:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.05)


async def main(spinning: int) -> bool:
    engine = SparkEngine(master="local[2]", driver_memory="6g")
    probe, large = Probe(), BATCH_BYTES // BODY_BYTES
    with tempfile.TemporaryDirectory() as state:
        log = Path(state) / "log"
        for n in range(PARTITIONS):
            await filled(log, str(n), BLOCK_EVENTS)
        pipeline = PipelineParts(
            name="stalls",
            feed=LogChangeFeed(log),
            transform=SparkTransform(engine, "stalls", sql=SQL, schema=SCHEMA),
            sink=MemoryOutputSink(MemoryDestination()),
            limits=BatchLimits(events_max=large, bytes_max=BATCH_BYTES),
        )
        store = SqliteStore(Path(state) / "leases.db")
        processor = ProcessorCore([pipeline], store, host="stalls", buffer_bytes_max=2 * BATCH_BYTES)
        watching = asyncio.create_task(probe.watch())
        hogs = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(spinning)]
        for hog in hogs:
            hog.start()
        await processor.start()
        probe.doing = "small batches"
        await until_delivered(processor, BLOCK_EVENTS * PARTITIONS)
        probe.doing = "1 GB arrives"
        await filled(log, "0", large)
        probe.doing = "1 GB is drained"
        await until_delivered(processor, BLOCK_EVENTS * PARTITIONS + large)
        probe.doing = "a full garbage collection"
        gc.collect()
        await asyncio.sleep(10 * PROBE_S)
        probe.doing = "stop"
        lapses = processor.host.session.lapses
        await processor.stop()
        watching.cancel()
        for hog in hogs:
            hog.kill()
    for doing, stall_s in probe.stalls.items():
        say(f"{doing:30} {stall_s:7.3f} s")
    longest = max(probe.stalls.values())
    say(f"longest stall {longest:.3f} s (at most {LIMIT_S:g} s), lapses {lapses}")
    return longest <= LIMIT_S and not lapses


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--spinning", type=int, default=2, help="processes that compute all the time beside it")
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    sys.exit(0 if asyncio.run(main(arguments.parse_args().spinning)) else 1)
