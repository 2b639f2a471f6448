"""Taking leases, and one tenure's writes: under conflicts, refusals and lost answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock
from unit.leases.shown_hosts import session_of

from leasehold.leases.document import decode_lease, encode_lease, lease_id
from leasehold.leases.errors import LeaseReset, OwnershipLost, StoreAmbiguous, StoreConflict, StoreUnavailable
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import CONFLICTS_MAX, OwnedLease, VersionedLease
from leasehold.leases.timing import Timing
from leasehold.leases.trust import Attempt, Trust

TIMING = Timing()
ID = lease_id("p", "0")
TRUSTED = Trust(term=1, last_term=1, known=Attempt(tick=1, began=0.0, lasts_s=3600.0, term=1))


class FaultyStore(MemoryStore):
    """faults: what becomes of the next replaces, in order. lost: carried out, and the answer lost. ghost: neither."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.etags_sent: list[str] = []
        self.is_down = False

    async def read(self, id: str):  # type: ignore[no-untyped-def]
        if self.is_down:
            raise StoreUnavailable("down")
        return await super().read(id)

    async def replace(self, id: str, body: str, etag: str) -> str:
        self.etags_sent.append(etag)
        fault = self.faults.pop(0) if self.faults else "ok"
        if fault == "down":
            raise StoreUnavailable("down")
        if fault == "ghost":
            raise StoreAmbiguous("no answer")
        new = await super().replace(id, body, etag)
        if fault == "lost":
            raise StoreAmbiguous("no answer")
        return new


def keeper(store: MemoryStore, host: str = "a") -> Keeper:
    """Of a host that is trusted for as long as a test lasts."""
    session = session_of(MemoryStore(), host, f"{host}-1", timing=Timing(duration_s=3600.0))
    session._trust = TRUSTED
    return Keeper(store, host=host, incarnation=f"{host}-1", clock=VirtualClock(), timing=TIMING, session=session)


async def taken(store: MemoryStore, host: str = "a") -> OwnedLease:
    await keeper(store).create(Lease(pipeline="p", partition="0"))
    owned = await keeper(store, host).take(await keeper(store).read("p", "0"), lambda state: state)
    assert owned is not None
    return owned


async def edited(store: MemoryStore, edit: Callable[[Lease], Lease]) -> None:
    stored = await MemoryStore.read(store, ID)
    await MemoryStore.replace(store, ID, encode_lease(edit(decode_lease(ID, stored.body))), stored.etag)


async def now(store: MemoryStore) -> Lease:
    return decode_lease(ID, (await MemoryStore.read(store, ID)).body)


@pytest.mark.virtual
async def test_renewals_get_a_turn_while_thousands_of_documents_are_parsed() -> None:
    store = MemoryStore()
    for n in range(3000):
        await keeper(store).create(Lease(pipeline="p", partition=str(n)))
    turns = 0

    async def renew() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    renewing = asyncio.create_task(renew())
    scan = await keeper(store).scan(["p"])
    renewing.cancel()
    assert len(scan.seen) == 3000
    assert turns >= 3000 // 300


@pytest.mark.virtual
async def test_a_scan_parses_what_has_changed_alone() -> None:
    store = FaultyStore()
    ours = keeper(store)
    for name in "0ab":
        await ours.create(Lease(pipeline="p", partition=name))
    before = await ours.scan(["p"])
    await edited(store, lambda lease: replace(lease, tick=lease.tick + 1))
    after = await ours.scan(["p"])
    assert [key[1] for key in after.seen if after.seen[key].lease is not before.seen[key].lease] == ["0"]


@pytest.mark.virtual
async def test_taking_raises_epoch_and_sink_state_in_one_write() -> None:
    store = FaultyStore()
    await keeper(store).create(Lease(pipeline="p", partition="0", sink_state="3"))
    owned = await keeper(store).take(await keeper(store).read("p", "0"), lambda state: str(int(state) + 1))
    assert owned is not None
    lease = await now(store)
    assert (lease.owner, lease.epoch, lease.sink_state, len(store.etags_sent)) == ("a", 1, "4", 1)


@pytest.mark.virtual
async def test_of_two_takers_one_wins_and_the_other_is_told() -> None:
    store = MemoryStore()
    await keeper(store).create(Lease(pipeline="p", partition="0"))
    seen = await keeper(store).read("p", "0")
    taken = await asyncio.gather(*(keeper(store, host).take(seen, str) for host in "abc"))
    assert sum(owned is not None for owned in taken) == 1


