"""What owners report with each heartbeat, beside the truth: another host reads it while events wait, move and are delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from lab.simulation.loop import VirtualClock
from patience import until_async
from unit.service.conftest import NOW

from leasehold.leases.host_record import HostRecord
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.session import Session
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.feed import KnownLag
from leasehold.pipeline.pump.progress import TimedEvents, WaitingEvents, microseconds
from leasehold.pipeline.sink import Claim
from leasehold.service.group.view import View
from leasehold.service.lag.age import NO_REPORTS, aged, reported_seconds, wait_to_report
from leasehold.service.lag.measurement import Lag, PartitionLag
from leasehold.service.lag.reports import STALLED_S, OwnerReport, OwnerReports, encoded_waits, fingerprint_of
from leasehold.service.pipeline import PipelineParts

KEY = LeaseKey("bank", "a")
EVERY_S = 0.5
CHECKPOINT_S = 5.0
LATE_S = 6.0
"""How old the knowledge of others may be: docs/metrics.md."""


def measured(events: int | None = 1, **fields: object) -> PartitionLag:
    return replace(PartitionLag(pipeline="bank", partition="a", events=events), **fields)


def lease(partition: str = "a", **fields: object) -> Lease:
    owned = Lease(pipeline="bank", partition=partition, owner="b", incarnation="b-1", epoch=3)
    return replace(owned, **fields)


def report(waited_s: float, age_s: float = 0.0, *, is_overdue: bool = False) -> OwnerReport:
    return OwnerReport(waited_s, age_s, 3.0, is_overdue)


class Group:
    """Host b works on a partition, as slowly as a test wants, and this process reads the group. All is real but the pump.

    The sink holds its position, so the lease has it only every CHECKPOINT_S seconds.
    """

    def __init__(self) -> None:
        self.clock, self.store, timing = VirtualClock(), MemoryStore(), Timing()
        self.feed, self.enqueued = MemoryChangeFeed(["a"]), list[float]()
        pipeline = PipelineParts(
            name="bank", feed=self.feed, sink=MemoryOutputSink(MemoryDestination()), checkpoint_s=CHECKPOINT_S
        )
        me = HostRecord(name="b", incarnation="b-1", pipelines=("bank",))
        self.session = Session(self.store, me, clock=self.clock, timing=timing)
        self.session.report = self._report
        self.keeper = Keeper(
            self.store, host="b", incarnation="b-1", clock=self.clock, timing=timing, session=self.session
        )
        reader = Keeper(self.store, host="a", incarnation="a-1", clock=self.clock, timing=timing)
        self.view = View(reader, [pipeline], clock=self.clock, now=self.now)
        self.waiting = WaitingEvents()
        self.delivers = self.reads = True
        self.is_killed = False
        self.delivered = 0
        self.truths: list[tuple[float, float]] = []
        self._read = 0
        self._tasks: list[asyncio.Task[None]] = []

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.clock.monotonic())

    async def start(self) -> None:
        await self.keeper.create(Lease(pipeline="bank", partition="a"))
        await self.session.beat()
        owned = await self.keeper.take(await self.keeper.read(*KEY), lambda state: state)
        assert owned is not None
        self.owned = owned
        self.waiting.begin(None)
        self._tasks = [asyncio.create_task(each) for each in (self._beat(), self._checkpoint())]
        self._appending = asyncio.create_task(self._append())

    def kill(self) -> None:
        """Host b, at once."""
        self.is_killed = True
        for task in self._tasks:
            task.cancel()

    def stop_events(self) -> None:
        self._appending.cancel()

    @property
    def truth(self) -> float:
        waits = self.enqueued[self.delivered :]
        return self.clock.monotonic() - waits[0] if waits else 0.0

    async def compare(self, seconds: float) -> list[float]:
        """What this process says each second, beside the truth. It must lie between what was true lately.

        An event that waited for longer than a heartbeat counts as waiting still. What a dead
        owner delivered after its last heartbeat counts as waiting.
        """
        said, until_at = [], self.clock.monotonic() + seconds
        while self.clock.monotonic() < until_at:
            await self.watch(1)
            now, found = self.clock.monotonic(), (await self.view.read_lag(1)).seconds
            assert found is not None
            lately = [(at, truth) for at, truth in self.truths if at >= now - LATE_S]
            beat_s = self.session.timing.beat_s
            most = max(truth + now - at if truth > beat_s else truth for at, truth in lately)
            most = max(most, self.truth + beat_s + 1 if self.is_killed else 0.0)
            least = min(truth for _, truth in lately)
            assert least - 0.1 <= found <= most + 0.1, f"at {now}: {found}, and the truth is {self.truth}"
            said.append(found)
        return said

    async def watch(self, seconds: float) -> None:
        """The group is read each second, as a host does that looks at the sessions."""
        for n in range(round(seconds * 10)):
            await asyncio.sleep(0.1)
            self.truths.append((self.clock.monotonic(), self.truth))
            if n % 10 == 0:
                await self.view.read_lag(1)

    async def _append(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self.enqueued.append(self.clock.monotonic())
            self.feed.append("a", [b"{}"], at=self.now())
            self.pump()

    def pump(self) -> None:
        """Read and deliver all, if it works."""
        if self.is_killed:
            return
        if self.reads:
            for at in self.enqueued[self._read :]:
                self.waiting._runs.append(_one_event(at))
            self._read = len(self.enqueued)
        if self.delivers and (count := self._read - self.delivered):
            self.waiting.deliver(count, str(self._read))
            self.delivered = self._read

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.session.timing.beat_s)
            await self.session.beat()

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            if self.delivered:
                await self.owned.checkpoint(str(self.delivered), "")

    def _report(self) -> Mapping[str, object]:
        waited_s = wait_to_report(self.waiting, self.now(), None, is_metered=False)
        return encoded_waits({KEY: waited_s}, {KEY: self.owned.lease} if hasattr(self, "owned") else {})


def _one_event(at: float) -> TimedEvents:
    return TimedEvents(1, np.array([microseconds(NOW + timedelta(seconds=at))], np.int64))


# A sink that keeps its position


@pytest.mark.virtual
async def test_a_busy_partition_of_another_host_is_as_old_as_its_owner_reports() -> None:
    group = Group()
    await group.start()
    await group.watch(8)
    assert max(await group.compare(30)) < 0.1


@pytest.mark.virtual
async def test_the_age_grows_while_a_sink_refuses_and_ends_soon_after_it_takes_all() -> None:
    group = Group()
    await group.start()
    await group.watch(8)
    group.delivers = False
    said = await group.compare(36)
    assert said[-1] == pytest.approx(36, abs=1)
    group.delivers = True
    group.pump()
    said = await group.compare(30)
    assert max(said[5:]) < 0.6


@pytest.mark.virtual
@pytest.mark.parametrize("fails_before", [False, True])
async def test_the_age_grows_after_the_owner_died(fails_before: bool) -> None:
    group = Group()
    await group.start()
    await group.watch(8)
    if fails_before:
        group.delivers = False
        await group.watch(20)
        group.delivers = True
        group.pump()
        await group.watch(3.5)
    group.kill()
    said = await group.compare(30)
    assert said[-1] == pytest.approx(30, abs=4)
    assert sorted(said[5:]) == said[5:]


@pytest.mark.virtual
async def test_the_age_of_a_dead_owner_does_not_grow_if_nothing_waits() -> None:
    group = Group()
    await group.start()
    await group.watch(8)
    group.stop_events()
    await group.watch(6)
    group.kill()
    assert set(await group.compare(20)) == {0.0}


@pytest.mark.virtual
async def test_events_that_their_owner_does_not_read_are_noticed() -> None:
    group = Group()
    await group.start()
    await group.watch(8)
    group.reads = False
    await group.watch(CHECKPOINT_S * 2 + STALLED_S + 3)
    seconds = (await group.view.read_lag(1)).seconds
    assert seconds == pytest.approx(group.truth, abs=1)


# Single reports


@pytest.mark.parametrize(
    ("one", "given", "seconds"),
    [
        (measured(3, waited_s=36.0), report(0.02), 0.02),  # the lease is behind what is delivered
        (measured(3, waited_s=1.0), report(9.0), 3),  # another partition of the owner is that old
        (measured(3, waited_s=36.0), report(30.0, 2.0), 32),  # waits still
        (measured(3, waited_s=36.0), report(1.0, 2.0), 1),  # may be delivered
        (measured(3, waited_s=36.0), report(1.0, 5.0, is_overdue=True), 6),
        (measured(0), report(1.0, 5.0, is_overdue=True), 2),  # what came since the measurement
        (measured(0, early_s=4.0), report(1.0, 9.0, is_overdue=True), 6),
        (measured(3), report(1.0), 1),  # the feed cannot tell
        (measured(0, error="away"), report(0.0), None),
        (measured(None, error="away"), report(1.0), None),
    ],
)
def test_the_age_by_a_report(one: PartitionLag, given: OwnerReport, seconds: float | None) -> None:
    found = aged(Lag((one,)), 2.0, own=lambda one: None, owned=(), slack_s=lambda one: None, reports={one.key: given})
    assert found.partitions[0].seconds == seconds


@pytest.mark.parametrize(
    ("one", "given", "seconds"),
    [
        (measured(9, waited_s=39.0, age_s=40.0), report(0.0, 2.5), 0),  # recovered since the others' last document
        (measured(None, error="no host has reported its lag yet"), report(0.0, 2.5), 0),
        (measured(9, waited_s=39.0, age_s=40.0), report(0.0, 5.0, is_overdue=True), 5),
        (measured(9, waited_s=39.0, age_s=40.0), report(20.0, 1.0), 21),
        (measured(9, waited_s=7.0, age_s=1.0), report(0.0, 9.0, is_overdue=True), 10),  # measured since
        (measured(0), report(0.0, 9.0, is_overdue=True), 0),
    ],
)
def test_the_age_in_a_partition_of_a_hub_by_a_report(one: PartitionLag, given: OwnerReport, seconds: float) -> None:
    assert reported_seconds(one, 2.0, given, is_metered=True) == seconds


def test_an_owner_that_may_have_events_to_read_reports_nothing() -> None:
    read = WaitingEvents()
    assert wait_to_report(read, NOW, None, is_metered=False) is None
    read.begin("7")
    assert wait_to_report(read, NOW, None, is_metered=False) == 0
    assert wait_to_report(read, NOW, None, is_metered=True) is None
    assert wait_to_report(read, NOW, KnownLag(0, 20.0), is_metered=True) == 0
    assert wait_to_report(read, NOW, KnownLag(3, 20.0), is_metered=True) is None
    read.add_unknown(10)
    assert wait_to_report(read, NOW, None, is_metered=False) is None


def test_a_pipeline_is_reported_if_all_its_partitions_are_known() -> None:
    leases = {each.key: each for each in (lease("a"), lease("b"))}
    a, b = leases
    assert encoded_waits({a: 1.0, b: 0.25}, leases) == {"bank": (1.0, fingerprint_of(leases.values()))}
    assert encoded_waits({a: 1.0, b: None}, leases) == {}
    assert encoded_waits({}, {}) == {}


# Reports as they are read


class Hand:
    """A clock that tests move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Read:
    """A process that reads sessions of host b, one each second."""

    clock: Hand
    reports: OwnerReports

    def sessions(self, *ticks: int, waits: object) -> None:
        for tick in ticks:
            self.clock.now += 1
            record = HostRecord(name="b", incarnation="b-1", tick=tick, lasts_s=3.0 * 7 / 2.88, waits={"bank": waits})
            self.reports.note([record], at=self.clock.now)


