"""What a group knows of the lag of metered feeds: by its readers and by each other's documents, and asked by one host, rarely."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from patience import until_async
from unit.service.conftest import NOW

from leasehold.leases.document import Fields
from leasehold.leases.errors import InvalidDocument
from leasehold.leases.host_record import HostRecord
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.errors import FeedUnavailable, PositionLost
from leasehold.pipeline.feed import FeedPartition, KnownLag
from leasehold.service import partitions
from leasehold.service.group.activity import Activity, activity_document, decode_activity
from leasehold.service.lag.age import FirstEvents
from leasehold.service.lag.backlog import read_backlog
from leasehold.service.lag.metered import (
    ALONE_PER_S,
    KEPT_S,
    PARTITIONS_MAX,
    STALE_S,
    GroupLag,
    GroupSnapshot,
    decoded_lags,
    encoded_lags,
)

ROOM = 16 * 1024
HOSTS = ("host-a", "host-b", "host-c")


class Metered(MemoryChangeFeed):
    """readers: by partition, the end that its open reader knows, and how old that is. listings: how many were made."""

    def __init__(self, partitions: list[str]) -> None:
        super().__init__(partitions)
        self.readers: dict[str, tuple[int, float]] = {}
        self.asked: list[str] = []
        self.listings = 0
        self.error: Exception | None = None

    def known_lag(self, partition: str, continuation: str | None) -> KnownLag | None:
        if partition not in self.readers:
            return None
        end, age_s = self.readers[partition]
        return KnownLag(end - int(continuation or 0), age_s)

    async def lag(self, partition: str, continuation: str | None) -> int:
        self.asked.append(partition)
        if self.error is not None:
            raise self.error
        return await super().lag(partition, continuation)

    def grow(self, partition: str) -> None:
        self._logs |= MemoryChangeFeed([partition])._logs

    async def partitions(self) -> list[FeedPartition]:
        self.listings += 1
        return await super().partitions()


class Hand:
    """A clock that its sleepers move."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.now += seconds


def lease(partition: str, owner: str | None = None, continuation: str | None = None) -> Lease:
    return Lease(pipeline="bank", partition=partition, owner=owner, continuation=continuation)


def record(name: str, lags: dict[tuple[str, str], KnownLag] | None = None, tick: int = 1) -> HostRecord:
    activity = activity_document(Activity(lags=lags or {}), ROOM)
    return HostRecord(name=name, incarnation="1", tick=tick, activity=activity)


def known(feed: Metered) -> GroupLag:
    return GroupLag({"bank": feed}, Hand())


def clock_of(group_lag: GroupLag) -> Hand:
    assert isinstance(group_lag._clock, Hand)
    return group_lag._clock


# Who asks about what


def test_nobody_asks_about_a_partition_whose_reader_knows() -> None:
    feed = Metered(["0"])
    feed.readers["0"] = (7, STALE_S)
    mine = lease("0", "host-a", "5")
    sight = GroupSnapshot("host-a", {mine.key: mine}, [mine], [record("host-a"), record("host-b")])
    assert known(feed).due(sight) is None
    assert known(feed).first_hand(sight.own) == {LeaseKey("bank", "0"): KnownLag(2, STALE_S)}
    feed.readers["0"] = (7, STALE_S + 1)  # a reader that has no room for more hears nothing new
    assert known(feed).due(sight) == mine


def test_an_owner_asks_about_its_own_as_it_has_them() -> None:
    as_scanned, as_owned = lease("0", "host-a", "5"), lease("0", "host-a", "9")
    sight = GroupSnapshot("host-a", {as_owned.key: as_owned}, [as_scanned], [record("host-a")])
    assert known(Metered(["0"])).due(sight) == as_owned


@pytest.mark.parametrize("owner", [None, "host-dead", "host-b"])
def test_one_host_asks_about_a_partition_whose_lag_nobody_reports(owner: str | None) -> None:
    leases = [lease(str(n), owner) for n in range(9)]
    live = [record(name) for name in HOSTS]
    asking: dict[str, set[str]] = {}
    for name in HOSTS:
        group_lag, asking[name] = known(Metered([])), set()
        while (due := group_lag.due(GroupSnapshot(name, {}, leases, live))) is not None:
            asking[name].add(due.partition)
            asyncio.run(group_lag.ask(due))
    assert sorted(len(each) for each in asking.values()) == [3, 3, 3]
    assert set.union(*asking.values()) == {each.partition for each in leases}


