"""How long the oldest event has waited: by its owner, by its feed, and never a guess."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta
from math import inf

import pytest
from lab.simulation.loop import VirtualClock
from patience import until_async
from unit.service.conftest import NOW

from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink, MemoryWriter
from leasehold.pipeline.errors import FeedUnavailable, SinkRejected, SinkUnavailable
from leasehold.pipeline.feed import KnownLag
from leasehold.pipeline.pump.progress import WaitingEvents, microseconds
from leasehold.pipeline.sink import Claim
from leasehold.pipeline.transform import NoTransform
from leasehold.service.checkpoints import Checkpoints
from leasehold.service.group.view import View
from leasehold.service.lag.age import FIND_S, FirstEvents, aged, own_seconds, owned_wait_s
from leasehold.service.lag.measurement import Lag, PartitionLag, filled, measure_lag
from leasehold.service.pipeline import PipelineParts

KEY = LeaseKey("bank", "a")


class Hand:
    """A clock that tests move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Asked(MemoryChangeFeed):
    """asked: the positions that it was asked about. answer: instead of its own."""

    def __init__(self, *ages_s: float) -> None:
        super().__init__(["a"])
        self.asked: list[str | None] = []
        self.answer: Exception | None = None
        self.is_silent = False
        for age_s in ages_s:
            self.append("a", [b"{}"], at=NOW - timedelta(seconds=age_s))

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        self.asked.append(continuation)
        if self.answer is not None:
            raise self.answer
        if self.is_silent:
            await asyncio.Event().wait()
        return await super().find_enqueued_time(partition, continuation)


def lease(continuation: str | None = None, **fields: object) -> Lease:
    return replace(Lease(pipeline="bank", partition="a", continuation=continuation), **fields)


def measured(events: int | None = 1, **fields: object) -> PartitionLag:
    return replace(PartitionLag(pipeline="bank", partition="a", events=events), **fields)


def waiting(first_age_s: float | None = None, at: str | None = None) -> WaitingEvents:
    found = WaitingEvents()
    found.begin(at)
    if first_age_s is not None:
        found._first_us = microseconds(NOW - timedelta(seconds=first_age_s))
    return found


# By the feed


async def test_a_feed_is_asked_once_for_each_position_and_the_age_grows() -> None:
    feed, now = Asked(30, 20), NOW
    first = FirstEvents(Hand(), lambda: now)
    assert await first.find(feed, lease()) == 30
    now += timedelta(seconds=5)
    assert await first.find(feed, lease()) == 35
    assert await first.find(feed, lease("1")) == 25
    assert feed.asked == [None, "1"]


async def test_an_event_from_the_future_is_0_seconds_old() -> None:
    assert await FirstEvents(Hand(), lambda: NOW).find(Asked(-7), lease()) == 0
    assert owned_wait_s(waiting(-7), NOW) == 0


async def test_a_feed_that_fails_or_cannot_tell_leaves_the_age_unknown_and_is_asked_again() -> None:
    feed = Asked(30)
    first = FirstEvents(Hand(), lambda: NOW)
    feed.answer = FeedUnavailable("away")
    assert await first.find(feed, lease()) is None
    feed.answer = None
    assert await first.find(feed, lease()) == 30
    assert feed.asked == [None, None]


async def test_a_time_without_a_zone_is_no_answer() -> None:
    class Naive(MemoryChangeFeed):
        async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
            return NOW.replace(tzinfo=None)

    assert await FirstEvents(Hand(), lambda: NOW).find(Naive(["a"]), lease()) is None


@pytest.mark.virtual
async def test_a_feed_that_does_not_say_when_does_not_hold_up_how_many() -> None:
    feed = Asked(30)
    feed.is_silent = True
    loop = asyncio.get_running_loop()
    began = loop.time()
    first = FirstEvents(Hand(), lambda: NOW)
    (one,) = (await measure_lag([lease()], {"bank": feed}, find_wait=first.find)).partitions
    assert (one.events, one.waited_s) == (1, None)
    assert loop.time() - began == pytest.approx(FIND_S, abs=0.5)


