"""Leases for every partition: whoever begins, wherever it crashes, and through splits and merges."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock

from leasehold.leases.bootstrap import (
    CREATED_MAX,
    INFO_LOOKED_AT_S,
    PENDING_MAX,
    Bootstrap,
    Identity,
    Info,
    RoundFindings,
    decode_info,
    encode_info,
    info_id,
)
from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.errors import (
    GroupMismatch,
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreUnavailable,
    Undecided,
)
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Child, Lease
from leasehold.leases.lineage import Partition, births, children_due
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import VersionedLease
from leasehold.leases.timing import Timing

T = TypeVar("T")
IDENTITY = Identity("feed", "sink", "t1")


class Crash(Exception):
    """The process ended here."""


class Store(MemoryStore):
    """crash_at: the number of the call that never returns, `carried_out` or not. calls: how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.crash_at: int | None = None
        self.carried_out = False
        self.error: Exception = Crash()

    async def list(self, prefix: str) -> list[Stored]:
        return await self._step("list", lambda: MemoryStore.list(self, prefix))

    async def read(self, id: str) -> Stored:
        return await self._step("read", lambda: MemoryStore.read(self, id))

    async def create(self, id: str, body: str) -> str:
        return await self._step("create", lambda: MemoryStore.create(self, id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._step("replace", lambda: MemoryStore.replace(self, id, body, etag))

    async def _step(self, name: str, call: Callable[[], Awaitable[T]]) -> T:
        number = len(self.calls)
        self.calls.append(name)
        if number == self.crash_at:
            if self.carried_out:
                with suppress(StoreError):
                    await call()
            raise self.error
        return await call()


class Host:
    """What a host does about its pipeline `p`, over a feed whose partitions begin at `{name}-{start}`."""

    def __init__(self, store: MemoryStore, name: str = "a", identity: Identity = IDENTITY) -> None:
        self.keeper = Keeper(store, host=name, incarnation=f"{name}-1", clock=VirtualClock(), timing=Timing())
        self.bootstrap = Bootstrap(self.keeper, "p", identity)
        self.asked: list[str] = []
        self.undecided: set[str] = set()

    async def round(
        self,
        partitions: Sequence[Partition],
        start: str = "latest",
        hosts: Collection[str] = (),
        scan: Scan | None = None,
    ) -> tuple[str, ...]:
        async def start_of(partition: str) -> str | None:
            if partition in self.undecided:
                raise Undecided("not known yet")
            self.asked.append(partition)
            await asyncio.sleep(0)
            return f"{partition}-{start}"

        scan = scan or await self.keeper.scan(["p"])
        audit = self.audit = await self.bootstrap.reconcile(partitions, scan, start_of, hosts=hosts)
        self.orphaned = audit.orphaned
        return audit.created

    async def run(self, partitions: Sequence[Partition], start: str = "latest") -> None:
        await self.bootstrap.open()
        while await self.round(partitions, start):
            pass

    async def leases(self) -> dict[str, Lease]:
        return {lease.partition: lease for lease in (await self.keeper.scan(["p"])).leases}

    async def put(self, lease: Lease) -> None:
        """Whatever stands there."""
        self.keeper.store._store._put(lease_id("p", lease.partition), encode_lease(lease))  # type: ignore[attr-defined]


def named(*names: str) -> list[Partition]:
    return [Partition(name) for name in names]


async def info(store: MemoryStore) -> Info:
    stored = await store.read(info_id("p"))
    return decode_info(stored.id, stored.body)


def open_lease(partition: str) -> Lease:
    return Lease(pipeline="p", partition=partition)


def closed(partition: str, *children: str) -> Lease:
    return replace(
        open_lease(partition), closed=True, children=tuple(Child(child, f"{child}-from-parent") for child in children)
    )


# The first round


@pytest.mark.virtual
async def test_every_partition_gets_a_lease_that_begins_where_the_configuration_says() -> None:
    host = Host(Store())
    await host.run(named("0", "1", "2"))
    leases = await host.leases()
    assert {name: lease.continuation for name, lease in leases.items()} == {n: f"{n}-latest" for n in "012"}
    assert {(lease.owner, lease.epoch) for lease in leases.values()} == {(None, 0)}
    assert await info(host.keeper.store) == Info(pipeline="p", identity=IDENTITY, complete=True)


@pytest.mark.virtual
async def test_once_everything_is_there_a_round_costs_nothing() -> None:
    store = Store()
    host = Host(store)
    await host.run(named("0", "1"))
    store.calls.clear()
    assert await host.round(named("0", "1")) == ()
    assert store.calls == ["list"]  # the scan itself


@pytest.mark.virtual
async def test_what_was_audited_is_audited_again_once_leases_or_partitions_have_changed() -> None:
    host = Host(MemoryStore())
    await host.run(named("0"))
    assert await host.round(named("0")) == ()
    assert await host.round(named("0", "1")) == ("1",)
    assert await host.round(named("0", "1")) == ()
    await host.put(closed("0", "2"))
    assert await host.round(named("0", "1")) == ("2",)


@pytest.mark.virtual
async def test_a_pipeline_is_not_audited_again_because_leases_of_another_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = Host(MemoryStore())
    await host.run(named("0"))
    await host.round(named("0"))
    scan = await host.keeper.scan(["p"])
    other = Lease(pipeline="q", partition="0")
    audits: list[object] = []
    audit_leases = host.bootstrap._audit_leases

    async def audit(*given: Any) -> RoundFindings:
        audits.append(given)
        return await audit_leases(*given)

    monkeypatch.setattr(host.bootstrap, "_audit_leases", audit)
    await host.round(named("0"), scan=replace(scan, seen={**scan.seen, other.key: VersionedLease(other, "1")}))
    assert not audits
    await host.round(named("0", "1"))
    assert audits  # or this test could not fail


@pytest.mark.virtual
async def test_two_hosts_at_once_make_every_lease_once() -> None:
    store = Store()
    a, b = Host(store, "a"), Host(store, "b")

    async def begun(host: Host) -> None:
        while True:
            try:
                return await host.run(named("0", "1", "2", "3"))
            except StoreConflict:
                continue

    await asyncio.gather(begun(a), begun(b))
    assert sorted(await a.leases()) == ["0", "1", "2", "3"]
    assert (await info(store)).complete
    assert sum(name.startswith("p/leases/") for name in store._documents) == 4


@pytest.mark.virtual
@pytest.mark.parametrize("carried_out", [False, True])
@pytest.mark.parametrize("survivor", ["a", "b"])
async def test_a_crash_at_any_step_is_mended_by_whoever_comes_next(survivor: str, carried_out: bool) -> None:
    clean = Store()
    await Host(clean).run(named("0", "1", "2"))
    for step in range(len(clean.calls)):
        store = Store()
        store.crash_at, store.carried_out = step, carried_out
        with pytest.raises(Crash):
            await Host(store).run(named("0", "1", "2"))
        heir = Host(store, survivor)
        await heir.run(named("0", "1", "2"))
        assert {n: lease.continuation for n, lease in (await heir.leases()).items()} == {
            n: f"{n}-latest" for n in "012"
        }
        assert (await info(store)).complete


@pytest.mark.virtual
@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreAmbiguous("no answer")])
@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_call_that_fails_at_any_step_is_made_good_by_the_next_round(
    error: StoreError, carried_out: bool
) -> None:
    clean = Store()
    await Host(clean).run(named("0", "1", "2"))
    for step in range(len(clean.calls)):
        store = Store()
        store.crash_at, store.carried_out, store.error = step, carried_out, error
        host = Host(store)
        for _ in range(4):
            try:
                await host.run(named("0", "1", "2"))
                break
            except StoreError:
                continue
        assert sorted(await host.leases()) == ["0", "1", "2"]
        assert (await info(store)).complete


