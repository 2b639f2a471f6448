"""Leases that are judged by their owner's session: when they are trusted, and by what they are judged meanwhile."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
from lab.simulation.loop import VirtualClock

from leasehold.leases.document import encode_lease
from leasehold.leases.errors import LeaseLost, StoreAmbiguous, StoreUnavailable
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.session import Session, SessionRecord
from leasehold.leases.store import Stored
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import OwnedLease, VersionedLease, id_of, keep_renewed
from leasehold.leases.timing import SessionTiming, Timing

SESSION = SessionTiming()
TIMING = Timing(session=SESSION)


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
    """A host with a session that has beaten once, and a lease of its own."""

    def __init__(self, *, is_agreed: bool = True) -> None:
        self.store, self.clock = Store(), VirtualClock()
        self.session = Session(self.store, SessionRecord(host="a", incarnation="a-1"), clock=self.clock, timing=SESSION)
        self.session.is_agreed = is_agreed
        self.keeper = Keeper(
            self.store, host="a", incarnation="a-1", clock=self.clock, timing=TIMING, session=self.session
        )

    async def taken(self) -> OwnedLease:
        await self.session.beat()
        await self.keeper.create(Lease(pipeline="p", partition="0"))
        owned = await self.keeper.take(await self.keeper.read("p", "0"), str)
        assert owned is not None
        return owned

    async def lapse(self) -> None:
        await asyncio.sleep(SESSION.trust_s)
        await self.session.beat()

    async def stored(self) -> Lease:
        return (await self.keeper.read("p", "0")).lease


@pytest.mark.virtual
async def test_a_lease_is_trusted_as_long_as_its_hosts_session_without_a_write_of_its_own() -> None:
    case = Case()
    owned = await case.taken()
    case.store.replaced = 0
    for _ in range(100):
        await asyncio.sleep(SESSION.beat_s)
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
    case.store.outcomes = [SESSION.trust_s + 2]
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
    await asyncio.sleep(SESSION.trust_s)
    case.store.outcomes = [0.5]
    renewing = asyncio.create_task(owned.renew())
    await asyncio.sleep(0.1)
    await case.session.beat()
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
async def test_leases_are_written_as_judged_by_sessions_once_all_hosts_have_one() -> None:
    case = Case(is_agreed=False)
    owned = await case.taken()
    assert not (await case.stored()).by_session
    assert owned.session is None
    case.session.is_agreed = True
    await owned.checkpoint("7", "")
    assert (await case.stored()).by_session
    assert owned.session is case.session
    case.session.is_agreed = False
    await owned.renew()
    assert (await case.stored()).by_session, "an old host that appears later does not take it back"


@pytest.mark.virtual
async def test_until_the_write_that_changes_the_judge_is_settled_both_judges_bind() -> None:
    case = Case(is_agreed=False)
    owned = await case.taken()
    await asyncio.sleep(SESSION.trust_s + 1)
    assert owned.is_trusted, "its own tick judges it"
    case.session.is_agreed = True
    case.store.outcomes = ["down"]
    with pytest.raises(StoreUnavailable):
        await owned.renew()
    assert not owned.is_trusted, "others may judge it by the session, which has lapsed"


@pytest.mark.virtual
async def test_a_host_without_a_session_neither_trusts_nor_judges_nor_takes_what_sessions_judge() -> None:
    case = Case()
    await (await case.taken()).release()
    plain = Keeper(case.store, host="b", incarnation="b-1", clock=case.clock, timing=Timing())
    scan = (await plain.scan(["p"])).without_sessions()
    assert not scan.seen
    (error,) = scan.unreadable.values()
    assert "set `leases.sessions: auto`" in str(error)
    assert "run `leasehold leases downgrade FILE`" in str(error)
    with pytest.raises(AssertionError):
        await plain.take(await plain.read("p", "0"), str)


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
        with pytest.raises(LeaseLost):
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
    with pytest.raises(LeaseLost):
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
    renewing = asyncio.create_task(keep_renewed(owned, clock=case.clock, timing=TIMING, rng=random.Random(1)))
    for _ in range(100):
        await case.session.beat()
        await asyncio.sleep(SESSION.beat_s)
    assert case.store.replaced == 0
    await case.lapse()
    await asyncio.sleep(0.1)
    assert owned.is_trusted
    assert case.store.replaced == 1
    case.store.outcomes = ["down"] * 3
    await case.lapse()
    for _ in range(10):
        await asyncio.sleep(SESSION.beat_s)
        await case.session.beat()
    assert owned.is_trusted
    assert case.store.replaced == 5
    renewing.cancel()


@pytest.mark.virtual
async def test_leases_are_won_again_one_after_another() -> None:
    case = Case()
    await case.session.beat()
    owned = []
    for n in range(40):
        await case.keeper.create(Lease(pipeline="p", partition=str(n)))
        taken = await case.keeper.take(await case.keeper.read("p", str(n)), str)
        assert taken is not None
        owned.append(taken)
    tasks = [
        asyncio.create_task(keep_renewed(each, clock=case.clock, timing=TIMING, rng=random.Random(1))) for each in owned
    ]
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
async def test_a_lease_that_is_put_back_as_version_1_is_renewed_by_itself() -> None:
    """The host's group has no agreement any more, so its owner cannot write the lease as version 2 again."""
    case = Case()
    owned = await case.taken()
    assert owned.session is not None
    renewing = asyncio.create_task(keep_renewed(owned, clock=case.clock, timing=TIMING, rng=random.Random(1)))
    await asyncio.sleep(1)
    case.session.is_agreed = False
    seen = await case.keeper.read("p", "0")
    await case.store.replace(id_of(seen.lease), encode_lease(replace(seen.lease, by_session=False)), seen.etag)
    await owned.checkpoint("1", "")
    assert owned.session is None
    tick = (await case.stored()).tick
    await asyncio.sleep(TIMING.renew_s + 1)
    assert (await case.stored()).tick > tick
    renewing.cancel()