def test_nobody_asks_about_what_its_owner_reports_however_old() -> None:
    mine = lease("0", "host-b")
    live = [record("host-a"), record("host-b", {mine.key: KnownLag(5, KEPT_S)})]
    assert known(Metered(["0"])).due(GroupSnapshot("host-a", {}, [mine], live)) is None
    alone = [record("host-a"), record("host-b", {mine.key: KnownLag(5, KEPT_S + 1)})]
    assert known(Metered(["0"])).due(GroupSnapshot("host-a", {}, [mine], alone)) == mine


def test_a_document_that_nobody_can_read_reports_nothing() -> None:
    mine = lease("0", "host-b")
    broken = HostRecord(name="host-b", incarnation="1", activity={"lags": 7})
    assert known(Metered(["0"])).due(GroupSnapshot("host-a", {}, [mine], [record("host-a"), broken])) == mine


async def test_what_was_asked_is_asked_again_once_it_is_old_and_what_is_oldest_first() -> None:
    feed, leases = Metered(["0", "1"]), [lease("0"), lease("1")]
    group_lag, sight = known(feed), GroupSnapshot("host-a", {}, leases, [record("host-a")])
    for _ in range(2):
        due = group_lag.due(sight)
        assert due is not None
        await group_lag.ask(due)
    assert (feed.asked, group_lag.due(sight)) == (["0", "1"], None)
    clock_of(group_lag).now += STALE_S + 0.1
    assert group_lag.due(sight) == leases[0]


async def test_errors_are_told_and_not_asked_for_again_at_once() -> None:
    feed = Metered(["0"])
    feed.error = FeedUnavailable("the service is busy")
    group_lag, sight = known(feed), GroupSnapshot("host-a", {}, [lease("0")], [record("host-a")])
    await group_lag.ask(lease("0"))
    assert group_lag.due(sight) is None
    [answer] = group_lag.answers([lease("0")], {}, []).values()
    assert (answer.events, answer.error) == (None, "the service is busy")


async def test_hosts_share_the_pace_and_a_command_alone_has_its_own() -> None:
    feed = Metered(["0"])
    for hosts, per_s in ((1, 4.0), (8, 0.5), (0, ALONE_PER_S)):
        group_lag = known(feed)
        group_lag.hosts = hosts
        for _ in range(5):
            await group_lag.ask(lease("0"))
        assert clock_of(group_lag).now == pytest.approx(4 / per_s)


async def test_pipelines_that_read_one_source_share_its_pace() -> None:
    feed = Metered(["0"])
    group_lag = GroupLag({"bank": feed, "view": feed}, Hand())
    for name in ("bank", "view", "bank"):
        await group_lag.ask(replace(lease("0"), pipeline=name))
    assert clock_of(group_lag).now == 0.5


# What is told


async def test_the_youngest_of_what_is_known_counts() -> None:
    feed = Metered(["0", "1", "2", "3"])
    feed.append("0", [b"{}"] * 3)
    group_lag = known(feed)
    await group_lag.ask(lease("0"))
    clock_of(group_lag).now += 10
    reports = [
        {LeaseKey("bank", "0"): KnownLag(8, 11.0), LeaseKey("bank", "1"): KnownLag(5, 20.0)},
        {LeaseKey("bank", "1"): KnownLag(6, 2.0)},
    ]
    feed.readers["2"] = (4, 0.0)
    mine = lease("2", "host-a", "3")
    found = group_lag.answers([lease(n) for n in "0123"], {mine.key: mine}, reports)
    assert [(each.events, each.age_s) for each in found.values()] == [(3, 10.0), (6, 2.0), (1, 0.0), (None, 0.0)]
    assert found["bank", "3"].error == "no host has reported its lag yet"


def test_a_report_grows_old_by_our_own_clock_until_its_host_moves() -> None:
    group_lag, told = known(Metered([])), {LeaseKey("bank", "0"): KnownLag(5, 3.0)}
    ages = []
    for mark, wait_s in ((("1", 7), 10.0), (("1", 7), 10.0), (("1", 8), KEPT_S)):
        ages.append(group_lag.reported("host-b", mark, told)["bank", "0"].age_s)
        clock_of(group_lag).now += wait_s
    assert ages == [3.0, 13.0, 3.0]
    assert group_lag.reported("host-b", ("1", 8), told) == {}


def test_lags_pass_through_a_host_document() -> None:
    lags = {LeaseKey("bank", str(n)): KnownLag(n, float(n % 3)) for n in range(PARTITIONS_MAX * 2 + 1)}
    lags[LeaseKey("view", "ü/0")] = KnownLag(2**40, KEPT_S)
    assert decode_activity(record("host-a", lags)).lags == lags
    entries = [*encoded_lags(lags)]
    assert [len(entry["lags"]) for entry in entries] == [PARTITIONS_MAX, PARTITIONS_MAX, 1, 1]  # type: ignore[arg-type]
    assert entries[2]["lags"] == {"99": 99}