@pytest.mark.virtual
@pytest.mark.parametrize("name", ["a", "b"])
async def test_hosts_that_start_together_divide_the_first_round(name: str) -> None:
    host, partitions = Host(Store(), name), named(*(str(n) for n in range(20)))
    await host.bootstrap.open()
    created = await host.round(partitions, hosts=["a", "b"])
    assert set(created) == set(host.asked) < {partition.name for partition in partitions}
    other = Host(Store(), "b" if name == "a" else "a")
    await other.bootstrap.open()
    assert set(await other.round(partitions, hosts=["a", "b"])) == {each.name for each in partitions} - {*created}
    assert not (await info(host.keeper.store)).complete


@pytest.mark.virtual
async def test_what_the_other_host_leaves_undone_is_created_soon() -> None:
    host, partitions = Host(Store()), named("0", "1", "2", "3")
    await host.bootstrap.open()
    while len(await host.leases()) < 4:
        await host.round(partitions, hosts=["a", "dead"])
        await asyncio.sleep(1)
    assert asyncio.get_running_loop().time() <= 4
    assert await host.round(partitions, hosts=["a", "dead"]) == ()
    assert (await info(host.keeper.store)).complete


@pytest.mark.virtual
async def test_a_host_creates_so_many_leases_before_it_looks_again() -> None:
    host, partitions = Host(Store()), named(*(str(n) for n in range(200)))
    await host.bootstrap.open()
    created: list[int] = []
    while sum(created) < 200:
        assert not (await info(host.keeper.store)).complete
        created.append(len(await host.round(partitions)))
    assert created[0] == CREATED_MAX
    assert created[-2] > CREATED_MAX  # the more there are, the dearer is a look
    assert (await info(host.keeper.store)).complete


