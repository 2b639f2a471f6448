"""Which hosts are alive, as one host sees them, and whose documents are cleared away."""

from __future__ import annotations

import asyncio
import random

import pytest
from unit.leases.shown_hosts import TIMING, session_of

from leasehold.leases.errors import StoreConflict
from leasehold.leases.host_record import HostRecord, encode_host, host_id
from leasehold.leases.membership import DEAD_AFTER, HostScan, Membership
from leasehold.leases.stores.memory import MemoryStore


class Member:
    """A host that beats and looks until it is stopped."""

    def __init__(self, store: MemoryStore, name: str, incarnation: str = "1") -> None:
        self.session = session_of(store, name, incarnation)
        self.membership = Membership(store, self.session, clock=self.session._clock)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> Member:
        await self.session.open()
        beating = self.session.keep_beating(random.Random(1), lambda error: None)
        self._tasks = [asyncio.create_task(beating), asyncio.create_task(self._keep_looking())]
        return self

    async def _keep_looking(self) -> None:
        while True:
            await self.membership.look(())
            await asyncio.sleep(TIMING.look_s)

    def stop(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def scan(self) -> HostScan:
        return await self.membership.scan()


@pytest.mark.virtual
async def test_a_host_that_stops_is_dead_within_its_duration_and_a_look() -> None:
    store = MemoryStore()
    a, b = await Member(store, "a").start(), await Member(store, "b").start()
    await asyncio.sleep(20)
    assert (await a.scan()).live == {"a", "b"}
    b.stop()
    await asyncio.sleep(TIMING.duration_s + TIMING.look_s)
    assert (await a.scan()).live == {"a"}
    assert (await a.scan()).hosts.keys() == {"a", "b"}, "for people"
    a.stop()


@pytest.mark.virtual
async def test_a_host_is_new_until_it_could_have_seen_who_is_dead() -> None:
    store = MemoryStore()
    a = await Member(store, "a").start()
    await asyncio.sleep(20)
    b = await Member(store, "b").start()
    await a.membership.look(())
    assert (await a.scan()).new == {"b"}
    await asyncio.sleep(TIMING.duration_s + TIMING.look_s)
    assert (await a.scan()).new == frozenset()
    for member in (a, b):
        member.stop()


@pytest.mark.virtual
async def test_the_documents_of_long_dead_hosts_are_removed_and_no_sooner() -> None:
    store = MemoryStore()
    store._put(host_id("old"), encode_host(HostRecord(name="old", incarnation="1")))
    a = await Member(store, "a").start()
    await asyncio.sleep(DEAD_AFTER * TIMING.patience_s - 10)
    assert not (await a.scan()).dead
    await asyncio.sleep(20)
    scan = await a.scan()
    assert [each.id for each in scan.dead] == [host_id("old")]
    await a.membership.clear_away(scan)
    assert [each.id for each in await store.list("_hosts/")] == [host_id("a")]
    a.stop()


@pytest.mark.virtual
async def test_a_document_that_moved_after_all_is_not_removed() -> None:
    store = MemoryStore()
    store._put(host_id("old"), encode_host(HostRecord(name="old", incarnation="1")))
    a = await Member(store, "a").start()
    await asyncio.sleep(DEAD_AFTER * TIMING.patience_s + 10)
    scan = await a.scan()
    store._put(host_id("old"), encode_host(HostRecord(name="old", incarnation="1", tick=1)))
    with pytest.raises(StoreConflict):
        await a.membership.clear_away(scan)
    a.stop()


@pytest.mark.virtual
async def test_while_a_host_cannot_write_it_judges_nobody() -> None:
    store = MemoryStore()
    a, b = await Member(store, "a").start(), await Member(store, "b").start()
    await asyncio.sleep(20)
    for member in (a, b):
        member._tasks[0].cancel()
    await asyncio.sleep(60)
    assert (await a.scan()).live == {"a", "b"}
    for member in (a, b):
        member.stop()


@pytest.mark.virtual
async def test_a_document_that_cannot_be_read_is_reported() -> None:
    store = MemoryStore()
    store._put(host_id("x"), "{")
    a = await Member(store, "a").start()
    assert [*(await a.scan()).invalid] == [host_id("x")]
    a.stop()
