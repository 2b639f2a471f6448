"""Scans that read only what changed since an earlier one: what they show, what they cannot, and when they list after all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock
from unit.leases.shown_hosts import TIMING, session_of

from leasehold.leases.document import encode_lease, lease_id
from leasehold.leases.errors import StoreMissing, StoreUnavailable
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Child, Lease, LeaseKey
from leasehold.leases.store import ChangedDocuments, Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import VersionedLease


class Asked(MemoryStore):
    """calls: what was read, in order. slow_s: how long an answer about changes takes on its way back."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.slow_s = 0.0
        self.offers_changes = self.counts = True

    async def list(self, prefix: str) -> list[Stored]:
        self.calls.append(f"list {prefix}")
        return await super().list(prefix)

    async def read_changes(self, prefix: str, since: str | None = None) -> ChangedDocuments | None:
        self.calls.append("begin" if since is None else f"changes {prefix}")
        found = await super().read_changes(prefix, since)
        await asyncio.sleep(self.slow_s)
        return found if self.offers_changes else None

    async def count(self, prefix: str) -> int | None:
        self.calls.append(f"count {prefix}")
        return await super().count(prefix) if self.counts else None

    async def edit(self, partition: str, edit: Callable[[Lease], Lease], pipeline: str = "p") -> None:
        seen = await keeper(self).read(pipeline, partition)
        await self.replace(lease_id(pipeline, partition), encode_lease(edit(seen.lease)), seen.etag)

    async def remove(self, partition: str) -> None:
        await self.delete(lease_id("p", partition), (await self.read(lease_id("p", partition))).etag)


def keeper(store: MemoryStore, *, has_session: bool = True) -> Keeper:
    clock = VirtualClock()
    session = session_of(store, "a", "a-1", clock=clock) if has_session else None
    return Keeper(store, host="a", incarnation="a-1", clock=clock, timing=TIMING, session=session)


async def with_leases(*partitions: str) -> tuple[Asked, Keeper, Scan]:
    store = Asked()
    ours = keeper(store)
    for partition in partitions:
        await ours.create(Lease(pipeline="p", partition=partition))
    scan = await ours.scan(["p"])
    store.calls.clear()
    return store, ours, scan


def renewed(lease: Lease) -> Lease:
    return replace(lease, tick=lease.tick + 1)


def as_shown(scan: Scan) -> dict[LeaseKey, tuple[VersionedLease | None, str | None]]:
    seen, unreadable = scan.seen, scan.unreadable
    return {key: (seen.get(key), str(unreadable[key]) if key in unreadable else None) for key in {*seen, *unreadable}}


@pytest.mark.virtual
async def test_what_changed_is_read_by_one_request_and_added() -> None:
    store, ours, scan = await with_leases("0", "1", "2")
    await store.edit("1", renewed)
    await ours.create(Lease(pipeline="p", partition="3"))
    await asyncio.sleep(1)
    store.slow_s = 1.0
    merged = await ours.scan(["p"], scan)
    assert store.calls == ["changes p/leases/"]
    assert [key.partition for key in merged.seen] == ["0", "1", "2", "3"]
    assert merged.seen["p", "1"].lease.tick == scan.seen["p", "1"].lease.tick + 1
    assert merged.seen["p", "0"] is scan.seen["p", "0"]
    assert (merged.started, merged.ended, merged.listed_at) == (scan.started + 1, scan.started + 2, scan.started)
    assert as_shown(await ours.scan(["p"])) == as_shown(merged)


@pytest.mark.virtual
async def test_scans_are_added_to_one_another_and_the_listing_stays_the_base() -> None:
    store, ours, first = await with_leases("0")
    scan = first
    for _ in range(3):
        await asyncio.sleep(1)
        await store.edit("0", renewed)
        scan = await ours.scan(["p"], scan)
    assert (scan.seen["p", "0"].lease.tick, scan.listed_at, scan.started) == (3, first.started, first.started + 3)


@pytest.mark.virtual
async def test_a_listing_follows_its_token_so_that_no_write_falls_between_them() -> None:
    store = Asked()
    ours = keeper(store)
    await ours.scan(["p"])
    assert store.calls == ["begin", "list p/leases/"]
    again = await ours.scan(["p"])
    assert store.calls[2:] == ["list p/leases/"], "the earlier token shows what was written since, too"
    await ours.scan(["p"], again)
    assert store.calls[3:] == ["changes p/leases/"]


@pytest.mark.virtual
async def test_changes_are_begun_only_where_hosts_ring() -> None:
    store = Asked()
    scan = await keeper(store, has_session=False).scan(["p"])
    await keeper(store).scan(["p"], scan)
    assert store.calls == ["list p/leases/", "begin", "list p/leases/"]


