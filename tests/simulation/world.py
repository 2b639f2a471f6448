"""One seed's world: its topology, timing, sink and weather, and the onlooker who checks what happens in it.

Hosts, workers, keepers, runners and the sinks' protocol code are the real ones. Everything that a seed leaves open is drawn from
it, so the same seed is the same world.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count
from typing import Any, Literal, TypeVar

import pyarrow as pa
from simulation import group
from simulation.broker import Broker, numbers_in
from simulation.group import Group, HostClock, Running
from simulation.invariants import Onlooker
from simulation.process import Process, current, incarnation
from simulation.weather import Container, Fate, Outlet, Request, Source, Where, answered, host_of

from leases import document, keeper, membership
from leases.document import decode_lease, lease_id, lease_prefix
from leases.errors import LeasesError, StoreAmbiguous, StoreConflict, StoreUnavailable
from leases.lease import Lease
from leases.store import Stored
from leases.timing import Timing
from pipeline.batch import Batch, BatchLimits
from pipeline.connectors import memory
from pipeline.connectors.memory import MemoryDestination
from pipeline.connectors.python import HandlerContext, PythonSink
from pipeline.errors import Ambiguous, EngineUnavailable, FeedUnavailable, SinkError, SinkUnavailable
from pipeline.event import EVENT_SCHEMA
from pipeline.sink import Claim, CloseReason, Output, Sink

T = TypeVar("T")
SinkKind = Literal["memory", "log", "python"]
Operator = Literal["away", "resets", "tampers"]
LATE_MAX = 1.5
"""Lease durations that a message may be on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    name: str
    hosts: int
    leases: int
    minutes: int
    shrinks: tuple[float, ...]
    appends_every_s: float
    """On average, in each partition."""


