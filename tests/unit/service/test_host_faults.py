"""Hosts among partitions that fail, documents that other people touch, and partitions that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

import pyarrow as pa
import pytest
from lab.simulation.group import Group, Running, until
from lab.simulation.weather import Fate, Outlet, of

from leasehold.leases.bootstrap import info_id
from leasehold.leases.document import BODY_BYTES_MAX, INTEGER_MAX, encode_lease, lease_id
from leasehold.leases.host_record import HOSTS_PREFIX, host_id
from leasehold.leases.lease import RESTORED_ABOVE, Lease
from leasehold.leases.timing import Timing
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryWriter
from leasehold.pipeline.errors import FeedUnavailable, SinkRejected, TransformError
from leasehold.pipeline.feed import FeedPartition
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Claim
from leasehold.pipeline.transform import NoTransform

ONE = BatchLimits(events_max=1)


async def settled(group: Group, *names: str) -> list[Running]:
    hosts = [await group.start(name) for name in names]
    await until(group.is_balanced)
    return hosts


def owned_by(group: Group, *names: str) -> Callable[[], bool]:
    return lambda: set(group.owners.values()) == set(names)


# Failing partitions


class Poisoned(NoTransform):
    """Fails for one partition until it is mended. tried: when it was asked to."""

    def __init__(self, partition: str) -> None:
        self.partition = partition
        self.tried: list[float] = []
        self.is_mended = False

    async def apply(self, batch: Batch) -> pa.Table:
        if batch.partition == self.partition and not self.is_mended:
            self.tried.append(asyncio.get_running_loop().time())
            raise TransformError("poison")
        return batch.table


@pytest.mark.virtual
async def test_a_poisoned_partition_is_held_off_with_growing_pauses_and_the_others_go_on() -> None:
    group, poison = Group("abcd"), Poisoned("b")
    for partition in "abcd":
        group.append(partition, 5)
    a = await group.start("host-a", transform=poison)
    await until(lambda: all(len(group.delivered(p)) == 5 for p in "acd"), within_s=2)
    await asyncio.sleep(300)
    pauses = [later - earlier for earlier, later in zip(poison.tried, poison.tried[1:], strict=False)]
    assert pauses[:6] == pytest.approx([1, 2, 4, 8, 16, 32], abs=0.5)
    assert all(60 <= pause <= 61 for pause in pauses[6:])
    failure = a.host.failures["bank", "b"]
    assert (str(failure.error), failure.count) == ("poison", len(poison.tried))
    poison.is_mended = True
    await until(group.is_delivered, within_s=61)
    assert group.epochs["a"] == 1
    await a.stop()
    assert a.host.failures.keys() <= {("bank", "b")}


@pytest.mark.virtual
async def test_two_hosts_with_a_poisoned_partition_work_on_all_the_others() -> None:
    group, poison = Group("abcdefgh"), Poisoned("b")
    group.append("b", 1)
    a, b = await group.start("host-a", transform=poison), await group.start("host-b", transform=poison)
    await until(lambda: sum(group.shares.values()) == 7 and max(group.shares.values()) <= 4, within_s=30)
    await b.kill()
    took = await until(lambda: group.shares["host-a"] == 7)
    assert took <= group.timing.duration_s + group.timing.look_s + 2
    await a.stop()


@pytest.mark.virtual
async def test_a_failure_is_forgotten_once_its_partition_delivers_again() -> None:
    group, poison = Group("ab"), Poisoned("b")
    group.append("b", 1)
    a = await group.start("host-a", transform=poison)
    await until(lambda: a.host.failures.get(("bank", "b")) and a.host.failures["bank", "b"].count > 2)
    poison.is_mended = True
    await until(group.is_delivered, within_s=10)
    await until(lambda: not a.host.failures, within_s=group.timing.balance_s + 1)
    assert ("bank", "b") in a.host.workers
    await a.stop()


@pytest.mark.virtual
async def test_a_host_says_once_that_a_failing_partition_works_again_after_how_many_attempts() -> None:
    group, poison = Group("ab"), Poisoned("b")
    group.append("b", 1)
    a = await group.start("host-a", transform=poison)
    await until(lambda: len(poison.tried) == 3)
    assert not a.said("recovered")
    poison.is_mended = True
    await until(group.is_delivered, within_s=10)
    await asyncio.sleep(60)
    [said] = a.said("partition recovered")
    assert (said["level"], said["pipeline"], said["partition"], said["epoch"]) == ("info", "bank", "b", 4)
    assert (said["after_attempts"], said["failing_for_s"]) == (3, pytest.approx(7, abs=1.5))
    await a.stop()


@pytest.mark.virtual
async def test_a_partition_that_its_worker_tries_again_is_failing_until_a_batch_is_delivered_and_not_once_its_sink_opens() -> (
    None
):
    group, refused = Group("a"), {"write"}
    group.weather.judge = lambda request: Fate(ends="refused" if request.operation in refused else "ok")
    group.append("a", 1)
    a = await group.start("host-a")
    await until(lambda: len(a.said("partition failed, retrying")) >= 4)
    assert a.host.failures["bank", "a"].count == len(a.said("partition failed, retrying"))
    assert a.host.failures.held_off == []
    assert not a.said("recovered")
    refused.clear()
    await until(group.is_delivered)
    await until(lambda: not a.host.failures)
    [said] = a.said("partition recovered")
    assert said["after_attempts"] == len(a.said("partition failed, retrying"))
    await a.stop()


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("timing", "events"),
    [
        (Timing(), ("looking at hosts", "heartbeat")),
    ],
)
async def test_a_host_whose_lease_container_comes_back_says_so_once_for_each_thing_that_failed(
    timing: Timing, events: Collection[str]
) -> None:
    group, away = Group("a", timing=timing), False
    group.weather.judge = lambda request: Fate(ends="refused" if away and request.where == "store" else "ok")
    a = await group.start("host-a")
    await asyncio.sleep(1)
    away = True
    await asyncio.sleep(group.timing.patience_s / 2)
    assert all(a.said(f"{event} failed") for event in events)
    assert not a.said("recovered")
    away = False
    await asyncio.sleep(group.timing.patience_s)
    for event in events:
        [said] = a.said(f"{event} recovered")
        assert said["level"] == "info"
        assert said["after_attempts"] >= a.said(f"{event} failed")[-1]["attempt"] > 1
    await a.stop()


@pytest.mark.virtual
async def test_a_host_whose_feed_lists_its_partitions_again_says_so() -> None:
    group, away = Group("a"), True
    partitions = group.feed.partitions

    async def listed() -> list[FeedPartition]:
        if away:
            raise FeedUnavailable("away")
        return await partitions()

    group.feed.partitions = listed  # type: ignore[method-assign]
    a = await group.start("host-a")
    await until(lambda: len(a.said("listing partitions failed")) >= 2)
    assert not a.said("recovered")
    away = False
    await until(lambda: bool(a.said("listing partitions recovered")))
    await asyncio.sleep(60)
    assert [each["after_attempts"] for each in a.said("recovered")] == [len(a.said("listing partitions failed"))]
    await a.stop()


class SlowlyPoisoned(Poisoned):
    """Takes its time before it fails, so that others see who has the lease meanwhile."""

    async def apply(self, batch: Batch) -> pa.Table:
        if not self.is_mended:
            await asyncio.sleep(20)
        return await super().apply(batch)


@pytest.mark.virtual
async def test_some_host_reports_a_failure_at_any_time_while_hosts_try_in_vain_and_none_once_one_delivers() -> None:
    group, poison = Group("ab"), SlowlyPoisoned("b")
    group.append("b", 1)
    a = await group.start("host-a", transform=poison)
    await until(lambda: a.host.failures.get(("bank", "b")) and a.host.failures["bank", "b"].count > 3)
    b = await group.start("host-b", transform=poison)
    for _ in range(1800):
        await asyncio.sleep(0.1)
        assert a.host.failures or b.host.failures
    assert {"host-a", "host-b"} <= {each.name for each in (a, b) if each.said("lease released")}
    poison.is_mended = True
    await until(group.is_delivered, within_s=100)
    await until(lambda: not a.host.failures and not b.host.failures, within_s=30)
    recoveries = [len(each.said("partition recovered")) for each in (a, b)]
    assert max(recoveries) == 1
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_a_failure_is_forgotten_once_its_partition_has_had_nothing_to_do_for_a_while() -> None:
    group = Group("a")
    refuses = True

    class Refusing(Outlet):
        async def open(self, claim: Claim) -> MemoryWriter:
            if refuses:
                raise SinkRejected("no such table")
            return await super().open(claim)

    a = await group.start("host-a", sink=Refusing(group.destination, group.weather))
    await until(lambda: a.host.failures)
    refuses = False
    await until(lambda: a.host.workers, within_s=10)
    await until(lambda: not a.host.failures, within_s=3 * group.timing.balance_s)
    assert group.epochs["a"] > 1
    await a.stop()


@pytest.mark.virtual
async def test_a_failure_is_forgotten_once_another_host_has_the_partition() -> None:
    group, poison = Group("ab"), Poisoned("b")
    group.append("b", 1)
    a = await group.start("host-a", transform=poison)
    await until(lambda: a.host.failures.get(("bank", "b")) and a.host.failures["bank", "b"].count > 4)
    b = await group.start("host-b")
    await until(group.is_delivered, within_s=200)
    await until(lambda: not a.host.failures, within_s=14)
    await a.stop()
    await b.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("error", [SinkRejected("no sink state"), ZeroDivisionError("a fault")])
async def test_a_sink_state_that_cannot_be_claimed_stops_its_lease_and_no_other(error: Exception) -> None:
    class Picky(Outlet):
        def claimed(self, state: str) -> str:
            if state == "spoilt":
                raise error
            return state

    group = Group("abc")
    group._sink = lambda: Picky(group.destination, group.weather)
    [a] = await settled(group, "host-a")
    await a.stop()
    group.edit("b", lambda lease: replace(lease, sink_state="spoilt"))
    a = await group.start("host-a")
    await until(lambda: group.shares == {"host-a": 2}, within_s=2)
    await asyncio.sleep(120)
    assert str(error) in str(a.host.failures["bank", "b"].error)
    assert 6 <= len(a.said("lease cannot be taken")) <= 9
    group.edit("b", lambda lease: replace(lease, sink_state=""))
    await until(group.is_balanced, within_s=61)
    await a.stop()


# Other people's hands


@pytest.mark.virtual
@pytest.mark.parametrize("body", ["", "{", "[]", '{"version": 99}', "x" * 100_000])
async def test_a_lease_document_that_is_spoilt_while_owned_stops_itself_alone(body: str) -> None:
    group = Group("abc")
    [a] = await settled(group, "host-a")
    good = group.documents(lease_id("bank", "b"))[0].body
    group.put(lease_id("bank", "b"), body)
    await until(lambda: ("bank", "b") not in a.host.workers, within_s=group.timing.balance_s + 1)
    await asyncio.sleep(60)
    assert sorted(a.host.workers) == [("bank", "a"), ("bank", "c")]
    assert len(a.said("needs attention")) == 1
    [let_go] = a.said("lease released")
    assert "leasehold leases reset FILE bank b --to" in let_go["error"]
    group.put(lease_id("bank", "b"), good)
    await until(group.is_balanced, within_s=14)
    await a.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("field", ["tick", "epoch"])
async def test_a_lease_whose_numbers_are_used_up_stops_itself_alone(field: str) -> None:
    group = Group("abc")
    [a] = await settled(group, "host-a")
    for value in (INTEGER_MAX - 2, INTEGER_MAX):
        group.edit("b", lambda lease, value=value: replace(lease, owner=None, incarnation=None, **{field: value}))  # type: ignore[misc]
        await asyncio.sleep(300)
        assert {("bank", "a"), ("bank", "c")} <= a.host.workers.keys()
    assert a.host.failures.keys() == {("bank", "b")}
    await a.stop()


@pytest.mark.virtual
async def test_a_lease_document_that_is_deleted_while_owned_comes_back_and_nothing_is_sent_twice() -> None:
    group = Group("abc")
    for partition in "abc":
        group.append(partition, 5)
    [a] = await settled(group, "host-a")
    await a.stop()
    [a] = await settled(group, "host-a")
    await until(group.is_delivered)
    await asyncio.sleep(5)
    group.remove(lease_id("bank", "b"))
    group.append("b", 5)
    await asyncio.sleep(40)
    await until(group.is_balanced)
    await until(group.is_delivered)
    assert group.leases["b"].epoch > RESTORED_ABOVE  # far above any epoch that its owner may have had
    assert group.leases["b"].continuation == "10"
    assert any("put back where this host saw it last" in entry["what"] for entry in a.said("needs attention"))
    await a.stop()


@pytest.mark.virtual
async def test_a_lease_document_that_is_deleted_while_nobody_looks_comes_back_and_outranks_what_its_sink_knows() -> (
    None
):
    group = Group("abc")
    for partition in "abc":
        group.append(partition, 5)
    for _ in range(2):
        [a] = await settled(group, "host-a")
        await until(group.is_delivered)
        await a.stop()
    group.remove(lease_id("bank", "b"))
    group.append("b", 5)
    [a] = await settled(group, "host-a")
    await until(group.is_delivered)
    assert group.leases["b"].epoch == 3  # it came back with 1; the sink knew 2, and had to be outranked
    await a.stop()


@pytest.mark.virtual
async def test_an_orphan_is_set_aside_and_told_and_taken_once_its_feed_has_it() -> None:
    group = Group("ab")
    [a] = await settled(group, "host-a")
    group.put(lease_id("bank", "c"), encode_lease(Lease(pipeline="bank", partition="c", epoch=7)))
    await asyncio.sleep(600)
    assert group.leases["c"].epoch == 7
    assert group.leases["c"].owner is None
    assert "which its feed does not have (any more): it is set aside" in str(a.host.failures["bank", "c"].error)
    assert [entry for entry in a.said("needs attention") if "set aside" in entry["what"]]
    group.feed._logs["c"] = type(group.feed._logs["a"])()
    group.append("c", 3)
    await until(lambda: group.delivered("c") == [0, 1, 2] and not a.host.failures)
    await a.stop()


@pytest.mark.virtual
@pytest.mark.parametrize(("timing", "released_s", "reset_s"), [(Timing(), 80, 80)])
async def test_a_lease_that_an_operator_releases_or_resets_is_taken_again(
    timing: Timing, released_s: float, reset_s: float
) -> None:
    group = Group("ab", timing=timing)
    group.append("a", 5)
    [a] = await settled(group, "host-a")
    await until(group.is_delivered)
    await asyncio.sleep(5)
    group.edit("a", lambda lease: lease.revoked())  # by hand: it does not ring
    await until(lambda: group.leases["a"].epoch == 2 and group.is_balanced(), within_s=released_s)
    group.edit("a", lambda lease: lease.reset("2"))
    await until(lambda: len(group.destination.commits) == 2, within_s=reset_s)
    assert group.delivered("a") == [0, 1, 2, 3, 4, 2, 3, 4]
    await a.stop()


@pytest.mark.virtual
async def test_garbage_among_the_hosts_is_told_once_and_hurts_nobody() -> None:
    group = Group()
    group.put(host_id("host-x"), "{")
    a, b = await settled(group, "host-a", "host-b")
    await asyncio.sleep(100)
    assert [len(host.said("needs attention")) for host in (a, b)] == [1, 1]
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_the_documents_of_the_long_dead_are_cleared_away() -> None:
    group = Group()
    a, b = await settled(group, "host-a", "host-b")
    await b.kill()
    await until(lambda: [s.id for s in group.documents(HOSTS_PREFIX)] == [host_id("host-a")], within_s=700)
    await a.stop()


@pytest.mark.virtual
async def test_a_closed_lease_that_is_reset_just_before_it_is_cleared_away_stays_although_the_feed_is_slow() -> None:
    group = Group("a")
    [a] = await settled(group, "host-a")
    at_once = group.feed.partitions

    async def slow() -> list[FeedPartition]:
        await asyncio.sleep(1)
        return await at_once()

    group.feed.partitions = slow  # type: ignore[method-assign]
    gone = Lease(pipeline="bank", partition="gone", closed=True, continuation="7")
    group.put(lease_id(*gone.key), encode_lease(gone))
    group.weather.judge = lambda request: Fate(ends="refused" if request.operation == "delete" else "ok")
    await until(lambda: group.asked(of("store", "delete", "gone")), within_s=800)
    group.edit("gone", lambda lease: lease.reset(None))
    group.weather.judge = lambda request: Fate()
    await asyncio.sleep(2 * group.timing.audit_s)
    assert "gone" in group.leases
    await a.stop()


@pytest.mark.virtual
async def test_a_tombstone_that_is_deleted_when_its_file_returns_is_put_back() -> None:
    group = Group("a")
    tombstone = Lease(pipeline="bank", partition="b", closed=True, tombstone=True, continuation="3")
    group.put(lease_id(*tombstone.key), encode_lease(tombstone))
    [a] = await settled(group, "host-a")
    group.feed._logs["b"] = type(group.feed._logs["a"])()
    group.remove(lease_id(*tombstone.key))
    a.host.balancer.reader.scan = replace(a.host.balancer.reader.scan, token=None)  # as a store that must list
    a.host.wake()
    await until(lambda: "b" in group.leases, within_s=5)
    assert group.leases["b"].tombstone
    await a.stop()


@pytest.mark.virtual
async def test_a_missing_info_document_stops_nobody() -> None:
    group = Group()
    [a] = await settled(group, "host-a")
    group.remove(info_id("bank"))
    group.feed._logs["e"] = type(group.feed._logs["a"])()
    await until(lambda: "e" in group.owners and group.is_balanced(), within_s=30)
    await a.stop()


# Partitions that come and go


@pytest.mark.virtual
async def test_a_feed_without_partitions_is_told_once() -> None:
    group = Group("")
    host = await group.start("host-a")
    await asyncio.sleep(10 * group.timing.balance_s)
    assert [entry["what"] for entry in host.said("needs attention")] == [
        f"pipeline 'bank': the feed {group.feed.identity} has no partitions yet"
    ]


@pytest.mark.virtual
async def test_new_partitions_are_noticed_and_shared() -> None:
    group = Group("ab")
    a, b = await settled(group, "host-a", "host-b")
    for name in "cdef":
        group.feed._logs[name] = type(group.feed._logs["a"])()
        group.append(name, 3)
    await until(lambda: len(group.owners) == 6 and group.is_balanced(), within_s=3 * group.timing.balance_s)
    await until(group.is_delivered)
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_children_take_over_from_a_split_and_a_merge_behind_their_parents() -> None:
    group = Group("abc", limits=ONE)
    a, b = await settled(group, "host-a", "host-b")
    group.append("a", 5)
    group.feed.split("a", ["a1", "a2"])
    await until(lambda: "a1" in group.owners and group.is_balanced(), within_s=60)
    group.append("a1", 3)
    for parent in ("a2", "b"):
        group.append(parent, 4)
        group.feed.split(parent, ["ab"])
    await until(lambda: "ab" in group.owners and group.is_balanced(), within_s=60)
    group.append("ab", 3)
    await until(group.is_delivered)
    assert sorted(group.owners) == ["a1", "ab", "c"]
    assert group.leases["ab"].parents == ("a2", "b")
    await a.stop()
    await b.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("balance_s", [13.0, 1.0])  # 1 s: shorter than a call may take
@pytest.mark.parametrize("how", ["fails", "hangs", "breaks", "is cancelled"])
async def test_a_feed_that_cannot_list_its_partitions_stops_nothing_that_is_at_work(how: str, balance_s: float) -> None:
    group = Group("abcd", timing=Timing(balance_s=balance_s))
    a, b = await settled(group, "host-a", "host-b")

    async def partitions() -> list[FeedPartition]:
        if how == "hangs":
            await asyncio.Event().wait()
        raise {
            "fails": FeedUnavailable("away"),
            "breaks": ZeroDivisionError("a fault"),
            "is cancelled": asyncio.CancelledError("by the feed's client"),
        }[how]

    group.feed.partitions = partitions  # type: ignore[method-assign]
    await b.kill()
    took = await until(owned_by(group, "host-a"))
    assert took <= group.timing.duration_s + group.timing.look_s + 2
    for partition in "abcd":
        group.append(partition, 3)
    await until(group.is_delivered)
    await a.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("leases_there", [False, True])
async def test_leases_are_made_of_what_a_slow_feed_lists_after_the_round_has_gone_on(leases_there: bool) -> None:
    group = Group("ab")
    at_once, within_s = group.feed.partitions, group.timing.call_timeout_s - 0.5
    if leases_there:
        await (await group.start("host-a")).stop()

    async def partitions() -> list[FeedPartition]:
        await asyncio.sleep(within_s)
        return await at_once()

    group.feed.partitions = partitions  # type: ignore[method-assign]
    group.feed._logs["c"] = type(group.feed._logs["a"])()
    a = await group.start("host-a")
    assert await until(lambda: set(group.owners) == set("abc")) <= 2 * within_s
    assert await until(group.is_balanced) <= 2 * group.timing.balance_s
    await a.stop()


@pytest.mark.virtual
async def test_a_host_that_is_cancelled_releases_what_it_has_and_leaves_nothing_running() -> None:
    group = Group("abcd")
    [a] = await settled(group, "host-a")
    a.task.cancel()
    await asyncio.wait({a.task})
    assert set(group.owners.values()) == {None}
    assert a.process.tasks == []


@pytest.mark.virtual
async def test_a_lease_document_without_room_for_a_request_costs_no_host() -> None:
    group = Group("ab")
    [a] = await settled(group, "host-a")
    name = "host-b-with-a-name-as-long-as-pods-have-them-7d9c5b6f4-x2x9q"
    for partition in "ab":
        note = {"note": "x" * (BODY_BYTES_MAX - len(encode_lease(group.leases[partition])) - len(name))}
        group.edit(partition, lambda lease, note=note: replace(lease, unknown=note))  # type: ignore[misc]
    b = await group.start(name)
    await asyncio.sleep(600)
    told = [entry["what"] for entry in b.log if "cannot be requested" in entry.get("what", "")]
    assert len(told) == 1
    assert "larger than" in told[0]
    for partition in "ab":
        group.append(partition, 3)
    await until(group.is_delivered)
    for partition in "ab":
        group.edit(partition, lambda lease: replace(lease, unknown={}))
    await until(group.is_balanced)
    await a.stop()
    await b.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("where", ["listing", "scan", "heartbeat"])
async def test_a_cancellation_that_nobody_asked_for_ends_neither_balancing_nor_the_heartbeat(where: str) -> None:
    group = Group("ab")
    [a] = await settled(group, "host-a")
    part, name = {
        "listing": (group.feed, "partitions"),
        "scan": (a.host.balancer._keeper, "scan"),
        "heartbeat": (a.session, "beat"),
    }[where]
    plain = getattr(part, name)

    async def cancelled(*arguments: object, **named: object) -> object:
        setattr(part, name, plain)
        raise asyncio.CancelledError("by a client of ours")

    setattr(part, name, cancelled)
    await until(lambda: getattr(part, name) == plain, within_s=120)
    group.edit("a", lambda lease: lease.revoked())
    await until(owned_by(group, "host-a"), within_s=120)
    beaten = a.session.record.tick
    await until(lambda: a.session.record.tick > beaten, within_s=120)
    await a.stop()
