"""Status: what people are told of leases, hosts and pipelines, and what hosts tell each other of their work."""

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import until_async
from unit.service.conftest import SOON_EXPIRED

from leasehold.common.clock import BootClock
from leasehold.leases.bootstrap import Identity
from leasehold.leases.document import lease_id
from leasehold.leases.errors import InvalidDocument, StoreUnavailable
from leasehold.leases.host_record import HostRecord, decode_host, encode_host, host_id
from leasehold.leases.keeper import Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.stores.memory import MemoryStore
from leasehold.leases.tenure import VersionedLease
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryOutputSink
from leasehold.pipeline.errors import SinkRejected
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.pump.run_parts import DeliveredBatch
from leasehold.pipeline.transform import NoTransform
from leasehold.service.group.activity import (
    Activity,
    activity_document,
    activity_of,
    cut,
    decode_activity,
)
from leasehold.service.group.status import AgeStatus, GroupStatus, Unrenewed, group_of, state_of
from leasehold.service.group.work import BatchStatus, ExecutorsWaitStatus, FailureStatus, Totals, WaitingStatus

ROOM = 16 * 1024
NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LEASE = Lease(pipeline="bank", partition="a", owner="host-a", incarnation="1", epoch=3, tick=9)
MARK = ("host-a", "1", 3, 9)
RECORD = HostRecord(name="host-a", incarnation="1", tick=5, pipelines=("bank",))
BATCH = BatchStatus(
    host="host-a",
    pipeline="bank",
    partition="a",
    epoch=3,
    start=None,
    to="10",
    events=10,
    waited_s=0.1,
    transform_s=0.2,
    deliver_s=0.3,
    at=NOW,
)
AGES = (0, 0, 0, 4, *[0] * 10, 1)
TOTALS = Totals(pipeline="bank", events=10, batches=1, dead_letters=2, ages=AGES)
FAILURE = FailureStatus(
    host="host-a",
    pipeline="bank",
    partition="a",
    error="bad",
    failures=2,
    retry_at=NOW,
    since=NOW,
    at=NOW,
    position="",
)


def group(
    *leases: Lease,
    records: tuple[HostRecord, ...] = (RECORD,),
    unrenewed: Unrenewed | None = None,
    mine: Activity | None = None,
    me: str = "host-a",
    invalid: tuple[InvalidDocument, ...] = (),
    now: datetime | None = None,
) -> GroupStatus:
    unreadable = {LeaseKey("bank", str(n)): error for n, error in enumerate(invalid)}
    scan = Scan({lease.key: VersionedLease(lease, "etag") for lease in leases}, 0.0, 0.0, unreadable)
    return group_of(
        scan, records, (), pipelines={"bank": Identity("feed", "sink")}, me=me, unrenewed=unrenewed, mine=mine, now=now
    )


def record(activity: Activity, name: str = "host-a") -> HostRecord:
    return replace(RECORD, name=name, activity=activity_document(activity, ROOM))


# Leases


@pytest.mark.parametrize(
    ("fields", "is_expired", "state"),
    [
        ({}, False, "owned"),
        ({}, True, "expired"),
        ({"handoff_to": "host-b"}, False, "handing_over"),
        ({"handoff_to": "host-b"}, True, "expired"),
        ({"handoff_to": "host-a"}, False, "owned"),
        ({"owner": None, "incarnation": None}, False, "available"),
        ({"owner": None, "incarnation": None, "handoff_to": "host-b"}, False, "handing_over"),
        ({"owner": None, "incarnation": None, "closed": True}, False, "closed"),
    ],
)
def test_a_lease_is_in_one_state(fields: dict[str, object], is_expired: bool, state: str) -> None:
    assert state_of(replace(LEASE, **fields), is_expired) == state