@pytest.mark.virtual
@pytest.mark.parametrize("fault", ["lost", "ghost"])
async def test_a_take_without_an_answer_is_settled_by_reading(fault: str) -> None:
    store = FaultyStore()
    await keeper(store).create(Lease(pipeline="p", partition="0"))
    store.faults = [fault]
    owned = await keeper(store).take(await keeper(store).read("p", "0"), str)
    assert (owned is not None) == (fault == "lost")
    assert (await now(store)).owner == ("a" if fault == "lost" else None)


@pytest.mark.virtual
@pytest.mark.parametrize("fault", ["lost", "ghost"])
async def test_a_checkpoint_without_an_answer_is_written_once_and_keeps_the_position(fault: str) -> None:
    store = FaultyStore()
    owned = await taken(store)
    before = (await now(store)).tick
    store.faults = [fault]
    await owned.checkpoint("7", "s")
    lease = await now(store)
    assert (lease.continuation, lease.sink_state, lease.tick) == ("7", "s", before + 1)
    assert owned.lease == lease


@pytest.mark.virtual
async def test_an_unsettled_checkpoint_is_not_mistaken_for_the_next_one() -> None:
    """The first arrives without an answer, and not even the reading succeeds: the next one must still be written."""
    store = FaultyStore()
    owned = await taken(store)
    store.faults, store.is_down = ["lost"], True
    with pytest.raises(StoreUnavailable):
        await owned.checkpoint("5", "")
    store.is_down = False
    await owned.checkpoint("9", "")
    assert (await now(store)).continuation == "9"


@pytest.mark.virtual
async def test_a_request_for_handoff_survives_the_owners_writes_and_is_noticed() -> None:
    store = FaultyStore()
    owned = await taken(store)
    await keeper(store, "b").ask(await keeper(store).read("p", "0"))
    await owned.renew()
    assert owned.lease.handoff_to == "b"
    assert owned.changed.is_set()
    await owned.release()
    lease = await now(store)
    assert (lease.owner, lease.handoff_to) == (None, "b")


@pytest.mark.virtual
async def test_a_busy_owner_is_asked_again_although_its_checkpoints_come_between() -> None:
    store = FaultyStore()
    owned = await taken(store)
    seen = await keeper(store).read("p", "0")
    await owned.checkpoint("7", "")
    await keeper(store, "b").ask(seen)
    lease = await now(store)
    assert (lease.continuation, lease.owner, lease.handoff_to) == ("7", "a", "b")


@pytest.mark.virtual
async def test_a_lease_that_has_another_owner_or_request_by_now_is_not_asked_for() -> None:
    store = FaultyStore()
    owned = await taken(store)
    seen = await keeper(store).read("p", "0")
    await keeper(store, "c").ask(seen)
    with pytest.raises(StoreConflict):
        await keeper(store, "b").ask(seen)
    assert (await now(store)).handoff_to == "c"
    await owned.release()
    with pytest.raises(StoreConflict):
        await keeper(store, "b").ask(seen)


@pytest.mark.virtual
async def test_after_a_conflict_the_owner_goes_on_only_with_its_own_tenure() -> None:
    store = FaultyStore()
    owned = await taken(store)
    other = await keeper(store, "b").take(await keeper(store).read("p", "0"), str)
    assert other is not None
    with pytest.raises(OwnershipLost) as lost:
        await owned.checkpoint("1", "")
    assert lost.value.taken_by == "b"
    assert (await now(store)).continuation is None
    with pytest.raises(OwnershipLost):
        await owned.renew()


@pytest.mark.virtual
async def test_a_lease_taken_again_under_the_same_name_is_lost_to_the_earlier_incarnation() -> None:
    store = FaultyStore()
    owned = await taken(store)
    again = keeper(store)
    again.incarnation = "a-2"
    assert await again.take(await again.read("p", "0"), str)
    with pytest.raises(OwnershipLost):
        await owned.renew()


@pytest.mark.virtual
async def test_a_reset_ends_the_tenure_and_is_told_from_a_loss() -> None:
    store = FaultyStore()
    owned = await taken(store)
    await edited(store, lambda lease: lease.reset("3"))
    with pytest.raises(LeaseReset):
        await owned.checkpoint("9", "")
    assert (await now(store)).continuation == "3"


@pytest.mark.virtual
async def test_an_owner_whose_lease_was_put_back_under_it_gives_out_no_tick_twice() -> None:
    store = FaultyStore()
    owned = await taken(store)
    earlier = await now(store)
    await owned.checkpoint("1", "")
    await edited(store, lambda lease: earlier)
    renewed_at = owned.renewed_at
    await asyncio.sleep(1)
    store.faults = ["ok", "down"]
    with pytest.raises(StoreUnavailable):
        await owned.renew()
    assert owned.renewed_at == renewed_at
    await owned.renew()
    assert (await now(store)).tick == 3