@pytest.mark.virtual
async def test_a_partition_of_which_nobody_knows_yet_where_it_begins_keeps_only_itself_waiting() -> None:
    host = Host(Store())
    host.undecided = {"1"}
    await host.bootstrap.open()
    assert await host.round(named("0", "1", "2")) == ("0", "2")
    assert host.audit.undecided.keys() == {"1"}
    assert (await info(host.keeper.store)).pending == ("1",)
    host.undecided = set()
    assert await host.round(named("0", "1", "2")) == ("1",)
    assert (await host.leases())["1"].continuation == "1-latest"
    found = await info(host.keeper.store)
    assert (found.complete, found.pending) == (True, ())


@pytest.mark.virtual
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_partition_that_appears_while_an_older_one_is_undecided_begins_at_its_beginning(restarts: bool) -> None:
    host = Host(Store())
    host.undecided = {"1"}
    await host.bootstrap.open()
    await host.round(named("0", "1"))
    if restarts:
        host = Host(host.keeper.store)
        host.undecided = {"1"}
        await host.bootstrap.open()
    assert await host.round(named("0", "1", "2")) == ("2",)
    assert (await host.leases())["2"].continuation is None
    host.undecided = set()
    await host.round(named("0", "1", "2"))
    assert (await host.leases())["1"].continuation == "1-latest"


@pytest.mark.virtual
async def test_a_pending_partition_that_disappears_is_new_when_it_returns() -> None:
    host = Host(Store())
    host.undecided = {"1"}
    await host.bootstrap.open()
    await host.round(named("0", "1"))
    await host.round(named("0"))
    assert (await info(host.keeper.store)).pending == ()
    assert await host.round(named("0", "1")) == ("1",)
    assert (await host.leases())["1"].continuation is None


@pytest.mark.virtual
async def test_a_document_that_was_deleted_is_made_again_with_its_pending_partitions() -> None:
    host = Host(Store())
    host.undecided = {"1"}
    await host.bootstrap.open()
    await host.round(named("0", "1"))
    await host.keeper.store.delete(info_id("p"), (await host.keeper.store.read(info_id("p"))).etag)
    await asyncio.sleep(INFO_LOOKED_AT_S)
    await host.round(named("0", "1"))
    assert (await info(host.keeper.store)).pending == ("1",)


@pytest.mark.virtual
@pytest.mark.parametrize("names", [[str(n) for n in range(PENDING_MAX + 1)], [f"{n:0>512}" for n in range(33)]])
async def test_without_room_for_all_pending_names_the_first_round_stays_open(names: list[str]) -> None:
    host = Host(Store())
    host.undecided = {*names}
    await host.bootstrap.open()
    for _ in range(3):
        await host.round(named(*sorted(host.undecided)))
    assert not (await info(host.keeper.store)).complete


@pytest.mark.virtual
async def test_of_two_hosts_that_open_a_pipeline_at_once_neither_fails() -> None:
    class Late(Store):
        async def create(self, id: str, body: str) -> str:
            if id == info_id("p") and id not in self._documents:
                await Store.create(self, id, body)  # another host was quicker
            return await super().create(id, body)

    host = Host(Late())
    assert not await host.bootstrap.open()
    assert (await info(host.keeper.store)).identity == IDENTITY


# Later rounds


@pytest.mark.virtual
async def test_a_partition_that_appears_later_begins_at_its_beginning() -> None:
    host = Host(Store())
    await host.run(named("0"))
    assert await host.round(named("0", "1")) == ("1",)
    assert (await host.leases())["1"].continuation is None
    assert host.asked == ["0"]


