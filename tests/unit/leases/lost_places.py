"""A container whose first round is over, for leases to be deleted from, and hosts that come to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from lab.simulation.loop import VirtualClock

from leasehold.common.standing import Standing
from leasehold.leases.bootstrap import Bootstrap, Identity, RoundFindings
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease
from leasehold.leases.lineage import Partition
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing

Standings = dict[str, Standing]


def numbers(scope: str) -> set[int]:
    first, end = scope.split("-")
    return set(range(int(first), int(end)))


def uncovered(partition: Partition, scopes: Collection[str]) -> Sequence[Partition]:
    """Of a source of numbers: scope 2-5 are the numbers 2, 3 and 4."""
    if partition.scope is None:
        return [partition]
    left = sorted(numbers(partition.scope).difference(*map(numbers, scopes)))
    if len(left) == len(numbers(partition.scope)):
        return [partition]
    starts = [n for n in left if n - 1 not in left]
    ends = [n + 1 for n in left if n + 1 not in left]
    return [Partition(f"{a}-{b}", (), f"{a}-{b}") for a, b in zip(starts, ends, strict=True)]


WHOLE = [Partition("0", (), "0-8")]
SPLIT = [Partition("1", ("0",), "0-4"), Partition("2", ("0",), "4-8")]
MERGED = [Partition("3", ("1", "2"), "0-8")]


class Host:
    """standings: what its sink holds; None of a sink that holds no positions."""

    def __init__(self, store: MemoryStore, clock: VirtualClock, standings: Standings | None = None) -> None:
        self.keeper = Keeper(store, host="a", incarnation="a-1", clock=clock, timing=Timing())
        self.bootstrap = Bootstrap(self.keeper, "p", Identity("feed", "sink"))
        self._standings = standings

    async def round(self, partitions: Sequence[Partition], scan: Scan | None = None) -> RoundFindings:
        async def start_of(partition: str) -> str | None:
            return "start"

        async def standing_of(partition: str) -> Standing | None:
            assert self._standings is not None
            return self._standings.get(partition)

        scan = scan or await self.keeper.scan(["p"])
        telling = None if self._standings is None else standing_of
        return await self.bootstrap.reconcile(partitions, scan, start_of, uncovered, telling)

    async def leases(self) -> dict[str, Lease]:
        return {lease.partition: lease for lease in (await self.keeper.scan(["p"])).leases}


class Place:
    """A container in which the first round is over, with the lease of 0 at "100", under epoch 4."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.clock = VirtualClock()

    def host(self, standings: Standings | None = None) -> Host:
        return Host(self.store, self.clock, standings)

    async def begun(self, standings: Standings | None = None, partitions: Sequence[Partition] = WHOLE) -> Host:
        host = self.host(standings)
        await host.bootstrap.open()
        await host.round(partitions)
        for name, lease in (await host.leases()).items():
            self.put(replace(lease, continuation="100", epoch=4, generation=1, owner="a", incarnation="a-1"))
            assert name in {each.name for each in partitions}
        await host.round(partitions)
        return host

    def put(self, lease: Lease) -> None:
        self.store._put(lease_id("p", lease.partition), encode_lease(lease))

    def delete(self, *partitions: str) -> None:
        for name in partitions:
            del self.store._documents[lease_id("p", name)]
