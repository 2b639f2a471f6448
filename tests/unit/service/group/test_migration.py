"""An import or a downgrade that is disturbed: by hosts that live, by others that write, and by a store that fails."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from unit.leases.lease_documents import dotnet
from unit.service.cli.test_migration import Etags

from leasehold.common.clock import Clock
from leasehold.leases.document import decode_lease, encode_lease, lease_id
from leasehold.leases.errors import GroupMismatch, StoreAmbiguous, StoreUnavailable
from leasehold.leases.host_record import HOSTS_PREFIX, HostRecord, encode_host, host_id
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.membership import Membership
from leasehold.leases.session import SESSIONS_PREFIX, Session, SessionRecord, encode_session, session_id
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import SessionTiming, Timing
from leasehold.pipeline.connectors.memory import MemoryDestination, MemorySink
from leasehold.service.errors import NotNow
from leasehold.service.group.downgrade import SAID_EVERY_S, Downgrade, downgrade
from leasehold.service.group.import_sources import Import
from leasehold.service.group.migration import Report, execute, plan_import
from leasehold.service.pipeline import Pipeline

TIMING = Timing()


class LoopClock:
    """Virtual time."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Frail(MemoryStore):
    """Fails the writes that it is told to, by their number; `before` happens first, `lost` only loses the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[int, Callable[[], Any]] = {}
        self.lost: set[int] = set()
        self.writes = 0

    async def create(self, id: str, body: str) -> str:
        return await self._written(lambda: super(Frail, self).create(id, body))

    async def replace(self, id: str, body: str, etag: str) -> str:
        return await self._written(lambda: super(Frail, self).replace(id, body, etag))

    async def _written(self, write: Callable[[], Any]) -> str:
        self.writes += 1
        if fault := self.faults.pop(self.writes, None):
            await fault()
        etag = str(await write())
        if self.writes in self.lost:
            raise StoreAmbiguous("no answer")
        return etag


class Bench:
    def __init__(self) -> None:
        self.store = Frail()
        self.clock: Clock = LoopClock()
        self.keeper = Keeper(self.store, host="operator", incarnation="op", clock=self.clock, timing=TIMING)
        self.pipeline = Pipeline(name="orders", feed=Etags(), sink=MemorySink(MemoryDestination()))
        self.said: list[str] = []

    def order(self, **positions: str) -> Import:
        lines = [json.dumps(dotnet(name.removeprefix("p"), f'"{at}"')) for name, at in positions.items()]
        return Import(pipeline=self.pipeline, source="dotnet", text="\n".join(lines))

    async def planned(self, order: Import) -> Report:
        return await plan_import(self.keeper, order, clock=self.clock, say=self.said.append)

    async def imported(self, order: Import) -> Report:
        return await execute(self.keeper, order, await self.planned(order))

    async def positions(self) -> dict[str, str | None]:
        return {lease.partition: lease.continuation for lease in (await self.keeper.scan(["orders"])).leases}

    async def keep(self, **leases: Any) -> None:
        for name, fields in leases.items():
            await self.keeper.create(Lease(pipeline="orders", partition=name.removeprefix("p"), **fields))


def kinds(report: Report) -> list[tuple[str, str]]:
    return [(change.partition, change.kind) for change in report.changes]


OWNED = {"owner": "host-a", "incarnation": "1", "continuation": '"10"'}
JUDGED = {**OWNED, "by_session": True}
D = SessionTiming().duration_s


@pytest.mark.virtual
async def test_an_owner_who_renews_while_it_is_watched_keeps_its_lease() -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)

    async def renew() -> None:
        while True:
            await asyncio.sleep(TIMING.renew_s)
            seen = await bench.keeper.read("orders", "0")
            await bench.keeper.rewrite(seen, seen.lease.renewed())

    renewing = asyncio.create_task(renew())
    started = bench.clock.monotonic()
    report = await bench.imported(bench.order(p0="20"))
    renewing.cancel()
    assert kinds(report) == [("0", "refused")]
    assert report.changes[0].why.startswith("'host-a' owns it and is alive")
    assert bench.clock.monotonic() - started < TIMING.renew_s + 2
    assert await bench.positions() == {"0": '"10"'}


@pytest.mark.virtual
@pytest.mark.parametrize("is_alive", [True, False])
async def test_the_owner_of_an_idle_lease_is_judged_by_its_session(is_alive: bool) -> None:
    bench = Bench()
    await bench.keep(p0=JUDGED)
    session = Session(
        bench.store, SessionRecord(host="host-a", incarnation="1"), clock=bench.clock, timing=SessionTiming()
    )
    await session.beat()
    beating = asyncio.create_task(session.keep_beating(random.Random(1), lambda error: None))
    if not is_alive:
        beating.cancel()
    started = bench.clock.monotonic()
    report = await bench.imported(bench.order(p0="20"))
    beating.cancel()
    assert kinds(report) == [("0", "refused" if is_alive else "moved")]
    took = bench.clock.monotonic() - started
    assert took < SessionTiming().beat_s + 2 if is_alive else D <= took < D + 1


@pytest.mark.virtual
@pytest.mark.parametrize("lasts_s", [D / 2, 5 * D])
async def test_a_silent_session_is_watched_for_its_own_duration_or_ours_if_that_is_longer(lasts_s: float) -> None:
    bench = Bench()
    await bench.keep(p0=JUDGED)
    record = SessionRecord(host="host-a", incarnation="1", duration_s=lasts_s)
    await bench.store.create(session_id("host-a"), encode_session(record))
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "moved")]
    assert max(D, lasts_s) <= bench.clock.monotonic() < max(D, lasts_s) + 1
    assert bench.said == [f"watching for up to {max(D, lasts_s):g} s whether 1 lease has a live owner"]


@pytest.mark.virtual
@pytest.mark.parametrize("body", [None, "{"])
async def test_an_owner_whose_session_is_missing_or_unreadable_is_watched_for_a_sessions_duration(
    body: str | None,
) -> None:
    bench = Bench()
    await bench.keep(p0=JUDGED)
    if body is not None:
        await bench.store.create(session_id("host-a"), body)
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "moved")]
    assert D <= bench.clock.monotonic() < D + 1


@pytest.mark.virtual
async def test_a_session_that_comes_back_while_it_is_watched_shows_a_live_owner() -> None:
    bench = Bench()
    await bench.keep(p0=JUDGED)

    async def come_back() -> None:
        await asyncio.sleep(D - 1.5)
        await bench.store.create(session_id("host-a"), encode_session(SessionRecord(host="host-a", incarnation="2")))

    coming = asyncio.create_task(come_back())
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "refused")]
    await coming


@pytest.mark.virtual
async def test_the_time_of_a_session_that_is_removed_while_it_is_watched_starts_again() -> None:
    """A heartbeat may have been written before, and the lease may be released a moment later."""
    bench = Bench()
    await bench.keep(p0=JUDGED)
    record = SessionRecord(host="host-a", incarnation="1")
    etag = await bench.store.create(session_id("host-a"), encode_session(record))

    async def leave() -> None:
        await asyncio.sleep(D / 2)
        await bench.store.delete(session_id("host-a"), etag)

    leaving = asyncio.create_task(leave())
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "moved")]
    await leaving
    assert D * 3 / 2 <= bench.clock.monotonic() < D * 3 / 2 + 2


@pytest.mark.virtual
async def test_leases_of_both_kinds_are_watched_each_for_its_own_time() -> None:
    """A lease that a live host takes meanwhile, from an owner whose session has expired, stays with that host."""
    bench = Bench()
    await bench.keep(p0=OWNED, p1=JUDGED)

    async def take() -> None:
        await asyncio.sleep(2 * D)
        seen = await bench.keeper.read("orders", "1")
        await bench.keeper.rewrite(seen, seen.lease.acquired("host-b", "1", ""))

    taking = asyncio.create_task(take())
    report = await bench.imported(bench.order(p0="20", p1="20"))
    await taking
    assert (kinds(report), report.done) == ([("0", "moved"), ("1", "refused")], frozenset())
    assert report.changes[-1].why.startswith("'host-b' owns it and is alive")
    assert bench.clock.monotonic() == pytest.approx(TIMING.duration_s)


@pytest.mark.virtual
async def test_an_owner_who_releases_while_it_is_watched_is_not_in_the_way() -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)

    async def release() -> None:
        await asyncio.sleep(5)
        seen = await bench.keeper.read("orders", "0")
        await bench.keeper.rewrite(seen, seen.lease.released())

    releasing = asyncio.create_task(release())
    report = await bench.imported(bench.order(p0="20"))
    await releasing
    assert (kinds(report), report.problems) == ([("0", "moved")], ())
    assert bench.clock.monotonic() < 10
    assert await bench.positions() == {"0": '"20"'}


@pytest.mark.virtual
async def test_an_owner_long_gone_is_waited_for_a_lease_duration() -> None:
    bench = Bench()
    await bench.keep(p0=OWNED, p1={"continuation": '"5"'})
    report = await bench.imported(bench.order(p0="20", p1="5"))
    assert bench.clock.monotonic() == pytest.approx(TIMING.duration_s)
    assert kinds(report) == [("0", "moved"), ("1", "unchanged")]
    assert bench.said == ["watching for up to 60 s whether 1 lease has a live owner"]


@pytest.mark.virtual
async def test_nobody_is_watched_where_nothing_moves() -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)
    assert kinds(await bench.imported(bench.order(p0="10", p1="5"))) == [("0", "unchanged"), ("1", "created")]
    assert bench.clock.monotonic() == 0


async def refuse() -> None:
    raise StoreUnavailable("throttled")


@pytest.mark.virtual
@pytest.mark.parametrize("number", [2, 3, 4])
async def test_where_the_store_fails_in_the_middle_the_same_command_goes_on(number: int) -> None:
    """The first write is the pipeline's `info`."""
    bench = Bench()
    await bench.keep(p1={"continuation": '"5"'})
    order = bench.order(p0="20", p1="30", p2="40")
    bench.store.writes = 0
    bench.store.faults[number] = refuse
    report = await bench.imported(order)
    assert len(report.done) == number - 2
    assert "and those after it were not written (throttled): run the command again" in report.problems[0]
    again = await bench.imported(order)
    assert again.problems == ()
    assert report.done | again.done == {"0", "1", "2"}
    assert not report.done & again.done
    assert await bench.positions() == {"0": '"20"', "1": '"30"', "2": '"40"'}
    assert (await bench.keeper.read("orders", "1")).lease.generation == 1


