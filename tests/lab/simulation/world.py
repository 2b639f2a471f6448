"""One seed's world: its hosts, what lies around them, and the onlooker who checks what happens.

simulation.setup        what the seed draws before it begins
simulation.skies        what becomes of requests
simulation.container, .flow, .outlets, .broker    what is asked: leases, events, sinks
simulation.faults       what goes wrong besides

Hosts, workers, keepers, runners and the sinks' protocol code are the real ones. Everything that a seed leaves open is drawn from
it, so the same seed is the same world.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache, partial
from math import inf
from typing import TYPE_CHECKING, Any

from lab.simulation import group
from lab.simulation.broker import Broker
from lab.simulation.by_hand import ByHand
from lab.simulation.container import WatchedContainer
from lab.simulation.database import WAYS, Database
from lab.simulation.flow import NumberedFeed, PartOfFeed, WeatheredTransform
from lab.simulation.group import Group, HostClock, Running
from lab.simulation.handlers import SideBySide
from lab.simulation.hub import EventHub
from lab.simulation.invariants import Onlooker
from lab.simulation.known import Known
from lab.simulation.loop import Timeout
from lab.simulation.machine import MachineClock, TraceLog
from lab.simulation.outlets import WatchedDestination, WatchedHandler, WatchedOutlet
from lab.simulation.process import Process
from lab.simulation.requests import Endpoint
from lab.simulation.setup import Setup, SinkKind
from lab.simulation.shelf import Shelf
from lab.simulation.skies import Skies
from lab.simulation.topic import WeatheredTopic

from leasehold.leases import document, host_record, host_watch, keeper, session, tenure
from leasehold.leases.document import lease_id, lease_prefix
from leasehold.leases.errors import LeasesError
from leasehold.leases.host_record import HOSTS_PREFIX
from leasehold.leases.lease import Lease
from leasehold.pipeline.connectors.files.sink import manifest
from leasehold.pipeline.connectors.python import PythonOutputSink
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Sink
from leasehold.service.pipeline import PipelineParts

if TYPE_CHECKING:
    from lab.simulation.restores import Vault


class World(Group):
    def __init__(self, setup: Setup) -> None:
        names = [f"p{n:02}" for n in range(setup.size.leases)]
        super().__init__(
            names,
            timing=setup.timing,
            limits=BatchLimits(events_max=setup.batch_events_max),
            batch_timeout_s=setup.batch_timeout_s,
        )
        LEASES.forget()
        HOSTS.forget()
        self.setup: Setup = setup
        self._loop: Any = asyncio.get_running_loop()
        self.rng = random.Random(f"{setup.seed} faults")
        self._hosts = random.Random(f"{setup.seed} hosts")
        self._told: list[tuple[float, str, str | Callable[[], str]]] = []
        self.faults: dict[str, int] = {}
        self.garbled: set[str] = set()
        self.reopening: set[str] = set()
        self.paused: set[str] = set()
        self.infos: dict[str, str] = {}
        self.backups: list[dict[str, str]] = []
        self._next_rate = 1.0
        self.onlooker = Onlooker(
            timing=setup.timing,
            now=asyncio.get_running_loop().time,
            passes=self.passes,
            ends=lambda name: self.feed._logs[name].end if name in self.feed._logs else 0,
            parents=lambda name: self.feed._logs[name].parents if name in self.feed._logs else (),
            start=lambda name: self.feed.start(name),
            exactly_once=setup.holds_position,
            batch_events_max=setup.batch_events_max,
            ranged_events_max=0 if setup.ranges is None else setup.ranges.events_max,
        )
        self.skies = Skies(setup, onlooker=self.onlooker, tell=self.tell, running=self.running)
        self.weather.fate = self.skies.judged  # type: ignore[method-assign]  # a call less for every request
        self.store: WatchedContainer = WatchedContainer(self)
        self.feed: NumberedFeed = NumberedFeed(names)
        self.feed.weather = self.weather
        self.feed.replica = self.skies.replica
        self.destination = WatchedDestination(self)
        self.broker: Broker = Broker(self.onlooker, self.weather)
        self._sink = self._drawn_sink
        self._settings["transform"] = WeatheredTransform(self)
        self._settings["ranges"] = setup.ranges

    @property
    def now(self) -> float:
        now: float = self._loop._now
        return now

    def tell(self, who: str, what: str | Callable[[], str]) -> None:
        """A function is asked what it says once somebody reads the trace."""
        self._told.append((self.now, who, what))

    @property
    def trace(self) -> list[str]:
        return [f"{at:9.3f} {who:12} {what if isinstance(what, str) else what()}" for at, who, what in self._told]

    def put(self, id: str, body: str) -> None:
        if id.startswith(HOSTS_PREFIX):
            self.store.edit_host(id, body)
        else:
            super().put(id, body)

    def remove(self, id: str) -> None:
        if id.startswith(HOSTS_PREFIX):
            self.store.edit_host(id, None)
        else:
            super().remove(id)

    def passes(self, number: int) -> bool:
        """Whether the transform lets an event through: where it filters, every fourth dozen goes."""
        return not self.setup.filters or number // 12 % 4 != 3

    def append(self, partition: str, events: int) -> None:
        self.feed.extend(partition, events)

    # Hosts

    def clock(self) -> HostClock:
        skew = self.setup.skew
        self._next_rate = 1 + skew * (2 * self._hosts.random() - 1)
        return MachineClock(self._next_rate, 1000 * self._hosts.random())

    def logger(self, into: list[dict[str, Any]]) -> Any:
        return TraceLog(self.tell, self.onlooker.violated)

    def started(self, name: str, *, leases_max: int | None = None, **settings: Any) -> Running:
        running = super().started(name, leases_max=self.setup.leases_max_of(name), **settings)
        self.onlooker.rates[running.process.name] = self._next_rate
        self.tell(running.process.name, f"starts; its clock runs at {self._next_rate:.4f}")
        running.task.add_done_callback(partial(self._ended, running.process.name))
        return running

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.tell(name, f"ends: {type(error).__name__}: {error}")
            if not isinstance(error, LeasesError):
                self.onlooker.violated("host", f"{name} ended with {type(error).__name__}: {error}")

    def _pipelines(self, settings: Mapping[str, Any]) -> list[PipelineParts]:
        return [
            self._pipeline({**settings, "name": name, "feed": PartOfFeed(self.feed, partial(self._is_of, name))})
            for name in self.setup.pipelines
        ]

    def _is_of(self, pipeline: str, partition: str) -> bool:
        return self.setup.pipeline_of(partition) == pipeline

    @property
    def leases(self) -> Mapping[str, Lease]:
        stored = [each for name in self.setup.pipelines for each in self.documents(lease_prefix(name))]
        return {lease.partition: lease for lease in (document.decode_lease(each.id, each.body) for each in stored)}

    def is_balanced(self) -> bool:
        """As in any group, but for hosts that have as many leases as they want. If none has a limit, each pipeline is even."""
        leases = [lease for lease in self.leases.values() if not lease.closed]
        total = sum(len(each.host.workers) for each in self.alive)
        return self._are_even(self.alive) and total == len(leases) > 0

    def _are_even(self, hosts: Sequence[Running]) -> bool:
        shares = {running.name: len(running.host.workers) for running in hosts}
        full = {each.name for each in hosts if each.leases_max is not None and shares[each.name] >= each.leases_max}
        is_kept = all(shares[each.name] <= (each.leases_max or inf) for each in hosts)
        others = [share for name, share in shares.items() if name not in full]
        is_fair = not others or max(shares.values()) - min(others) <= 1
        if all(each.leases_max is None for each in hosts):
            is_fair = is_fair and all(
                max(parts) - min(parts) <= 1
                for parts in ([_part_of(each, name) for each in hosts] for name in self.setup.pipelines)
            )
        return is_kept and is_fair

    def _drawn_sink(self) -> Sink:
        return SINK_OF[self.setup.sink](self)

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(self.onlooker, self.weather)

    @cached_property
    def database(self) -> Database:
        way = random.Random(f"{self.setup.seed} copies").choice(WAYS)
        return Database(self.onlooker, self.weather, transaction_s=0.75 * self.timing.patience_s, way=way)

    @cached_property
    def endpoint(self) -> Endpoint:
        return Endpoint(self)

    @cached_property
    def hub(self) -> EventHub:
        return EventHub(self)

    @cached_property
    def topic(self) -> WeatheredTopic:
        return WeatheredTopic(self)

    @property
    def vault(self) -> Vault:
        """What the sink keeps its output in, where that can be put back to an earlier state."""
        return self.shelf if self.setup.sink == "files" else self.database

    def running(self, process: Process | None) -> Running:
        return next(running for running in self.hosts if running.process is process)

    # What operators do

    def lease(self, partition: str) -> Lease | None:
        stored = self.store._documents.get(lease_id(self.setup.pipeline_of(partition), partition))
        with suppress(LeasesError):
            return document.decode_lease(stored.id, stored.body) if stored else None
        return None

    def check_documents(self) -> None:
        """What was kept of documents is what they say (`hasten`)."""
        LEASES.check([each for name in self.setup.pipelines for each in self.documents(lease_prefix(name))])
        HOSTS.check(self.documents(HOSTS_PREFIX))

    def check_files(self) -> None:
        """Whatever entries name is there."""
        if self.setup.sink == "files":
            for name in self.shelf.missing():
                self.onlooker.violated("files", f"an entry names '{name}', which is gone")

    def open_partitions(self) -> list[str]:
        """Those that have an open lease."""
        leases = ((name, self.lease(name)) for name in sorted(self.feed._logs))
        return [name for name, lease in leases if lease is not None and not lease.closed]


def _part_of(running: Running, pipeline: str) -> int:
    """How many of the pipeline's leases the host works on."""
    return sum(key[0] == pipeline for key in running.host.workers)


