"""What leases in Cosmos DB cost per lease and hour, beside the .NET processor: requests, documents read and written, bytes.

Ours is counted: whole hosts run on virtual time over the real store, whose container is a list here that counts what the wire
would carry (one request for each of its calls, as tests/connectors/cosmos holds it to). .NET's is computed from its published
intervals: every host lists all leases each 13 s; a renewal, each 17 s, reads a lease and replaces it; a batch is one more
replace. It is not charged for what it does where writes meet (a conflict, a read and a replace again).

Idle: nothing changes. Busy: there is more than the sink can take, which takes a second for each page. .NET's batch is a
page; ours is all that came while the last one was at work, up to `batch_events_max` (100 pages of 1,000). A sink that holds
its position (PostgreSQL, log) needs a checkpoint each 5 s at most, and a checkpoint renews; a handler, or any at-least-once
sink, needs one for each batch, as .NET's does. A trickle: a change each second, taken at once. .NET looks each 5 s, and has
a batch each time; ours looks each second, and has five: a handler's `checkpoint_s` lets them go unkept for a while.

Documents are as large as real ones: with a scope, a continuation of six digits, and the sink state of an idempotent producer.
A host's own documents, which .NET has none of, are counted apart: its session, and its record. They cost the same however many
leases the host has, so the ratios are of the other writes. The last line says from how many leases on a host writes less than
.NET's does, with its own documents.
Prints, and writes build/bench/lease-store.json. Exit code 1 where the target is missed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import structlog
from lab.simulation.loop import VirtualClock, run_virtual
from results import Figure, finish, say

from leasehold.leases import dotnet
from leasehold.leases.errors import StoreConflict, StoreMissing
from leasehold.leases.lease import Lease
from leasehold.leases.stores.cosmos import CosmosStore
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryFeed, MemorySink, MemoryWriter
from leasehold.pipeline.feed import FeedPartition
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.producer import claimed
from leasehold.pipeline.sink import Claim, Output, Permit
from leasehold.service.pipeline import Pipeline
from leasehold.service.processor import Processor

HOSTS, LEASES, SETTLING_S = 2, 8, 300
HOUR_S, BUSY_S = 3600.0, 600.0
ACQUIRE_S, RENEW_S = 13.0, 17.0
CHANGE_S = PAGE_S = 1.0
POLL_S = 5.0
PAGE_EVENTS, PAGES_MAX = 10, 100
WRITES_BUSY_MAX = 0.5
WRITES_IDLE_MAX = 0.1
START = datetime(2026, 1, 1, tzinfo=UTC)
PREFIX = dotnet.lease_prefix("transactions", "bank.documents.azure.com", "q0oIAA==", "q0oIALS6YvQ=")
SYSTEM = {
    "_rid": "q0oIALS6YvQBAAAAAAAAAA==",
    "_self": "dbs/q0oIAA==/colls/q0oIALS6YvQ=/docs/q0oIALS6YvQBAAAAAAAAAA==/",
    "_attachments": "attachments/",
    "_ts": 1772668516,
}
OF_HOSTS = ("leasehold:_hosts:", "leasehold:_sessions")
READ = 1_234_567
BUSY = ("busy, sink holds its position", "busy, handler")
BUSY_BY_PAGE = ("busy, a page a batch, sink holds its position", "busy, a page a batch, handler with checkpoint_s: 5")
"""As .NET has it; what a handler by default costs then is told, and bound to nothing."""
DOTNET = ".NET"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """bytes: of documents, both ways. of_hosts: how many of those written are hosts' own."""

    requests: float = 0
    read: float = 0
    written: float = 0
    bytes: float = 0
    of_hosts: float = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(**{name: getattr(self, name) + getattr(other, name) for name in asdict(self)})

    def __mul__(self, factor: float) -> Cost:
        return Cost(**{name: value * factor for name, value in asdict(self).items()})

    def __sub__(self, other: Cost) -> Cost:
        return self + other * -1