@pytest.mark.virtual
async def test_a_lease_that_others_change_in_the_middle_is_left_to_them_and_the_rest_is_done() -> None:
    bench = Bench()
    await bench.keep(p0={"continuation": '"5"'}, p1={"continuation": '"5"'})

    async def checkpoint() -> None:
        seen = await bench.keeper.read("orders", "0")
        await MemoryStore.replace(bench.store, "orders/leases/0", _checkpointed(seen.lease), seen.etag)

    bench.store.writes = 0
    bench.store.faults[2] = checkpoint
    report = await bench.imported(bench.order(p0="20", p1="20", p2="20"))
    assert report.done == {"1", "2"}
    assert "lease '0' was not written" in report.problems[0]
    assert await bench.positions() == {"0": '"90"', "1": '"20"', "2": '"20"'}


def _checkpointed(lease: Lease) -> str:
    return encode_lease(lease.checkpointed('"90"', ""))


@pytest.mark.virtual
@pytest.mark.parametrize("partition", ["0", "1"])
async def test_an_answer_that_is_lost_is_looked_up_and_nothing_is_moved_twice(partition: str) -> None:
    bench = Bench()
    await bench.keep(p1={"continuation": '"5"'})
    bench.store.writes = 0
    bench.store.lost = {2 + int(partition)}
    report = await bench.imported(bench.order(p0="20", p1="20"))
    assert (report.done, report.problems) == ({"0", "1"}, ())
    assert (await bench.keeper.read("orders", "1")).lease.generation == 1