async def test_without_a_wall_clock_nothing_is_asked() -> None:
    feed = Asked(30)
    assert await FirstEvents(Hand(), None).find(feed, lease()) is None
    assert feed.asked == []


async def test_leases_that_are_gone_are_forgotten() -> None:
    first = FirstEvents(Hand(), lambda: NOW)
    first.note(lease())
    first.keep([])
    assert first._found == {}


def test_how_long_a_position_has_stood_is_noted() -> None:
    clock = Hand()
    first = FirstEvents(clock, lambda: NOW)
    first.note(lease("1"))
    clock.now += 4
    first.note(lease("1"))
    assert (first.stood_s(lease("1")), first.stood_s(lease("2"))) == (4, 0)


# Of single partitions


@pytest.mark.parametrize(
    ("one", "slack_s", "seconds"),
    [
        (measured(0), None, 0),
        (measured(0, error="away", age_s=20.0), None, None),  # an event may have come since
        (measured(None, error="away"), None, None),
        (measured(3), None, None),  # the feed cannot tell
        (measured(3, waited_s=30.0), None, 32),
        (measured(3, waited_s=30.0, age_s=7.0), None, 39),
        (measured(3, waited_s=30.0, age_s=7.0), 0.0, 30),  # its owner may have delivered that event meanwhile
        (measured(3, waited_s=30.0), 5.0, 25),
        (measured(3, waited_s=3.0), 5.0, 0),
    ],
)
def test_the_age_in_a_partition_of_others(one: PartitionLag, slack_s: float | None, seconds: float | None) -> None:
    (found,) = aged(Lag((one,)), 2.0, own=lambda one: inf, owned=(), slack_s=lambda one: slack_s).partitions
    assert found.seconds == seconds


@pytest.mark.parametrize(
    ("one", "read", "seconds"),
    [
        (measured(3, waited_s=99.0), waiting(4), 4),  # what was read is right, whatever the lease shows
        (measured(None, error="away"), waiting(4), 4),
        (measured(3, waited_s=30.0, position="7"), waiting(at="7"), 32),  # the reader has not come so far
        (measured(3, waited_s=30.0, position="6"), waiting(at="7"), 0),  # delivered since
        (measured(3, position="7"), waiting(at="7"), None),
        (measured(0, position="7"), waiting(at="7"), 0),
        (measured(0, error="away", position="7"), waiting(at="7"), None),
        (measured(None, error="away"), waiting(at="7"), None),
        (measured(3, waited_s=30.0), WaitingEvents(), 32),  # the sink is being opened
        (measured(0), WaitingEvents(), 0),
    ],
)
def test_the_age_in_a_partition_of_ones_own(one: PartitionLag, read: WaitingEvents, seconds: float | None) -> None:
    assert own_seconds(one, 2.0, read, NOW, None, is_metered=False) == seconds


@pytest.mark.parametrize(
    ("known", "seconds"),
    [(None, None), (KnownLag(0, 0.0), 0), (KnownLag(3, 0.5), 0), (KnownLag(3, 20.0), None), (KnownLag(0, 20.0), 0)],
)
def test_a_metered_partition_is_at_its_end_by_what_its_reader_knows(
    known: KnownLag | None, seconds: float | None
) -> None:
    one = measured(3, waited_s=30.0)
    assert own_seconds(one, 2.0, waiting(at="7"), NOW, known, is_metered=True) == seconds
    assert own_seconds(one, 2.0, waiting(4), NOW, known, is_metered=True) == 4


def test_what_executors_read_has_an_unknown_age_unless_the_feed_knows() -> None:
    read = waiting(at="7")
    read.add_unknown(100)
    assert own_seconds(measured(3, waited_s=30.0), 2.0, read, NOW, None, is_metered=False) == 32
    assert own_seconds(measured(3), 2.0, read, NOW, None, is_metered=False) is None


