"""Two hosts share a container through splits and merges: every document is delivered once, and nobody waits for ever."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import structlog
from connectors.cosmos.bank import Bank, banked
from patience import until_async
from plugins_cosmos import Cosmos

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.cosmos import CosmosChangeFeed, PageLimits
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.lag.backlog import read_backlog
from leasehold.service.lag.measurement import measure_lag
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

TIMING = Timing(balance_s=0.3, call_timeout_s=3.0)


class Bench:
    """A bank, hosts on common leases, and what they deliver."""

    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.control = bank.cosmos.control
        self.store = MemoryStore()
        self.destination = MemoryDestination()
        self.log: list[dict[str, object]] = []

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[ProcessorCore]:
        pipeline = PipelineParts(
            name="bank",
            feed=self.bank.feed(pages=PageLimits(items_max=7)),
            sink=MemoryOutputSink(self.destination),
            transform=NoTransform(),
        )
        log = structlog.wrap_logger(None, processors=[self._kept])
        processor = ProcessorCore([pipeline], self.store, host=name, timing=TIMING, log=log)
        await processor.start()
        try:
            yield processor
        finally:
            await processor.stop()

    def _kept(self, logger: object, level: str, event: dict[str, object]) -> str:
        self.log.append({**event, "level": level})
        raise structlog.DropEvent

    @property
    def delivered(self) -> Counter[tuple[str, int]]:
        """(id, LSN) -> how often."""
        rows = (row for commit in self.destination.commits for row in commit.output.table.to_pylist())
        return Counter((json.loads(row["body"])["id"], int(row["offset"])) for row in rows)

    @property
    def written(self) -> set[tuple[str, int]]:
        return {(one["id"], one["lsn"]) for one in self.control.versions(Bank.name)}

    async def create(self, count: int) -> None:
        """All over the container."""
        for n in range(count):
            await self.bank.create(f"account-{n % 40}")

    def seen(self) -> str:
        told = [entry for entry in self.log if entry["level"] in ("warning", "error")]
        return f"missing {self.written - set(self.delivered)}; {told[-5:]}"

    async def drained(self) -> None:
        written = self.written
        await until_async(lambda: set(self.delivered) >= written, seen=self.seen)


@pytest.fixture
async def bench(cosmos: Cosmos) -> AsyncIterator[Bench]:
    async with banked(cosmos) as bank:
        yield Bench(bank)


async def leases(bench: Bench) -> dict[str, Lease]:
    found = [decode_lease(stored.id, stored.body) for stored in await bench.store.list(lease_prefix("bank"))]
    return {lease.partition: lease for lease in found}


def spans(found: dict[str, Lease]) -> list[tuple[str, str]]:
    low_and_high = (str(lease.scope).partition("-") for lease in found.values() if not lease.closed)
    return sorted((low, high) for low, _, high in low_and_high)


async def test_through_a_split_and_a_merge_every_document_is_delivered_once(bench: Bench) -> None:
    async with bench.host("host-a") as a, bench.host("host-b"):
        await bench.create(40)
        bench.control.split(Bank.name, "1", completing=2)
        await bench.create(40)
        ranges = bench.control.ranges(Bank.name)
        bench.control.merge(Bank.name, ranges[-2].id, ranges[-1].id, completing=2)
        await bench.create(40)
        await bench.drained()
        # the parts of the merged range come together with another neighbour, and are cut elsewhere
        ranges = bench.control.ranges(Bank.name)
        merged = bench.control.merge(Bank.name, ranges[-2].id, ranges[-1].id)
        bench.control.split(Bank.name, merged.id)
        await bench.create(40)
        await bench.drained()
        assert set(bench.delivered) == bench.written
        assert set(bench.delivered.values()) == {1}
        found = await leases(bench)
        held = spans(found)
        assert (held[0][0], held[-1][1]) == ("", "FF")
        assert all(x[1] == y[0] for x, y in pairwise(held))
        assert not [entry for entry in bench.log if entry["event"] == "needs attention"]
        look = await read_backlog(list(found.values()), {"bank": a.host.pipelines["bank"].feed}, {})
        assert not look.missing | look.failed.keys()


async def test_a_merge_while_nobody_was_there_is_followed_by_a_host_that_never_saw_the_ranges(bench: Bench) -> None:
    async with bench.host("host-a"):
        await bench.create(40)
        await bench.drained()
    await bench.create(40)
    for left, right in (("0", "1"), ("2", "3")):
        bench.control.merge(Bank.name, left, right)
    await bench.create(40)
    async with bench.host("host-b"):
        await bench.drained()
        assert set(bench.delivered.values()) == {1}
        open_ones = [name for name, lease in (await leases(bench)).items() if not lease.closed]
        assert len(open_ones) == 4
        assert all("-" in name for name in open_ones)


async def test_lag_is_told_for_leases_whose_ranges_are_gone(bench: Bench) -> None:
    async with bench.host("host-a"):
        await bench.create(30)
        await bench.drained()
    left = bench.bank.account_in("0")
    for _ in range(3):
        await bench.bank.create(left)
    found = await leases(bench)
    bench.control.merge(Bank.name, "0", "1")
    feed: CosmosChangeFeed = bench.bank.feed()
    lag = await measure_lag(found.values(), {"bank": feed})
    assert {one.partition: (one.events, one.error) for one in lag.partitions}["0"] == (3, None)
    assert lag.unknown == 0
    await feed.close()


async def test_a_storm_of_429_delays_what_is_read_and_costs_no_lease(bench: Bench) -> None:
    async with bench.host("host-a") as a, bench.host("host-b") as b:
        await until_async(lambda: len(a.host.workers) == len(b.host.workers) == 2)
        before = len([e for e in bench.log if e["event"] == "lease released"])
        bench.control.fault("throttle", "feed.*", share=0.7, retry_after_ms=100)
        await bench.create(40)
        await bench.drained()
        assert set(bench.delivered.values()) == {1}
        assert len([e for e in bench.log if e["event"] == "lease released"]) == before
        assert not [e for e in bench.log if e["event"] == "partition failed, retrying"]