def test_a_lease_has_expired_only_while_it_stands_where_this_host_saw_it_stand_still() -> None:
    unrenewed = Unrenewed({LEASE.key: MARK}, {})
    assert group(LEASE, unrenewed=unrenewed).leases[LEASE.key].state == "expired"
    assert group(LEASE.renewed(), unrenewed=unrenewed).leases[LEASE.key].state == "owned"
    assert group(LEASE, unrenewed=None).leases[LEASE.key].state == "owned"


def test_leases_are_in_the_order_of_pipeline_and_partition() -> None:
    names = ["b", "a", "c"]
    assert list(group(*(replace(LEASE, partition=name) for name in names)).leases) == [("bank", n) for n in "abc"]


# Hosts and pipelines


def test_a_host_is_dead_only_while_it_stands_where_this_host_saw_it_stand_still() -> None:
    other = replace(RECORD, name="host-b")
    unrenewed = Unrenewed({}, {"host-b": other.mark})
    assert group(records=(RECORD, other), unrenewed=unrenewed).hosts["host-b"].is_live is False
    assert group(records=(RECORD, replace(other, tick=6)), unrenewed=unrenewed).hosts["host-b"].is_live is True
    assert group(records=(RECORD, other)).hosts["host-b"].is_live is None, "nobody has watched"


def test_hosts_are_told_with_the_leases_they_own() -> None:
    told = group(LEASE, replace(LEASE, partition="b"), records=(RECORD, replace(RECORD, name="host-b")))
    assert {name: host.leases for name, host in told.hosts.items()} == {"host-a": 2, "host-b": 0}
    assert [name for name, host in told.hosts.items() if host.is_this] == ["host-a"]


def test_a_pipeline_counts_its_leases_by_state() -> None:
    told = group(LEASE, replace(LEASE, partition="b", owner=None, incarnation=None))
    assert dict(told.pipelines["bank"].leases) == {"owned": 1, "available": 1}


def test_hosts_show_how_long_they_may_be_silent_and_for_what_they_are_unfit() -> None:
    slow = replace(RECORD, name="host-b", lasts_s=28.0, pipelines=("bank", "till"), fitness="-r")
    told = group(records=(RECORD, slow), invalid=(InvalidDocument("x"),))
    assert told.problems == ("x",)
    assert (told.hosts["host-b"].lasts_s, told.hosts["host-b"].unfit) == (28.0, ("till",))


# Failures


def test_failures_of_any_host_are_told() -> None:
    released = replace(LEASE, owner=None, incarnation=None)
    told = group(released, records=(RECORD, record(Activity(failures=(FAILURE,)), "host-b")))
    assert told.failures == {("bank", "a"): "bad"}
    assert told.pipelines["bank"].failures[0].host == "host-b", "the document's host, whatever its text says"


def test_a_dead_host_has_no_failures_any_more() -> None:
    dead = record(Activity(failures=(FAILURE,)), "host-b")
    released = replace(LEASE, owner=None, incarnation=None)
    assert group(released, records=(dead,), unrenewed=Unrenewed({}, {"host-b": dead.mark})).failures == {}


RELEASED = replace(LEASE, owner=None, incarnation=None, continuation="10")
KNOWN = replace(FAILURE, since=NOW - timedelta(minutes=2), at=NOW, position="10")


def test_a_failure_lasts_while_another_host_tries_and_is_over_once_the_lease_has_moved() -> None:
    failing = record(Activity(failures=(KNOWN,)), "host-b")
    assert group(RELEASED, records=(failing,)).failures == {("bank", "a"): "bad"}
    assert group(replace(LEASE, continuation="10"), records=(failing,)).failures == {("bank", "a"): "bad"}
    assert group(replace(LEASE, continuation="11"), records=(failing,)).failures == {}
    assert group(replace(RELEASED, continuation="11"), records=(failing,)).failures == {}


def test_of_two_hosts_that_report_a_partition_its_owner_is_right_else_the_newest() -> None:
    older = replace(KNOWN, error="older", at=NOW - timedelta(seconds=9))
    records = (record(Activity(failures=(older,))), record(Activity(failures=(KNOWN,)), "host-b"))
    for seen in (records, records[::-1]):
        assert group(RELEASED, records=seen).failures == {("bank", "a"): "bad"}
        assert group(replace(LEASE, continuation="10"), records=seen).failures == {("bank", "a"): "older"}