@pytest.mark.virtual
async def test_a_store_that_cannot_tell_what_changed_is_listed() -> None:
    store, ours, scan = await with_leases("0")
    store.offers_changes = False
    listed = await ours.scan(["p"], scan)
    assert store.calls == ["changes p/leases/", "begin", "list p/leases/"]
    assert listed.token is None
    await ours.scan(["p"], listed)
    assert store.calls[3:] == ["begin", "list p/leases/"]


@pytest.mark.virtual
async def test_leases_of_several_pipelines_are_read_together_and_no_others() -> None:
    store = Asked()
    ours = keeper(store)
    for pipeline in ("p", "q", "other"):
        await ours.create(Lease(pipeline=pipeline, partition="0"))
    scan = await ours.scan(["p", "q"])
    for pipeline in ("p", "q", "other"):
        await store.edit("0", renewed, pipeline)
    await store.create("p/info", "{}")
    store.calls.clear()
    merged = await ours.scan(["p", "q"], scan)
    assert store.calls == ["changes "]
    assert {key: seen.lease.tick for key, seen in merged.seen.items()} == {("p", "0"): 1, ("q", "0"): 1}


@pytest.mark.virtual
async def test_a_lease_that_can_no_longer_be_read_is_not_shown_as_it_was() -> None:
    long = "x" * 300
    store, ours, scan = await with_leases("0", long)
    for partition in ("0", long):
        stored = await store.read(lease_id("p", partition))
        await store.replace(stored.id, "{", stored.etag)
    merged = await ours.scan(["p"], scan)
    assert (len(merged.seen), len(merged.unreadable)) == (0, 2)
    for partition in ("0", long):
        stored = await store.read(lease_id("p", partition))
        await store.replace(stored.id, encode_lease(Lease(pipeline="p", partition=partition)), stored.etag)
    repaired = await ours.scan(["p"], merged)
    assert (len(repaired.seen), len(repaired.unreadable)) == (2, 0)


@pytest.mark.virtual
async def test_a_deleted_lease_is_shown_until_all_are_listed() -> None:
    store, ours, scan = await with_leases("0", "1")
    await store.remove("0")
    assert ("p", "0") in (await ours.scan(["p"], scan)).seen
    assert ("p", "0") not in (await ours.scan(["p"])).seen


@pytest.mark.virtual
@pytest.mark.parametrize("doing", ["take", "ask", "rewrite", "forget"])
async def test_whoever_finds_that_a_lease_is_gone_lists_next(doing: str) -> None:
    store, ours, scan = await with_leases("0", "1")
    await asyncio.sleep(1)
    await store.edit(
        "0", lambda lease: lease.acquired("b", "b-1", "") if doing == "ask" else replace(lease, closed=True)
    )
    scan = await ours.scan(["p"], scan)
    seen = scan.seen["p", "0"]
    await store.remove("0")
    if doing == "take":
        assert await ours.take(seen._replace(lease=replace(seen.lease, closed=False)), str) is None
    else:
        with pytest.raises(StoreMissing):
            await {"ask": ours.ask, "forget": ours.forget}.get(doing, lambda seen: ours.rewrite(seen, seen.lease))(seen)
    store.calls.clear()
    await asyncio.sleep(1)
    after = await ours.scan(["p"], scan)
    assert store.calls == ["list p/leases/"]
    assert list(after.seen) == [("p", "1")]
    await ours.scan(["p"], after)
    assert store.calls[1:] == ["changes p/leases/"], "once"


@pytest.mark.virtual
async def test_a_host_that_clears_a_lease_away_lists_next() -> None:
    store, ours, scan = await with_leases("0", "1")
    await store.edit("0", lambda lease: replace(lease, closed=True, children=(Child("1", None),)))
    scan = await ours.scan(["p"], scan)
    await asyncio.sleep(1)
    await ours.forget(scan.seen["p", "0"])
    assert list((await ours.scan(["p"], scan)).seen) == [("p", "1")]


@pytest.mark.virtual
async def test_renewals_get_a_turn_while_thousands_of_changes_are_parsed() -> None:
    store, ours, scan = await with_leases(*map(str, range(3000)))
    for n in range(3000):
        await store.edit(str(n), renewed)
    turns = 0

    async def renew() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    renewing = asyncio.create_task(renew())
    await ours.scan(["p"], scan)
    renewing.cancel()
    assert turns >= 3000 // 300


STEPS = st.tuples(
    st.sampled_from(["create", "write", "garble", "delete", "scan"]), st.sampled_from(["0", "1", "2", "q"])
)


