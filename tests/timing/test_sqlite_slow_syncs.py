"""Leases in SQLite on a disk that is slow to sync: real files and real time."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lab.simulation.group import logger
from patience import until_async

from leasehold.common.clock import BootClock
from leasehold.leases.host_record import HostRecord
from leasehold.leases.session import Session
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

T = TypeVar("T")
SYNC_S, SLOWEST_S = 0.5, 2.0
PARTITIONS = "abcdefgh"
LASTS_S = 60.0
"""Of the load: eight leases that are checkpointed all the time."""


class SlowlySynced(SqliteStore):
    """Every write that changes something keeps the file locked while it is synced."""

    sync_s = SYNC_S

    async def _run(self, id: str, action: Callable[[sqlite3.Connection], T], *, is_write: bool = False) -> T:
        return await super()._run(id, _synced(action, self.sync_s) if is_write else action, is_write=is_write)


def _synced(action: Callable[[sqlite3.Connection], T], sync_s: float) -> Callable[[sqlite3.Connection], T]:
    def act(connection: sqlite3.Connection) -> T:
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        try:
            return action(connection)
        finally:
            if connection.total_changes != before:
                time.sleep(sync_s)
            connection.execute("COMMIT")

    return act


async def test_hosts_whose_lease_file_is_synced_slowly_deliver_everything_and_move_nothing(tmp_path: Path) -> None:
    feed, destination, log = MemoryChangeFeed(list(PARTITIONS)), MemoryDestination(), list[dict[str, Any]]()

    def processor(host: str) -> ProcessorCore:
        sink = MemoryOutputSink(destination)
        pipeline = PipelineParts(name="bank", feed=feed, sink=sink, checkpoint_s=0.1)
        return ProcessorCore([pipeline], SlowlySynced(tmp_path / "leases.db"), host=host, log=logger(log))

    def moves() -> Counter[str]:
        return Counter(entry["partition"] for entry in log if entry["event"] == "lease acquired")

    def delivered() -> int:
        return sum(len(commit.output.table) for commit in destination.commits)

    hosts = [processor(f"host-{n}") for n in range(2)]
    for host in hosts:
        await host.start()
    await until_async(lambda: sorted(len(host.host.workers) for host in hosts) == [4, 4])
    before, appended, began = moves(), 0, time.monotonic()
    waited: list[int] = []
    while time.monotonic() - began < LASTS_S:
        for partition in PARTITIONS:
            feed.append(partition, [b"event"])
        appended += len(PARTITIONS)
        await asyncio.sleep(0.5)
        waited.append(appended - delivered())
    lapses = sum(host.host.session.lapses for host in hosts)
    assert lapses <= 1, "a host may lapse while it finds its pace"
    assert lapses or moves() == before
    await until_async(lambda: delivered() == appended)
    settled = waited[len(waited) // 2 :]
    assert max(settled) <= 8 * len(PARTITIONS), f"the age of events settles: {waited}"
    for host in hosts:
        await host.stop()


async def test_a_host_whose_beats_are_synced_for_two_seconds_is_trusted_without_a_break(tmp_path: Path) -> None:
    store, clock = SlowlySynced(tmp_path / "leases.db"), BootClock()
    session = Session(
        store, HostRecord(name="host", incarnation="1", pipelines=("bank",)), clock=clock, timing=Timing()
    )
    store.sync_s = 0.0
    await session.open()
    beating = asyncio.create_task(session.keep_beating(random.Random(1), lambda error: None))
    store.sync_s = SLOWEST_S
    await until_async(lambda: session.timing.duration_s >= 4 * SLOWEST_S)
    lapses, tick, began = session.lapses, session.record.tick, clock.monotonic()
    while clock.monotonic() - began < LASTS_S / 2:
        assert session.is_trusted
        await asyncio.sleep(0.25)
    assert session.lapses == lapses
    assert session.record.tick > tick
    beating.cancel()