class CountingContainer:
    """`leasehold.leases.stores.cosmos.LeaseContainer`, in memory."""

    def __init__(self) -> None:
        self.cost = Cost()
        self._documents: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, int] = {}
        self._etags = map('"00000000-0000-0000-ac40-{:012x}"'.format, count(1))

    async def query(self, prefix: str) -> list[dict[str, Any]]:
        await asyncio.sleep(0.005)
        found = [document for name, document in sorted(self._documents.items()) if name.startswith(prefix)]
        self.cost += Cost(requests=1, read=len(found), bytes=sum(map(size, found)))
        return found

    async def read_changes(self, since: str | None) -> tuple[list[dict[str, Any]], str]:
        """One request, as of a container with one physical partition."""
        await asyncio.sleep(0.005)
        newest = max(self._versions.values(), default=0)
        changed = [name for name, version in self._versions.items() if since is not None and version > int(since)]
        found = [self._documents[name] for name in changed if name in self._documents]
        self.cost += Cost(requests=1, read=len(found), bytes=sum(map(size, found)))
        return found, str(newest)

    async def count(self, prefix: str) -> int:
        await asyncio.sleep(0.005)
        self.cost += Cost(requests=1)
        return sum(name.startswith(prefix) for name in self._documents)

    async def read(self, id: str) -> dict[str, Any]:
        await asyncio.sleep(0.005)
        self.cost += Cost(requests=1, read=1)
        if id not in self._documents:
            raise StoreMissing(id)
        self.cost += Cost(bytes=size(self._documents[id]))
        return self._documents[id]

    async def look_for(self, id: str) -> bool:
        self.cost += Cost(requests=1, read=1)
        return id in self._documents

    async def create(self, document: Mapping[str, Any]) -> str:
        if document["id"] in self._documents:
            self.cost += Cost(requests=1)
            raise StoreConflict(str(document["id"]))
        return await self._put(document)

    async def replace(self, document: Mapping[str, Any], etag: str) -> str:
        if self._documents[document["id"]]["_etag"] != etag:
            self.cost += Cost(requests=1, bytes=size(document))
            raise StoreConflict(str(document["id"]))
        return await self._put(document)

    async def delete(self, id: str, etag: str) -> None:
        self.cost += Cost(requests=1, written=1)
        del self._documents[id]

    async def close(self) -> None:
        """Nothing is held."""

    async def _put(self, document: Mapping[str, Any]) -> str:
        await asyncio.sleep(0.005)
        of_hosts = int(str(document["id"]).startswith(OF_HOSTS))
        self.cost += Cost(requests=1, written=1, bytes=size(document), of_hosts=of_hosts)
        etag = next(self._etags)
        self._documents[str(document["id"])] = {**document, **SYSTEM, "_etag": etag}
        self._versions[str(document["id"])] = max(self._versions.values(), default=0) + 1
        return etag


def size(document: Mapping[str, Any]) -> int:
    return len(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode())


class Monitored:
    mode = dotnet.INCREMENTAL

    async def read_lease_prefix(self) -> str:
        return PREFIX


class RangesFeed(MemoryFeed):
    """Partitions as those of a container: with a scope each, and far from their beginning."""

    def __init__(self) -> None:
        super().__init__([str(n) for n in range(LEASES)], page_events_max=PAGE_EVENTS)
        for log in self._logs.values():
            log.first = READ

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name, (), scope_of(int(name))) for name in sorted(self._logs)]

    def remember(self, scopes: Mapping[str, str]) -> None:
        """Names say it all here."""

    def uncovered(self, partition: FeedPartition, scopes: Collection[str]) -> list[FeedPartition]:
        return [] if partition.scope in scopes else [partition]


class SlowWriter(MemoryWriter):
    async def write(self, output: Output, permit: Permit) -> None:
        await asyncio.sleep(output.table.num_rows * PAGE_S / PAGE_EVENTS)
        await super().write(output, permit)


