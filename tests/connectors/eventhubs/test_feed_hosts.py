"""Hosts share a hub by leases: receivers have their leases' epochs, and every event is delivered once, whatever breaks off."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import structlog
from connectors.eventhubs.clients import HUB, receiver
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.common.clock import Pauses
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

TIMING = Timing(balance_s=0.3, call_timeout_s=3.0)


class Bench:
    """A hub, hosts on common leases, and what they deliver."""

    def __init__(self, eventhubs: EventHubs) -> None:
        self.eventhubs = eventhubs
        self.control = eventhubs.control
        self.store = MemoryStore()
        self.destination = MemoryDestination()
        self.log: list[dict[str, object]] = []

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[ProcessorCore]:
        account = account_of(connection_string=self.eventhubs.connection_string, event_hub=HUB)
        feed = EventHubsChangeFeed(
            account, limits=ReceiverLimits(prefetch=50, timeout_s=5), pauses=Pauses(first_s=0.01)
        )
        pipeline = PipelineParts(
            name="bank", feed=feed, sink=MemoryOutputSink(self.destination), transform=NoTransform()
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
        """(partition, sequence number) -> how often."""
        tables = [commit.output.table for commit in self.destination.commits]
        return Counter((row["partition"], row["sequence"]) for table in tables for row in table.to_pylist())

    async def append(self, count: int) -> None:
        """To every partition."""
        for partition in await asyncio.to_thread(self.control.partitions, HUB):
            await asyncio.to_thread(self.control.fill, HUB, partition.id, count, 20)

    async def drained(self) -> None:
        ends = {each.id: each.end for each in await asyncio.to_thread(self.control.partitions, HUB)}
        await until_async(lambda: len(self.delivered) == sum(ends.values()), seen=self.seen)
        assert set(self.delivered.values()) == {1}

    def seen(self) -> str:
        told = [entry for entry in self.log if entry["level"] in ("warning", "error")]
        return f"delivered {len(self.delivered)}; {told[-5:]}"

    def epochs(self) -> dict[str, int]:
        """Of the receivers that are attached, by partition."""
        return {link["partition"]: link["epoch"] for link in self.control.links(role="receiver")}


async def leases(processor: ProcessorCore) -> dict[str, Lease]:
    return {lease.partition: lease for lease in (await processor.keeper.scan(["bank"])).leases}


async def epochs(processor: ProcessorCore) -> dict[str, int]:
    return {partition: lease.epoch for partition, lease in (await leases(processor)).items()}


async def shared(processor: ProcessorCore, *counts: int, of: str | None = None) -> set[str]:
    """Once hosts own so many leases each: the partitions, all or one host's."""
    owners: dict[str, str | None] = {}

    async def are_shared() -> bool:
        owners.update({partition: lease.owner for partition, lease in (await leases(processor)).items()})
        return None not in owners.values() and sorted(Counter(owners.values()).values()) == list(counts)

    await until_async(are_shared, seen=lambda: owners)
    return {partition for partition, owner in owners.items() if of in (None, owner)}


@pytest.fixture
def bench(eventhubs: EventHubs) -> Bench:
    return Bench(eventhubs)


async def test_a_receiver_has_its_leases_epoch_and_a_hub_that_grows_has_more_leases(bench: Bench) -> None:
    async with bench.host("host-a") as a, bench.host("host-b"):
        await bench.append(100)
        await bench.drained()
        await shared(a, 2, 2)  # before, a partition that moves may have no receiver
        owned = {partition: lease.epoch for partition, lease in (await leases(a)).items()}
        await until_async(lambda: bench.epochs() == owned)
        bench.control.grow(HUB, 6)
        await bench.append(100)
        await bench.drained()
        assert await shared(a, 3, 3) == set("012345")


async def test_cuts_and_a_busy_service_cost_no_lease_and_no_event(bench: Bench) -> None:
    async with bench.host("host-a") as a:
        await bench.append(100)
        await bench.drained()
        before = await epochs(a)
        for number in range(4):
            bench.control.fault(
                "cut" if number % 2 else "refuse", of="attach.receiver", times=3, condition="amqp:internal-error"
            )
            await asyncio.to_thread(bench.control.cut)
            await bench.append(100)
            await bench.drained()
        assert await epochs(a) == before


async def test_a_reader_that_comes_with_a_higher_epoch_is_outranked_by_whoever_has_the_lease(bench: Bench) -> None:
    async with bench.host("host-a") as a:
        await bench.append(50)
        await bench.drained()
        async with receiver(bench.eventhubs, "2", epoch=70):
            await bench.append(50)
            await bench.drained()
        assert (await leases(a))["2"].epoch > 70
        assert bench.epochs()["2"] > 70


async def test_whoever_takes_a_lease_over_displaces_the_receiver_of_the_one_before(bench: Bench) -> None:
    async with bench.host("host-a") as a:
        await bench.append(50)
        await bench.drained()
        before = await epochs(a)
        async with bench.host("host-b") as b:
            moved = await shared(b, 2, 2, of="host-b")
            await bench.append(50)
            await bench.drained()
            after = await epochs(b)
            assert bench.epochs() == after
            assert all(after[partition] > before[partition] for partition in moved)
        await bench.append(50)
        await bench.drained()