def test_how_long_events_wait_passes_through_a_host_document() -> None:
    waits = {"0": None, "1": 0.04, "10": 3.26, "2": 12.6, "ü": 86400.4}
    lags = {LeaseKey("bank", name): KnownLag(7, 2.0, wait) for name, wait in waits.items()}
    told = {key.partition: lag.waited_s for key, lag in decode_activity(record("host-a", lags)).lags.items()}
    assert told == {"0": None, "1": 0.0, "10": 3.3, "2": 13.0, "ü": 86400.0}
    assert [entry.keys() for entry in encoded_lags({LeaseKey("bank", "0"): KnownLag(7, 2.0)})] == [{"pipeline", "lags"}]


def test_hosts_of_an_earlier_version_read_the_lags_beside_the_waits() -> None:
    (entry,) = encoded_lags({LeaseKey("bank", "0"): KnownLag(7, 2.0, 3.0), LeaseKey("bank", "1"): KnownLag(8, 0.0)})
    assert entry["lags"] == {"0": [7, 2], "1": 8}  # what they know, and no more
    assert decoded_lags(Fields("_hosts/a", {"lags": [{"pipeline": "bank", "lags": {"0": 7}}]}), "lags") == {
        LeaseKey("bank", "0"): KnownLag(7, 0.0)
    }


async def test_the_first_event_after_a_position_costs_one_more_question_and_no_second_one() -> None:
    feed, clock = Metered(["0"]), Hand()
    found: list[str] = []

    async def find(partition: str, continuation: str | None) -> datetime:
        found.append(partition)
        return NOW - timedelta(seconds=30)

    feed.find_enqueued_time = find  # type: ignore[method-assign]
    feed.append("0", [b"{}"] * 3)
    group_lag = GroupLag({"bank": feed}, clock, FirstEvents(clock, lambda: NOW))
    assert [(await group_lag.ask(lease("0"))).waited_s for _ in range(3)] == [30.0] * 3
    assert (len(feed.asked), len(found)) == (3, 1)
    assert clock.now == pytest.approx(3 / 4)  # four questions at the group's pace
    clock.now += 10
    (answer,) = group_lag.answers([lease("0")], {}, []).values()
    assert (answer.waited_s, answer.age_s) == (30.0, 10.0)
    await group_lag.ask(lease("0", None, "1"))
    assert len(found) == 2


async def test_what_this_host_has_read_is_told_first_hand() -> None:
    feed = Metered(["0", "1"])
    feed.readers = {"0": (4, 0.0), "1": (3, 0.0)}
    group_lag = GroupLag({"bank": feed}, Hand(), None, lambda key: 2.5)
    mine = {each.key: each for each in (lease("0", "host-a", "3"), lease("1", "host-a", "3"))}
    assert list(group_lag.first_hand(mine).values()) == [KnownLag(1, 0.0, 2.5), KnownLag(0, 0.0)]


def test_the_lags_of_a_thousand_partitions_have_room_in_a_host_document() -> None:
    lags = {LeaseKey("bank", str(n)): KnownLag(12_345, 30.0, 1234.0) for n in range(500)}
    document = activity_document(Activity(lags=lags), ROOM)
    assert decode_activity(record("host-a", lags)).lags == lags
    many = activity_document(
        Activity(lags={LeaseKey("bank", str(n)): KnownLag(12_345, 30.0) for n in range(5000)}), ROOM
    )
    for each in (document, many):
        assert len(json.dumps(each, separators=(",", ":"))) <= ROOM


@pytest.mark.parametrize(
    "entry",
    [
        7,
        {"pipeline": "bank"},
        {"pipeline": 7, "lags": {}},
        {"pipeline": "bank", "lags": {"0": -1}},
        {"pipeline": "bank", "lags": {"0": [1]}},
        {"pipeline": "bank", "lags": {"0": [1, "2"]}},
        {"pipeline": "bank", "lags": {"0": 1.5}},
        {"pipeline": "bank", "lags": {"0": None}},
        {"pipeline": "bank", "lags": {"0": 1}, "waits": 7},
        {"pipeline": "bank", "lags": {"0": 1}, "waits": []},
        {"pipeline": "bank", "lags": {"0": 1}, "waits": [-1]},
        {"pipeline": "bank", "lags": {"0": 1}, "waits": ["1"]},
    ],
)
def test_lags_that_are_none_are_refused(entry: object) -> None:
    with pytest.raises(InvalidDocument):
        decoded_lags(Fields("_hosts/a", {"lags": [entry]}), "lags")


