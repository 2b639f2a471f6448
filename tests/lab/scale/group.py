"""A group of whole hosts on virtual time, over a store that counts. Who owns which lease is known without a search."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from lab.scale.container import Calm, MeteredContainer
from lab.scale.load import PAGE_EVENTS, SteadyFeed, SteadySink
from lab.scale.sharing import Sharing
from lab.simulation.machine import MachineClock
from lab.simulation.process import Process

from leasehold.leases.bootstrap import Info, encode_info, info_id
from leasehold.leases.document import encode_lease, lease_id, lease_prefix
from leasehold.leases.host_record import HostRecord
from leasehold.leases.lease import Lease
from leasehold.leases.membership import Membership
from leasehold.leases.session import Session
from leasehold.leases.store import TimedStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.limits import BatchLimits
from leasehold.service.group.activity import reporter
from leasehold.service.host import Host
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.stats import Stats

PIPELINE = "bank"
START = datetime(2026, 1, 1, tzinfo=UTC)
CLOCKS_DIFFER_BY = 0.001
"""The rates of two machines' clocks, at most; 0.1 % is ten times what a machine without time synchronization shows."""
POLL_S = 0.05
READ_AHEAD_BYTES = 4096
"""Some pages: a feed that never ends would fill whatever there is."""


def name_of(number: int) -> str:
    return f"host-{number:03}"


class Silent:
    """A log of which only the number of lines by event is kept."""

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def bind(self, **values: Any) -> Silent:
        return self

    def _said(self, event: str, **values: Any) -> None:
        self._counts[event] += 1

    debug = info = warning = error = _said


class Running:
    def __init__(self, host: Host, process: Process, task: asyncio.Task[None], incarnation: str) -> None:
        self.host = host
        self.process = process
        self.task = task
        self.incarnation = incarnation
        task.add_done_callback(lambda done: done.cancelled() or done.exception())

    @property
    def name(self) -> str:
        return self.host.name


class ScaleGroup:
    """said: what all hosts logged, by event. moves: how often a lease got another owner than its last one."""

    def __init__(
        self, hosts: int, leases: int, *, timing: Timing | None = None, seed: int = 1, is_shared: bool = False
    ) -> None:
        """is_shared: whether hosts share what they parsed, so that hundreds of them fit into one process."""
        self.timing = timing or Timing()
        self.rng = random.Random(seed)
        self.weather = Calm(self.rng)
        self.sharing = Sharing(is_shared)
        self.store = MeteredContainer(self.weather, self.sharing.decode)
        self.store.noticed = self._notice
        self.sink = SteadySink()
        self.hosts: dict[str, Running] = {}
        self.said: Counter[str] = Counter()
        self.moves = 0
        self.leases = leases
        self._held: Counter[str | None] = Counter()
        self._last: dict[str, str] = {}
        self._started = 0
        names = [f"{n:06}" for n in range(leases)]
        self.feed = SteadyFeed(names)
        self._prepare(names, hosts)

    def _prepare(self, names: Sequence[str], hosts: int) -> None:
        """As a deployment of the same hosts left them: each takes its own leases back at once."""
        info = Info(identity=self._pipeline().identity, complete=True, pipeline=PIPELINE)
        self.store.put_all([(info_id(PIPELINE), encode_info(info))])
        for n, name in enumerate(names):
            owner = name_of(n % hosts)
            lease = Lease(
                pipeline=PIPELINE,
                partition=name,
                owner=owner,
                incarnation=f"{owner}-0",
                epoch=1,
                scope=f"{name.ljust(30, 'C')}-FF",
                continuation="10",
            )
            self.store.put_all([(lease_id(PIPELINE, name), encode_lease(lease))])
            self._held[lease.incarnation] += 1
            self._last[name] = owner

    def _pipeline(self) -> PipelineParts:
        return PipelineParts(
            name=PIPELINE,
            feed=self.feed,
            sink=self.sink,
            limits=BatchLimits(events_max=PAGE_EVENTS),
            buffer_bytes_max=READ_AHEAD_BYTES,
        )

    # Hosts

    def start(self, name: str) -> Running:
        self._started += 1
        rate = 1 + self.rng.uniform(-CLOCKS_DIFFER_BY, CLOCKS_DIFFER_BY) / 2
        clock, incarnation = MachineClock(rate, self.rng.uniform(0, 1e6)), f"{name}-{self._started}"
        me = HostRecord(
            name=name,
            incarnation=incarnation,
            pipelines=(PIPELINE,),
            started_at=START.isoformat(),
        )
        store = TimedStore(self.store, self.timing.call_timeout_s)
        session = Session(self.store, me, clock=clock, timing=self.timing)
        keeper = self.sharing.keeper(
            store, host=name, incarnation=incarnation, clock=clock, timing=self.timing, session=session
        )
        loop = asyncio.get_running_loop()
        host = Host(
            [self._pipeline()],
            keeper=keeper,
            membership=Membership(store, session, clock=clock),
            runtime=Runtime(
                clock=clock,
                timing=self.timing,
                rng=random.Random(self._started),
                log=Silent(self.said),  # type: ignore[arg-type]  # what hosts use of a log
                stats=Stats(clock),
            ),
            activity=reporter(clock, now=lambda: START + timedelta(seconds=loop.time())),
        )
        process = Process(incarnation)
        running = self.hosts[name] = Running(host, process, process.start(host.run()), incarnation)
        return running

    async def kill(self, name: str) -> None:
        await self.hosts.pop(name).process.kill()

    async def stop(self, name: str) -> None:
        """Gracefully, until it has left."""
        running = self.hosts.pop(name)
        running.host.stop()
        await running.task

    async def close(self) -> None:
        for name in list(self.hosts):
            await self.kill(name)

    # What there is

    @property
    def is_owned(self) -> bool:
        """Whether every lease has a live owner."""
        return sum(self._held[each.incarnation] for each in self.hosts.values()) == self.leases

    @property
    def is_even(self) -> bool:
        """Whether, besides, the shares of two hosts differ by one lease at most."""
        held = [self._held[each.incarnation] for each in self.hosts.values()]
        return sum(held) == self.leases and max(held) - min(held) <= 1

    def _notice(self, before: Lease | None, after: Lease | None) -> None:
        if after is None:
            raise AssertionError("no lease is deleted here")
        self._held[None if before is None else before.incarnation] -= 1
        self._held[after.incarnation] += 1
        if after.owner is not None:
            self.moves += self._last.get(after.partition, after.owner) != after.owner
            self._last[after.partition] = after.owner

    @property
    def lease_prefix(self) -> str:
        return lease_prefix(PIPELINE)


async def until(condition: Callable[[], bool], within_s: float = 300.0) -> float | None:
    """How long it took, in virtual time; None if it did not come true."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        if loop.time() - started > within_s:
            return None
        await asyncio.sleep(POLL_S)
    return loop.time() - started
