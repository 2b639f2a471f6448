"""A group of simulated hosts: the real ones, over a container, a source and a destination in memory, on virtual time.

    async def main():
        group = Group("abcd")
        a, b = await group.start("host-a"), await group.start("host-b")
        await until(group.is_balanced)
        await b.kill()
        await until(lambda: set(group.owners.values()) == {"host-a"})

    run_virtual(main())

`group.weather` (simulation.weather) judges every request to the outside world.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import structlog
from lab.simulation.loop import VirtualClock
from lab.simulation.process import Process
from lab.simulation.weather import Container, Outlet, Request, Source, Weather

from leasehold.leases.bootstrap import info_id
from leasehold.leases.document import decode_lease, encode_lease, lease_id, lease_prefix
from leasehold.leases.host_record import HostRecord
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.membership import Membership
from leasehold.leases.session import Session
from leasehold.leases.store import Stored, TimedStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryDestination
from leasehold.pipeline.limits import Budget
from leasehold.pipeline.sink import Sink
from leasehold.service.failures import Failures
from leasehold.service.host import Host
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.stats import Stats
from leasehold.service.worker import Worker, WorkerResult


class HostClock(VirtualClock):
    """One machine's clock, which jumps ahead where the machine was suspended."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@dataclass(slots=True)
class Running:
    """One host of a group. log: what it said, oldest first, as dicts with `event` and `level`."""

    host: Host
    process: Process
    clock: HostClock
    task: asyncio.Task[None]
    log: list[dict[str, Any]]
    leases_max: int | None = None

    @property
    def session(self) -> Session:
        return self.host.session

    @property
    def name(self) -> str:
        return self.host.name

    async def kill(self) -> None:
        await self.process.kill()

    async def stop(self) -> None:
        """Gracefully, until it has left. Raises what the host ended with."""
        self.host.stop()
        await self.task

    def said(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log if event in entry["event"]]


@dataclass(slots=True)
class Tenure:
    """One worker without a host beside it."""

    worker: Worker
    task: asyncio.Task[WorkerResult]
    beats: asyncio.Task[None]
    keeper: Keeper
    clock: HostClock
    stats: Stats
    log: list[dict[str, Any]]

    async def look(self) -> None:
        """As its host does: read the leases, and apply what they show."""
        scan, owned = await self.keeper.scan(["bank"]), self.worker.owned
        if (seen := scan.seen.get(owned.lease.key)) is not None:
            owned.notice(seen)
        owned.doubt(scan.seen.get(owned.lease.key), scan.started)

    async def end_beats(self) -> None:
        """Once nothing of them is under way any more."""
        self.beats.cancel()
        await asyncio.wait({self.beats, *self.worker.owned.session._under_way})
        await asyncio.sleep(0.1)  # a request of theirs may be on its way

    def said(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log if event in entry["event"]]


