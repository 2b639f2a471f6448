"""A running host over memory parts: real leases, real workers, no Spark."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal

import httpx
import pytest
import structlog

from leasehold.common.clock import BootClock
from leasehold.leases.host_record import HostRecord
from leasehold.leases.keeper import Keeper
from leasehold.leases.membership import Membership
from leasehold.leases.session import Session
from leasehold.leases.store import LeaseStore, TimedStore
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.transform import NoTransform
from leasehold.service.api import create_app
from leasehold.service.group.activity import reporter
from leasehold.service.group.view import View
from leasehold.service.host import Host
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.stats import CountingStore, Stats
from leasehold.service.telemetry.spans import TracedStats, Traces

TIMING = Timing(
    duration_s=10.0, balance_s=0.2, call_timeout_s=5.0, handoff_poll_s=0.05, patience_s=10.0, ring_gap_s=0.05
)
"""Hosts look at each other often, but a busy machine may keep a host from running for seconds before its leases expire."""
SOON_EXPIRED = replace(TIMING, duration_s=2.0, call_timeout_s=1.0, patience_s=2.0)
"""For tests that wait until a lease has expired."""
NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


@dataclass
class Running:
    """One host and what it stands on. The view's wall clock stands still at NOW."""

    host: Host
    keeper: Keeper
    view: View
    feeds: dict[str, MemoryChangeFeed]
    destination: MemoryDestination

    def client(self, **options: object) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(create_app(self.view), **options)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost")


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> BootClock:
    return BootClock()


@pytest.fixture
async def start(store: LeaseStore) -> AsyncIterator[Start]:
    """Starts a host by its name; all hosts of a test share the store, and end with the test."""
    async with AsyncExitStack() as stack:

        async def started(name: str = "host-a", **given: object) -> Running:
            return await stack.enter_async_context(_running(name, **{"store": store, **given}))

        yield started


@asynccontextmanager
async def _running(
    name: str,
    *,
    store: LeaseStore,
    feeds: dict[str, MemoryChangeFeed] | None = None,
    sinks: dict[str, MemoryOutputSink] | None = None,
    partitions: Iterable[str] = ("a", "b"),
    runs: bool = True,
    leases_max: int | None = None,
    shared_s: float = 0.05,
    traces: Traces | None = None,
    timing: Timing = TIMING,
    starts: Mapping[str, Literal["earliest", "latest"]] | None = None,
) -> AsyncIterator[Running]:
    clock, incarnation = BootClock(), f"{name}-1"
    stats = Stats(clock, now=lambda: NOW) if traces is None else TracedStats(clock, traces, now=lambda: NOW)
    store = CountingStore(TimedStore(store, timing.call_timeout_s), stats)
    feeds = feeds if feeds is not None else {"bank": MemoryChangeFeed(partitions)}
    destination = MemoryDestination()
    pipelines = [
        PipelineParts(
            name=pipeline,
            feed=feed,
            transform=NoTransform(),
            sink=(sinks or {}).get(pipeline) or MemoryOutputSink(destination),
            checkpoint_s=0.05,
            starts=starts or {},
        )
        for pipeline, feed in feeds.items()
    ]
    me = HostRecord(
        name=name,
        incarnation=incarnation,
        pipelines=tuple(feeds),
        leases_max=leases_max,
    )
    session = Session(store, me, clock=clock, timing=timing)
    keeper = Keeper(store, host=name, incarnation=incarnation, clock=clock, timing=timing, session=session)
    host = Host(
        pipelines,
        keeper=keeper,
        membership=Membership(store, session, clock=clock),
        runtime=Runtime(
            clock=clock, timing=timing, rng=random.Random(7), log=structlog.get_logger(), stats=stats or Stats(clock)
        ),
        activity=reporter(clock, now=lambda: NOW),
    )
    view = View(keeper, pipelines, clock=clock, now=lambda: NOW, host=host, shared_s=shared_s)
    running = Running(host, keeper, view, feeds, destination)
    if not runs:
        yield running
        return
    async with asyncio.TaskGroup() as group:
        group.create_task(host.run())
        await host.ready.wait()
        try:
            yield running
        finally:
            host.stop()