SMALL = Size(name="small", hosts=3, leases=4, minutes=7, shrinks=(1 / 3, 1 / 2), appends_every_s=10.0)
LARGE = Size(name="large", hosts=20, leases=100, minutes=19, shrinks=(1.0,), appends_every_s=60.0)
SIZES = {size.name: size for size in (SMALL, LARGE)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a seed draws before it begins.

    ill: the share of requests that do not go well; skew: how clock rates differ. transform_s, store_s, sink_s: how long
    each takes.
    """

    seed: int
    size: Size
    sink: SinkKind
    operator: Operator
    splits: bool
    timing: Timing
    ill: float
    skew: float
    transform_s: float
    store_s: float
    sink_s: float
    batch_events_max: int
    filters: bool
    faults: int

    @classmethod
    def drawn(cls, seed: int, size: Size) -> Setup:
        rng = random.Random(f"{seed} setup {size.name}")
        shrink = rng.choice(size.shrinks)
        whole = Timing()
        timing = Timing(
            duration_s=whole.duration_s * shrink,
            renew_s=whole.renew_s * shrink,
            balance_s=whole.balance_s * shrink,
            margin_s=whole.margin_s * shrink,
            call_timeout_s=whole.call_timeout_s * shrink,
        )
        return cls(
            seed=seed,
            size=size,
            sink=rng.choice(("memory", "log", "python")),
            operator=rng.choice(("away", "resets", "tampers")),
            splits=rng.random() < 0.4,
            timing=timing,
            ill=rng.choice((0.0, 0.005, 0.02, 0.05)),
            skew=rng.choice((0.0, 0.01, 0.03)),
            transform_s=rng.choice((0.0, 0.02, 0.5, 3.0)),
            store_s=rng.choice((0.0, 0.0, 0.8)) * timing.call_timeout_s,
            sink_s=rng.choice((0.0, 0.0, 1.5)),
            batch_events_max=rng.choice((3, 10, 50)),
            filters=rng.random() < 0.3,
            faults=rng.choice((3, 8, 15)) * (1 if size.hosts < 10 else 4),
        )


@dataclass(slots=True, eq=False)
class Snare:
    """Laid for a host, or for whoever comes first. steps: kinds of requests, one after another to the same place.

    springs: called right after the last one, with who made it; fate: what becomes of that one, None for what the weather says.
    """

    host: str
    steps: list[frozenset[str]]
    springs: Callable[[Running], None]
    fate: Fate | None
    id: str = ""

    def is_stepped_into(self, request: Request) -> bool:
        """Whether this is the last step."""
        if not request.host or request.operation not in self.steps[0]:
            return False
        if self.host not in ("", request.host) or self.id not in ("", request.id):
            return False
        if len(self.steps) == 1:
            return True
        self.host, self.id = request.host, request.id
        self.steps.pop(0)
        return False


class World(Group):
    def __init__(self, setup: Setup) -> None:
        names = [f"p{n:02}" for n in range(setup.size.leases)]
        super().__init__(
            names,
            timing=setup.timing,
            limits=BatchLimits(events_max=setup.batch_events_max),
            batch_timeout_s=1.5 * setup.timing.duration_s,
        )
        self.setup = setup
        self.rng = random.Random(f"{setup.seed} faults")
        self._fates = random.Random(f"{setup.seed} weather")
        self._hosts = random.Random(f"{setup.seed} hosts")
        self.trace: list[str] = []
        self.faults: dict[str, int] = {}
        self.is_calm = False
        self.outages: dict[tuple[str, Where], Literal["refused", "silent"]] = {}
        self.hanging: set[str] = set()
        self.garbled: set[str] = set()
        self.snares: list[Snare] = []
        self._uncertain: dict[str, float] = {}
        self._cut_off: dict[str, float] = {}
        self._next_rate = 1.0
        self.weather.judge = self._judged
        self.onlooker = Onlooker(
            timing=setup.timing,
            now=asyncio.get_running_loop().time,
            passes=self.passes,
            ends=lambda name: self.feed._logs[name].end,
            parents=lambda name: self.feed._logs[name].parents if name in self.feed._logs else (),
            exactly_once=setup.sink != "python",
            batch_events_max=setup.batch_events_max,
        )
        self.store = _Watched(self)
        self.feed = _Feed(names, page_events_max=setup.batch_events_max)
        self.feed.weather = self.weather
        self.destination = _Destination(self)
        self.broker = Broker(self.onlooker, self.weather)
        self._sink = self._drawn_sink
        self._settings["transform"] = _Transform(self)

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def tell(self, who: str, what: str) -> None:
        self.trace.append(f"{self.now:9.3f} {who:12} {what}")

    def passes(self, number: int) -> bool:
        """Whether the transform lets an event through: where it filters, every fourth dozen goes."""
        return not self.setup.filters or number // 12 % 4 != 3

    # Hosts

    def clock(self) -> HostClock:
        skew = self.setup.skew
        self._next_rate = 1 + skew * (2 * self._hosts.random() - 1)
        return _Clock(self._next_rate, 1000 * self._hosts.random())

    def logger(self, into: list[dict[str, Any]]) -> Any:
        return _Log(self)

    def started(self, name: str, *, leases_max: int | None = None, **settings: Any) -> Running:
        running = super().started(name, leases_max=leases_max, **settings)
        self.onlooker.rates[running.process.name] = self._next_rate
        self.tell(running.process.name, f"starts; its clock runs at {self._next_rate:.4f}")
        running.task.add_done_callback(partial(self._ended, running.process.name))
        return running

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.tell(name, f"ends: {type(error).__name__}: {error}")
            if not isinstance(error, LeasesError):
                self.onlooker.violated("host", f"{name} ended with {type(error).__name__}: {error}")

    def _drawn_sink(self) -> Sink:
        if self.setup.sink == "memory":
            return _Outlet(self)
        if self.setup.sink == "log":
            return self.broker.sink()
        return PythonSink(lambda: _Handler(self))

    def running(self, process: Process | None) -> Running:
        return next(running for running in self.hosts if running.process is process)

    # Weather

    def _judged(self, request: Request) -> Fate:
        fate = self._drawn_fate(request)
        for snare in [snare for snare in self.snares if snare.is_stepped_into(request)]:
            self.snares.remove(snare)
            asyncio.get_running_loop().call_soon(snare.springs, self.running(current()))
            if snare.fate is not None:
                fate = snare.fate
                self._cut_off[request.id] = self.now
        if fate.ends != "ok" or fate.late_s > 2:
            self.onlooker.counts[fate.ends if fate.ends != "ok" else "slow"] += 1
            self.tell(
                request.host, f"{request.where} {request.operation} {request.id}: {fate.ends}, {fate.late_s:.2f} s"
            )
        return fate

    def _drawn_fate(self, request: Request) -> Fate:
        rng = self._fates
        quick = 0.002 + 0.02 * rng.random()
        if self.is_calm:
            return Fate(quick)
        mode = self.outages.get((request.host, request.where)) or self.outages.get(("", request.where))
        if mode == "refused":
            return Fate(quick, "refused")
        if mode == "silent":
            return Fate(self.timing.call_timeout_s * (1 + rng.random()), "ghost")
        if request.where == "sink" and request.host in self.hanging:
            return Fate((2 + rng.random()) * self.timing.duration_s)
        if request.operation == "publish" and self._cut_off.get(request.id) == self.now:
            return Fate(quick, "ghost")
        if request.operation == "publish" and self._uncertain.get(request.id) == self.now and rng.random() < 0.7:
            return self._bad(rng, quick)
        if rng.random() >= self.setup.ill:
            slow_s = {"store": self.setup.store_s, "sink": self.setup.sink_s}.get(request.where, 0.0)
            return Fate(max(quick, slow_s * rng.random()))
        if request.operation == "publish":
            self._uncertain[request.id] = self.now
        return self._bad(rng, quick)

    def _bad(self, rng: random.Random, quick: float) -> Fate:
        duration = self.timing.duration_s
        return rng.choice(
            (
                Fate(quick, "refused"),
                Fate(quick, "lost"),
                Fate(quick, "ghost"),
                Fate(rng.random() * duration / 10, "late"),
                Fate(rng.random() * LATE_MAX * duration, "late"),
                self.overtaken(rng),
                Fate(rng.random() * duration / 10),
                Fate(rng.random() * LATE_MAX * duration),
            )
        )

    def overtaken(self, rng: random.Random) -> Fate:
        """Its answer is lost, and it arrives among later requests to the same place."""
        return Fate(LATE_MAX * self.timing.duration_s, "late", overtaken_by=rng.randint(1, 3))

    # What operators do

    def lease(self, partition: str) -> Lease | None:
        stored = self.store._documents.get(lease_id("bank", partition))
        with suppress(LeasesError):
            return decode_lease(stored.id, stored.body) if stored else None
        return None

    def open_partitions(self) -> list[str]:
        """Those that have an open lease."""
        leases = ((name, self.lease(name)) for name in sorted(self.feed._logs))
        return [name for name, lease in leases if lease is not None and not lease.closed]


class _Clock(HostClock):
    def __init__(self, rate: float, ahead_s: float) -> None:
        super().__init__()
        self._rate = rate
        self.ahead_s = ahead_s

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time() * self._rate + self.ahead_s

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._rate)


class _Log:
    """What a host says goes into the trace."""

    def __init__(self, world: World, partition: str = "", epoch: object = "") -> None:
        self._world = world
        self._partition = partition
        self._epoch = epoch

    def bind(self, **values: Any) -> _Log:
        return _Log(self._world, values.get("partition", self._partition), values.get("epoch", self._epoch))

    def _said(self, event: str, **values: Any) -> None:
        process = current()
        if process is None or not process.is_dead:
            told = " ".join(f"{name}={value}" for name, value in values.items())
            self._world.tell(incarnation(), f"{self._partition}/{self._epoch} {event} {told}")

    debug = info = warning = error = _said


class _Watched(Container):
    """A container whose every change the onlooker sees."""

    def __init__(self, world: World) -> None:
        super().__init__(world.weather)
        self._world = world

    async def list(self, prefix: str) -> list[Stored]:
        return await self._soon("list", prefix, partial(self._listed, prefix))

    async def read(self, id: str) -> Stored:
        return await self._soon("read", id, partial(self._found, id))

    async def create(self, id: str, body: str) -> str:
        return await self._soon("create", id, partial(self._created, incarnation(), id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._soon("replace", id, partial(self._replaced, incarnation(), self._world.now, id, body, etag))

    async def delete(self, id: str, etag: str) -> None:
        await self._soon("delete", id, partial(self._deleted, id, etag))

    def _soon(self, operation: str, id: str, call: Callable[[], T]) -> asyncio.Future[T]:
        request = Request(host_of(current()), "store", operation, id)
        lost = StoreUnavailable if operation in ("list", "read") else StoreAmbiguous
        return answered(self._weather, request, call, StoreUnavailable, lost)

    def _listed(self, prefix: str) -> list[Stored]:
        return [stored for name, stored in sorted(self._documents.items()) if name.startswith(prefix)]

    def _created(self, by: str, id: str, body: str) -> str:
        if id in self._documents:
            raise StoreConflict(f"document '{id}' exists already")
        if id.startswith(LEASES):
            lease = decode_lease(id, body)
            self._world.tell(by, f"created {_told(lease)}")
            self._world.onlooker.created(by, lease)
        return self._put(id, body)

    def _replaced(self, by: str, started: float, id: str, body: str, etag: str) -> str:
        self._match(id, etag)
        if id.startswith(LEASES):
            lease = decode_lease(id, body)
            self._world.tell(by, f"wrote {_told(lease)}")
            self._world.onlooker.wrote(by, decode_lease(id, self._documents[id].body), lease, started)
        return self._put(id, body)

    def _deleted(self, id: str, etag: str) -> None:
        self._match(id, etag)
        del self._documents[id]


LEASES = lease_prefix("bank")


def _told(lease: Lease) -> str:
    flags = " closed" * lease.closed + (f" for {lease.handoff_to}" if lease.handoff_to else "")
    return (
        f"{lease.partition}: {lease.incarnation or '-'} epoch {lease.epoch}.{lease.generation} tick {lease.tick}"
        f" at {lease.continuation}{flags} {lease.sink_state}"
    )


class _Feed(Source):
    async def _request(self, request: Callable[[], T]) -> T:
        asks = Request(host_of(current()), "feed")
        return await answered(self.weather, asks, request, FeedUnavailable, FeedUnavailable)

    def _page(self, partition: str, index: int) -> memory.Page | None:
        log = self._log(partition)
        end = min(log.end, index + self._page_events_max)
        if index >= end:
            return super()._page(partition, index)
        table = _events(partition, index // 1000).slice(index % 1000, end - index)
        if table.num_rows < end - index:
            end = index + table.num_rows
        return memory.Page(table, str(end), lambda n: str(index + n))


@lru_cache(maxsize=1000)
def _events(partition: str, thousand: int) -> pa.Table:
    """Numbered events, made once."""
    numbers = range(1000 * thousand, 1000 * thousand + 1000)
    texts = [str(n) for n in numbers]
    columns = {
        "partition": [partition] * 1000,
        "sequence": list(numbers),
        "offset": texts,
        "enqueued_time": [memory.EPOCH] * 1000,
        "body": [text.encode() for text in texts],
    }
    return pa.table(
        [pa.array(columns.get(field.name, [None] * 1000), field.type) for field in EVENT_SCHEMA], EVENT_SCHEMA
    )


class _Transform:
    """Takes its time, now and then fails, and may filter. Implements pipeline.transform.Transform."""

    description = "simulated"

    def __init__(self, world: World) -> None:
        self._world = world

    async def prepare(self) -> None:
        """Nothing to start."""

    async def apply(self, batch: Batch) -> pa.Table:
        world = self._world
        rng = world._fates
        if not world.is_calm:
            if host_of(current()) in world.hanging and rng.random() < 0.5:
                world.tell(incarnation(), f"the transform of {batch.partition} hangs")
                await asyncio.sleep(1e9)
            await asyncio.sleep(world.setup.transform_s * rng.random() * 2)
            if rng.random() < world.setup.ill / 2:
                world.tell(incarnation(), f"the engine fails on {batch.partition}")
                raise EngineUnavailable("the engine died")
        table = batch.pages[0].events if len(batch.pages) == 1 else batch.table
        if not world.setup.filters:
            return table
        return table.filter([world.passes(number) for number in table["sequence"].to_pylist()])

    async def close(self) -> None:
        """Nothing to let go of."""


class _Destination(MemoryDestination):
    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def claim(self, claim: Claim) -> str | None:
        position = super().claim(claim)
        self._world.onlooker.fenced(claim.partition, (claim.epoch,))
        return position

    def commit(self, claim: Claim, output: Output) -> None:
        super().commit(claim, output)
        self.commits.clear()
        self._world.tell(claim.owner, f"committed {claim.partition} {output.start}..{output.to} at epoch {claim.epoch}")
        self._world.onlooker.fenced(claim.partition, (claim.epoch,))
        self._world.onlooker.arrives(claim.partition, claim.generation, numbers_in(output.table))


class _Outlet(Outlet):
    def __init__(self, world: World) -> None:
        super().__init__(world.destination, world.weather)
        self._onlooker = world.onlooker
        self._numbers = count(1)

    async def _asked(self, operation: str, claim: Claim, request: Callable[[], Any]) -> Any:
        if operation == "open":
            return await self._soon(operation, claim, request)
        by, fence = incarnation(), (claim.epoch,)
        self._onlooker.sends(by, claim.partition, fence, next(self._numbers))
        try:
            answer = await self._soon(operation, claim, request)
        except Ambiguous:
            raise
        except SinkError:
            self._onlooker.settled(by, claim.partition, fence)
            raise
        self._onlooker.settled(by, claim.partition, fence)
        return answer

    def _soon(self, operation: str, claim: Claim, request: Callable[[], T]) -> asyncio.Future[T]:
        asks = Request(host_of(current()), "sink", operation, claim.partition)
        return answered(self._weather, asks, request, SinkUnavailable, Ambiguous)


class _Handler:
    """A user's handler that calls a service; what it has sent arrives, whatever becomes of the handler."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def open(self, context: HandlerContext) -> None:
        self._world.onlooker.tried(context.partition)

    async def process(self, context: HandlerContext, table: pa.Table) -> None:
        world, by, fence = self._world, incarnation(), (context.epoch,)
        numbers = numbers_in(table)
        world.onlooker.goes_on(context.partition, context.generation, context.position)
        world.onlooker.sends(by, context.partition, fence, context.to)
        request, arrived = (
            Request(host_of(current()), "sink", "process", context.partition),
            partial(self._arrived, context),
        )
        try:
            await answered(world.weather, request, partial(arrived, numbers), SinkUnavailable, SinkUnavailable)
        except SinkUnavailable:
            world.onlooker.tried(context.partition)
            world.onlooker.settled(by, context.partition, fence)
            raise
        world.onlooker.settled(by, context.partition, fence)

    async def close(self, context: HandlerContext, reason: CloseReason) -> None:
        """Nothing is held."""

    def _arrived(self, context: HandlerContext, numbers: list[int]) -> None:
        self._world.tell(context.owner, f"arrived {context.partition} {context.position}..{context.to}")
        self._world.onlooker.arrives(context.partition, context.generation, numbers)


def decode_quickly() -> None:
    """Documents are decoded, and leases' ids made, once for all hosts of a process: they are values."""
    lease, host = lru_cache(100_000)(document.decode_lease), lru_cache(10_000)(membership.decode_host)
    for module in (document, keeper, group, sys.modules[__name__]):
        module.decode_lease = lease  # type: ignore[attr-defined]
    membership.decode_host = host
    document.lease_id = lru_cache(10_000)(document.lease_id)