@pytest.mark.virtual
async def test_a_deleted_document_is_a_lost_lease() -> None:
    store = FaultyStore()
    owned = await taken(store)
    await store.delete(ID, (await store.read(ID)).etag)
    with pytest.raises(OwnershipLost):
        await owned.renew()


@pytest.mark.virtual
async def test_a_write_counts_from_the_start_of_the_attempt_not_from_its_end() -> None:
    store = FaultyStore()
    owned = await taken(store)
    clock = VirtualClock()

    async def slow(id: str, body: str, etag: str) -> str:
        await clock.sleep(4)
        return await MemoryStore.replace(store, id, body, etag)

    store.replace = slow  # type: ignore[method-assign]
    await clock.sleep(10)
    await owned.renew()
    assert owned.renewed_at == 10


@pytest.mark.virtual
async def test_after_a_lost_answer_the_first_attempt_counts() -> None:
    store, clock = FaultyStore(), VirtualClock()
    owned = await taken(store)
    await clock.sleep(10)
    store.faults, store.is_down = ["lost"], True
    with pytest.raises(StoreUnavailable):
        await owned.renew()
    await clock.sleep(20)
    store.is_down, store.faults = False, ["ghost"]
    await owned.renew()
    assert owned.renewed_at <= 30
    assert (await now(store)).tick == owned.lease.tick


@pytest.mark.virtual
async def test_a_failed_write_counts_for_nothing() -> None:
    store, clock = FaultyStore(), VirtualClock()
    owned = await taken(store)
    await clock.sleep(30)
    store.faults = ["down"]
    with pytest.raises(StoreUnavailable):
        await owned.renew()
    assert owned.renewed_at == 0


@pytest.mark.virtual
async def test_a_suspended_owner_tries_again_with_its_old_etag() -> None:
    store = FaultyStore()
    owned = await taken(store)
    store.etags_sent.clear()
    store.faults = ["down", "down", "ok"]
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await owned.renew()
    await owned.renew()
    assert len(set(store.etags_sent)) == 1


@pytest.mark.virtual
async def test_somebody_who_rewrites_the_lease_for_ever_is_reported_not_endured() -> None:
    store = FaultyStore()
    owned = await taken(store)
    plain = store.replace

    async def contested(id: str, body: str, etag: str) -> str:
        await edited(store, lambda lease: replace(lease, unknown={"n": len(store.etags_sent)}))
        return await plain(id, body, etag)

    store.replace = contested  # type: ignore[method-assign]
    with pytest.raises(StoreConflict, match="8 times in a row"):
        await owned.renew()


@pytest.mark.virtual
async def test_a_stale_listing_does_not_end_a_tenure_and_a_newer_one_does() -> None:
    store = FaultyStore()
    old = VersionedLease(Lease(pipeline="p", partition="0"), "1")
    owned = await taken(store)
    owned.notice(old)
    assert not owned.is_lost
    await edited(store, lambda lease: lease.acquired("b", "b-1", ""))
    owned.notice(await keeper(store).read("p", "0"))
    assert owned.is_lost


@pytest.mark.virtual
async def test_a_raised_epoch_whose_answer_was_lost_is_not_taken_for_somebody_elses() -> None:
    store = FaultyStore()
    owned = await taken(store)
    store.faults, store.is_down = ["lost"], True
    with pytest.raises(StoreUnavailable):
        await owned.raise_epoch(4, lambda kept: "s")
    store.is_down = False
    await owned.renew()
    assert (owned.lease.epoch, owned.lease.sink_state) == (5, "s")
    await edited(store, lambda lease: lease.acquired("a", "a-2", "").acquired("a", "a-1", ""))
    with pytest.raises(OwnershipLost):
        await owned.renew()


@pytest.mark.virtual
async def test_a_raised_epoch_whose_answer_nobody_waited_for_is_not_taken_for_somebody_elses() -> None:
    class Slow(FaultyStore):
        is_slow = False

        async def replace(self, id: str, body: str, etag: str) -> str:
            answer = await super().replace(id, body, etag)
            if self.is_slow:
                await asyncio.Event().wait()
            return answer

    store = Slow()
    owned = await taken(store)
    store.is_slow = True
    raising = asyncio.create_task(owned.raise_epoch(4, lambda kept: "s"))
    await asyncio.sleep(1)
    raising.cancel()
    await asyncio.wait({raising})
    store.is_slow = False
    await owned.release()
    lease = (await keeper(store).read("p", "0")).lease
    assert (lease.owner, lease.epoch) == (None, 5)


