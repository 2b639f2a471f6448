"""Hosts in a group: who works on what, through joining, stopping, dying, outages and other people's hands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
from lab.simulation.group import Group, Running, until
from lab.simulation.weather import Fate, Outlet, Request

from leasehold.leases.balance import Peer, Plan, Steps, plan_in_steps
from leasehold.leases.errors import DuplicateHost, GroupMismatch
from leasehold.leases.host_record import HOSTS_PREFIX, host_id
from leasehold.leases.lease import Lease
from leasehold.leases.timing import Timing
from leasehold.pipeline.limits import BatchLimits

ONE = BatchLimits(events_max=1)


async def settled(group: Group, *names: str) -> list[Running]:
    hosts = [await group.start(name) for name in names]
    await until(group.is_balanced)
    return hosts


def owned_by(group: Group, *names: str) -> Callable[[], bool]:
    return lambda: set(group.owners.values()) == set(names)


async def flowing(group: Group) -> None:
    """Events for every partition, for ever."""
    while True:
        for partition in group.owners:
            group.append(partition, 1)
        await asyncio.sleep(3)


# Starting


@pytest.mark.virtual
async def test_a_host_whose_view_has_not_changed_plans_nothing_anew_until_somebody_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[str] = []

    def planned(leases: Collection[Lease], peers: Collection[Peer], me: str, *rest: Any, **more: Any) -> Steps[Plan]:
        plans.append(me)
        return plan_in_steps(leases, peers, me, *rest, **more)

    monkeypatch.setattr("leasehold.service.planning.plan_in_steps", planned)
    group = Group("abcd")
    await settled(group, "host-a")
    await asyncio.sleep(2 * group.timing.patience_s)  # until it is new to nobody
    plans.clear()
    await asyncio.sleep(300)
    assert plans == []
    await group.start("host-b")
    await until(group.is_balanced, within_s=30)
    await until(lambda: set(plans) == {"host-a", "host-b"}, within_s=30)


@pytest.mark.virtual
async def test_a_first_host_makes_the_leases_and_works_on_them_once_it_is_ready() -> None:
    group = Group("abcd")
    for partition in "abcd":
        group.append(partition, 10)
    a = await group.start("host-a")
    assert group.owners == dict.fromkeys("abcd", "host-a")
    assert a.host.workers.keys() == {("bank", partition) for partition in "abcd"}
    await until(group.is_delivered, within_s=1)
    await a.stop()


@pytest.mark.virtual
async def test_a_host_that_is_told_to_stop_before_the_container_answers_stops() -> None:
    group = Group()
    group.weather.down.add(("", "store"))
    a = group.started("host-a")
    await asyncio.sleep(100)
    assert len(a.said("announcing this host failed")) < 120
    await a.stop()


@pytest.mark.virtual
async def test_a_host_starts_once_the_container_answers() -> None:
    group = Group()
    group.weather.down.add(("", "store"))
    a = group.started("host-a")
    await asyncio.sleep(100)
    group.weather.down.clear()
    await until(group.is_balanced, within_s=group.timing.balance_s + 5)
    await a.stop()


@pytest.mark.virtual
async def test_leases_of_another_sink_keep_a_host_from_starting() -> None:
    class Other(Outlet):
        identity = "elsewhere"

    group = Group()
    [a] = await settled(group, "host-a")
    with pytest.raises(GroupMismatch, match="elsewhere"):
        await group.start("host-b", sink=Other(group.destination, group.weather))
    assert [stored.id for stored in group.documents(HOSTS_PREFIX)] == [host_id("host-a")]  # it is not counted
    await a.stop()


# Sharing


@pytest.mark.virtual
@pytest.mark.parametrize(("leases", "hosts"), [(4, 2), (5, 2), (7, 3), (2, 3), (10, 4)])
async def test_after_a_join_shares_differ_by_at_most_one_within_two_balance_intervals(leases: int, hosts: int) -> None:
    group = Group([f"{n:02}" for n in range(leases)])
    flow = asyncio.create_task(flowing(group))
    for n in range(hosts):
        await group.start(f"host-{n}")
        await until(group.is_balanced, within_s=2 * group.timing.balance_s)
    epochs = group.epochs
    await asyncio.sleep(10 * group.timing.balance_s)
    assert group.epochs == epochs  # and then nothing moves any more
    flow.cancel()
    await until(group.is_delivered)


@pytest.mark.virtual
async def test_hosts_that_start_together_share_from_the_beginning() -> None:
    group = Group("abcdef")
    for n in range(3):
        group.started(f"host-{n}")
    await until(group.is_balanced, within_s=2 * group.timing.balance_s + 2)
    assert sorted(group.shares.values()) == [2, 2, 2]


@pytest.mark.virtual
async def test_a_host_takes_no_more_than_it_wants() -> None:
    group = Group("abcdef")
    a = await group.start("host-a", leases_max=1)
    await asyncio.sleep(60)
    assert group.shares == {"host-a": 1}
    b = await group.start("host-b")
    await until(lambda: group.shares == {"host-a": 1, "host-b": 5}, within_s=30)
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_a_move_repeats_and_drops_nothing() -> None:
    group = Group("abcd", limits=ONE)
    flow = asyncio.create_task(flowing(group))
    await group.start("host-a")
    await asyncio.sleep(20)
    written = len(group.destination.commits)
    await group.start("host-b")
    await until(group.is_balanced)
    await asyncio.sleep(10)
    flow.cancel()
    await until(group.is_delivered)
    assert len(group.destination.commits) > written
    assert {commit.claim.owner for commit in group.destination.commits} == {"host-a", "host-b"}


# Dying, sleeping, stopping


@pytest.mark.virtual
@pytest.mark.parametrize("after_s", [0.0, 3.0, 8.0, 16.0, 40.0])
@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(("timing", "least_s", "most_s"), [(Timing(), 7.0 - 3.0 - 0.1, 10.0)])
async def test_a_killed_hosts_leases_are_taken_in_time(
    after_s: float, is_busy: bool, timing: Timing, least_s: float, most_s: float
) -> None:
    group = Group("abcdef", timing=timing)
    a, b, c = await settled(group, "host-a", "host-b", "host-c")
    flow = asyncio.create_task(flowing(group)) if is_busy else None
    await asyncio.sleep(after_s)
    await b.kill()
    took = await until(owned_by(group, "host-a", "host-c"))
    assert least_s <= took <= most_s
    if flow:
        flow.cancel()
    await until(group.is_delivered)
    await a.stop()
    await c.stop()


@pytest.mark.virtual
async def test_a_dead_host_is_missed_in_time_although_an_earlier_one_is_dead_still() -> None:
    """What expired long ago must not hide what expires next."""
    group = Group("abcdef")
    a, b, c = await settled(group, "host-a", "host-b", "host-c")
    await c.kill()
    await until(owned_by(group, "host-a", "host-b"))
    await asyncio.sleep(11)
    await b.kill()
    assert await until(owned_by(group, "host-a")) <= group.timing.duration_s + group.timing.look_s + 2
    await a.stop()


@pytest.mark.virtual
async def test_a_paused_host_finds_out_delivers_nothing_and_carries_on() -> None:
    group = Group("abcd", limits=ONE)
    a, b = await settled(group, "host-a", "host-b")
    flow = asyncio.create_task(flowing(group))
    await asyncio.sleep(10)
    b.process.stop()
    await until(owned_by(group, "host-a"), within_s=90)
    epochs = group.epochs
    await asyncio.sleep(100)
    b.process.resume()
    await until(group.is_balanced, within_s=3 * group.timing.balance_s)
    flow.cancel()
    await until(group.is_delivered)
    late = [c for c in group.destination.commits if c.claim.owner == "host-b" and c.claim.epoch > 2]
    assert all(commit.claim.epoch > epochs[commit.claim.partition] for commit in late)
    await a.stop()
    await b.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("ahead_s", [100.0, 3600.0])
async def test_a_host_whose_clock_jumps_ahead_takes_nothing_from_the_living(ahead_s: float) -> None:
    group = Group("abcd")
    a, b = await settled(group, "host-a", "host-b")
    for n in range(40):
        epochs = group.epochs
        await asyncio.sleep(0.7 * n % 13)
        b.clock.ahead_s += ahead_s
        await asyncio.sleep(30)
        assert group.epochs == epochs
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_a_stopped_host_gives_its_leases_back_with_their_positions_and_they_move_once() -> None:
    group = Group("abcdef", limits=ONE)
    flow = asyncio.create_task(flowing(group))
    a, b, c = await settled(group, "host-a", "host-b", "host-c")
    epochs, shares = group.epochs, dict(group.owners)
    await b.stop()
    assert not any(stored.id == host_id("host-b") for stored in group.documents(HOSTS_PREFIX))
    await until(group.is_balanced, within_s=group.timing.balance_s + 1)
    await asyncio.sleep(5 * group.timing.balance_s)
    assert group.epochs == {p: epoch + (shares[p] == "host-b") for p, epoch in epochs.items()}
    flow.cancel()
    await until(group.is_delivered)
    await a.stop()
    await c.stop()


@pytest.mark.virtual
@pytest.mark.parametrize("step", range(0, 60, 3))
async def test_a_stop_at_any_moment_of_the_first_rounds_leaves_no_lease_behind(step: int) -> None:
    group = Group("abcd")
    a = group.started("host-a")
    await asyncio.sleep(step * 0.0025)
    await a.stop()
    assert set(group.owners.values()) <= {None}
    assert group.documents(HOSTS_PREFIX) == []
    assert a.process.tasks == []


@pytest.mark.virtual
async def test_a_worker_that_does_not_stop_in_time_is_cancelled() -> None:
    group = Group("ab")
    group.weather.judge = lambda request: Fate(late_s=1000.0 if request.operation == "write" else 0.005)
    a = await group.start("host-a")
    group.append("a", 1)
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    await a.stop()
    assert 25 <= asyncio.get_running_loop().time() - began < 26
    assert set(group.owners.values()) == {None}
    assert a.process.tasks == []


@pytest.mark.virtual
async def test_a_host_that_restarts_under_its_name_takes_its_leases_back_at_once() -> None:
    group = Group("abcd")
    a, b = await settled(group, "host-a", "host-b")
    before = group.leases
    await b.kill()
    await asyncio.sleep(1)
    again = await group.start("host-b")
    await until(group.is_balanced, within_s=1)
    for partition, lease in group.leases.items():
        came_back = before[partition].owner == "host-b"
        assert (lease.owner, lease.epoch) == (before[partition].owner, before[partition].epoch + came_back)
    await a.stop()
    await again.stop()


@pytest.mark.virtual
async def test_of_two_hosts_of_one_name_the_earlier_stops_and_reports_it() -> None:
    group = Group("abcd", limits=ONE)
    [earlier] = await settled(group, "host-a")
    flow = asyncio.create_task(flowing(group))
    later = await group.start("host-a")
    await until(earlier.task.done, within_s=group.timing.balance_s + 1)
    assert isinstance(error := earlier.task.exception(), DuplicateHost)
    assert "its document moves: this one stops" in str(error)
    assert earlier.process.tasks == []
    await until(group.is_balanced)
    flow.cancel()
    await until(group.is_delivered)
    await later.stop()


# Outages


@pytest.mark.virtual
async def test_an_outage_of_the_container_of_twenty_seconds_moves_nothing() -> None:
    group = Group("abcdef")
    await settled(group, "host-a", "host-b", "host-c")
    flow = asyncio.create_task(flowing(group))
    for begins in (0, 5, 11, 30):
        epochs = group.epochs
        await asyncio.sleep(begins)
        group.weather.down.add(("", "store"))
        await asyncio.sleep(20)
        group.weather.down.clear()
        await asyncio.sleep(90)
        assert group.epochs == epochs
    flow.cancel()
    await until(group.is_delivered)


@pytest.mark.virtual
async def test_an_outage_of_ten_minutes_moves_nothing_either() -> None:
    group = Group("abcdef")
    await settled(group, "host-a", "host-b", "host-c")
    epochs = group.epochs
    group.weather.down.add(("", "store"))
    await asyncio.sleep(600)
    group.weather.down.clear()
    await asyncio.sleep(200)
    assert group.epochs == epochs
    assert group.is_balanced()


@pytest.mark.virtual
async def test_a_host_that_alone_is_cut_off_loses_its_leases_and_comes_back() -> None:
    group = Group("abcd", limits=ONE)
    a, b = await settled(group, "host-a", "host-b")
    flow = asyncio.create_task(flowing(group))
    group.weather.down.add(("host-b", "store"))
    await until(owned_by(group, "host-a"), within_s=80)
    group.weather.down.clear()
    await until(group.is_balanced, within_s=3 * group.timing.balance_s)
    flow.cancel()
    await until(group.is_delivered)
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_a_request_that_could_not_be_answered_in_an_outage_steals_nothing() -> None:
    group = Group("ab", limits=ONE)
    [a] = await settled(group, "host-a")
    asked: list[float] = []

    def judge(request: Request) -> Fate:
        if request.host == "host-a" and request.where == "store" and asked:
            return Fate(ends="refused")
        if request.host == "host-b" and request.operation == "replace" and "/leases/" in request.id:
            asked.append(asyncio.get_running_loop().time())
            group.weather.down.add(("host-b", "store"))
            return Fate()
        return Fate()

    group.weather.judge = judge
    b = group.started("host-b")
    await until(lambda: asked, within_s=20)
    await asyncio.sleep(70)
    epochs = group.epochs
    group.weather.down.clear()
    group.weather.judge = lambda request: Fate()
    await until(group.is_balanced, within_s=30)
    assert sum(group.epochs.values()) == sum(epochs.values()) + 1
    assert not [outcome for _, outcome in a.host.outcomes if outcome.reason == "stolen"]
    await a.stop()
    await b.stop()


@pytest.mark.virtual
async def test_an_owner_that_lives_but_does_not_answer_is_stolen_from_once_patience_has_ended() -> None:
    group = Group("ab", limits=ONE, batch_timeout_s=10_000.0)
    [a] = await settled(group, "host-a")
    group.weather.judge = lambda request: Fate(late_s=5000.0 if request.operation == "write" else 0.005)
    for partition in "ab":
        group.append(partition, 1)
    await asyncio.sleep(1)
    b = await group.start("host-b")
    took = await until(lambda: "host-b" in group.owners.values())
    assert group.timing.patience_s <= took <= group.timing.patience_s + group.timing.balance_s
    await until(group.is_balanced)
    await a.kill()
    await b.kill()
