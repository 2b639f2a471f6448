"""What a program is notified of, against the log of its host and the leases in the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import Group, Running, until
from lab.simulation.weather import Fate, Once, of

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import TransformError
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.transform import NoTransform
from leasehold.service.notifications import (
    METHODS,
    BatchDelivered,
    HostJoined,
    HostLeft,
    LeaseAcquired,
    LeaseLoss,
    LeaseReleased,
    Notification,
    Notifications,
    PartitionFailing,
    PartitionNotification,
    PartitionRecovered,
    TrustRestored,
    TrustSuspended,
)
from leasehold.service.notifier import Notifier


class Kept(Notifications):
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[Any] = []

        async def keep(event: Notification) -> None:
            self.events.append(event)

        for name in METHODS.values():
            setattr(self, name, keep)

    def of(self, kind: type[Notification], partition: str = "a") -> list[Any]:
        return [event for event in self.about_partitions if type(event) is kind and event.partition == partition]

    def kinds(self, partition: str = "a") -> list[type[Notification]]:
        return [type(event) for event in self.about_partitions if event.partition == partition]

    @property
    def about_partitions(self) -> list[PartitionNotification]:
        return [event for event in self.events if isinstance(event, PartitionNotification)]

    @property
    def about_hosts(self) -> list[tuple[type[Notification], str]]:
        return [(type(event), event.name) for event in self.events if isinstance(event, HostJoined | HostLeft)]


class Blocked(Notifications):
    """Never returns."""

    async def on_lease_acquired(self, event: LeaseAcquired) -> None:
        await asyncio.Event().wait()


def started(group: Group, name: str, on: Notifications, **settings: Any) -> Running:
    running = group.started(name, **settings)

    async def run_plain(call: Callable[[], object]) -> object:
        return call()

    running.host.stats._notifier = Notifier(
        on,
        host=name,
        clock=running.clock,
        now=lambda: datetime.now(UTC),
        log=group.logger(running.log),
        run_plain=run_plain,
    )
    return running


async def start(group: Group, name: str, **settings: Any) -> tuple[Running, Kept]:
    kept = Kept()
    running = started(group, name, kept, **settings)
    await running.host.ready.wait()
    return running, kept


def tenures(running: Running) -> list[tuple[str, str, int]]:
    """What the log has of the begin and the end of tenures: event, partition, epoch."""
    lines = [line for line in running.log if line["event"] in ("lease acquired", "lease released")]
    return [(line["event"], line["partition"], line["epoch"]) for line in lines]


def notified(kept: Kept) -> list[tuple[str, str, int]]:
    names = {LeaseAcquired: "lease acquired", LeaseReleased: "lease released", LeaseLoss: "lease released"}
    return [(names[type(each)], each.partition, each.epoch) for each in kept.events if type(each) in names]


@pytest.mark.virtual
async def test_a_stop_and_a_handoff_are_notified_as_the_log_and_the_leases_have_them() -> None:
    group = Group("abcd")
    for partition in "abcd":
        group.append(partition, 5)
    a, at_a = await start(group, "host-a")
    await until(group.is_delivered)
    b, at_b = await start(group, "host-b")
    await until(group.is_balanced)
    given = [event for event in at_a.events if type(event) is LeaseReleased]
    assert {(event.reason, event.to, event.continuation) for event in given} == {("handed_over", "host-b", "5")}
    assert len(given) == 2
    assert {event.partition: event.epoch for event in at_b.events if type(event) is LeaseAcquired} == {
        event.partition: event.epoch + 1 for event in given
    }
    await b.stop()
    await a.stop()
    stops = [event for event in (*at_a.events, *at_b.events) if getattr(event, "reason", None) == "stopped"]
    ends = {event.partition: (event.epoch, event.continuation) for event in stops if event.host == "host-b"}
    ends |= {event.partition: (event.epoch, event.continuation) for event in stops if event.host == "host-a"}
    assert ends == {name: (lease.epoch, lease.continuation) for name, lease in group.leases.items()}
    for running, kept in ((a, at_a), (b, at_b)):
        assert sorted(notified(kept)) == sorted(tenures(running))
        assert {event.host for event in kept.events} == {running.name}
        for partition in "abcd":
            tenure = [kind for kind in kept.kinds(partition) if kind is not BatchDelivered]
            assert tenure == [LeaseAcquired, LeaseReleased] * (len(tenure) // 2), "in their order"


@pytest.mark.virtual
async def test_each_batch_is_notified_with_its_counts_and_positions() -> None:
    group = Group("a", limits=BatchLimits(events_max=2))
    group.append("a", 5)
    a, kept = await start(group, "host-a")
    await until(group.is_delivered)
    await a.stop()
    batches = [(each.epoch, each.start, each.to, each.events, each.rows) for each in kept.of(BatchDelivered)]
    assert [(epoch, start, to) for epoch, start, to, _, _ in batches] == [(1, None, "2"), (1, "2", "4"), (1, "4", "5")]
    assert [(events, rows) for *_, events, rows in batches] == [(2, 2), (2, 2), (1, 1)]


@pytest.mark.virtual
async def test_a_stolen_lease_is_notified_with_its_new_owner() -> None:
    group = Group("a")
    a, at_a = await start(group, "host-a")
    b, at_b = await start(group, "host-b")
    a.process.stop()
    await until(lambda: group.owners["a"] == "host-b")
    a.process.resume()
    await until(lambda: at_a.of(LeaseLoss))
    (lost,), (won,) = at_a.of(LeaseLoss), at_b.of(LeaseAcquired)
    assert (lost.reason, lost.taken_by, lost.epoch + 1) == ("stolen", "host-b", won.epoch)
    assert won.epoch == group.epochs["a"]
    assert [line["reason"] for line in a.said("lease released")] == ["stolen"]
    await b.stop()
    await a.stop()


@pytest.mark.virtual
async def test_a_lease_that_an_operator_releases_is_lost_to_no_host() -> None:
    group = Group("a")
    a, kept = await start(group, "host-a")
    group.edit("a", lambda lease: lease.revoked())
    await until(lambda: kept.of(LeaseLoss))
    assert [(event.reason, event.taken_by, event.epoch) for event in kept.of(LeaseLoss)] == [("lost", None, 1)]
    await until(lambda: len(kept.of(LeaseAcquired)) == 2)
    assert kept.kinds() == [LeaseAcquired, LeaseLoss, LeaseAcquired]
    await a.stop()


@pytest.mark.virtual
async def test_a_release_that_the_store_does_not_confirm_is_no_release() -> None:
    group = Group("a")
    a, kept = await start(group, "host-a")
    group.weather.down.add(("", "store"))
    await a.stop()
    assert [(event.reason, event.epoch) for event in kept.of(LeaseLoss)] == [("unreleased", 1)]
    assert kept.of(LeaseReleased) == []
    assert group.owners == {"a": "host-a"}


@pytest.mark.virtual
async def test_trust_is_suspended_and_restored_once_in_an_outage_of_the_store() -> None:
    group = Group("a")
    a, kept = await start(group, "host-a")
    group.weather.down.add(("", "store"))
    await asyncio.sleep(60)
    group.append("a", 1)
    await asyncio.sleep(60)
    assert kept.kinds() == [LeaseAcquired, TrustSuspended]
    assert len(a.said("suspended")) == 1
    group.weather.down.clear()
    await until(group.is_delivered)
    await until(lambda: kept.of(BatchDelivered))
    assert kept.kinds() == [LeaseAcquired, TrustSuspended, TrustRestored, BatchDelivered]
    assert {event.epoch for event in kept.events} == {1}
    assert len(a.said("suspension ended")) == 1
    await a.stop()


class Broken(NoTransform):
    """Fails until it is mended."""

    is_mended = False

    async def apply(self, batch: Batch) -> pa.Table:
        if not self.is_mended:
            raise TransformError("poison: password=hunter2")
        return batch.table


@pytest.mark.virtual
async def test_a_partition_that_fails_and_recovers_is_notified_of_each_failure() -> None:
    group, broken = Group("a"), Broken()
    group.append("a", 5)
    a, kept = await start(group, "host-a", transform=broken)
    await until(lambda: len(kept.of(PartitionFailing)) == 3)
    failures = [(each.error, each.failures, each.is_retried) for each in kept.of(PartitionFailing)]
    error = "TransformError: poison: password=***"
    assert failures == [(error, 1, False), (error, 2, False), (error, 3, False)]
    assert {each.reason for each in kept.of(LeaseReleased)} == {"failed"}
    broken.is_mended = True
    await until(lambda: kept.of(PartitionRecovered))
    (recovered,), (line,) = kept.of(PartitionRecovered), a.said("partition recovered")
    assert recovered.failures == line["after_attempts"]
    assert recovered.failing_for_s == pytest.approx(line["failing_for_s"], abs=0.05)
    await a.stop()


@pytest.mark.virtual
async def test_a_failure_that_is_retried_keeps_the_lease() -> None:
    group = Group("a")
    group.append("a", 1)
    group.weather.judge = Once(of("sink", "write"), "refused", "refused")
    a, kept = await start(group, "host-a")
    await until(lambda: kept.of(PartitionRecovered))
    assert [(each.failures, each.is_retried) for each in kept.of(PartitionFailing)] == [(1, True), (2, True)]
    assert (kept.of(LeaseReleased), kept.of(LeaseLoss)) == ([], [])
    await a.stop()


@pytest.mark.virtual
async def test_a_partition_that_ends_is_released_for_good() -> None:
    group = Group("a")
    group.append("a", 3)
    a, kept = await start(group, "host-a")
    await until(group.is_delivered)
    group.feed.split("a", ["b", "c"])
    await until(lambda: kept.of(LeaseAcquired, "b") and kept.of(LeaseAcquired, "c"))
    (ended,) = kept.of(LeaseReleased)
    assert (ended.reason, ended.to, ended.continuation) == ("ended", None, group.leases["a"].continuation)
    assert group.leases["a"].closed
    await a.stop()


@pytest.mark.virtual
async def test_a_callback_that_blocks_for_ever_delays_no_handoff_and_no_stop() -> None:
    times: dict[str, tuple[float, float]] = {}
    for name, on in (("free", Kept()), ("blocked", Blocked())):
        group = Group("abcd")
        for partition in "abcd":
            group.append(partition, 100)
        a = started(group, "host-a", on)
        await a.host.ready.wait()
        b = started(group, "host-b", Kept())
        balanced_s = await until(group.is_balanced)
        assert await until(group.is_delivered) < 60
        began = asyncio.get_running_loop().time()
        await a.stop()
        times[name] = balanced_s, asyncio.get_running_loop().time() - began
        await until(lambda group=group: set(group.owners.values()) == {"host-b"})  # type: ignore[misc]
        await b.stop()
    assert times["blocked"] == pytest.approx(times["free"])


@pytest.mark.virtual
async def test_an_answer_that_comes_late_changes_no_order() -> None:
    group = Group("ab", limits=BatchLimits(events_max=1))
    group.weather.judge = lambda request: Fate(late_s=0.5)
    for partition in "ab":
        group.append(partition, 3)
    a, kept = await start(group, "host-a")
    await until(group.is_delivered)
    await a.stop()
    for partition in "ab":
        assert [each.to for each in kept.of(BatchDelivered, partition)] == ["1", "2", "3"]
        assert kept.kinds(partition) == [LeaseAcquired, *[BatchDelivered] * 3, LeaseReleased]


@pytest.mark.virtual
async def test_hosts_that_join_stop_and_die_are_notified_to_the_others_once() -> None:
    group = Group("abcd")
    a, at_a = await start(group, "host-a")
    b, at_b = await start(group, "host-b")
    await until(lambda: at_a.about_hosts == [(HostJoined, "host-b")])
    assert at_b.about_hosts == [(HostJoined, "host-a")], "it was there before"
    await until(group.is_balanced)
    await b.stop()
    await until(lambda: at_a.about_hosts[1:] == [(HostLeft, "host-b")])
    c, _ = await start(group, "host-c")
    await until(lambda: at_a.about_hosts[2:] == [(HostJoined, "host-c")])
    await c.kill()
    await until(lambda: at_a.about_hosts[3:] == [(HostLeft, "host-c")])
    await until(lambda: set(group.owners.values()) == {"host-a"})
    await a.stop()
    assert len(at_a.about_hosts) == 4


@pytest.mark.virtual
async def test_a_host_that_has_no_lease_is_noticed_too() -> None:
    group = Group("a")
    a, at_a = await start(group, "host-a")
    b, _ = await start(group, "host-b")
    await until(lambda: at_a.about_hosts == [(HostJoined, "host-b")])
    await b.kill()
    await until(lambda: at_a.about_hosts[1:] == [(HostLeft, "host-b")])
    await a.stop()