# Together


def test_the_oldest_of_several_pipelines_is_unknown_if_one_is() -> None:
    ages = {"bank": [1.0, 9.0], "view": [4.0]}
    lag = Lag(tuple(measured(1, pipeline=name, partition=str(age), seconds=age) for name in ages for age in ages[name]))
    assert (lag.seconds, lag.of("view").seconds, lag.unknown_seconds) == (9, 4, 0)
    partly = Lag((*lag.partitions, measured(1, pipeline="view", partition="x")))
    assert (partly.seconds, partly.of("view").seconds, partly.of("bank").seconds, partly.oldest) == (None, None, 9, 9)
    assert (Lag(()).seconds, Lag(()).oldest) == (0, None)


def test_the_last_known_lag_keeps_how_long_its_first_event_has_waited() -> None:
    (one,) = filled(Lag((measured(None, error="away"),)), Lag((measured(3, waited_s=30.0),)), 10).partitions
    assert (one.events, one.waited_s, one.age_s) == (3, 30, 10)


@pytest.mark.virtual
async def test_a_feed_that_does_not_answer_leaves_the_ages_of_others_right() -> None:
    class Silent(Asked):
        async def lag(self, partition: str, continuation: str | None) -> int:
            await asyncio.Event().wait()
            return 0

    feeds, known = {"bank": Asked(30), "slow": Silent(50)}, LeaseKey("metered", "a")
    feeds["metered"] = feeds["slow"]
    leases = [lease(), lease(pipeline="slow"), lease(pipeline="metered")]
    clock = VirtualClock()
    began = clock.monotonic()
    answers = {known: measured(2, pipeline="metered", waited_s=10.0, age_s=1.0)}
    first = FirstEvents(clock, lambda: NOW + timedelta(seconds=clock.monotonic() - began))
    lag = await measure_lag(leases, feeds, find_wait=first.find, known=answers, clock=clock)
    took_s = clock.monotonic() - began
    assert took_s >= 3
    for each in (lag, filled(lag, lag, 0.0)):
        ages = aged(each, 0.0, own=lambda one: inf, owned=(), slack_s=lambda one: None)
        assert ages.of("bank").seconds == pytest.approx(30 + took_s, abs=0.01)
        assert ages.of("metered").seconds == pytest.approx(11 + took_s, abs=0.01)
    without = Lag(tuple(replace(one, events=None, waited_s=None) for one in lag.partitions))
    assert filled(without, lag, 0.0).of("bank").partitions[0].age_s == pytest.approx(took_s, abs=0.01)


@pytest.mark.virtual
async def test_a_view_shows_ages_as_of_now_beside_a_feed_that_does_not_answer() -> None:
    class Silent(MemoryChangeFeed):
        async def lag(self, partition: str, continuation: str | None) -> int:
            await asyncio.Event().wait()
            return 0

    clock = VirtualClock()
    began = clock.monotonic()
    bank, slow = Asked(30), Silent(["a"])
    keeper = Keeper(MemoryStore(), host="a", incarnation="1", clock=clock, timing=Timing())
    for name in ("bank", "slow"):
        await keeper.create(lease(pipeline=name))
    pipelines = [
        PipelineParts(name=name, feed=feed, sink=MemoryOutputSink(MemoryDestination()), transform=NoTransform())
        for name, feed in (("bank", bank), ("slow", slow))
    ]
    view = View(keeper, pipelines, clock=clock, now=lambda: NOW + timedelta(seconds=clock.monotonic() - began))
    for _ in range(2):
        seconds = (await view.read_lag(60)).of("bank").seconds
        assert clock.monotonic() - began >= 3
        assert seconds == pytest.approx(30 + clock.monotonic() - began, abs=0.01)
        await asyncio.sleep(5)


# Hosts