@pytest.mark.virtual
async def test_a_host_that_started_before_the_first_round_was_over_does_not_skip_what_appears_after_it() -> None:
    store = Store()
    slow, quick = Host(store, "slow"), Host(store, "quick")
    await slow.bootstrap.open()
    await quick.run(named("0"))
    await slow.round(named("0", "1"))
    assert (await slow.leases())["1"].continuation is None
    assert slow.asked == []


@pytest.mark.virtual
async def test_a_first_round_that_was_cut_short_goes_on_where_the_configuration_says() -> None:
    store = Store()
    first = Host(store)
    store.crash_at = 4  # read info, create it, list, read it, and then the first lease
    with pytest.raises(Crash):
        await first.run(named("0", "1"))
    heir = Host(store, "b")
    await heir.run(named("0", "1"))
    assert {lease.continuation for lease in (await heir.leases()).values()} == {"0-latest", "1-latest"}


@pytest.mark.virtual
async def test_a_deleted_lease_that_nobody_saw_is_made_again_from_the_beginning() -> None:
    """Nothing of the partition may be skipped; a sink that holds its position knows better anyway."""
    store = Store()
    await Host(store).run(named("0", "1"))
    del store._documents[lease_id("p", "0")]
    host = Host(store, "b")
    await host.run(named("0", "1"))
    assert (await host.leases())["0"].continuation is None


@pytest.mark.virtual
async def test_a_lease_that_cannot_be_read_is_left_to_people_and_keeps_nobody_from_the_others() -> None:
    store = Store()
    host = Host(store)
    await host.run(named("0"))
    store._put(lease_id("p", "0"), "{")
    assert await host.round(named("0", "1")) == ("1",)
    assert (await store.read(lease_id("p", "0"))).body == "{"


@pytest.mark.virtual
async def test_leases_of_partitions_that_the_feed_does_not_have_are_told_unless_they_are_closed() -> None:
    host = Host(Store())
    await host.run(named("0", "1", "2"))
    await host.put(closed("2"))
    await host.round(named("1"))
    assert host.orphaned == ("0",)


@pytest.mark.virtual
async def test_a_failing_feed_leaves_the_first_round_open() -> None:
    host = Host(Store())
    await host.bootstrap.open()

    async def away(partition: str) -> str | None:
        raise ConnectionError(partition)

    with pytest.raises(ConnectionError):
        await host.bootstrap.reconcile(named("0"), await host.keeper.scan(["p"]), away)
    assert not (await info(host.keeper.store)).complete
    await host.run(named("0"))
    assert (await host.leases())["0"].continuation == "0-latest"


# Whose leases they are


@pytest.mark.virtual
@pytest.mark.parametrize("identity", [Identity("other feed", "sink"), Identity("feed", "other sink")])
async def test_another_feed_or_sink_on_the_same_leases_is_refused(identity: Identity) -> None:
    store = Store()
    await Host(store).run(named("0"))
    with pytest.raises(GroupMismatch, match=r"'p' belong to (feed|sink)"):
        await Host(store, "b", identity).bootstrap.open()
    assert (await info(store)).identity == IDENTITY


@pytest.mark.virtual
@pytest.mark.parametrize("identity", [Identity("other feed", "sink"), Identity("feed", "other sink")])
async def test_a_name_without_leases_passes_to_another_feed_or_sink(identity: Identity) -> None:
    """After a typo in the feed's path, say: no lease was created, so nothing has been read or delivered under the name."""
    store = Store()
    await Host(store).run([])
    assert await info(store) == Info(pipeline="p", identity=IDENTITY, complete=True, unused=True)
    corrected = Host(store, "b", identity)
    assert await corrected.bootstrap.read_recorded() is None
    await corrected.run(named("0"))
    assert (await corrected.leases())["0"].continuation == "0-latest", "the first round is this feed's own"
    assert await info(store) == Info(pipeline="p", identity=identity, complete=True)


@pytest.mark.virtual
async def test_a_document_that_is_made_again_beside_leases_does_not_stay_unused() -> None:
    """An operator deleted it and started the pipeline again: its leases are older than the document."""
    store = Store()
    await Host(store).run(named("0"))
    stored = await store.read(info_id("p"))
    await store.delete(stored.id, stored.etag)
    await Host(store, "b").run(named("0"))
    assert await info(store) == Info(pipeline="p", identity=IDENTITY, complete=True)


