"""A group of hosts asks a hub at most five times a second, however many want to know its lag."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

import httpx
import pytest
from patience import until_async
from plugins_eventhubs import EventHubs

from leasehold.common.clock import BootClock, Pauses
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.api import create_app
from leasehold.service.group.view import View
from leasehold.service.lag.backlog import Backlog
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

HUB = "wide"
PARTITIONS = 12
HOSTS = 3
TIMING = Timing(duration_s=6.0, balance_s=0.5, call_timeout_s=1.0)
READS_PER_S_MAX = 50
"""What the service allows a consumer group."""
WATCHED_S = 8.0
AT_THE_EDGES = 2 * HOSTS
"""In any stretch of time each host may ask and list once more than the pace says."""


class Group:
    """Hosts on common leases over one hub, and a client of the REST API of each."""

    def __init__(self, eventhubs: EventHubs) -> None:
        self.control = eventhubs.control
        self._connection_string = eventhubs.connection_string
        self._store = MemoryStore()
        self.destination = MemoryDestination()
        self.hosts: list[ProcessorCore] = []
        self.clients: list[httpx.AsyncClient] = []

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[ProcessorCore]:
        account = account_of(connection_string=self._connection_string, event_hub=HUB)
        feed = EventHubsChangeFeed(
            account, limits=ReceiverLimits(prefetch=50, timeout_s=5), pauses=Pauses(first_s=0.01)
        )
        pipeline = PipelineParts(
            name="bank", feed=feed, sink=MemoryOutputSink(self.destination), transform=NoTransform()
        )
        processor = ProcessorCore([pipeline], self._store, host=name, timing=TIMING)
        await processor.start()
        transport = httpx.ASGITransport(create_app(processor.view))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                self.hosts.append(processor)
                self.clients.append(client)
                yield processor
        finally:
            await processor.stop()

    async def reads(self, what: str = "reads") -> int:
        return await asyncio.to_thread(self.control.count, what)

    async def shared_out(self) -> None:
        await until_async(lambda: {len(each.host.workers) for each in self.hosts} == {PARTITIONS // HOSTS})

    async def everybody_knows(self, lag: int) -> None:
        for view in [each.view for each in self.hosts]:

            async def knows(view: View = view) -> bool:
                found = await view.read_lag()
                return found.is_known and found.events == lag

            await until_async(knows)

    async def ask_all_the_time(self) -> None:
        """An open dashboard, KEDA and Prometheus, and more often than any of them."""
        while True:
            for client in self.clients:
                for path in ("/api/lag?partly=true", "/metrics", "/api/lag"):
                    await client.get(path)
            await asyncio.sleep(0.2)

    async def reads_while_asked(self) -> tuple[int, float]:
        """How many there were, and in how many seconds."""
        asking = asyncio.create_task(self.ask_all_the_time())
        try:
            began = asyncio.get_running_loop().time()
            before = await self.reads()
            await asyncio.sleep(WATCHED_S)
            return await self.reads() - before, asyncio.get_running_loop().time() - began
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


@pytest.fixture
async def group(eventhubs: EventHubs) -> AsyncIterator[Group]:
    eventhubs.control.make_hub(HUB, PARTITIONS)
    eventhubs.control.rules(reads_per_s_max=READS_PER_S_MAX)
    made = Group(eventhubs)
    async with AsyncExitStack() as stack:
        for n in range(HOSTS):
            await stack.enter_async_context(made.host(f"host-{n}"))
        yield made


async def test_a_group_asks_at_most_five_times_a_second_and_knows_its_lag(group: Group) -> None:
    for n in range(PARTITIONS):
        await asyncio.to_thread(group.control.fill, HUB, str(n), 10)
    await group.shared_out()
    await group.everybody_knows(0)
    reads, seconds = await group.reads_while_asked()
    assert reads <= 5 * seconds + AT_THE_EDGES
    # Nobody reads the partitions of a paused pipeline: now the hosts have to ask.
    answer = await group.clients[0].post("/api/pipelines/bank/pause", json={})
    assert answer.json()["paused"]
    await until_async(lambda: not any(each.host.workers for each in group.hosts))
    for n in range(PARTITIONS):
        await asyncio.to_thread(group.control.fill, HUB, str(n), 5)
    reads, seconds = await group.reads_while_asked()
    assert reads <= 5 * seconds + AT_THE_EDGES
    assert await group.reads("reads.throttled") == 0


async def test_waiting_until_idle_asks_at_the_same_pace(group: Group) -> None:
    await group.shared_out()
    await group.everybody_knows(0)

    async def ends() -> Backlog:
        return await group.hosts[0].idle()

    waiting = asyncio.create_task(ends())
    began = asyncio.get_running_loop().time()
    before = await group.reads()
    for _ in range(10):
        await asyncio.sleep(0.5)
        await asyncio.to_thread(group.control.fill, HUB, "3", 5)
    reads = await group.reads() - before
    assert reads <= 5 * (asyncio.get_running_loop().time() - began) + AT_THE_EDGES
    async with asyncio.timeout(120):
        last = await waiting
    assert (last.is_done, len(last.ends)) == (True, PARTITIONS)
    assert sum(commit.output.events for commit in group.destination.commits) == 50
    assert await group.reads("reads.throttled") == 0


async def test_a_command_without_hosts_asks_until_it_knows_every_partition(eventhubs: EventHubs) -> None:
    """One question after another, as it was once, a third of them would have been unknown after four seconds."""
    count = 100
    eventhubs.control.make_hub(HUB, count)
    eventhubs.control.rules(reads_per_s_max=READS_PER_S_MAX)
    eventhubs.control.fill(HUB, "99", 17)
    eventhubs.control.fault("delay", of="management", delay_s=0.06)
    feed = EventHubsChangeFeed(account_of(connection_string=eventhubs.connection_string, event_hub=HUB))
    pipeline = PipelineParts(
        name="bank", feed=feed, sink=MemoryOutputSink(MemoryDestination()), transform=NoTransform()
    )
    keeper = Keeper(MemoryStore(), host="leasehold", incarnation="1", clock=BootClock(), timing=TIMING)
    for n in range(count):
        await keeper.create(Lease(pipeline="bank", partition=str(n)))
    lag = await View(keeper, [pipeline], clock=BootClock(), now=lambda: datetime.now(UTC)).read_lag()
    await feed.close()
    assert (len(lag.partitions), lag.unknown, lag.events) == (count, 0, 17)
    assert eventhubs.control.count("reads.throttled") == 0