# Hosts


async def test_hosts_know_the_lags_of_each_others_partitions_and_ask_nothing(start) -> None:  # type: ignore[no-untyped-def]
    feed = Metered(["0", "1", "2", "3"])
    feed.readers = dict.fromkeys("0123", (9, 0.0))
    hosts = [await start(name, feeds={"bank": feed}) for name in ("host-a", "host-b")]
    await until_async(lambda: all(len(each.host.workers) == 2 for each in hosts))
    for each in hosts:

        async def told(view=each.view) -> bool:  # type: ignore[no-untyped-def]
            return (await view.read_lag(0)).events == 36

        await until_async(told)
    assert all(each.host.workers for each in hosts)


async def test_a_reader_that_fails_to_tell_its_lag_costs_a_question_and_no_host(start) -> None:  # type: ignore[no-untyped-def]
    class Faulty(Metered):
        def known_lag(self, partition: str, continuation: str | None) -> KnownLag | None:
            raise PositionLost(f"{continuation!r} is no position")

    feed = Faulty(["0"])
    running = await start("host-a", feeds={"bank": feed})

    async def told() -> bool:
        return bool((await running.view.read_lag(0)).is_known and feed.asked)

    await until_async(told)
    tick = (await running.view.read_group()).hosts["host-a"].tick

    async def announced() -> bool:
        return bool((await running.view.read_group()).hosts["host-a"].tick > tick)

    await until_async(announced)
    assert (await read_backlog([lease("0")], {"bank": feed}, {}, ask=running.host.group_lag.ask)).is_done


async def test_hosts_list_the_partitions_no_more_often_than_their_pace(start, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    feed = Metered(["0"])
    hosts = [await start(name, feeds={"bank": feed}) for name in ("host-a", "host-b")]
    await until_async(lambda: all(each.host.group_lag.hosts == 2 for each in hosts))
    await until_async(lambda: feed.listings >= 2)
    assert partitions.LISTINGS_PER_S == 1
    monkeypatch.setattr(partitions, "LISTINGS_PER_S", 0.001)
    before_all = feed.listings
    for _ in range(20):
        for each in hosts:
            before = each.host.balancer.reader.scan
            each.host.wake()
            await until_async(lambda host=each.host, seen=before: host.balancer.reader.scan is not seen)
            await each.view.read_lag(0)
    await hosts[0].view.read_backlog()
    assert feed.listings <= before_all + 1, "one listing may have been under way"


async def test_a_lease_that_is_newer_than_the_listing_is_no_orphan(start, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("leasehold.service.partitions.LISTINGS_PER_S", 0.001)
    feed = Metered(["0"])
    running = await start("host-a", feeds={"bank": feed})
    await until_async(lambda: running.host.workers)
    feed.grow("1")
    await running.keeper.create(lease("1"))  # by a host that has seen it before us
    running.host.wake()
    await until_async(lambda: ("bank", "1") in running.host.workers)
    assert feed.listings == 2


# Idle


async def test_what_is_known_to_be_behind_is_not_asked_about() -> None:
    feed = Metered(["0", "1"])
    feed.readers["0"] = (3, STALE_S)
    group_lag = known(feed)
    look = await read_backlog([lease("0", None, "1"), lease("1")], {"bank": feed}, {}, ask=group_lag.ask)
    assert (look.behind, look.is_done, feed.asked) == ({LeaseKey("bank", "0")}, False, [])


async def test_that_nothing_is_behind_is_asked_at_the_groups_pace() -> None:
    feed = Metered(["0", "1", "2"])
    feed.readers = dict.fromkeys("012", (0, 0.0))  # a connection may be silent because it is dead
    group_lag, leases = known(feed), [lease(name) for name in "012"]
    look = await read_backlog(leases, {"bank": feed}, {}, ask=group_lag.ask)
    assert (look.is_done, feed.asked, clock_of(group_lag).now) == (True, ["0", "1", "2"], 0.5)
    feed.append("1", [b"{}"])
    look = await read_backlog(leases, {"bank": feed}, {}, ask=group_lag.ask)
    assert (look.behind, feed.asked[3:]) == ({LeaseKey("bank", "1")}, ["0", "1"])  # one is enough
    feed.error = FeedUnavailable("the service is busy")
    look = await read_backlog(leases, {"bank": feed}, {}, ask=group_lag.ask)
    assert look.unknown == ("pipeline 'bank', partition '0': the service is busy",)