@pytest.mark.virtual
@pytest.mark.parametrize("partition", ["0", "1"])
async def test_an_answer_that_is_lost_before_anything_was_done_is_not_taken_for_done(partition: str) -> None:
    async def lose() -> None:
        raise StoreAmbiguous("no answer")

    bench = Bench()
    await bench.keep(p1={"continuation": '"5"'})
    bench.store.writes = 0
    bench.store.faults[2 + int(partition)] = lose
    report = await bench.imported(bench.order(p0="20", p1="20"))
    assert report.done == {"0", "1"} - {partition}
    assert f"lease '{partition}' was not written" in report.problems[0]
    assert (await bench.imported(bench.order(p0="20", p1="20"))).done == {partition}


@pytest.mark.virtual
async def test_leases_that_a_host_made_meanwhile_are_not_overwritten() -> None:
    bench = Bench()
    order = bench.order(p0="20")
    report = await bench.planned(order)
    await bench.keep(p0={"continuation": None})
    report = await execute(bench.keeper, order, report)
    assert "lease '0' was not written (another process has created it meanwhile)" in report.problems[0]
    assert await bench.positions() == {"0": None}
    assert (await bench.imported(order)).done == {"0"}


@pytest.mark.virtual
async def test_leases_of_another_feed_are_not_touched() -> None:
    bench = Bench()
    await bench.imported(bench.order(p0="20"))
    other = Etags()
    other.identity = "other"
    bench.pipeline = Pipeline(name="orders", feed=other, sink=MemorySink(MemoryDestination()))
    with pytest.raises(GroupMismatch):
        await bench.imported(bench.order(p0="30"))
    assert await bench.positions() == {"0": '"20"'}