def test_a_host_that_has_been_silent_for_eight_durations_reports_nothing_current() -> None:
    told = record(Activity(failures=(KNOWN,), at=NOW), "host-b")
    assert group(RELEASED, records=(told,), now=NOW + timedelta(seconds=56)).failures == {("bank", "a"): "bad"}
    assert group(RELEASED, records=(told,), now=NOW + timedelta(seconds=57)).failures == {}
    watched = group(RELEASED, records=(told,), now=NOW + timedelta(days=1), unrenewed=Unrenewed({}, {}))
    assert watched.failures == {("bank", "a"): "bad"}, "a host that has watched knows better than the wall clocks"


def test_an_earlier_incarnation_reports_nothing_current_of_a_lease_that_the_next_one_has() -> None:
    told = record(Activity(failures=(KNOWN,)))
    assert group(replace(LEASE, continuation="10"), records=(told,)).failures == {("bank", "a"): "bad"}
    assert group(replace(LEASE, continuation="10", incarnation="2"), records=(told,)).failures == {}


def test_a_host_that_waits_for_executors_is_a_problem_and_no_failure_until_it_is_silent() -> None:
    wait = ExecutorsWaitStatus(since=NOW, why="no executor runs a task")
    told = group(LEASE, records=(record(Activity(executors_wait=wait, at=NOW)),), me="host-b", now=NOW)
    assert told.hosts["host-a"].activity.executors_wait == wait
    assert told.problems == (
        "host 'host-a' has waited for executors since 2026-01-31T12:00:00Z: no executor runs a task",
    )
    assert told.failures == {}
    later = NOW + timedelta(hours=1)
    silent = group(LEASE, records=(record(Activity(executors_wait=wait, at=NOW)),), me="host-b", now=later)
    assert silent.problems == ()


