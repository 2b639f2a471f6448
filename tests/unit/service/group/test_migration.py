"""An import that is disturbed: by hosts that live, by others that write, and by a store that fails."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from unit.leases.lease_documents import dotnet
from unit.service.cli.test_migration import Etags

from leasehold.common.clock import Clock
from leasehold.leases.document import encode_lease
from leasehold.leases.errors import GroupMismatch, StoreAmbiguous, StoreUnavailable
from leasehold.leases.host_record import HostRecord, encode_host, host_id
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.session import Session
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import LASTS_S_MAX, Timing
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.service.group.import_sources import Import
from leasehold.service.group.migration import Report, execute, plan_import
from leasehold.service.pipeline import PipelineParts

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
        self.pipeline = PipelineParts(name="orders", feed=Etags(), sink=MemoryOutputSink(MemoryDestination()))
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
D = Timing().duration_s


@pytest.mark.virtual
@pytest.mark.parametrize("is_alive", [True, False])
async def test_the_owner_of_an_idle_lease_is_judged_by_its_document(is_alive: bool) -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)
    record = HostRecord(name="host-a", incarnation="1")
    session = Session(bench.store, record, clock=bench.clock, timing=Timing())
    await session.open()
    beating = asyncio.create_task(session.keep_beating(random.Random(1), lambda error: None))
    if not is_alive:
        beating.cancel()
    started = bench.clock.monotonic()
    report = await bench.imported(bench.order(p0="20"))
    beating.cancel()
    assert kinds(report) == [("0", "refused" if is_alive else "moved")]
    took = bench.clock.monotonic() - started
    assert took < Timing().beat_s + 2 if is_alive else D <= took < D + 1


@pytest.mark.virtual
@pytest.mark.parametrize("lasts_s", [D / 2, 5 * D])
async def test_a_silent_host_is_watched_for_the_duration_that_its_document_names(lasts_s: float) -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)
    record = HostRecord(name="host-a", incarnation="1", lasts_s=lasts_s)
    await bench.store.create(host_id("host-a"), encode_host(record))
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "moved")]
    assert lasts_s <= bench.clock.monotonic() < lasts_s + 1
    assert bench.said == [f"watching for up to {lasts_s:g} s whether 1 lease has a live owner"]


@pytest.mark.virtual
async def test_a_host_that_comes_back_while_it_is_watched_shows_a_live_owner() -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)

    async def come_back() -> None:
        await asyncio.sleep(D - 1.5)
        await bench.store.create(host_id("host-a"), encode_host(HostRecord(name="host-a", incarnation="2")))

    coming = asyncio.create_task(come_back())
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "refused")]
    await coming


@pytest.mark.virtual
async def test_the_time_of_a_host_that_is_removed_while_it_is_watched_starts_again() -> None:
    """A heartbeat may have been written before, and the lease may be released a moment later."""
    bench = Bench()
    await bench.keep(p0=OWNED)
    record = HostRecord(name="host-a", incarnation="1")
    etag = await bench.store.create(host_id("host-a"), encode_host(record))

    async def leave() -> None:
        await asyncio.sleep(D / 2)
        await bench.store.delete(host_id("host-a"), etag)

    leaving = asyncio.create_task(leave())
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "moved")]
    await leaving
    assert D * 3 / 2 <= bench.clock.monotonic() < D * 3 / 2 + 2


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
async def test_an_owner_long_gone_is_waited_for_as_long_as_its_document_may_have_named() -> None:
    bench = Bench()
    await bench.keep(p0=OWNED, p1={"continuation": '"5"'})
    report = await bench.imported(bench.order(p0="20", p1="5"))
    assert bench.clock.monotonic() == pytest.approx(LASTS_S_MAX)
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
    bench.pipeline = PipelineParts(name="orders", feed=other, sink=MemoryOutputSink(MemoryDestination()))
    with pytest.raises(GroupMismatch):
        await bench.imported(bench.order(p0="30"))
    assert await bench.positions() == {"0": '"20"'}


@pytest.mark.virtual
@pytest.mark.parametrize("body", [None, "{"])
async def test_an_owner_whose_document_is_missing_or_unreadable_is_watched_for_as_long_as_it_may_have_asked_for(
    body: str | None,
) -> None:
    bench = Bench()
    await bench.keep(p0=OWNED)
    if body is not None:
        await bench.store.create(host_id("host-a"), body)
    assert kinds(await bench.imported(bench.order(p0="20"))) == [("0", "moved")]
    assert LASTS_S_MAX <= bench.clock.monotonic() < LASTS_S_MAX + 1