# Back to the previous release


class Back(Bench):
    async def run(self) -> Downgrade:
        return await downgrade(self.keeper, clock=self.clock, say=self.said.append)

    async def leases(self) -> dict[str, Lease]:
        documents = await self.store.list("")
        found = [decode_lease(each.id, each.body) for each in documents if "/leases/" in each.id]
        return {lease.partition: lease for lease in found}

    async def leave_documents(self, name: str, *, has_session: bool = True) -> None:
        """Of a host that was killed."""
        record = HostRecord(name=name, incarnation="1", lease_duration_s=60.0, has_session=has_session)
        await self.store.create(host_id(name), encode_host(record))
        if has_session:
            await self.store.create(session_id(name), encode_session(SessionRecord(host=name, incarnation="1")))

    async def hosts(self) -> list[str]:
        return [each.id for each in await self.store.list("_") if each.id.startswith((HOSTS_PREFIX, SESSIONS_PREFIX))]

    @contextmanager
    def beating(self, name: str) -> Iterator[None]:
        """A host that has a session lives."""
        record = SessionRecord(host=name, incarnation="1")
        session = Session(self.store, record, clock=self.clock, timing=SessionTiming())
        task = asyncio.create_task(session.keep_beating(random.Random(1), lambda error: None))
        try:
            yield
        finally:
            task.cancel()


@pytest.mark.virtual
async def test_a_downgrade_puts_leases_back_and_removes_dead_hosts_within_a_sessions_duration() -> None:
    back = Back()
    await back.keep(p0=JUDGED, p1={"by_session": True, "closed": True, "epoch": 7}, p2=OWNED)
    replay = Lease(pipeline="orders.replay", partition="0", handoff_to="host-b", **JUDGED)
    await back.keeper.create(replay)
    before = {name: lease for name, lease in (await back.leases()).items() if name != "0"}
    await back.leave_documents("host-a")
    await back.leave_documents("host-b")
    started = back.clock.monotonic()
    done = await back.run()
    assert D <= back.clock.monotonic() - started < D + 1
    assert back.said == [f"watching for {D:g} s whether a host is alive: hosts 'host-a', 'host-b'"]
    assert not done.problems
    assert [lease.key for lease in done.leases] == [("orders", "0"), ("orders", "1"), ("orders.replay", "0")]
    assert dict(done.unchanged) == {"orders": 1}
    assert sorted(done.removed) == ["_hosts/host-a", "_hosts/host-b", "_sessions/host-a", "_sessions/host-b"]
    assert await back.hosts() == []
    after = await back.leases()
    assert not any(lease.by_session for lease in after.values())
    assert (after["0"].owner, after["0"].handoff_to, after["0"].continuation) == (None, None, '"10"')
    assert (after["1"].epoch, after["1"].closed) == (before["1"].epoch, True)
    assert after["2"] == before["2"]
    writes = back.store.writes
    again = await back.run()
    assert (again.leases, again.removed, again.problems, back.store.writes) == ((), (), (), writes)