@pytest.mark.virtual
@given(st.lists(STEPS, max_size=25))
async def test_whatever_is_written_a_scan_of_changes_shows_what_a_listing_shows_but_deletions(
    steps: list[tuple[str, str]],
) -> None:
    store = Asked()
    ours = keeper(store)
    scan = await ours.scan(["p"])
    for step, partition in steps:
        stored = {each.id: each for each in await MemoryStore.list(store, "p/")}.get(lease_id("p", partition))
        if step == "scan":
            scan = await ours.scan(["p"], scan)
        elif step == "create" and stored is None:
            await ours.create(Lease(pipeline="p", partition=partition))
        elif step == "delete" and stored is not None:
            await store.delete(stored.id, stored.etag)
        elif step in ("write", "garble") and stored is not None:
            lease = Lease(pipeline="p", partition=partition, tick=int(stored.etag))
            await store.replace(stored.id, "{" if step == "garble" else encode_lease(lease), stored.etag)
    store.calls.clear()
    merged = as_shown(await ours.scan(["p"], scan))
    assert store.calls == ["changes p/leases/"]
    listed = as_shown(await ours.scan(["p"]))
    assert {key: shown for key, shown in merged.items() if key in listed} == listed


@pytest.mark.virtual
async def test_a_count_shows_that_no_lease_was_deleted() -> None:
    store, ours, scan = await with_leases("0", "1")
    await ours.create(Lease(pipeline="p", partition="2"))
    await asyncio.sleep(1)
    counted = await ours.scan(["p"], scan, counting=True)
    assert store.calls == ["count p/leases/", "changes p/leases/"]
    assert len(counted.seen) == 3
    assert (counted.listed_at, counted.started) == (scan.started + 1, scan.started + 1)


@pytest.mark.virtual
async def test_leases_are_listed_if_fewer_are_counted_than_are_known() -> None:
    store, ours, scan = await with_leases("0", "1", "2")
    await store.remove("1")
    await asyncio.sleep(1)
    listed = await ours.scan(["p"], scan, counting=True)
    assert store.calls == ["count p/leases/", "changes p/leases/", "list p/leases/"]
    assert [key.partition for key in listed.seen] == ["0", "2"]
    assert listed.listed_at == listed.started == scan.started + 1


@pytest.mark.virtual
async def test_a_lease_that_is_created_after_the_count_hides_no_deletion() -> None:
    store, ours, scan = await with_leases("0", "1")
    await store.remove("1")

    class Between(Keeper):
        async def _count(self, names: Sequence[str]) -> int | None:
            count = await super()._count(names)
            await self.create(Lease(pipeline="p", partition="2"))
            return count

    ours.__class__ = Between
    assert [key.partition for key in (await ours.scan(["p"], scan, counting=True)).seen] == ["0", "2"]


@pytest.mark.virtual
async def test_a_store_that_does_not_count_is_asked_once() -> None:
    store, ours, scan = await with_leases("0")
    store.counts = False
    changed = await ours.scan(["p"], scan, counting=True)
    assert (store.calls, ours.can_count) == (["count p/leases/", "changes p/leases/"], False)
    assert changed.listed_at == scan.listed_at
    await ours.scan(["p"])
    assert not ours.can_count


@pytest.mark.virtual
@pytest.mark.parametrize("slow", [True, False])
async def test_a_count_that_fails_or_is_slow_costs_a_moment_and_is_tried_again_after_a_listing(
    slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ours, scan = await with_leases("0")

    async def count(prefix: str) -> int | None:
        await asyncio.sleep(60 if slow else 0)
        raise StoreUnavailable("not now")

    monkeypatch.setattr(store, "count", count)
    began = asyncio.get_running_loop().time()
    changed = await ours.scan(["p"], scan, counting=True)
    assert asyncio.get_running_loop().time() - began <= TIMING.beat_timeout_s
    assert (store.calls, ours.can_count) == (["changes p/leases/"], False)
    assert changed.listed_at == scan.listed_at, "no count has shown that nothing was deleted"
    await ours.scan(["p"])
    assert ours.can_count


@pytest.mark.virtual
async def test_documents_that_cannot_be_told_apart_are_not_counted() -> None:
    """Two ids that name one partition are one entry, which makes up for a lease that was deleted."""
    store, ours, _ = await with_leases("0", "1")
    for name in ("a%2fb", "a%2Fb"):
        await store.create(f"p/leases/{name}", "{}")
    scan = await ours.scan(["p"])
    await store.remove("1")
    listed = await ours.scan(["p"], scan, counting=True)
    assert [key.partition for key in listed.seen] == ["0"]


@pytest.mark.virtual
async def test_the_leases_of_each_pipeline_are_counted() -> None:
    store = Asked()
    ours = keeper(store)
    for pipeline in ("p", "q"):
        await ours.create(Lease(pipeline=pipeline, partition="0"))
    scan = await ours.scan(["p", "q"])
    store.calls.clear()
    counted = await ours.scan(["p", "q"], scan, counting=True)
    assert store.calls == ["count p/leases/", "count q/leases/", "changes "]
    assert len(counted.seen) == 2