class Sink(MemorySink):
    is_slow = False

    async def open(self, claim: Claim) -> MemoryWriter:
        if not self.is_slow:
            return await super().open(claim)
        return SlowWriter(self.destination, claim, self.destination.claim(claim), self._request)


class HoldingSink(Sink):
    """Keeps in the lease what the sink `log` does."""

    def claimed(self, state: str) -> str:
        return claimed(state)


class SlowHoldingSink(HoldingSink):
    is_slow = True


class AtLeastOnceSink(Sink):
    holds_position = False


class SlowAtLeastOnceSink(AtLeastOnceSink):
    is_slow = True


def scope_of(number: int) -> str:
    """As ranges of a container are: 30 digits each, but for the ends."""
    low, high = (f"{n * 256 // LEASES:02X}".ljust(30, "C") if 0 < n < LEASES else "" for n in (number, number + 1))
    return f"{low}-{high or 'FF'}"


Changing = Callable[[RangesFeed], Awaitable[None]]


async def counted(
    seconds: float,
    sink: type[Sink],
    changing: Changing | None = None,
    *,
    unkept_s: float = 0.0,
    pages_max: int = PAGES_MAX,
) -> Cost:
    """Of a settled group, per lease and hour. pages_max: of a batch."""
    container, clock = CountingContainer(), VirtualClock()
    feed, destination = RangesFeed(), MemoryDestination()
    limits = BatchLimits(events_max=pages_max * PAGE_EVENTS)
    hosts = [host_of(f"host-{n}", container, clock, feed, sink(destination), limits, unkept_s) for n in range(HOSTS)]
    for host in hosts:
        await host.start()
    tasks = {asyncio.ensure_future(changing(feed))} if changing else set()
    await clock.sleep(SETTLING_S)
    before, _ = container.cost, destination.commits.clear()
    await clock.sleep(seconds)
    cost = container.cost - before
    pages = sum(commit.output.events for commit in destination.commits) / PAGE_EVENTS / LEASES
    assert not sink.is_slow or abs(pages - seconds / PAGE_S) <= PAGES_MAX, "it was not busy all the time"
    for task in tasks:
        task.cancel()
        await asyncio.wait({task})
    for host in hosts:
        await host.stop()
    return cost * (HOUR_S / seconds / LEASES)


def host_of(
    name: str,
    container: Any,
    clock: VirtualClock,
    feed: MemoryFeed,
    sink: MemorySink,
    limits: BatchLimits,
    unkept_s: float,
) -> Processor:
    pipeline = Pipeline(
        name="transactions", feed=feed, sink=sink, start="latest", limits=limits, unkept_s=unkept_s, checkpoint_s=5.0
    )
    quiet = structlog.wrap_logger(None, processors=[dropped])
    store = CosmosStore(
        container, {"transactions": Monitored()}, now=lambda: START + timedelta(seconds=clock.monotonic())
    )
    return Processor([pipeline], store, host=name, clock=clock, log=quiet)


def dropped(logger: object, level: str, event: Any) -> str:
    raise structlog.DropEvent


async def trickle(feed: RangesFeed) -> None:
    """The partitions take turns, a change each in every second."""
    while True:
        for n in range(LEASES):
            feed.append(str(n), [b"{}"])
            await asyncio.sleep(CHANGE_S / LEASES)


async def flood(feed: RangesFeed) -> None:
    """More pages than there are seconds."""
    for n in range(LEASES):
        feed.append(str(n), [b"{}"] * PAGE_EVENTS * int(SETTLING_S + BUSY_S + 3 * PAGES_MAX))