@pytest.fixture
def read() -> Read:
    clock = Hand()
    return Read(clock, OwnerReports(clock))


ENTRY = [7.5, fingerprint_of([lease()])]


def test_a_report_counts_once_it_has_replaced_another(read: Read) -> None:
    read.sessions(4, 4, 4, waits=ENTRY)
    assert read.reports.find([lease()]) == {}  # a dead host's may be of yesterday
    read.sessions(5, 5, waits=ENTRY)
    assert read.reports.find([lease()]) == {KEY: report(7.5, 1.0)}
    read.sessions(4, waits=[0.0, ENTRY[1]])  # a reading that began earlier
    assert read.reports.find([lease()])[KEY].waited_s == 7.5


def test_a_report_that_is_not_replaced_in_time_is_overdue(read: Read) -> None:
    read.sessions(4, 5, 5, 5, 5, 5, waits=ENTRY)
    assert not read.reports.find([lease()])[KEY].is_overdue
    read.clock.now += 30  # without reading it
    assert not read.reports.find([lease()])[KEY].is_overdue
    read.sessions(5, waits=ENTRY)
    assert read.reports.find([lease()])[KEY].is_overdue


@pytest.mark.parametrize(
    "leases",
    [
        [lease(generation=1)],  # reset since
        [lease(epoch=4)],
        [lease(incarnation="b-2")],
        [lease(owner=None, incarnation=None)],
        [lease(), lease("b")],  # taken since
        [lease("b")],
    ],
)
def test_a_report_about_other_leases_does_not_count(read: Read, leases: list[Lease]) -> None:
    read.sessions(4, 5, waits=ENTRY)
    assert read.reports.find(leases) == NO_REPORTS