def _handler_sink(world: World) -> Sink:
    if world.setup.parallel is not None:
        return SideBySide(world)
    if world.setup.manual is not None:
        return PythonOutputSink(lambda: ByHand(world), manual_max=world.setup.manual)
    return PythonOutputSink(lambda: WatchedHandler(world))


SINK_OF: Mapping[SinkKind, Callable[[World], Sink]] = {
    "memory": WatchedOutlet,
    "log": lambda world: world.broker.sink(),
    "python": _handler_sink,
    "files": lambda world: world.shelf.sink(),
    "postgres": lambda world: world.database.sink(),
    "async": lambda world: world.endpoint.sink(),
    "eventhubs": lambda world: world.hub.sink(),
    "kafka": lambda world: world.topic.sink(),
}
LEASES = Known(document.decode_lease, document.encode_lease, lambda lease: document.lease_id(*lease.key))
HOSTS = Known(host_record.decode_host, host_record.encode_host, lambda host: host_record.host_id(host.name))


def hasten() -> None:
    """Leases' ids are made once for all hosts of a process, and documents that were written are not parsed again: all are values.
    Garbage waits for the end of a seed (simulation.run), and what has been imported by now is never looked at."""
    document.lease_id = lru_cache(10_000)(document.lease_id)
    for module in (document, keeper, tenure, group):
        module.decode_lease, module.encode_lease = LEASES.decoded, LEASES.encoded  # type: ignore[attr-defined]
    for module in (host_record, host_watch):
        module.decode_host = HOSTS.decoded  # type: ignore[attr-defined]
    session.encode_host = HOSTS.encoded  # type: ignore[assignment, attr-defined]
    asyncio.timeout = Timeout  # type: ignore[assignment]
    logging.getLogger("leasehold.pipeline").addHandler(logging.NullHandler())
    gc.disable()
    gc.freeze()


@contextmanager
def narrowed() -> Iterator[None]:
    """Manifests are folded after few entries already, as no seed lasts long enough for many."""
    kept = manifest.FAN, manifest.LONG
    manifest.FAN, manifest.LONG = 4, 16
    try:
        yield
    finally:
        manifest.FAN, manifest.LONG = kept