@pytest.mark.virtual
async def test_a_name_does_not_pass_on_while_a_lease_is_there_whatever_the_document_says() -> None:
    store = Store()
    await Host(store).run(named("0"))
    stored = await store.read(info_id("p"))
    await store.replace(stored.id, encode_info(replace(await info(store), unused=True)), stored.etag)
    other = Host(store, "b", Identity("other feed", "sink"))
    for call in (other.bootstrap.open, other.bootstrap.read_recorded, other.bootstrap.use):
        with pytest.raises(GroupMismatch):
            await call()


@pytest.mark.virtual
async def test_a_host_whose_name_has_passed_on_creates_no_lease() -> None:
    """It found no partition so far, and finds one after the other host has taken the name and created a lease of its own."""
    store = Store()
    late = Host(store)
    await late.run([])
    await Host(store, "b", Identity("other feed", "sink")).run(named("0"))
    with pytest.raises(GroupMismatch):
        await late.round(named("1"))
    assert sorted(await late.leases()) == ["0"]


@pytest.mark.virtual
async def test_a_name_is_recorded_as_used_before_the_first_lease_exists() -> None:
    store = Store()
    host = Host(store)
    await host.bootstrap.open()
    store.calls.clear()
    while await host.round(named("0", "1")):
        pass
    assert store.calls.index("replace") < store.calls.index("create")
    assert not (await info(store)).unused


@pytest.mark.virtual
async def test_another_transform_is_recorded_and_told_once() -> None:
    store = Store()
    await Host(store).run(named("0"))
    newer = Host(store, "b", replace(IDENTITY, transform="t2"))
    assert await newer.bootstrap.open()
    assert not await newer.bootstrap.open()
    assert await info(store) == Info(pipeline="p", identity=replace(IDENTITY, transform="t2"), complete=True)


@pytest.mark.virtual
async def test_an_info_document_that_vanishes_in_the_first_round_is_made_again() -> None:
    store = Store()
    host = Host(store)
    await host.bootstrap.open()
    del store._documents[info_id("p")]
    await host.round(named("0"))
    assert (await info(store)).complete


def test_an_info_document_keeps_what_a_newer_version_wrote_and_is_refused_where_it_is_none() -> None:
    newer = Info(identity=IDENTITY, complete=True, unknown={"later": [1]})
    assert decode_info("p/info", encode_info(newer)) == newer
    for body in ("", "{}", encode_info(newer).replace('"version":1', '"version":9')):
        with pytest.raises(InvalidDocument, match="p/info"):
            decode_info("p/info", body)


# Splits and merges


@pytest.mark.virtual
async def test_the_children_of_a_split_begin_where_their_closed_parent_says() -> None:
    host = Host(Store())
    await host.run(named("0"))
    partitions = [*named("0"), Partition("1", ("0",)), Partition("2", ("0",))]
    assert await host.round(partitions) == ()  # the parent is still at work
    await host.put(closed("0", "1", "2"))
    assert sorted(await host.round(partitions)) == ["1", "2"]
    leases = await host.leases()
    assert {name: (leases[name].continuation, leases[name].parents) for name in "12"} == {
        name: (f"{name}-from-parent", ("0",)) for name in "12"
    }
    assert await host.round(partitions) == ()


@pytest.mark.virtual
async def test_no_child_begins_whose_parent_was_reset_after_the_scan() -> None:
    host = Host(Store())
    await host.run(named("0"))
    partitions = [*named("0"), Partition("1", ("0",)), Partition("2", ("0",))]
    for children in (("1", "2"), ()):
        await host.put(closed("0", *children))
        before = await host.keeper.scan(["p"])
        await host.put(open_lease("0"))
        assert await host.round(partitions, scan=before) == ()
        assert sorted(await host.leases()) == ["0"]
    await host.put(closed("0", "1", "2"))
    assert sorted(await host.round(partitions)) == ["1", "2"]


def test_children_that_the_feed_does_not_list_yet_are_made_all_the_same() -> None:
    assert [lease.partition for lease in children_due(named("0"), {"0": closed("0", "1")})] == ["1"]


def test_a_merged_child_waits_until_all_its_parents_are_closed() -> None:
    partitions = [*named("0", "1"), Partition("2", ("0", "1"))]
    leases = {"0": closed("0", "2"), "1": open_lease("1")}
    assert children_due(partitions, leases) == births("p", partitions, leases) == []
    [child] = children_due(partitions, {**leases, "1": closed("1", "2")})
    assert (child.partition, child.parents) == ("2", ("0", "1"))


