"""Leases in one tenure: when they are trusted, and how they are won again after a lapse."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from lab.simulation.loop import VirtualClock
from unit.leases.shown_hosts import TIMING, session_of

from leasehold.leases.document import encode_lease
from leasehold.leases.errors import OwnershipLost, StoreAmbiguous, StoreUnavailable
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import OwnedLease, VersionedLease, keep_won


class Store(MemoryStore):
    """outcomes: of the next writes of leases: seconds until each is answered, or an error after it was (not) carried out."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[float | str] = []
        self.replaced = 0
        self.is_read_away = False

    async def read(self, id: str) -> Stored:
        if self.is_read_away:
            raise StoreUnavailable("away")
        return await super().read(id)

    async def replace(self, id: str, body: str, etag: str) -> str:
        if not id.startswith("p/"):
            return await super().replace(id, body, etag)
        self.replaced += 1
        outcome = self.outcomes.pop(0) if self.outcomes else 0.0
        if outcome == "down":
            raise StoreUnavailable("away")
        if outcome == "ghost":
            raise StoreAmbiguous("no answer")
        etag = await super().replace(id, body, etag)
        if outcome == "lost":
            raise StoreAmbiguous("no answer")
        await asyncio.sleep(float(outcome))
        return etag


class Case:
    """A host in its first term, and a lease of its own."""

    def __init__(self) -> None:
        self.store, self.clock = Store(), VirtualClock()
        self.session = session_of(self.store, "a", "a-1", clock=self.clock)
        self.keeper = Keeper(
            self.store, host="a", incarnation="a-1", clock=self.clock, timing=TIMING, session=self.session
        )

    async def taken(self) -> OwnedLease:
        await self.session.open()
        await self.keeper.create(Lease(pipeline="p", partition="0"))
        owned = await self.keeper.take(await self.keeper.read("p", "0"), str)
        assert owned is not None
        return owned

    async def lapse(self) -> None:
        await asyncio.sleep(TIMING.trust_s)
        await self.session.open()

    async def stored(self) -> Lease:
        return (await self.keeper.read("p", "0")).lease


@pytest.mark.virtual
async def test_a_lease_is_trusted_as_long_as_its_host_without_a_write_of_its_own() -> None:
    case = Case()
    owned = await case.taken()
    case.store.replaced = 0
    for _ in range(100):
        await asyncio.sleep(TIMING.beat_s)
        await case.session.beat()
        assert owned.is_trusted
    assert case.store.replaced == 0


@pytest.mark.virtual
async def test_after_a_lapse_a_lease_is_trusted_once_it_is_written_again() -> None:
    case = Case()
    owned = await case.taken()
    await case.lapse()
    assert case.session.is_trusted
    assert not owned.is_trusted
    assert owned.must_be_won
    await owned.renew()
    assert owned.is_trusted
    assert not owned.must_be_won


@pytest.mark.virtual
async def test_a_write_that_began_before_a_lapse_wins_nothing_after_it() -> None:
    case = Case()
    owned = await case.taken()
    case.store.outcomes = [TIMING.trust_s + 2]
    renewing = asyncio.create_task(owned.renew())
    await case.lapse()
    await renewing
    assert not owned.is_trusted, "it is worth the term of its start"
    await owned.renew()
    assert owned.is_trusted


@pytest.mark.virtual
async def test_a_write_that_began_without_trust_wins_nothing() -> None:
    case = Case()
    owned = await case.taken()
    await asyncio.sleep(TIMING.trust_s)
    case.store.outcomes = [0.5]
    renewing = asyncio.create_task(owned.renew())
    await asyncio.sleep(0.1)
    await case.session.open()
    await renewing
    assert not owned.is_trusted


@pytest.mark.virtual
async def test_a_write_whose_answer_was_lost_is_worth_the_term_of_its_first_attempt() -> None:
    case = Case()
    owned = await case.taken()
    case.store.outcomes = ["lost"]
    case.store.is_read_away = True
    with pytest.raises(StoreUnavailable):
        await owned.renew()
    case.store.is_read_away = False
    await case.lapse()
    await owned.renew()
    assert not owned.is_trusted, "the write that is found was begun before the lapse"
    await owned.renew()
    assert owned.is_trusted


@pytest.mark.virtual
@pytest.mark.parametrize("edit", [Lease.revoked, None, lambda lease: lease.acquired("b", "b-1", "")])
async def test_a_listing_that_does_not_show_a_tenure_makes_its_owner_write(edit) -> None:  # type: ignore[no-untyped-def]
    case = Case()
    owned = await case.taken()
    await asyncio.sleep(1)
    found = await case.keeper.read("p", "0")
    if edit is not None:
        await case.keeper.rewrite(found, edit(found.lease))
    scan = await case.keeper.scan(["p"])
    owned.doubt(None if edit is None else scan.seen[owned.lease.key], scan.started)
    assert owned.is_doubted
    if edit is None:  # the listing was an old one
        await owned.renew()
        assert not owned.is_doubted
    else:
        with pytest.raises(OwnershipLost):
            await owned.renew()