class Group:
    """One pipeline, `bank`, and the hosts that share it. `settings`: of its PipelineParts. Pages may be larger than batches."""

    def __init__(
        self,
        partitions: Iterable[str] = "abcd",
        *,
        timing: Timing | None = None,
        sink: Callable[[], Sink] | None = None,
        **settings: Any,
    ) -> None:
        self.timing = timing or Timing()
        self.weather = Weather()
        self.store = Container(self.weather)
        self.feed = Source(partitions)
        self.feed.weather = self.weather
        self.destination = MemoryDestination()
        self.hosts: list[Running] = []
        self._sink = sink or (lambda: Outlet(self.destination, self.weather))
        self._settings = settings
        self._incarnations = count(1)
        self._arrived: dict[str, list[int]] = {}
        self._looked_at = 0

    async def start(self, name: str, *, leases_max: int | None = None, **settings: Any) -> Running:
        """A host whose first round is over. settings: of the host's PipelineParts, above the group's."""
        running = self.started(name, leases_max=leases_max, **settings)
        ready = asyncio.create_task(running.host.ready.wait())
        await asyncio.wait({ready, running.task}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if running.task.done():
            running.task.result()
        return running

    def started(self, name: str, *, leases_max: int | None = None, **settings: Any) -> Running:
        """A host that begins now."""
        clock, log, number = self.clock(), list[dict[str, Any]](), next(self._incarnations)
        pipelines, timing = self._pipelines(settings), self.timing
        me = HostRecord(
            name=name,
            incarnation=f"{name}-{number}",
            pipelines=tuple(pipeline.name for pipeline in pipelines),
            leases_max=leases_max,
        )
        session = Session(self.store, me, clock=clock, timing=timing)
        keeper = self.keeper(name, me.incarnation, clock, session)
        host = Host(
            pipelines,
            keeper=keeper,
            membership=Membership(keeper.store, session, clock=clock),
            runtime=Runtime(
                clock=clock, timing=timing, rng=random.Random(number), log=self.logger(log), stats=Stats(clock)
            ),
        )
        process = Process(keeper.incarnation)
        running = Running(host, process, clock, process.start(host.run()), log, leases_max)
        running.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        self.hosts.append(running)
        return running

    async def tenure(self, partition: str = "a", name: str = "host-a", **settings: Any) -> Tenure:
        """A worker that begins now, on a lease that is made where there is none."""
        clock, log, number = HostClock(), list[dict[str, Any]](), next(self._incarnations)
        pipeline, me = self._pipeline(settings), HostRecord(name=name, incarnation=f"{name}-{number}")
        session = Session(self.store, me, clock=clock, timing=self.timing)
        await session.open()
        beats = asyncio.create_task(session.keep_beating(random.Random(number), lambda error: None))
        keeper = self.keeper(name, me.incarnation, clock, session)
        await keeper.create(Lease(pipeline="bank", partition=partition))
        owned = await keeper.take(await keeper.read("bank", partition), pipeline.sink.claimed)
        assert owned is not None
        stats = Stats(clock)
        worker = Worker(
            owned,
            pipeline,
            runtime=Runtime(clock=clock, timing=self.timing, rng=random.Random(number), log=logger(log), stats=stats),
            budget=Budget(),
            failures=Failures(clock),
        )
        task = asyncio.create_task(worker.run())
        task.add_done_callback(lambda _: beats.cancel())
        return Tenure(worker, task, beats, keeper, clock, stats, log)

    def clock(self) -> HostClock:
        """That of a new host's machine."""
        return HostClock()

    def logger(self, into: list[dict[str, Any]]) -> Any:
        return logger(into)

    def keeper(
        self, name: str, incarnation: str, clock: HostClock | None = None, session: Session | None = None
    ) -> Keeper:
        return Keeper(
            TimedStore(self.store, self.timing.call_timeout_s),
            host=name,
            incarnation=incarnation,
            clock=clock or HostClock(),
            timing=self.timing,
            session=session,
        )

    def _pipelines(self, settings: Mapping[str, Any]) -> list[PipelineParts]:
        """Of one host."""
        return [self._pipeline(settings)]

    def _pipeline(self, settings: Mapping[str, Any]) -> PipelineParts:
        return PipelineParts(**{"name": "bank", "feed": self.feed, "sink": self._sink(), **self._settings, **settings})

    # What there is, as an onlooker who is never refused sees it

    @property
    def leases(self) -> Mapping[str, Lease]:
        leases = [decode_lease(s.id, s.body) for s in self.documents(lease_prefix("bank"))]
        return {lease.partition: lease for lease in leases}

    @property
    def owners(self) -> Mapping[str, str | None]:
        return {partition: lease.owner for partition, lease in self.leases.items() if not lease.closed}

    @property
    def epochs(self) -> Mapping[str, int]:
        return {partition: lease.epoch for partition, lease in self.leases.items()}

    @property
    def shares(self) -> Counter[str]:
        """How many leases each live host works on."""
        return Counter({running.name: len(running.host.workers) for running in self.alive})

    @property
    def alive(self) -> list[Running]:
        return [running for running in self.hosts if not running.task.done()]

    def is_balanced(self) -> bool:
        """Every lease has a live owner that works on it, and shares differ by at most one."""
        shares = self.shares
        total = sum(shares.values())
        return total == len(self.owners) > 0 and max(shares.values()) - min(shares.values()) <= 1

    def documents(self, prefix: str) -> list[Stored]:
        return [stored for name, stored in sorted(self.store._documents.items()) if name.startswith(prefix)]

    def delivered(self, partition: str) -> list[int]:
        """The numbers of the events that arrived."""
        for commit in self.destination.commits[self._looked_at :]:
            bodies = commit.output.table["body"].to_pylist()
            self._arrived.setdefault(commit.claim.partition, []).extend(map(int, bodies))
        self._looked_at = len(self.destination.commits)
        return self._arrived.get(partition, [])

    def asked(self, kind: Callable[[Request], bool]) -> list[float]:
        """When such requests were made."""
        return [at for at, request in self.weather.requests if kind(request)]

    # What others may do

    def append(self, partition: str, events: int) -> None:
        """Numbered from 0 in each partition."""
        first = self.feed._logs[partition].end
        self.feed.append(partition, [str(n).encode() for n in range(first, first + events)])

    def is_delivered(self) -> bool:
        """Whether everything arrived, once and in order."""
        return all(self.delivered(name) == list(range(log.end)) for name, log in self.feed._logs.items())

    def edit(self, partition: str, change: Callable[[Lease], Lease]) -> None:
        lease = self.leases[partition]
        self.put(lease_id(*lease.key), encode_lease(change(lease)))

    def put(self, id: str, body: str) -> None:
        """Whatever stands there."""
        self.store._put(id, body)

    def remove(self, id: str) -> None:
        del self.store._documents[id]

    @property
    def info(self) -> Stored:
        return self.documents(info_id("bank"))[0]


async def until(condition: Callable[[], object], within_s: float = 600.0) -> float:
    """Wait, in virtual time; how long it took."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    while not condition():
        if loop.time() - started > within_s:
            raise AssertionError(f"did not come true within {within_s:g} s")
        await asyncio.sleep(0.05)
    return loop.time() - started


async def always(condition: Callable[[], object], for_s: float) -> None:
    """Holds at every look, for so long."""
    ends = asyncio.get_running_loop().time() + for_s
    while asyncio.get_running_loop().time() < ends:
        assert condition()
        await asyncio.sleep(0.05)


def logger(into: list[dict[str, Any]]) -> Any:
    """A logger that writes into a list."""

    def kept(_: object, level: str, event: Any) -> Any:
        into.append({**event, "level": level})
        raise structlog.DropEvent

    return structlog.wrap_logger(
        None, processors=[kept], wrapper_class=structlog.make_filtering_bound_logger(0), cache_logger_on_first_use=False
    ).bind()