def test_a_merged_child_waits_for_a_parent_that_has_no_lease_yet() -> None:
    """0 was split into 1 and 2, and 2 merged with 3, before anybody read the end of 0."""
    partitions = [*named("0", "3"), Partition("1", ("0",)), Partition("2", ("0",)), Partition("4", ("2", "3"))]
    leases = {"0": open_lease("0"), "3": closed("3", "4")}
    assert children_due(partitions, leases) == births("p", partitions, leases) == []


@pytest.mark.virtual
async def test_in_the_first_round_children_wait_for_parents_that_the_feed_still_has() -> None:
    host = Host(Store())
    partitions = [*named("0"), Partition("1", ("0",)), Partition("2", ("1",))]
    await host.run(partitions, "earliest")
    assert sorted(await host.leases()) == ["0"]
    await host.put(closed("0", "1"))
    assert await host.round(partitions) == ("1",)
    await host.put(closed("1", "2"))
    assert await host.round(partitions) == ("2",)


@pytest.mark.virtual
async def test_a_child_whose_parents_the_feed_has_forgotten_begins_like_any_other() -> None:
    host = Host(Store())
    await host.run([Partition("5", ("0", "1"))])
    assert (await host.leases())["5"].continuation == "5-latest"


@pytest.mark.virtual
async def test_a_child_that_its_closed_parents_do_not_name_is_not_forgotten() -> None:
    host = Host(Store())
    await host.run(named("0"))
    await host.put(closed("0", "1"))
    await host.round([*named("0"), Partition("1", ("0",)), Partition("2", ("0",))])
    assert (await host.leases())["2"].continuation is None


@pytest.mark.virtual
@pytest.mark.parametrize("carried_out", [False, True])
async def test_a_crash_between_the_children_is_mended_by_whoever_comes_next(carried_out: bool) -> None:
    partitions = [*named("0"), Partition("1", ("0",)), Partition("2", ("0",))]
    for step in range(3):
        store = Store()
        host = Host(store)
        await host.run(named("0"))
        await host.put(closed("0", "1", "2"))
        store.crash_at, store.carried_out = len(store.calls) + step, carried_out
        with pytest.raises(Crash):
            await host.round(partitions)
        heir = Host(store, "b")
        await heir.run(partitions)
        leases = await heir.leases()
        assert {leases[name].continuation for name in "12"} == {"1-from-parent", "2-from-parent"}


@given(st.data())
def test_in_any_family_every_partition_is_born_once_and_none_before_its_parents_ended(data: st.DataObject) -> None:
    """Partitions 0..n, each with parents among the earlier ones, all listed from the start; any open one may end next."""
    size = data.draw(st.integers(1, 8))
    parents = [
        tuple(map(str, sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=2))))) if n else () for n in range(size)
    ]
    partitions = [Partition(str(n), parents[n]) for n in range(size)]
    leases: dict[str, Lease] = {}
    while True:
        born = [*children_due(partitions, leases), *births("p", partitions, leases)]
        assert len({lease.partition for lease in born}) == len(born)
        for lease in born:
            assert all(leases[name].closed for name in parents[int(lease.partition)])
            leases[lease.partition] = lease
        open_ones = sorted(name for name, lease in leases.items() if not lease.closed)
        if not open_ones:
            break
        ending = data.draw(st.sampled_from(open_ones))
        children = [str(n) for n in range(size) if ending in parents[n]]
        leases[ending] = replace(closed(ending, *children), parents=leases[ending].parents)
    assert sorted(leases) == sorted(map(str, range(size)))


@pytest.mark.virtual
async def test_leases_that_another_pipeline_has_are_refused_by_its_name_before_anything_else() -> None:
    """Of containers that find them whatever the pipeline is called."""
    store = Store()
    await store.create(info_id("p"), encode_info(Info(identity=replace(IDENTITY, sink="other"), pipeline="q")))
    with pytest.raises(GroupMismatch, match=r"a pipeline called 'q': give it that name again.*processor_name"):
        await Host(store).bootstrap.open()


@pytest.mark.virtual
async def test_an_info_document_that_names_no_pipeline_is_believed() -> None:
    store = Store()
    await store.create(info_id("p"), encode_info(Info(identity=IDENTITY)))
    assert not await Host(store).bootstrap.open()
