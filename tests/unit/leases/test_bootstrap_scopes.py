"""Leases of a feed whose partitions come and go in the source: what is held by a lease of another name is not born again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock
from unit.leases.shown_hosts import trusted_keeper

from leasehold.leases.bootstrap import Bootstrap, Identity, Info, encode_info, info_id
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Child, Lease
from leasehold.leases.lineage import Partition, births, children_due, orphans, outlived
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing

T = TypeVar("T")


def span(scope: str) -> set[int]:
    first, end = scope.split("-")
    return set(range(int(first), int(end)))


def uncovered(partition: Partition, scopes: Collection[str]) -> Sequence[Partition]:
    """Of a source of numbers: scope 2-5 are the numbers 2, 3 and 4."""
    assert partition.scope is not None
    left = sorted(span(partition.scope).difference(*map(span, scopes)))
    if len(left) == len(span(partition.scope)):
        return [partition]
    starts = [n for n in left if n - 1 not in left]
    ends = [n + 1 for n in left if n + 1 not in left]
    return [Partition(f"{a}-{b}", (), f"{a}-{b}") for a, b in zip(starts, ends, strict=True)]


def lease(partition: str, scope: str, **changes: object) -> Lease:
    return replace(Lease(pipeline="p", partition=partition, scope=scope), **changes)  # type: ignore[arg-type]


def by_name(*leases: Lease) -> dict[str, Lease]:
    return {each.partition: each for each in leases}


MERGED = [Partition("3", ("1", "2"), "0-8")]
CLOSED = (
    lease("1", "0-4", closed=True, children=(Child("0-4", "c1", "0-4"),)),
    lease("2", "4-8", closed=True, children=(Child("4-8", "c2", "4-8"),)),
)


def born(partitions: Sequence[Partition], leases: dict[str, Lease]) -> list[str]:
    due = [*children_due(partitions, leases), *births("p", partitions, leases, uncovered)]
    return sorted(each.partition for each in due)


def test_what_was_merged_goes_on_under_the_leases_of_its_parts() -> None:
    assert born(MERGED, by_name(*CLOSED)) == ["0-4", "4-8"]
    assert born(MERGED, by_name(*CLOSED, lease("0-4", "0-4"), lease("4-8", "4-8"))) == []


def test_a_part_whose_parent_is_still_at_work_is_waited_for() -> None:
    assert born(MERGED, by_name(CLOSED[0], lease("2", "4-8"))) == ["0-4"]


def test_a_child_takes_its_scope_from_its_parent_or_from_the_feed() -> None:
    parent = lease("0", "0-8", closed=True, children=(Child("1", "c", "0-4"), Child("2", "c")))
    partitions = [Partition("1", ("0",), "0-4"), Partition("2", ("0",), "4-8")]
    assert {due.partition: due.scope for due in children_due(partitions, by_name(parent))} == {"1": "0-4", "2": "4-8"}


def test_where_leases_were_deleted_only_what_nobody_holds_is_born() -> None:
    held = lease("2-5", "2-5")
    assert born([Partition("7", (), "0-8")], by_name(held)) == ["0-2", "5-8"]


def test_a_closed_lease_holds_nothing() -> None:
    assert born([Partition("7", (), "0-8")], by_name(lease("0-8", "0-8", closed=True))) == ["7"]


def test_a_birth_bears_the_scope_that_the_feed_tells() -> None:
    assert [each.scope for each in births("p", [Partition("7", (), "0-8")], {}, uncovered)] == ["0-8"]


@pytest.mark.parametrize(
    ("name", "scope", "is_orphan"),
    [
        ("0-4", "0-4", False),  # a part of what was merged
        ("1", None, False),  # it has yet to find out that it was merged
        ("20-30", "20-30", True),
        ("gone", None, True),
    ],
)
def test_an_orphan_is_a_lease_of_which_the_feed_has_nothing(name: str, scope: str | None, is_orphan: bool) -> None:
    found = orphans(MERGED, {name: Lease(pipeline="p", partition=name, scope=scope)}, uncovered)
    assert found == ((name,) if is_orphan else ())


def test_the_children_of_a_partition_whose_lease_is_unreadable_wait_until_it_is_mended() -> None:
    split = [Partition("1", ("0",), "0-4"), Partition("2", ("0",), "4-8")]
    assert births("p", split, {}, uncovered, {"0"}) == []
    assert [each.partition for each in births("p", split, {}, uncovered)] == ["1", "2"]
    both = (replace(CLOSED[0], children=(Child("3", "c1", "0-8"),)),)
    assert children_due([Partition("3", ("1", "2"), "0-8")], by_name(*both), {"2"}) == []
    assert [each.partition for each in children_due([Partition("3", ("1", "2"), "0-8")], by_name(*both))] == ["3"]


@pytest.mark.virtual
async def test_a_split_under_an_unreadable_lease_is_followed_once_that_is_mended() -> None:
    store = MemoryStore()
    keeper = Keeper(store, host="a", incarnation="a-1", clock=VirtualClock(), timing=Timing())
    bootstrap = Bootstrap(keeper, "p", Identity("feed", "sink"))
    await bootstrap.open()
    await bootstrap.reconcile([Partition("0", (), "0-8")], await keeper.scan(["p"]), begins, uncovered)
    split = [Partition("1", ("0",), "0-4"), Partition("2", ("0",), "4-8")]
    stored = await store.read(lease_id("p", "0"))
    etag = await store.replace(stored.id, "{}", stored.etag)
    audit = await bootstrap.reconcile(split, await keeper.scan(["p"]), begins, uncovered)
    assert audit.created == ()
    children = (Child("1", "c", "0-4"), Child("2", "c", "4-8"))
    await store.replace(stored.id, encode_lease(lease("0", "0-8", closed=True, children=children)), etag)
    audit = await bootstrap.reconcile(split, await keeper.scan(["p"]), begins, uncovered)
    assert audit.created == ("1", "2")
    assert {each.continuation for each in (await keeper.scan(["p"])).leases if each.parents} == {"c"}


@pytest.mark.virtual
async def test_a_scan_tells_whose_leases_are_unreadable() -> None:
    store = MemoryStore()
    keeper = Keeper(store, host="a", incarnation="a-1", clock=VirtualClock(), timing=Timing())
    await keeper.create(lease("1", "0-4"))
    await store.create(lease_id("p", "2"), "{}")
    assert (await keeper.scan(["p"])).unreadable.keys() == {("p", "2")}


def test_a_closed_lease_is_outlived_once_the_feed_has_forgotten_it_and_its_children_have_leases() -> None:
    parts = (lease("0-4", "0-4", parents=("1",)), lease("4-8", "4-8", parents=("2",)))
    assert outlived(MERGED, by_name(*CLOSED, *parts)) == ("1", "2")
    assert outlived([*MERGED, Partition("1")], by_name(*CLOSED, *parts)) == ("2",)
    assert outlived(MERGED, by_name(*CLOSED, parts[0])) == ("1",)


def test_an_open_lease_is_never_outlived() -> None:
    assert outlived([], by_name(lease("1", "0-4"), *CLOSED[1:], lease("4-8", "4-8"))) == ("2",)


def test_a_closed_lease_is_needed_as_long_as_another_names_it_as_its_child() -> None:
    """Or it would be created anew from that one, where that one ended."""
    child = lease("0-4", "0-4", closed=True, children=(Child("9", "c3", "0-4"),))
    heir = lease("9", "0-4")
    assert outlived([Partition("9", (), "0-4")], by_name(CLOSED[0], child, heir)) == ("1",)
    assert outlived([Partition("9", (), "0-4")], by_name(child, heir)) == ("0-4",)


@pytest.mark.virtual
async def test_two_hosts_at_once_make_the_leases_of_a_split_and_a_merge_once() -> None:
    """Whatever one of them saw last, the ranges are covered without a gap or an overlap in the end."""
    store = MemoryStore()
    clock = VirtualClock()
    hosts = []
    for name in "ab":
        keeper = await trusted_keeper(store, name, clock=clock)
        hosts.append((keeper, Bootstrap(keeper, "p", Identity("feed", "sink"))))

    async def rounds(partitions: Sequence[Partition]) -> None:
        for _ in range(2):
            for keeper, bootstrap in hosts:
                scan = await keeper.scan(["p"])
                await bootstrap.reconcile(partitions, scan, begins, uncovered)

    for _, bootstrap in hosts[:1]:
        await bootstrap.open()
    keeper = hosts[0][0]
    await asyncio.gather(*(rounds([Partition("1", (), "0-4"), Partition("2", (), "4-8")]) for _ in hosts))

    async def ends(name: str, *children: Child) -> None:
        owned = await keeper.take((await keeper.read("p", name)), str)
        assert owned is not None
        await owned.end("c", children)

    await ends("1", Child("0-4", "c", "0-4"))
    await asyncio.gather(rounds(MERGED), rounds(MERGED))
    await ends("2", Child("4-8", "c", "4-8"))
    await asyncio.gather(rounds(MERGED), rounds(MERGED))
    leases = (await keeper.scan(["p"])).leases
    open_ones = {each.partition: each.continuation for each in leases if not each.closed}
    assert open_ones == {"0-4": "c", "4-8": "c"}


class Crash(Exception):
    """The process ended here."""


class Fragile(MemoryStore):
    """Its call number `crash_at` never returns, carried out or not. calls: how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.crash_at = -1
        self.carried_out = False

    async def _counted(self, call: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        if self.calls - 1 != self.crash_at:
            return await call()
        if self.carried_out:
            await call()
        raise Crash

    async def list(self, prefix: str) -> list[Stored]:  # type: ignore[override]
        return await self._counted(lambda: MemoryStore.list(self, prefix))

    async def read(self, id: str) -> Stored:
        return await self._counted(lambda: MemoryStore.read(self, id))

    async def create(self, id: str, body: str) -> str:
        return await self._counted(lambda: MemoryStore.create(self, id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._counted(lambda: MemoryStore.replace(self, id, body, etag))


async def merged_by_one(store: Fragile) -> None:
    """The leases 1 and 2 have just been closed; a host makes those of their parts."""
    keeper = Keeper(store, host="a", incarnation="a", clock=VirtualClock(), timing=Timing())
    await Bootstrap(keeper, "p", Identity("feed", "sink")).reconcile(
        MERGED, await keeper.scan(["p"]), begins, uncovered
    )


async def begins(partition: str) -> str | None:
    return "start"


@pytest.mark.virtual
@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("is_first_round", [False, True])
async def test_a_crash_between_any_two_steps_of_a_merge_is_mended_by_whoever_comes_next(
    is_first_round: bool, carried_out: bool
) -> None:
    async def prepared() -> Fragile:
        store = Fragile()
        identity = Identity("feed", "sink")
        await store.create(info_id("p"), encode_info(Info(identity=identity, complete=not is_first_round)))
        for each in CLOSED:
            await store.create(lease_id("p", each.partition), encode_lease(each))
        store.calls = 0
        return store

    clean = await prepared()
    await merged_by_one(clean)
    for step in range(clean.calls):
        store = await prepared()
        store.crash_at, store.carried_out = step, carried_out
        with pytest.raises(Crash):
            await merged_by_one(store)
        await merged_by_one(store)
        keeper = Keeper(store, host="b", incarnation="b", clock=VirtualClock(), timing=Timing())
        leases = (await keeper.scan(["p"])).leases
        assert {each.partition: each.continuation for each in leases if not each.closed} == {
            "0-4": "c1",
            "4-8": "c2",
        }
    assert clean.calls >= 4


@given(st.data())
def test_through_any_splits_and_merges_every_number_is_held_by_one_open_lease(data: st.DataObject) -> None:
    """The source divides 0..8 anew each time; leases of its ranges end there, leases of parts go on until they are cut."""
    leases: dict[str, Lease] = {}
    ranges = [Partition("0", (), "0-8")]
    numbers = iter(range(1, 100))
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(3):  # closing a lease makes its children due, and they may have ended in their turn
            for due in [*children_due(ranges, leases), *births("p", ranges, leases, uncovered)]:
                leases[due.partition] = due
            for each in [each for each in leases.values() if not each.closed]:
                if data.draw(st.booleans()):
                    leases[each.partition] = _ended(each, ranges)
        ranges = _divided(data, ranges, numbers)
    for _ in range(20):
        for due in [*children_due(ranges, leases), *births("p", ranges, leases, uncovered)]:
            assert due.partition not in leases
            leases[due.partition] = due
        leases = {name: each if each.closed else _ended(each, ranges) for name, each in leases.items()}
    held = [n for each in leases.values() if not each.closed for n in span(str(each.scope))]
    assert sorted(held) == list(range(8))


def _divided(data: st.DataObject, ranges: list[Partition], numbers: object) -> list[Partition]:
    index = data.draw(st.integers(0, len(ranges) - 1))
    one = ranges[index]
    a, b = map(int, str(one.scope).split("-"))
    name = lambda: str(next(numbers))  # type: ignore[call-overload]  # noqa: E731
    if index + 1 < len(ranges) and data.draw(st.booleans()):
        two = ranges[index + 1]
        parents = tuple(dict.fromkeys((*one.parents, *two.parents, one.name, two.name)))
        merged = Partition(name(), parents, f"{a}-{str(two.scope).split('-')[1]}")
        return [*ranges[:index], merged, *ranges[index + 2 :]]
    if b - a < 2:
        return ranges
    cut = data.draw(st.integers(a + 1, b - 1))
    halves = [Partition(name(), (*one.parents, one.name), scope) for scope in (f"{a}-{cut}", f"{cut}-{b}")]
    return [*ranges[:index], *halves, *ranges[index + 1 :]]


def _ended(lease: Lease, ranges: list[Partition]) -> Lease:
    """As the feed ends it: a range that is gone goes over to its successors, a part only where it was cut."""
    mine = span(str(lease.scope))
    if lease.partition in {each.name for each in ranges}:
        return lease
    over = [each for each in ranges if span(str(each.scope)) & mine]
    if "-" in lease.partition and len(over) == 1:
        return lease
    children = []
    for each in over:
        common = sorted(span(str(each.scope)) & mine)
        part = f"{common[0]}-{common[-1] + 1}"
        is_whole = "-" not in lease.partition and part == each.scope
        children.append(Child(each.name if is_whole else part, lease.continuation, part))
    return replace(lease, closed=True, children=tuple(children))