@pytest.mark.parametrize(
    "entry", [None, 7.5, [7.5], ["7.5", ENTRY[1]], [-1, ENTRY[1]], [float("nan"), ENTRY[1]], [True, ENTRY[1]], [7, "x"]]
)
def test_a_report_that_cannot_be_trusted_does_not_count(read: Read, entry: object) -> None:
    read.sessions(4, 5, waits=entry)
    assert read.reports.find([lease()]) == NO_REPORTS


# Hosts


class Slow(MemoryOutputSink):
    """Once it is open, it takes nothing until it may."""

    def __init__(self) -> None:
        super().__init__(MemoryDestination())
        self.may = asyncio.Event()
        self._is_open = False

    async def open(self, claim: Claim):  # type: ignore[no-untyped-def]
        writer = await super().open(claim)
        self._is_open = True
        return writer

    async def _request(self, request):  # type: ignore[no-untyped-def]
        if self._is_open:
            await self.may.wait()
        return await super()._request(request)


async def test_a_host_reports_with_each_heartbeat_and_the_others_read_it(start) -> None:  # type: ignore[no-untyped-def]
    feed, sink = MemoryChangeFeed(["a"]), Slow()
    owner = await start("host-b", feeds={"bank": feed}, sinks={"bank": sink})
    await until_async(lambda: KEY in owner.host.workers)
    other = await start("host-a", feeds={"bank": feed}, sinks={"bank": sink})
    feed.append("a", [b"{}"], at=NOW - timedelta(seconds=30))

    async def reported() -> float | None:
        group = await other.view.read_group()
        found = other.view._reports_of([status.lease for status in group.leases.values()]).get(KEY)
        return None if found is None else found.waited_s

    async def says(waited_s: float) -> bool:
        return await reported() == waited_s

    await until_async(lambda: says(30))
    assert (await other.view.read_lag(0)).seconds == pytest.approx(30, abs=3)
    sink.may.set()
    await until_async(lambda: says(0))
    assert (await other.view.read_lag(0)).seconds == 0