async def test_a_host_reports_the_longest_wait_of_its_pipelines(start, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = iter((ExecutorsWait(10, "short"), ExecutorsWait(70, "long" * 1000)))
    monkeypatch.setattr(NoTransform, "executors_wait", property(lambda self: next(waits)))
    running = await start(feeds={name: MemoryChangeFeed("a") for name in ("bank", "shop")}, runs=False)
    found = activity_of(running.host, now=NOW, monotonic_s=0.0).executors_wait
    assert found is not None
    assert (found.since, found.why[:4], len(found.why)) == (NOW - timedelta(seconds=70), "long", 600)


def test_partitions_that_get_no_lease_are_told_until_they_have_one() -> None:
    waiting = WaitingStatus(pipeline="bank", partition="z", why="its parent's lease is unreadable")
    told = record(Activity(waiting=(waiting,)), "host-b")
    assert group(LEASE, records=(told,)).waiting == {("bank", "z"): "its parent's lease is unreadable"}
    assert group(LEASE, replace(LEASE, partition="z"), records=(told,)).waiting == {}


def test_where_many_partitions_fail_their_errors_are_cut_before_any_is_left_out() -> None:
    failures = tuple(replace(KNOWN, partition=f"part-{n}", error="x" * 600) for n in range(40))
    read = decode_activity(record(Activity(failures=failures, failing=40)))
    assert [each.partition for each in read.failures] == [each.partition for each in failures]


# What hosts tell each other


def test_activity_is_read_back_as_it_was_told() -> None:
    waiting = WaitingStatus(pipeline="bank", partition="z", why="its parent's lease is unreadable")
    told = Activity(
        batches=(BATCH,),
        totals=(TOTALS,),
        failures=(FAILURE, KNOWN),
        waiting=(waiting,),
        failing=1,
        suspended=2,
        suspensions=3,
        executors_wait=ExecutorsWaitStatus(since=NOW, why="no executor runs a task"),
        at=NOW,
    )
    assert decode_activity(record(told)) == told


def test_a_host_of_an_earlier_version_tells_no_totals_and_is_heard() -> None:
    activity = {**activity_document(Activity(batches=(BATCH,), totals=(TOTALS,)), ROOM)}
    del activity["totals"]
    assert decode_activity(replace(RECORD, activity=activity)) == Activity(batches=(BATCH,))


def test_the_age_of_events_is_that_of_all_hosts_that_are_heard() -> None:
    other = replace(TOTALS, ages=(5, *[0] * 14))
    told = group(records=(record(Activity(totals=(TOTALS,))), record(Activity(totals=(other,)), "host-b")))
    assert told.pipelines["bank"].event_age == AgeStatus(events=10, p50_s=0.1, p99_s=86400.0)
    assert group(records=(record(Activity()),)).pipelines["bank"].event_age is None
    dead = Unrenewed({}, {"host-b": replace(RECORD, name="host-b").mark})
    told = group(records=(record(Activity()), record(Activity(totals=(other,)), "host-b")), unrenewed=dead)
    assert told.pipelines["bank"].event_age is None


def test_ages_with_other_bounds_are_those_of_another_version() -> None:
    read = decode_activity(record(Activity(totals=(replace(TOTALS, ages=(1, 2)),))))
    assert read.totals == (replace(TOTALS, ages=()),)


def test_a_host_that_has_told_nothing_yet_did_nothing_yet() -> None:
    assert decode_activity(RECORD) == Activity()


def test_batches_of_all_hosts_are_told_newest_first() -> None:
    later = replace(BATCH, at=NOW + timedelta(seconds=1))
    told = group(records=(record(Activity(batches=(BATCH,))), record(Activity(batches=(later,)), "host-b")))
    assert [batch.host for batch in told.batches] == ["host-b", "host-a"]


def test_what_this_host_knows_of_itself_is_newer_than_its_document() -> None:
    told = group(records=(record(Activity(suspensions=1)),), mine=Activity(suspensions=2))
    assert told.hosts["host-a"].activity.suspensions == 2


async def test_a_host_tells_its_newest_batches_first_whatever_their_pipeline(start) -> None:
    running = await start(runs=False)
    for epoch in range(10):
        batch = DeliveredBatch(start=None, to=str(epoch), events=1, waited_s=0.1, transform_s=0.1, deliver_s=0.1)
        lease = replace(LEASE, pipeline=f"p{epoch % 2}", epoch=epoch)
        running.host.stats.record_batch(lease, batch)
    told = activity_of(running.host, now=NOW, monotonic_s=BootClock().monotonic())
    assert [batch.epoch for batch in told.batches] == list(range(9, -1, -1))
    assert NOW - timedelta(seconds=10) < told.batches[-1].at < told.batches[0].at < NOW


TEXTS = st.text() | st.text(st.characters(categories=["Cs", "Cc"])) | st.text().map(lambda text: text * 100)


@settings(max_examples=50)
@given(error=TEXTS, position=TEXTS, count=st.integers(0, 300))
def test_activity_always_fits_its_bound_and_can_be_read_back(error: str, position: str, count: int) -> None:
    """Whatever an error says: a document that others cannot read would make this host look dead to them."""
    failure = replace(FAILURE, error=cut(error, 600))
    batch = replace(BATCH, start=cut(position, 200), to=cut(position, 200))
    told = activity_document(Activity(batches=(batch,) * count, failures=(failure,) * count, failing=count), ROOM)
    assert len(json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()) <= ROOM
    read = decode_activity(decode_host(host_id("host-a"), encode_host(replace(RECORD, activity=told))))
    assert read.failing == count
    assert {replace(each, error="") for each in read.failures} <= {replace(failure, error="")}
    assert all(failure.error.startswith(each.error.removesuffix("...")) for each in read.failures)
    assert set(read.batches) <= {batch}
    assert count == 0 or read.failures


def test_what_does_not_fit_is_the_oldest_batches() -> None:
    batches = tuple(replace(BATCH, epoch=epoch) for epoch in range(200))
    read = decode_activity(record(Activity(batches=batches)))
    assert 40 < len(read.batches) < 200
    assert read.batches == batches[: len(read.batches)]


FAILED = activity_document(Activity(failures=(FAILURE,)), ROOM)["failures"][0]


@pytest.mark.parametrize(
    "broken",
    [
        {"batches": "many"},
        {"batches": [7]},
        {"totals": [{}]},
        {"totals": [{"pipeline": "bank", "events": -1, "batches": 0, "dead_letters": 0}]},
        {"totals": [{"pipeline": "bank", "events": 1, "batches": 0, "dead_letters": 0, "ages": [-1] * 15}]},
        {"totals": [{"pipeline": "bank", "events": 1, "batches": 0, "dead_letters": 0, "ages": ["1"] * 15}]},
        {"batches": [{**activity_document(Activity(batches=(BATCH,)), ROOM)["batches"][0], "events": -1}]},
        {"batches": [{**activity_document(Activity(batches=(BATCH,)), ROOM)["batches"][0], "at": "yesterday"}]},
        {"batches": [{**activity_document(Activity(batches=(BATCH,)), ROOM)["batches"][0], "at": "2026-01-31T12:00"}]},
        {
            "batches": [
                {**activity_document(Activity(batches=(BATCH,)), ROOM)["batches"][0], "at": "0001-01-01T00:00+23:59"}
            ]
        },
        {"batches": [{**activity_document(Activity(batches=(BATCH,)), ROOM)["batches"][0], "to": "x" * 1000}]},
        {"failures": [{}] * 2000},
        {"failures": [{**FAILED, "error": "x" * 601}]},
        {"failures": [{**FAILED, "error": 7}]},
        {"failures": [{name: value for name, value in FAILED.items() if name != "position"}]},
        {"waiting": {"pipeline": "bank"}},
        {"failing": 2**70},
        {"suspended": True},
        {"executors_wait": "long"},
        {"executors_wait": {"since": "yesterday", "why": ""}},
        {"executors_wait": {"since": NOW.isoformat(), "why": "x" * 1000}},
    ],
)
def test_activity_that_cannot_be_trusted_silences_its_host_alone(broken: dict[str, object]) -> None:
    activity = {**activity_document(Activity(batches=(BATCH,)), ROOM), **broken}
    told = group(LEASE, records=(replace(RECORD, activity=activity), record(Activity(batches=(BATCH,)), "host-b")))
    assert [batch.host for batch in told.batches] == ["host-b"]
    assert told.hosts["host-a"].activity == Activity()
    assert "document '_hosts/host-a'" in told.problems[0]


# A running group


async def test_any_host_tells_of_the_whole_group(start) -> None:
    feeds = {"bank": MemoryChangeFeed(["a", "b", "c", "d"])}
    for partition in "abcd":
        feeds["bank"].append(partition, [b"{}"] * 3)
    first = await start("host-a", feeds=feeds)
    second = await start("host-b", feeds=feeds)

    async def are_shared() -> bool:
        hosts = (await first.view.read_group()).hosts
        return [host.leases for host in hosts.values()] == [2, 2]

    await until_async(are_shared)

    async def is_told() -> bool:
        return len({batch.partition for batch in (await second.view.read_group()).batches}) == 4

    await until_async(is_told)
    told = await second.view.read_group()
    assert {host.is_live for host in told.hosts.values()} == {True}
    assert told.hosts["host-b"].is_this
    assert {batch.events for batch in told.batches} == {3}
    assert all(batch.at <= NOW for batch in told.batches)


async def test_a_failing_partition_is_told_with_its_error_by_every_host(start) -> None:
    class Refusing(MemoryOutputSink):
        async def open(self, claim):
            raise SinkRejected("table 'balances' has no column 'amount'")

    running = await start("host-a", feeds={"bank": MemoryChangeFeed(["a"])}, sinks={"bank": Refusing()})
    observer = await start("host-b", feeds=running.feeds, runs=False)

    async def is_told() -> bool:
        return (await observer.view.read_group()).failures == {("bank", "a"): "table 'balances' has no column 'amount'"}

    await until_async(is_told)


@pytest.mark.parametrize("events", [0, 1])
async def test_a_mended_partition_is_no_failure_any_more(start, events: int) -> None:
    class Moody(MemoryOutputSink):
        refuses = True

        async def open(self, claim):
            if self.refuses:
                raise SinkRejected("no such table")
            return await super().open(claim)

    sink = Moody()
    running = await start(feeds={"bank": MemoryChangeFeed(["a"])}, sinks={"bank": sink})
    running.feeds["bank"].append("a", [b"{}"] * events)

    async def is_failing() -> bool:
        return bool((await running.view.read_group()).failures)

    await until_async(is_failing)
    sink.refuses = False

    async def is_mended() -> bool:
        return not (await running.view.read_group()).failures

    await until_async(is_mended)


async def test_a_lease_whose_owner_went_silent_shows_as_expired_and_its_host_as_dead(start, store) -> None:
    """Seen by a host that may not take it: it serves another pipeline as well, and wants no more leases."""
    silent = await start("host-z", runs=False, feeds={"bank": MemoryChangeFeed(["a"])}, timing=SOON_EXPIRED)
    await silent.keeper.create(Lease(pipeline="bank", partition="a"))
    await silent.keeper.take(await silent.keeper.read("bank", "a"), lambda state: state)
    record = replace(RECORD, name="host-z", incarnation=silent.keeper.incarnation, lasts_s=SOON_EXPIRED.duration_s)
    await store.create("_hosts/host-z", encode_host(record))
    watching = await start("host-a", feeds={"bank": silent.feeds["bank"]}, leases_max=0, timing=SOON_EXPIRED)

    async def has_expired() -> bool:
        told = await watching.view.read_group()
        return told.leases["bank", "a"].state == "expired" and told.hosts["host-z"].is_live is False

    await until_async(has_expired)


# Reading


async def test_many_readers_cost_the_container_one_reading(start) -> None:
    running = await start(runs=False, shared_s=60)
    await asyncio.gather(*(running.view.read_group() for _ in range(200)))
    assert running.host.stats.requests == {("list", "ok"): 2, ("changes", "ok"): 1}


async def test_a_container_that_is_down_is_not_asked_by_every_reader(start) -> None:
    class Down(MemoryStore):
        async def list(self, prefix: str):
            raise StoreUnavailable("connection refused")

    running = await start(store=Down(), runs=False, shared_s=60)
    errors = await asyncio.gather(*(running.view.read_group() for _ in range(200)), return_exceptions=True)
    assert {str(error) for error in errors} == {"connection refused"}
    assert running.host.stats.requests == {("list", "unavailable"): 1}
    assert (await running.view.read_backlog()).unknown == ("connection refused",)


async def test_an_untrusted_document_stops_only_itself(start, store) -> None:
    running = await start(runs=False)
    await running.keeper.create(Lease(pipeline="bank", partition="a"))
    await store.create(lease_id("bank", "b"), "{")
    await store.create("_hosts/host-z", '{"version": 7}')
    told = await running.view.read_group()
    assert list(told.leases) == [("bank", "a")]
    assert len(told.problems) == 2


class Halted(MemoryOutputSink):
    """Answers while it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _request(self, request):
        await self.may_answer.wait()
        return request()


async def test_the_backlog_is_read_anew_by_every_look(start) -> None:
    sink = Halted()
    running = await start(feeds={"bank": MemoryChangeFeed(["a"])}, sinks={"bank": sink})

    async def is_done() -> bool:
        return (await running.view.read_backlog()).is_done

    await until_async(is_done)
    sink.may_answer.clear()
    running.feeds["bank"].append("a", [b"{}"])
    assert not await is_done()
    sink.may_answer.set()
    await until_async(is_done)