def computed(batch_s: float | None = None) -> Cost:
    """The .NET processor's, per lease and hour. batch_s: between two of its batches; None where there are none."""
    lease = Lease(pipeline="transactions", partition="7", scope=scope_of(1), owner="host-0", continuation='"123456"')
    document = dotnet.encode(lease, prefix=PREFIX, now=START)
    del document[dotnet.FIELD]
    stored = size({**document, **SYSTEM, "_etag": next(CountingContainer()._etags)})
    listed = Cost(requests=1 / LEASES, read=1, bytes=stored) * (HOSTS * HOUR_S / ACQUIRE_S)
    replaced = Cost(requests=1, written=1, bytes=2 * stored)
    renewed = (Cost(requests=1, read=1, bytes=stored) + replaced) * (HOUR_S / RENEW_S)
    return listed + renewed + (Cost() if batch_s is None else replaced * (HOUR_S / batch_s))


def lines(results: Mapping[str, tuple[Cost, Cost]]) -> Iterator[str]:
    yield f"Leases in Cosmos DB, per lease and hour ({HOSTS} hosts, {LEASES} leases; busy: {PAGE_S:g} s for each page)"
    yield f"{'':76}{'requests':>10}{'read':>10}{'written':>10}{'KB':>10}{'of hosts':>10}"
    for name, (ours, theirs) in results.items():
        for side, cost in (("leasehold", ours), (".NET, by its intervals", theirs)):
            figures = (cost.requests, cost.read, cost.written, cost.bytes / 1000, cost.of_hosts)
            yield f"{name + ': ' + side:76}" + "".join(f"{figure:>10,.0f}" for figure in figures)


def main() -> int:
    results = {
        "idle": (run_virtual(counted(HOUR_S, HoldingSink)), computed()),
        BUSY[0]: (run_virtual(counted(BUSY_S, SlowHoldingSink, flood)), computed(PAGE_S)),
        BUSY[1]: (run_virtual(counted(BUSY_S, SlowAtLeastOnceSink, flood)), computed(PAGE_S)),
        BUSY_BY_PAGE[0]: (run_virtual(counted(BUSY_S, SlowHoldingSink, flood, pages_max=1)), computed(PAGE_S)),
        BUSY_BY_PAGE[1]: (
            run_virtual(counted(BUSY_S, SlowAtLeastOnceSink, flood, unkept_s=5.0, pages_max=1)),
            computed(PAGE_S),
        ),
        "busy, a page a batch, handler": (
            run_virtual(counted(BUSY_S, SlowAtLeastOnceSink, flood, pages_max=1)),
            computed(PAGE_S),
        ),
        "trickle, sink holds its position": (run_virtual(counted(600, HoldingSink, trickle)), computed(POLL_S)),
        "trickle, handler": (run_virtual(counted(600, AtLeastOnceSink, trickle)), computed(POLL_S)),
        "trickle, handler with checkpoint_s: 5": (
            run_virtual(counted(600, AtLeastOnceSink, trickle, unkept_s=5.0)),
            computed(POLL_S),
        ),
    }
    say("\n".join(lines(results)))
    ratios = {name: (ours.written - ours.of_hosts) / theirs.written for name, (ours, theirs) in results.items()}
    told_ratios = "; ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    say(f"written for leases, of .NET's: {told_ratios}")
    ours, theirs = results["idle"]
    of_host = ours.of_hosts * LEASES / HOSTS
    say(f"written for a host: {of_host:,.0f} an hour, as .NET's for {of_host / theirs.written:.1f} idle leases")
    bounds = dict.fromkeys((*BUSY, *BUSY_BY_PAGE), WRITES_BUSY_MAX) | {"idle": WRITES_IDLE_MAX}
    figures = [
        Figure(
            name=f"writes for a lease: {name}",
            unit="an hour",
            ours=ours.written - ours.of_hosts,
            others={DOTNET: theirs.written},
            beside=DOTNET,
            bound=bounds.get(name),
            is_most=True,
        )
        for name, (ours, theirs) in results.items()
    ]
    told = {name: {"leasehold": asdict(ours), "dotnet": asdict(theirs)} for name, (ours, theirs) in results.items()}
    return finish("lease-store", figures, counted=told)


if __name__ == "__main__":
    sys.exit(main())
