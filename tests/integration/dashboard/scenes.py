"""Groups for the dashboard to show: some tell of themselves by documents alone, some are hosts at work. No Spark.

async with scene({"bank": ["a", "b"]}) as group:     # served, and not running: nothing changes by itself
    await group.give({("bank", "a"): "host-a"})
    group.url
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import structlog
from patience import rhythm

from leasehold.leases.host_record import HostRecord, decode_host, encode_host, host_id
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.api import create_app
from leasehold.service.api.auth import Access
from leasehold.service.api.server import serve
from leasehold.service.group.activity import Activity, activity_document
from leasehold.service.group.work import BatchStatus, FailureStatus, Totals
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

TIMING = Timing(duration_s=15.0, balance_s=0.3, handoff_poll_s=0.05)
ROOM = 16 * 1024
NO_TOKENS = Access()
FILES = [f"transactions-{i}.csv" for i in range(1, 5)]
STARTED = "2026-01-31T12:00:00+00:00"


def processor(name: str, store: MemoryStore, feeds: Mapping[str, MemoryChangeFeed]) -> ProcessorCore:
    pipelines = [
        PipelineParts(
            name=each, feed=feed, transform=NoTransform(), sink=MemoryOutputSink(MemoryDestination()), checkpoint_s=0.1
        )
        for each, feed in feeds.items()
    ]
    return ProcessorCore(pipelines, store, host=name, timing=TIMING)


@asynccontextmanager
async def served(served_by: ProcessorCore, access: Access = NO_TOKENS, port: int = 0) -> AsyncIterator[str]:
    """Yields the address."""
    app = create_app(served_by.view, access)
    async with serve(app, host="127.0.0.1", port=port, log=structlog.get_logger()) as bound:
        yield f"http://127.0.0.1:{bound}"


@asynccontextmanager
async def lively(feed: MemoryChangeFeed) -> AsyncIterator[None]:
    """Events come, more to some partitions than to others, four times a second: a throughput is of time that has passed."""

    async def flow() -> None:
        async for turn in rhythm(0.25):
            for i, partition in enumerate(await feed.partitions()):
                feed.append(partition.name, [b"{}"] * (5 + (turn * (i + 3)) % 17))

    flowing = asyncio.create_task(flow())
    try:
        yield
    finally:
        flowing.cancel()


class Group:
    """Hosts and leases as their documents have them, seen by a host that only looks."""

    def __init__(self, looks: ProcessorCore, store: MemoryStore, feeds: Mapping[str, MemoryChangeFeed]) -> None:
        self.looks = looks
        self.store = store
        self.feeds = feeds
        self.url = ""

    async def give(self, owners: Mapping[LeaseKey, str | None]) -> None:
        """As if each had taken it."""
        for key, owner in owners.items():
            seen = await self.looks.keeper.read(*key)
            wanted = replace(seen.lease, owner=owner, incarnation=owner and "1", epoch=seen.lease.epoch + 1)
            await self.looks.keeper.rewrite(seen, wanted)

    async def announce(self, name: str, activity: Activity | None = None, **told: object) -> None:
        """Writes the host's document, or moves its tick."""
        stored = {each.id: each for each in await self.store.list(host_id(name))}.get(host_id(name))
        before = decode_host(stored.id, stored.body) if stored else _record(name, tuple(self.feeds))
        record = replace(before, tick=before.tick + 1, **told)  # type: ignore[arg-type]  # as the test has them
        if activity is not None:
            record = replace(record, activity=activity_document(activity, ROOM))
        if stored is None:
            await self.store.create(host_id(name), encode_host(record))
        else:
            await self.store.replace(stored.id, encode_host(record), stored.etag)

    async def look(self, *, expired: Iterable[LeaseKey] = (), dead: Iterable[str] = ()) -> None:
        """The looking host's sight: what it has seen stand still."""
        host = self.looks.host
        host.balancer.reader.scan = await self.looks.keeper.scan(host.pipelines)
        host_scan = await self.looks.membership.scan()
        host.balancer.reader.host_scan = replace(host_scan, live=host_scan.live - frozenset(dead))
        host.balancer.expired = frozenset(expired)
        host.ready.set()


def _record(name: str, pipelines: tuple[str, ...]) -> HostRecord:
    return HostRecord(name=name, incarnation="1", pipelines=pipelines, started_at=STARTED)


@asynccontextmanager
async def scene(
    partitions: Mapping[str, Iterable[str]],
    *,
    looks: str = "host-a",
    access: Access = NO_TOKENS,
    owners: Mapping[LeaseKey, str] = MappingProxyType({}),
) -> AsyncIterator[Group]:
    store = MemoryStore()
    feeds = {name: MemoryChangeFeed(parts) for name, parts in partitions.items()}
    group = Group(processor(looks, store, feeds), store, feeds)
    for key in ((name, part) for name, parts in partitions.items() for part in parts):
        owner = owners.get(key)
        await group.looks.keeper.create(
            Lease(
                pipeline=key[0], partition=key[1], owner=owner, incarnation=owner and "1", epoch=int(owner is not None)
            )
        )
    async with served(group.looks, access) as group.url:
        yield group


def activity(host: str, pipeline: str, partitions: Iterable[str], events: int, failing: str | None = None) -> Activity:
    """A host that has delivered something of each partition, and fails at one."""
    now = datetime.now(UTC)
    batches = tuple(
        BatchStatus(
            host=host,
            pipeline=pipeline,
            partition=partition,
            epoch=3,
            start=str(1000 * i),
            to=str(1000 * i + 840),
            events=840,
            waited_s=0.02 + 0.01 * (i % 3),
            transform_s=0.11 + 0.05 * (i % 4),
            deliver_s=0.03,
            at=now - timedelta(seconds=1.7 * i),
        )
        for i, partition in enumerate(partitions)
    )
    failures = () if failing is None else (_failure(host, pipeline, failing, now),)
    ages = (0, 98, 0, 0, 0, 0, 2, *[0] * 8)
    totals = (Totals(pipeline=pipeline, events=events, batches=len(batches), dead_letters=2, ages=ages),)
    return Activity(batches=batches, totals=totals, failures=failures, failing=len(failures))


def _failure(host: str, pipeline: str, partition: str, now: datetime) -> FailureStatus:
    return FailureStatus(
        host=host,
        pipeline=pipeline,
        partition=partition,
        error="file 'transactions-3.csv', line 17: the field 'amount' is missing",
        failures=3,
        retry_at=now + timedelta(seconds=8),
        since=now - timedelta(seconds=4),
        at=now,
        position="",
    )


def owners_of(leases: Mapping[str, list[str]], hosts: int) -> dict[LeaseKey, str]:
    keys = [(pipeline, partition) for pipeline, partitions in leases.items() for partition in partitions]
    return {key: f"pod-{i * hosts // len(keys) + 1}" for i, key in enumerate(keys)}