@pytest.mark.virtual
async def test_a_downgrade_is_refused_at_the_first_sign_of_a_live_host() -> None:
    back = Back()
    await back.keep(p0=JUDGED)
    await back.leave_documents("host-a")
    await back.leave_documents("host-b")
    before = await back.leases()
    with (
        back.beating("host-b"),
        pytest.raises(NotNow, match=r"^host 'host-b' is alive, so nothing was changed: stop all hosts"),
    ):
        await back.run()
    assert await back.leases() == before
    assert len(await back.hosts()) == 4
    assert back.clock.monotonic() < D


@pytest.mark.virtual
async def test_a_live_host_is_found_although_its_documents_were_deleted() -> None:
    back = Back()
    await back.keep(p0=JUDGED)
    with back.beating("host-a"):
        await asyncio.sleep(1)
        for stored in await back.store.list(SESSIONS_PREFIX):
            await back.store.delete(stored.id, stored.etag)
        with pytest.raises(NotNow, match="host 'host-a' is alive"):
            await back.run()


@pytest.mark.virtual
@pytest.mark.parametrize("is_alive", [True, False])
async def test_a_host_without_a_session_is_watched_for_a_lease_duration(is_alive: bool) -> None:
    back = Back()
    await back.keep(p0={"by_session": True})
    record = HostRecord(name="host-o", incarnation="1", lease_duration_s=TIMING.duration_s)
    member = Membership(back.store, record, clock=back.clock, timing=TIMING)
    await member.announce({})

    async def live() -> None:
        while is_alive:
            await asyncio.sleep(TIMING.renew_s)
            await member.announce({})

    living = asyncio.create_task(live())
    if is_alive:
        with pytest.raises(NotNow, match="host 'host-o' is alive"):
            await back.run()
    else:
        assert (await back.run()).removed == ("_hosts/host-o",)
        assert back.clock.monotonic() >= TIMING.duration_s
        assert len(back.said) == 1 + int(TIMING.duration_s / SAID_EVERY_S)
        assert back.said[-2:] == ["15 s left", "0 s left"]
    living.cancel()


@pytest.mark.virtual
@pytest.mark.parametrize("id", [session_id("host-a"), host_id("host-a")])
async def test_an_unreadable_document_of_a_host_is_watched_for_a_lease_duration(id: str) -> None:
    back = Back()
    await back.store.create(id, "{")
    assert (await back.run()).removed == (id,)
    assert back.clock.monotonic() >= TIMING.duration_s


@pytest.mark.virtual
async def test_a_host_that_starts_during_a_downgrade_is_reported() -> None:
    back = Back()
    await back.keep(p0={"by_session": True})
    back.store.faults[back.store.writes + 1] = lambda: back.leave_documents("host-z")
    done = await back.run()
    assert done.problems == ("host 'host-z' started meanwhile: stop all hosts, and run the command again",)
    assert len(await back.hosts()) == 2


@pytest.mark.virtual
async def test_a_lost_answer_and_a_busy_container_do_not_disturb_a_downgrade() -> None:
    back = Back()
    await back.keep(p0={"by_session": True})
    back.store.lost.add(back.store.writes + 2)

    async def throttle() -> None:
        raise StoreUnavailable("too many requests", retry_after_s=3.0)

    back.store.faults[back.store.writes + 1] = throttle
    assert (await back.run()).problems == ()
    assert back.clock.monotonic() >= 3
    assert not (await back.leases())["0"].by_session


@pytest.mark.virtual
async def test_a_downgrade_reports_the_leases_that_it_could_not_write_and_puts_the_others_back() -> None:
    back = Back()
    await back.keep(**{f"p{name}": {"by_session": True} for name in "01"})
    await back.store.create(lease_id("orders", "2"), "{")

    async def fail() -> None:
        raise StoreUnavailable("no route")

    back.store.faults[back.store.writes + 1] = fail
    done = await back.run()
    assert [lease.partition for lease in done.leases] == ["1"]
    unreadable, failed = done.problems
    assert "leasehold leases reset FILE orders 2" in unreadable
    assert failed.startswith("lease '0' of pipeline 'orders' was not written (no route): run the command again")
    assert [lease.partition for lease in (await back.run()).leases] == ["0"]