@pytest.mark.virtual
async def test_a_lease_put_back_with_a_lower_epoch_makes_its_owner_write() -> None:
    owned = await Case().taken()
    restored = replace(owned.lease, owner="b", incarnation="b-1", epoch=owned.lease.epoch - 1)
    owned.doubt(VersionedLease(restored, "an earlier state"), owned.renewed_at + 1)
    assert owned.is_doubted


@pytest.mark.virtual
async def test_a_lease_that_is_released_or_lost_rings() -> None:
    case = Case()
    released = await case.taken()
    await case.session.beat()
    rings = case.session.record.ring
    await released.release()
    await case.session.beat()
    assert case.session.record.ring > rings
    lost = await case.taken()
    await case.session.beat()
    rings = case.session.record.ring
    found = await case.keeper.read("p", "0")
    await case.store.replace("p/leases/0", encode_lease(found.lease.revoked()), found.etag)
    with pytest.raises(OwnershipLost):
        await lost.renew()
    await case.session.beat()
    assert case.session.record.ring > rings


@pytest.mark.virtual
async def test_a_listing_that_is_older_than_the_tenure_raises_no_doubt() -> None:
    case = Case()
    owned = await case.taken()
    owned.doubt(None, owned.renewed_at)
    assert not owned.is_doubted


@pytest.mark.virtual
async def test_an_idle_lease_is_written_once_after_each_lapse_and_otherwise_never() -> None:
    case = Case()
    owned = await case.taken()
    case.store.replaced = 0
    renewing = asyncio.create_task(keep_won(owned, clock=case.clock, rng=random.Random(1)))
    for _ in range(100):
        await case.session.beat()
        await asyncio.sleep(TIMING.beat_s)
    assert case.store.replaced == 0
    await case.lapse()
    await asyncio.sleep(0.1)
    assert owned.is_trusted
    assert case.store.replaced == 1
    case.store.outcomes = ["down"] * 3
    await case.lapse()
    for _ in range(10):
        await asyncio.sleep(TIMING.beat_s)
        await case.session.beat()
    assert owned.is_trusted
    assert case.store.replaced == 5
    renewing.cancel()


@pytest.mark.virtual
async def test_leases_are_won_again_one_after_another() -> None:
    case = Case()
    await case.session.open()
    owned = []
    for n in range(40):
        await case.keeper.create(Lease(pipeline="p", partition=str(n)))
        taken = await case.keeper.take(await case.keeper.read("p", str(n)), str)
        assert taken is not None
        owned.append(taken)
    tasks = [asyncio.create_task(keep_won(each, clock=case.clock, rng=random.Random(1))) for each in owned]
    await asyncio.sleep(0)
    await case.lapse()
    await asyncio.sleep(1.0)
    won = sum(each.is_trusted for each in owned)
    assert 18 <= won <= 22
    await asyncio.sleep(1.5)
    assert all(each.is_trusted for each in owned)
    for task in tasks:
        task.cancel()


@pytest.mark.virtual
async def test_trust_and_term_of_a_take_are_those_of_its_start() -> None:
    case = Case()
    await case.session.open()
    await case.keeper.create(Lease(pipeline="p", partition="0"))
    case.store.outcomes = [TIMING.trust_s + 1]
    taking = asyncio.create_task(case.keeper.take(await case.keeper.read("p", "0"), str))
    await case.lapse()
    owned = await taking
    assert owned is not None
    assert case.session.is_trusted
    assert not owned.is_trusted, "another host may have taken it in between"


@pytest.mark.virtual
async def test_a_take_whose_answer_was_lost_is_won_once_more_before_anything_is_sent() -> None:
    case = Case()
    await case.session.open()
    await case.keeper.create(Lease(pipeline="p", partition="0"))
    case.store.outcomes = ["lost"]
    owned = await case.keeper.take(await case.keeper.read("p", "0"), str)
    assert owned is not None
    assert not owned.is_trusted, "what is found may be of an earlier try"
    await owned.renew()
    assert owned.is_trusted


@pytest.mark.virtual
async def test_a_lost_lease_ends_what_keeps_it() -> None:
    case = Case()
    owned = await case.taken()
    keeping = asyncio.create_task(keep_won(owned, clock=case.clock, rng=random.Random(1)))
    seen = await case.keeper.read("p", "0")
    await case.keeper.rewrite(seen, seen.lease.acquired("b", "b-1", ""))
    await case.lapse()
    with pytest.raises(OwnershipLost) as lost:
        await keeping
    assert lost.value.taken_by == "b"