@pytest.mark.virtual
async def test_a_raised_epoch_claims_above_an_own_write_that_lands_late() -> None:
    class Late(FaultyStore):
        late: tuple[str, str, str] | None = None
        holds = False

        async def replace(self, id: str, body: str, etag: str) -> str:
            if self.holds:
                self.late = (id, body, etag)
                raise StoreUnavailable("no answer")
            return await super().replace(id, body, etag)

    store = Late()
    owned = await taken(store)
    store.holds = True
    with pytest.raises(StoreUnavailable):
        await owned.checkpoint("5", "state 10")
    store.holds = False
    assert store.late is not None
    await store.replace(*store.late)
    await owned.raise_epoch(0, lambda kept: f"{kept}, claimed")
    assert (owned.lease.continuation, owned.lease.sink_state) == ("5", "state 10, claimed")


@pytest.mark.virtual
async def test_a_scan_that_sees_a_raised_epoch_before_its_answer_comes_ends_no_tenure() -> None:
    store = FaultyStore()
    owned = await taken(store)
    seen = await keeper(store).read("p", "0")
    owned.notice(seen._replace(lease=seen.lease.epoch_raised(0, "")))
    assert not owned.is_lost
    owned.notice(seen._replace(lease=seen.lease.acquired("a", "a-2", "")))
    assert owned.is_lost


@pytest.mark.virtual
async def test_one_bad_document_does_not_hide_the_others() -> None:
    store = MemoryStore()
    for partition in ("0", "2"):
        await keeper(store).create(Lease(pipeline="p", partition=partition))
    await store.create(lease_id("p", "1"), '{"version": 1')
    scan = await keeper(store).scan(["p"])
    assert sorted(scan.seen) == [("p", "0"), ("p", "2")]
    (unreadable,) = scan.unreadable.values()
    assert "p/leases/1" in str(unreadable)


@pytest.mark.virtual
@given(
    st.lists(st.sampled_from(["ok", "lost", "ghost", "down"]), max_size=12), st.lists(st.integers(0, 3), max_size=12)
)
@example(["ghost"] * CONFLICTS_MAX, [])
async def test_whatever_answers_are_lost_the_last_checkpoint_that_succeeded_stands(
    faults: list[str], outages: list[int]
) -> None:
    store = FaultyStore()
    owned = await taken(store)
    store.faults = list(faults)
    kept, ticks = None, [owned.lease.tick]
    for number in range(10):
        store.is_down = number in outages
        try:
            await owned.checkpoint(str(number), "")
        except (StoreUnavailable, StoreAmbiguous):
            pass
        else:
            kept = str(number)
            assert (await now(store)).continuation == kept
        ticks.append((await now(store)).tick)
    assert ticks == sorted(ticks)
    store.faults, store.is_down = [], False
    await owned.checkpoint("end", "")
    assert (await now(store)).continuation == "end"


@pytest.mark.virtual
async def test_a_scan_reads_only_the_documents_that_have_changed_since_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[str] = []

    def decoded(id: str, body: str) -> Lease:
        read.append(id)
        return decode_lease(id, body)

    monkeypatch.setattr("leasehold.leases.tenure.decode_lease", decoded)
    store = MemoryStore()
    host = keeper(store)
    for partition in "01":
        await host.create(Lease(pipeline="p", partition=partition))
    await host.scan(["p"])
    assert read == [lease_id("p", "0"), lease_id("p", "1")]
    read.clear()
    seen = (await host.scan(["p"])).seen
    assert read == []
    await keeper(store, "b").take(seen["p", "1"], lambda state: state)
    again = (await host.scan(["p"])).seen
    assert again["p", "1"].lease.owner == "b"
    assert again["p", "0"] == seen["p", "0"]
    assert read == [lease_id("p", "1")]


@pytest.mark.virtual
async def test_a_document_that_is_deleted_and_made_again_is_read_again() -> None:
    store = MemoryStore()
    host = keeper(store)
    await host.create(Lease(pipeline="p", partition="0", epoch=7))
    seen = (await host.scan(["p"])).seen["p", "0"]
    await store.delete(ID, seen.etag)
    assert (await host.scan(["p"])).seen == {}
    await host.create(Lease(pipeline="p", partition="0"))
    assert (await host.scan(["p"])).seen["p", "0"].lease.epoch == 0