@pytest.fixture
def lease_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No checkpoint is written before the end of the work."""

    async def never(self: Checkpoints) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Checkpoints, "keep_lazily", never)


async def seconds_of(running) -> float | None:  # type: ignore[no-untyped-def]
    found: float | None = (await running.view.read_lag(60)).seconds
    return found


async def test_an_owner_knows_the_age_without_a_measurement(start) -> None:  # type: ignore[no-untyped-def]
    class Away(MemoryOutputSink):
        is_away = False

        async def open(self, claim: Claim):  # type: ignore[no-untyped-def]
            if self.is_away:
                raise SinkUnavailable("away")
            return await super().open(claim)

        async def _request(self, request):  # type: ignore[no-untyped-def]
            if self.is_away:
                raise SinkUnavailable("away")
            return await super()._request(request)

    feed, sink = Asked(), Away(MemoryDestination())
    running = await start(feeds={"bank": feed}, sinks={"bank": sink})
    await until_async(lambda: running.host.workers)
    await until_async(lambda: running.host.workers[KEY].progress.waiting.has_begun)
    assert await seconds_of(running) == 0
    sink.is_away = True
    for age_s in (30, 20):
        feed.append("a", [b"{}"], at=NOW - timedelta(seconds=age_s))
    await until_async(lambda: running.host.failures)
    assert await seconds_of(running) == 30
    sink.is_away = False

    async def is_done() -> bool:
        return await seconds_of(running) == 0

    await until_async(is_done)
    assert feed.asked == []


async def test_a_document_that_is_deleted_before_it_can_be_delivered_ages_no_longer(start) -> None:  # type: ignore[no-untyped-def]
    class Deleting(Asked):
        is_deleted = False

        def _page(self, partition: str, index: int):  # type: ignore[no-untyped-def]
            return None if self.is_deleted else super()._page(partition, index)

        async def lag(self, partition: str, continuation: str | None) -> int:
            return 0 if self.is_deleted else await super().lag(partition, continuation)

    class Away(MemoryOutputSink):
        async def open(self, claim: Claim):  # type: ignore[no-untyped-def]
            position = self.destination.claim(claim)
            return MemoryWriter(self.destination, claim, position, self._refuse)

        async def _refuse(self, request):  # type: ignore[no-untyped-def]
            raise SinkUnavailable("away")

    feed = Deleting(30)
    running = await start(feeds={"bank": feed}, sinks={"bank": Away(MemoryDestination())})
    await until_async(lambda: running.host.failures)
    waiting = running.host.workers[KEY].progress.waiting
    assert (await running.view.read_lag(0)).seconds == 30
    feed.is_deleted, run = True, waiting.run
    await until_async(lambda: waiting.run > run)
    assert waiting.first_us is not None

    async def is_at_rest() -> bool:
        return (await running.view.read_lag(0)).seconds == 0

    await until_async(is_at_rest)
    assert waiting.is_empty


async def test_the_age_of_a_partition_that_stops_is_known_at_once(start) -> None:  # type: ignore[no-untyped-def]
    """A measurement may be 15 seconds old, and its worker ended since."""

    class Slow(MemoryOutputSink):
        refuses = asyncio.Event()

        async def _request(self, request):  # type: ignore[no-untyped-def]
            await self.refuses.wait()
            raise SinkRejected("no such table")

        async def open(self, claim: Claim):  # type: ignore[no-untyped-def]
            return MemoryWriter(self.destination, claim, None, self._request)

    feed, sink = Asked(30), Slow(MemoryDestination())
    running = await start(feeds={"bank": feed}, sinks={"bank": sink})
    await until_async(lambda: running.host.workers)
    await until_async(lambda: running.host.workers[KEY].progress.waiting.first_us)
    await running.view.read_lag(0)
    sink.refuses.set()
    await until_async(lambda: not running.host.workers)
    assert await seconds_of(running) == pytest.approx(30, abs=3)
    assert feed.asked == []


async def test_the_time_of_what_executors_read_is_asked_for_once(start, lease_behind) -> None:  # type: ignore[no-untyped-def]
    """They do not report it, and the lease is behind what is delivered."""
    feed, sink = Asked(40), MemoryOutputSink(MemoryDestination())
    running = await start(feeds={"bank": feed}, sinks={"bank": sink})
    await until_async(lambda: running.host.stats.events["bank"] == 1)
    waiting = running.host.workers[KEY].progress.waiting
    feed.append("a", [b"{}"], at=NOW - timedelta(seconds=30))
    await until_async(lambda: running.host.stats.events["bank"] == 2)
    waiting.position = "1"
    waiting.add_unknown(1)
    for _ in range(3):
        assert (await running.view.read_lag(0)).seconds == pytest.approx(30, abs=2)
    assert feed.asked == ["1"]


async def test_what_was_delivered_before_a_partition_stops_does_not_wait(start, lease_behind) -> None:  # type: ignore[no-untyped-def]
    """The lease may be seconds behind, and the measurement is older than the end of the work."""
    feed = Asked(30)
    running = await start(feeds={"bank": feed})
    await until_async(lambda: running.host.stats.events["bank"] == 1)
    assert (await running.keeper.read(*KEY)).lease.continuation is None
    assert (await running.view.read_lag(0)).seconds == 0
    running.host.stop()
    await until_async(lambda: not running.host.workers)
    assert await seconds_of(running) == pytest.approx(0, abs=2)


async def test_a_partition_without_an_owner_is_asked_about_once(start) -> None:  # type: ignore[no-untyped-def]
    feed = Asked(30, 20)
    running = await start(runs=False, feeds={"bank": feed})
    await running.keeper.create(lease())
    for _ in range(3):
        assert (await running.view.read_lag(0)).seconds == pytest.approx(30, abs=2)
    assert feed.asked == [None]
    before = await seconds_of(running)

    async def has_grown() -> bool:
        return (await seconds_of(running) or 0) > (before or 0) + 0.05

    await until_async(has_grown)  # without another measurement
    assert feed.asked == [None]


async def test_a_lease_that_was_reset_is_no_longer_the_workers(start) -> None:  # type: ignore[no-untyped-def]
    feed = Asked(30)
    running = await start(feeds={"bank": feed})
    await until_async(lambda: running.host.stats.events["bank"] == 1)
    own = running.host.workers[KEY].owned.lease
    assert running.view._worker_of(own) is running.host.workers[KEY]
    assert running.view._worker_of(replace(own, generation=own.generation + 1)) is None
    assert running.view._worker_of(replace(own, epoch=own.epoch + 1)) is None


async def test_the_partition_of_a_working_host_is_as_old_as_its_lease_showed_at_most(start) -> None:  # type: ignore[no-untyped-def]
    feed = Asked(30)
    owner = await start("host-a", feeds={"bank": feed}, runs=False)
    looks = await start("host-b", feeds={"bank": feed}, runs=False)
    await owner.keeper.create(lease())
    await owner.keeper.take(await owner.keeper.read(*KEY), lambda state: state)
    await owner.host.session.beat()
    for each in (owner, looks):
        object.__setattr__(each.view.pipelines["bank"], "checkpoint_s", 5.0)
    assert (await owner.view.read_lag(0)).seconds == pytest.approx(30, abs=2)  # it does not work on it yet
    first = await looks.view.read_lag(0)
    assert first.seconds == pytest.approx(25, abs=2)  # its lease may be 5 seconds behind its sink
    looks.view._first._found[KEY] = replace(looks.view._first._found[KEY], seen=-inf)
    assert (await looks.view.read_lag(0)).seconds == pytest.approx(30, abs=2)  # it stands still


async def test_a_measurement_begins_with_a_reading_of_its_own(start) -> None:  # type: ignore[no-untyped-def]
    """The age of a shared reading would add to the age of the event."""
    running = await start(feeds={"bank": Asked(30)}, runs=False)
    await running.view.read_group()
    await running.keeper.create(lease())
    assert (await running.view.read_lag(0)).seconds == pytest.approx(30, abs=2)
