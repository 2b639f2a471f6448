"""Who is alive: one document a host, and what becomes of it under namesakes, outages and other hands."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.simulation.loop import VirtualClock

from leasehold.leases.errors import (
    DuplicateHost,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import HOSTS_PREFIX, HostRecord, decode_host, host_id
from leasehold.leases.membership import DEAD_AFTER, Membership, mismatched
from leasehold.leases.session import session_of
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing

TIMING = Timing()
NOTHING: Mapping[str, object] = MappingProxyType({})


class Store(MemoryStore):
    """faults: what becomes of the next writes. lost: carried out without an answer; ghost: neither; down: refused."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []
        self.late_s = 0.0

    async def create(self, id: str, body: str) -> str:
        return await self._faulty(super().create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._faulty(super().replace(id, body, etag))

    async def _faulty(self, write) -> str:  # type: ignore[no-untyped-def]
        await asyncio.sleep(self.late_s)
        fault = self.faults.pop(0) if self.faults else "ok"
        if fault in ("down", "ghost"):
            write.close()
            raise StoreUnavailable("down") if fault == "down" else StoreAmbiguous("no answer")
        etag = await write
        if fault == "lost":
            raise StoreAmbiguous("no answer")
        return etag


def member(store: MemoryStore, name: str = "a", incarnation: str = "1", **fields: object) -> Membership:
    me = HostRecord(name=name, incarnation=incarnation, lease_duration_s=TIMING.duration_s, **fields)
    return Membership(store, me, clock=VirtualClock(), timing=TIMING)


async def record(store: MemoryStore, name: str = "a") -> HostRecord:
    stored = await store.read(host_id(name))
    return decode_host(stored.id, stored.body)


async def announced(member: Membership) -> None:
    """As a host does it: until the container answers."""
    while True:
        try:
            return await member.announce(NOTHING)
        except StoreError:
            await asyncio.sleep(1)


@pytest.mark.virtual
async def test_every_announcement_moves_the_tick_and_tells_what_the_host_does() -> None:
    store = Store()
    a = member(store, pipelines=("p", "q"), leases_max=3)
    await a.announce(NOTHING)
    first = await record(store)
    await a.announce({"batches": 7})
    second = await record(store)
    assert second == replace(first, tick=first.tick + 1, activity={"batches": 7}) == a.me


@pytest.mark.virtual
async def test_a_namesake_that_the_session_met_shows_in_the_document_for_people() -> None:
    store, clock = Store(), VirtualClock()
    timing = Timing()
    processes = []
    for incarnation in "12":
        me = HostRecord(name="a", incarnation=incarnation, lease_duration_s=timing.duration_s)
        session = session_of(me, store, clock=clock, timing=timing)
        assert session is not None
        await session.beat()
        processes.append((session, Membership(store, me, clock=clock, timing=timing, session=session)))
    (earlier, _), (later, membership) = processes
    with pytest.raises(DuplicateHost):
        await earlier.beat()
    await later.beat()
    await membership.announce(NOTHING)
    assert (await record(store)).contested_by == "1"


@pytest.mark.virtual
@pytest.mark.parametrize("faults", [["lost"], ["ghost"], ["down"], ["lost", "lost"], ["ok", "lost", "ghost", "lost"]])
async def test_lost_answers_are_no_namesakes(faults: list[str]) -> None:
    store = Store()
    a = member(store)
    store.faults = faults
    for _ in range(4):
        await announced(a)
    assert await record(store) == a.me
    assert (await record(store)).contested_by is None
    assert a.me.tick >= 4


@pytest.mark.virtual
@given(st.lists(st.sampled_from(["ok", "lost", "ghost", "down"]), max_size=12))
async def test_whatever_answers_are_lost_the_tick_never_goes_back(faults: list[str]) -> None:
    store = Store()
    a = member(store)
    store.faults = faults
    ticks = []
    for _ in range(8):
        await announced(a)
        ticks.append((await record(store)).tick)
    assert ticks == sorted(set(ticks))


@pytest.mark.virtual
async def test_a_restarted_host_takes_its_document_over() -> None:
    store = Store()
    await announced(member(store, incarnation="1"))
    again = member(store, incarnation="2")
    await announced(again)
    await announced(again)
    assert (await record(store)).incarnation == "2"
    assert again.me.contested_by is None


@pytest.mark.virtual
async def test_of_two_processes_of_one_name_the_earlier_gives_way_and_both_can_tell() -> None:
    store = Store()
    earlier, later = member(store, incarnation="1"), member(store, incarnation="2")
    await announced(earlier)
    await announced(later)
    with pytest.raises(DuplicateHost, match=r"incarnation 2.*host 'a'"):
        await earlier.announce(NOTHING)
    await announced(later)
    await announced(later)
    assert (later.me.incarnation, later.me.contested_by) == ("2", "1")
    assert (await record(store)).contested_by == "1"


@pytest.mark.virtual
async def test_a_namesake_that_announces_at_the_same_moment_is_found_at_the_next() -> None:
    store = Store()
    earlier, later = member(store, incarnation="1"), member(store, incarnation="2")
    await announced(earlier)
    await announced(later)
    store.faults = ["ok", "down"]  # the earlier one's note does not get through
    with pytest.raises(StoreUnavailable):
        await earlier.announce(NOTHING)
    with pytest.raises(DuplicateHost):
        await announced(earlier)


@pytest.mark.virtual
async def test_a_document_that_somebody_deleted_or_spoilt_is_written_again() -> None:
    store = Store()
    a = member(store)
    await announced(a)
    await store.delete(host_id("a"), (await store.read(host_id("a"))).etag)
    await announced(a)
    store._put(host_id("a"), "{")
    await announced(a)
    assert await record(store) == a.me


@pytest.mark.virtual
async def test_draining_is_not_taken_back_by_an_announcement_that_is_under_way() -> None:
    store = Store()
    a = member(store)
    await announced(a)
    store.late_s = 1.0
    beating = asyncio.create_task(a.announce(NOTHING))
    await asyncio.sleep(0.5)
    await a.announce(NOTHING, draining=True)
    await beating
    assert (await record(store)).draining
    await announced(a)
    assert (await record(store)).draining


@pytest.mark.virtual
@pytest.mark.parametrize("fault", ["lost", "ghost"])
@pytest.mark.parametrize("announcements", [0, 1])
async def test_a_host_that_leaves_takes_its_document_along_even_after_a_lost_answer(
    announcements: int, fault: str
) -> None:
    store = Store()
    a = member(store)
    for _ in range(announcements):
        await announced(a)
    store.faults = [fault]
    with pytest.raises(StoreAmbiguous):
        await a.announce(NOTHING)
    await a.leave()
    assert await store.list(HOSTS_PREFIX) == []


@pytest.mark.virtual
async def test_a_host_that_leaves_leaves_a_namesakes_document_alone() -> None:
    store = Store()
    earlier, later = member(store, incarnation="1"), member(store, incarnation="2")
    await announced(earlier)
    await announced(later)
    await earlier.leave()
    assert (await record(store)).incarnation == "2"


@pytest.mark.virtual
async def test_a_host_that_never_announced_itself_has_nothing_to_leave() -> None:
    store = Store()
    await announced(member(store, incarnation="1"))
    await member(store, incarnation="2").leave()
    assert (await record(store)).incarnation == "1"


@pytest.mark.virtual
async def test_hosts_are_alive_while_their_ticks_move_and_a_host_without_leases_is_one() -> None:
    store, clock = Store(), VirtualClock()
    a, b = member(store), member(store, "b", pipelines=("p",), leases_max=2)
    await announced(a)
    for _ in range(10):
        await announced(b)
        host_scan = await a.scan()
        assert host_scan.live == {"a", "b"}
        await clock.sleep(TIMING.balance_s)
    assert [(peer.name, peer.pipelines, peer.leases_max) for peer in host_scan.peers] == [
        ("a", frozenset(), None),
        ("b", frozenset({"p"}), 2),
    ]
    for _ in range(5):
        host_scan = await a.scan()
        await clock.sleep(TIMING.balance_s)
    assert host_scan.live == {"a"}  # itself too has stood still, and knows better
    assert host_scan.hosts.keys() == {"a", "b"}


@pytest.mark.virtual
async def test_a_host_is_new_until_it_sees_expiry_with_the_others_and_again_once_it_restarts() -> None:
    store, clock = Store(), VirtualClock()
    a = member(store)
    await announced(a)
    for incarnation in ("1", "2"):
        b, started = member(store, "b", incarnation), clock.monotonic()
        await announced(b)
        while any(peer.is_new for peer in (await a.scan()).peers if peer.name == "b"):
            await clock.sleep(1.0)
            await announced(b)
        new_for = TIMING.duration_s - TIMING.newcomer_slack_s
        assert new_for <= clock.monotonic() - started <= new_for + 1.0


@pytest.mark.virtual
async def test_an_outage_of_the_container_kills_nobody() -> None:
    store, clock = Store(), VirtualClock()
    a, b = member(store), member(store, "b")
    await announced(b)
    await a.scan()
    await clock.sleep(1000)
    assert (await a.scan()).live == {"a", "b"}


@pytest.mark.virtual
async def test_the_long_dead_are_cleared_away_and_nobody_else() -> None:
    store, clock = Store(), VirtualClock()
    a, dead, paused = member(store), member(store, "dead"), member(store, "paused")
    for each in (a, dead, paused):
        await announced(each)
    for _ in range(int(DEAD_AFTER * TIMING.duration_s / TIMING.balance_s) + 2):
        host_scan = await a.scan()
        await clock.sleep(TIMING.balance_s)
    assert sorted(stored.id for stored in host_scan.dead) == [host_id("dead"), host_id("paused")]
    await paused.announce(NOTHING)
    await a.clear_away(replace(host_scan, dead=host_scan.dead[:1]))
    with pytest.raises(StoreConflict):
        await a.clear_away(replace(host_scan, dead=host_scan.dead[1:]))
    assert [stored.id for stored in await store.list(HOSTS_PREFIX)] == [host_id("a"), host_id("paused")]


@pytest.mark.virtual
@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", "null", '{"version": 2}', "x" * 100_000, json.dumps({"version": 1, "host": "b", "tick": -1})],
)
async def test_a_document_that_cannot_be_read_is_told_and_hides_no_other(body: str) -> None:
    store = Store()
    a, c = member(store), member(store, "c")
    await announced(a)
    await announced(c)
    await store.create(host_id("b"), body)
    host_scan = await a.scan()
    assert host_scan.live == {"a", "c"}
    assert [*host_scan.invalid] == [host_id("b")]
    assert host_id("b") in str(host_scan.invalid[host_id("b")])


def test_hosts_with_another_lease_duration_are_named() -> None:
    hosts = [HostRecord(name=name, incarnation="1", lease_duration_s=s) for name, s in (("a", 60.0), ("b", 30.0))]
    assert [host.name for host in mismatched(hosts, 60.0)] == ["b"]


@pytest.mark.virtual
async def test_a_document_that_vanishes_while_it_is_read_again_is_created() -> None:
    store = Store()
    a = member(store)
    await announced(a)
    plain = store.replace

    async def vanished(id: str, body: str, etag: str) -> str:
        store.replace = plain  # type: ignore[method-assign]
        del store._documents[id]
        raise StoreMissing(id)

    store.replace = vanished  # type: ignore[method-assign]
    await a.announce(NOTHING)
    assert await record(store) == a.me
