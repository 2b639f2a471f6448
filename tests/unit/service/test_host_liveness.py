"""How hosts show that they live: idle leases cost nothing, and a dead host's leases have new owners within ten seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TypeVar, cast

import pytest
from lab.simulation.group import Group, always, until
from lab.simulation.weather import Fate, Request

from leasehold.leases.bell import Bell
from leasehold.leases.errors import StoreAmbiguous
from leasehold.leases.host_record import (
    BELL_ID,
    HOSTS_PREFIX,
    LOOK_PREFIX,
)
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.store import Operation, StoreAround
from leasehold.leases.timing import Timing
from leasehold.service.group.actions import hand_over_lease, pause_pipeline, release_lease, resume_pipeline
from leasehold.service.group.migration import move
from leasehold.service.group.status import HostStatus, unrenewed_of
from leasehold.service.host import Host

T = TypeVar("T")

TIMING = Timing()
MINUTE = 60.0


async def settled(partitions: str = "abcdef", hosts: str = "xyz", timing: Timing = TIMING) -> Group:
    group = Group(partitions, timing=timing)
    for name in hosts:
        await group.start(f"host-{name}")
    await until(group.is_balanced)
    return group


def is_write(request: Request) -> bool:
    return request.where == "store" and request.operation == "replace" and request.id.startswith("bank/leases/")


@pytest.mark.virtual
async def test_idle_leases_are_not_written() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    before = len(group.asked(is_write))
    await asyncio.sleep(60 * MINUTE)
    assert len(group.asked(is_write)) == before


@pytest.mark.virtual
async def test_the_leases_of_a_killed_host_have_new_owners_within_ten_seconds() -> None:
    took = []
    for _ in range(10):
        group = await settled()
        await asyncio.sleep(MINUTE)
        await group.hosts[0].kill()
        took.append(await until(lambda group=group: "host-x" not in group.owners.values()))
    assert max(took) <= 10
    assert min(took) >= TIMING.duration_s - TIMING.beat_s - 0.1


@pytest.mark.virtual
async def test_a_host_that_is_stopped_and_continued_has_lost_its_leases_and_sends_nothing() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    frozen = group.hosts[0]
    lapses_at = frozen.host.session.trusted_until
    frozen.process.stop()
    assert await until(lambda: "host-x" not in group.owners.values()) <= 10
    for partition in "abcdef":
        group.append(partition, 5)
    frozen.process.resume()
    await until(group.is_balanced)
    await until(group.is_delivered)
    [said] = frozen.said("trust lapsed")
    assert frozen.host.session.lapsed_at == lapses_at
    assert said["lasted_s"] > 0


@pytest.mark.virtual
@pytest.mark.parametrize("fails", [Fate(ends="refused"), Fate(2.0, "ghost"), Fate(ends="lost")], ids=lambda f: f.ends)
@pytest.mark.parametrize(
    "operations", [("list", "changes", "read", "replace", "create"), ("replace",)], ids=["all", "writes"]
)
async def test_an_outage_of_the_container_moves_no_lease(operations: tuple[str, ...], fails: Fate) -> None:
    """Requests are refused, vanish, or are carried out without an answer."""
    group = await settled()
    await asyncio.sleep(MINUTE)
    epochs = group.epochs
    group.weather.judge = lambda request: (
        fails if request.where == "store" and request.operation in operations else Fate()
    )
    await asyncio.sleep(30)
    group.weather.judge = lambda request: Fate()
    await always(lambda: group.epochs == epochs, MINUTE)
    for partition in "abcdef":
        group.append(partition, 5)
    await until(group.is_delivered)
    assert group.epochs == epochs


@pytest.mark.virtual
async def test_a_host_whose_session_alone_cannot_be_written_loses_its_leases_and_gets_others_later() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    is_cut = True
    group.weather.judge = lambda request: Fate(
        ends="refused" if is_cut and request.host == "host-x" and request.id == f"{HOSTS_PREFIX}host-x" else "ok"
    )
    assert await until(lambda: "host-x" not in group.owners.values()) <= 12
    is_cut = False
    await until(group.is_balanced)


@pytest.mark.virtual
async def test_a_released_idle_lease_stops_its_owner() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    owner = group.owners["a"]
    group.edit("a", lambda lease: lease.revoked())
    running = next(each for each in group.hosts if each.name == owner)
    await until(lambda: running.said("lease released"), within_s=TIMING.audit_s + 2)


@pytest.mark.virtual
async def test_what_a_host_with_a_session_does_to_a_lease_is_noticed_within_three_seconds() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    for partition in "abcdef":
        owner = group.owners[partition]
        running = next(each for each in group.hosts if each.name == owner)
        asked = next(each for each in group.hosts if each.name != owner)
        keeper = asked.host.balancer._keeper
        before = len(running.said("lease released"))
        seen = await keeper.read("bank", partition)
        await keeper.rewrite(seen, seen.lease.revoked())
        took = await until(lambda running=running, before=before: len(running.said("lease released")) > before)
        assert took <= TIMING.ring_gap_s + TIMING.look_s + 0.3
        await until(group.is_balanced)


@pytest.mark.virtual
async def test_what_the_api_of_an_owner_does_to_its_lease_is_noticed_although_no_other_host_hears_the_ring() -> None:
    group = await settled(hosts="x")
    await asyncio.sleep(MINUTE + TIMING.audit_s / 3)  # far from the next audit
    [running] = group.hosts
    worker = next(iter(running.host.workers.values()))
    keeper = running.host.balancer._keeper
    seen = await keeper.read(*worker.owned.lease.key)
    await keeper.rewrite(seen, seen.lease.revoked())
    assert await until(lambda: worker.owned.is_lost) <= TIMING.ring_gap_s + TIMING.look_s + 0.3


@pytest.mark.virtual
async def test_an_idle_group_lists_its_leases_once_a_minute_and_its_sessions_at_every_look() -> None:
    group = await settled()
    await asyncio.sleep(5 * MINUTE)
    group.weather.requests.clear()
    await asyncio.sleep(60 * MINUTE)
    asked = Counter(
        (request.operation, request.id) for _, request in group.weather.requests if request.where == "store"
    )
    hosts, minutes = 3, 60
    assert asked["list", "bank/leases/"] <= hosts * minutes * 1.3
    assert asked["list", LOOK_PREFIX] <= hosts * minutes * 60 / TIMING.look_s * 1.05
    per_minute = sum(asked.values()) / hosts / minutes
    assert per_minute <= 50, "whatever there is of leases"


@pytest.mark.virtual
async def test_an_idle_host_sleeps_between_its_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    group = await settled(partitions="a", hosts="x")
    clock, sleeps = group.hosts[0].clock, list[float]()

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        await asyncio.sleep(seconds)

    await asyncio.sleep(MINUTE)
    monkeypatch.setattr(clock, "sleep", sleep)
    await asyncio.sleep(10 * MINUTE)
    looks, beats = 10 * MINUTE / TIMING.look_s, 10 * MINUTE / TIMING.beat_s
    assert len(sleeps) <= 2 * looks + 2 * beats


@pytest.mark.virtual
async def test_no_listing_of_leases_is_later_than_an_audit_after_the_last() -> None:
    group = await settled(hosts="x")
    await asyncio.sleep(5 * MINUTE)
    group.weather.requests.clear()
    await asyncio.sleep(60 * MINUTE)
    listed = group.asked(lambda request: request.operation == "list" and request.id == "bank/leases/")
    assert max(later - earlier for earlier, later in pairwise(listed)) <= TIMING.audit_s + 1


@pytest.mark.virtual
async def test_a_host_that_joins_has_its_share_within_ten_seconds() -> None:
    group = await settled(partitions="abcdefghijkl", hosts="xy")
    await asyncio.sleep(MINUTE)
    await group.start("host-z")
    assert await until(group.is_balanced) <= 10


@pytest.mark.virtual
async def test_an_outage_of_writes_does_not_make_hosts_look_more_often() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    group.weather.judge = lambda request: Fate(
        ends="refused" if request.where == "store" and request.operation == "replace" else "ok"
    )
    await asyncio.sleep(30)
    group.weather.requests.clear()
    await asyncio.sleep(5 * MINUTE)
    looks = len(group.asked(lambda request: request.id == LOOK_PREFIX))
    assert looks <= 3 * 5 * MINUTE / TIMING.look_s * 1.1


@pytest.mark.virtual
async def test_a_session_that_is_deleted_is_written_again_and_moves_nothing() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    epochs = group.epochs
    group.remove(f"{HOSTS_PREFIX}host-x")
    await until(lambda: group.documents(f"{HOSTS_PREFIX}host-x"))
    await always(lambda: group.epochs == epochs, MINUTE)


@pytest.mark.virtual
async def test_a_restarted_host_takes_its_leases_back_at_once() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    before = {partition for partition, owner in group.owners.items() if owner == "host-x"}
    await group.hosts[0].kill()
    await group.start("host-x")
    await until(lambda: {p for p, owner in group.owners.items() if owner == "host-x"} == before, within_s=2)


@pytest.mark.virtual
async def test_a_stopped_host_leaves_no_session() -> None:
    group = await settled()
    await group.hosts[0].stop()
    assert [stored.id for stored in group.documents(HOSTS_PREFIX)] == [f"{HOSTS_PREFIX}host-{name}" for name in "yz"]


@pytest.mark.virtual
async def test_a_lease_that_a_host_could_not_release_when_it_stopped_is_taken_as_soon_as_that_of_a_killed_host() -> (
    None
):
    group = await settled()
    stopped = group.hosts[0]
    group.weather.judge = lambda request: Fate(
        ends="refused" if request.host == stopped.name and is_write(request) else "ok"
    )
    await stopped.stop()
    assert stopped.name in group.owners.values()
    assert await until(lambda: stopped.name not in group.owners.values()) <= 10


@pytest.mark.virtual
async def test_the_leases_of_a_host_that_stops_have_new_owners_after_the_next_look() -> None:
    group = await settled()
    for name in "wvu":
        joined = await group.start(f"host-{name}")
        await until(group.is_balanced)
        await asyncio.sleep(MINUTE)
        await joined.stop()
        assert await until(group.is_balanced) <= TIMING.look_s + 0.5


@pytest.mark.virtual
async def test_a_host_that_joins_has_its_share_within_a_look_and_a_second() -> None:
    for _ in range(5):
        group = await settled(partitions="abcdefghijkl", hosts="xyvw")
        await asyncio.sleep(MINUTE)
        await group.start("host-z")
        assert await until(group.is_balanced) <= TIMING.look_s + 1


@pytest.mark.virtual
@pytest.mark.parametrize("later_s", [0.0, 7.0, 14.0])
async def test_a_host_that_joins_right_before_a_look_and_asks_after_it_does_not_wait_for_a_whole_interval(
    later_s: float,
) -> None:
    """An owner that has just seen the new session looks again soon."""
    group = await settled(hosts="xy")
    await asyncio.sleep(MINUTE + later_s)

    def looks() -> list[float]:
        return group.asked(lambda request: request.host == "host-x" and request.id == LOOK_PREFIX)

    before = len(looks())
    await until(lambda: len(looks()) > before)
    next_look_s = looks()[-1] + TIMING.look_s - asyncio.get_running_loop().time()
    await asyncio.sleep(next_look_s - 0.02)
    group.started("host-z")
    took_s = await until(lambda: group.shares["host-z"] == 2 and group.is_balanced())
    assert took_s <= TIMING.ring_gap_s + TIMING.handoff_poll_s / 2 + 0.5 < TIMING.look_s


@pytest.mark.virtual
async def test_hosts_documents_are_read_each_minute_although_many_leases_are_listed_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = await settled()
    monkeypatch.setattr(Timing, "listed_after_s", lambda *_: 10 * MINUTE)
    await asyncio.sleep(MINUTE)
    group.weather.requests.clear()
    await asyncio.sleep(60 * MINUTE)
    lists = Counter(request.id for _, request in group.weather.requests if request.operation == "list")
    assert 3 * 4 <= lists["bank/leases/"] <= 3 * 7
    assert 3 * 45 <= lists["_"] <= 3 * 65


@pytest.mark.virtual
async def test_a_host_that_cannot_write_its_session_asks_for_no_lease() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    group.weather.judge = lambda request: Fate(
        ends="refused" if request.host == "host-x" and request.id == f"{HOSTS_PREFIX}host-x" else "ok"
    )
    await until(lambda: "host-x" not in group.owners.values())
    await asyncio.sleep(2)
    epochs = group.epochs
    await always(lambda: group.epochs == epochs, 2 * MINUTE)


@pytest.mark.virtual
async def test_a_host_that_starts_and_cannot_judge_yet_leaves_the_leases_of_others_alone() -> None:
    group = await settled(hosts="xy")
    await asyncio.sleep(MINUTE)
    beats = 0

    def judge(request: Request) -> Fate:
        nonlocal beats
        is_beat = request.host == "host-w" and request.id == f"{HOSTS_PREFIX}host-w" and request.operation != "read"
        beats += is_beat
        slow = request.host == "host-w" and request.operation == "list"
        return Fate(4.5 if slow else 0.005, "refused" if is_beat and beats > 1 else "ok")

    group.weather.judge = judge
    group.started("host-w")
    await always(lambda: not any(lease.handoff_to == "host-w" for lease in group.leases.values()), 30)


@pytest.mark.virtual
async def test_a_host_that_drains_says_so_in_each_heartbeat_although_the_first_was_refused() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    session = group.hosts[0].host._membership.session
    own = f"{HOSTS_PREFIX}host-x"
    group.weather.judge = lambda request: Fate(ends="refused" if request.id == own else "ok")
    draining = asyncio.create_task(session.beat(draining=True))
    await asyncio.gather(draining, return_exceptions=True)
    group.weather.judge = lambda request: Fate()
    await asyncio.sleep(TIMING.beat_s * 2)
    assert session.record.draining


@pytest.mark.virtual
async def test_busy_leases_are_won_again_with_pauses_if_the_container_throttles() -> None:
    group = await settled(hosts="x")
    await asyncio.sleep(MINUTE)
    group.weather.judge = lambda request: (
        Fate(ends="refused", retry_after_s=5.0) if is_write(request) else Fate(late_s=0.005)
    )
    group.hosts[0].process.stop()
    for partition in "abcdef":
        group.append(partition, 5)
    await asyncio.sleep(TIMING.duration_s + 1)
    group.hosts[0].process.resume()
    group.weather.requests.clear()
    await asyncio.sleep(10)
    assert 6 <= len(group.asked(is_write)) <= 6 * 2 * 3, "the permit and the renewal each ask once in 5 s"
    group.weather.judge = lambda request: Fate()
    await until(group.is_delivered)


@pytest.mark.virtual
async def test_a_pause_by_a_host_without_leases_is_noticed_within_three_seconds() -> None:
    group = await settled()
    idle = await group.start("host-w", leases_max=0)
    await asyncio.sleep(TIMING.audit_s / 3)  # far from the next audit
    keeper = idle.host.balancer._keeper
    await pause_pipeline(keeper, "bank", by="alice", at="")
    took = await until(lambda: not any(each.host.workers for each in group.alive))
    assert took <= TIMING.ring_gap_s + TIMING.look_s + 0.5


NOTICED_S = TIMING.ring_gap_s + TIMING.look_s + 0.3


def command(group: Group) -> tuple[Keeper, Bell]:
    """As a process has it that runs no host."""
    bell = Bell(group.store)
    return Keeper(group.store, host="leasehold", incarnation="1", clock=group.clock(), timing=TIMING, bell=bell), bell


async def rest(group: Group) -> None:
    """Until no host lists the leases for the next seconds, unless it is rung for."""

    def is_listing(request: Request) -> bool:
        return request.operation == "list" and request.id == "bank/leases/"

    def is_quiet() -> bool:
        ago = [asyncio.get_running_loop().time() - at for at in group.asked(is_listing)[-9:]]
        return min(ago) > 5 and max(ago[-3:]) < TIMING.audit_s / 2

    await until(is_quiet)


@pytest.mark.virtual
async def test_an_idle_owner_notices_within_three_seconds_that_a_command_released_its_lease() -> None:
    group = await settled()
    keeper, bell = command(group)
    for garbled in (None, "{", '{"version":9}'):
        await asyncio.sleep(MINUTE)
        await until(group.is_balanced)
        if garbled is not None:
            group.put(BELL_ID, garbled)
        await rest(group)
        owner = next(each for each in group.hosts if each.name == group.owners["a"])
        before = len(owner.said("lease released"))
        await release_lease(keeper, "bank", "a")
        await bell.write()
        assert await until(lambda owner=owner, before=before: len(owner.said("lease released")) > before) <= NOTICED_S
    assert not any(each.said("needs attention") for each in group.hosts)


@pytest.mark.virtual
async def test_a_pause_by_a_process_without_a_host_is_noticed_within_three_seconds() -> None:
    group = await settled()
    keeper, bell = command(group)
    await asyncio.sleep(MINUTE)
    await rest(group)
    await pause_pipeline(keeper, "bank", by="alice", at="")
    await bell.write()
    assert await until(lambda: not any(each.host.workers for each in group.alive)) <= NOTICED_S + 0.2
    await rest(group)
    await resume_pipeline(keeper, "bank", by="alice", at="")
    await bell.write()
    assert await until(group.is_balanced) <= NOTICED_S + 2


async def release(keeper: Keeper, host: Host) -> object:
    return await release_lease(keeper, "bank", "a")


async def hand_over(keeper: Keeper, host: Host) -> object:
    [other] = {"host-x", "host-y"} - {(await keeper.read("bank", "a")).lease.owner}
    known = SimpleNamespace(is_live=True, is_draining=False, pipelines=["bank"])
    return await hand_over_lease(keeper, "bank", "a", other, {other: cast("HostStatus", known)})


async def reset(keeper: Keeper, host: Host) -> object:
    return await move(keeper, host.pipelines["bank"], await keeper.read("bank", "a"), "earliest")


async def pause(keeper: Keeper, host: Host) -> object:
    return await pause_pipeline(keeper, "bank", by="alice", at="")


async def create(keeper: Keeper, host: Host) -> object:
    """As an import does."""
    return await keeper.create(Lease(pipeline="bank", partition="new"))


@pytest.mark.virtual
@pytest.mark.parametrize("by", ["host", "command"])
@pytest.mark.parametrize("act", [release, hand_over, reset, pause, create])
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "answer lost"])
async def test_all_hosts_list_the_leases_soon_after_an_operator_changed_something(
    act: Callable[[Keeper, Host], Awaitable[object]], by: str, is_lost: bool
) -> None:
    group = await settled(hosts="xy")
    asked = (await group.start("host-w", leases_max=0)).host
    keeper, bell = (asked.balancer._keeper, None) if by == "host" else command(group)
    await asyncio.sleep(MINUTE)
    await rest(group)
    if is_lost:
        keeper.store = AnswersLost(keeper.store)
    with suppress(StoreAmbiguous):
        await act(keeper, asked)
    if bell is not None:
        await bell.write()
    group.weather.requests.clear()

    def listing() -> set[str]:
        return {request.host for _, request in group.weather.requests if request.id == "bank/leases/"}

    assert await until(lambda: listing() >= {"host-x", "host-y"}) <= NOTICED_S


class AnswersLost(StoreAround):
    """Carries out every write, and loses its answer."""

    async def _call(self, operation: Operation, name: str, answer: Awaitable[T]) -> T:
        found = await answer
        if operation in ("list", "read"):
            return found
        raise StoreAmbiguous(f"no answer to the write of '{name}'")


def is_listing(request: Request) -> bool:
    return request.operation == "list" and request.id == "bank/leases/"


def is_of_changes(request: Request) -> bool:
    return request.operation == "changes"


async def far_from_an_audit(**group: str) -> Group:
    """A group whose hosts do not list for a while, if nothing makes them."""
    settling = await settled(**group)
    await asyncio.sleep(MINUTE + TIMING.audit_s / 3)
    listed = len(settling.asked(is_listing))
    while len(settling.asked(is_listing)) == listed:  # noqa: ASYNC110 -- an audit has no event
        await asyncio.sleep(1)
    await asyncio.sleep(TIMING.audit_s / 4)
    settling.weather.requests.clear()
    return settling


@pytest.mark.virtual
async def test_hosts_read_what_changed_when_one_rings_and_list_nothing() -> None:
    group = await far_from_an_audit()
    owner = next(each for each in group.hosts if each.name == group.owners["a"])
    keeper = next(each for each in group.hosts if each is not owner).host.balancer._keeper
    seen = await keeper.read("bank", "a")
    await keeper.rewrite(seen, seen.lease.revoked())
    await until(lambda: owner.said("lease released"))
    await until(lambda: group.owners["a"] is not None)
    assert group.asked(is_of_changes)
    assert {request.host for _, request in group.weather.requests if is_listing(request)} <= {owner.name}


@pytest.mark.virtual
async def test_the_leases_of_a_dead_host_are_taken_without_a_listing() -> None:
    group = await far_from_an_audit()
    await group.hosts[0].kill()
    await until(lambda: "host-x" not in group.owners.values())
    assert not group.asked(is_listing)


@pytest.mark.virtual
async def test_a_lease_that_was_deleted_by_hand_is_put_back_after_the_next_audit() -> None:
    group = await far_from_an_audit()
    at = group.leases["a"].continuation
    group.remove("bank/leases/a")
    await until(lambda: group.leases.get("a"), within_s=TIMING.audit_s * 1.5)
    assert group.leases["a"].continuation == at
    await until(group.is_balanced)


COUNTING = replace(TIMING, counted_above=3)


@pytest.mark.virtual
async def test_many_leases_are_counted_and_not_listed() -> None:
    group = await settled(timing=COUNTING)
    await asyncio.sleep(2 * MINUTE)
    began = len(group.weather.requests)
    await asyncio.sleep(60 * MINUTE)
    asked = Counter(
        request.operation for _, request in group.weather.requests[began:] if request.id.startswith("bank/leases/")
    )
    assert set(asked) == {"count", "changes"}
    assert 3 * 55 <= asked["count"] <= 3 * 61


@pytest.mark.virtual
async def test_a_lease_of_many_that_was_deleted_by_hand_is_put_back_after_the_next_count() -> None:
    group = await settled(timing=COUNTING)
    await asyncio.sleep(2 * MINUTE)
    group.remove("bank/leases/a")
    await until(lambda: group.leases.get("a"), within_s=TIMING.audit_s + 3 * TIMING.duration_s)
    await until(group.is_balanced)


@pytest.mark.virtual
async def test_a_ring_just_before_a_count_is_due_does_not_put_it_off() -> None:
    group = await settled(hosts="x", timing=COUNTING)
    await asyncio.sleep(2 * MINUTE)
    keeper = group.hosts[0].host.balancer._keeper

    def counts() -> list[float]:
        return [at for at, request in group.weather.requests if request.operation == "count"]

    before = len(counts())
    await until(lambda: len(counts()) > before, within_s=2 * MINUTE)
    await asyncio.sleep(TIMING.audit_s - 4)
    keeper.ring()
    before = len(counts())
    await until(lambda: len(counts()) > before, within_s=2 * MINUTE)
    assert counts()[-1] - counts()[-2] <= TIMING.audit_s + TIMING.look_s


@pytest.mark.virtual
async def test_counts_that_hang_do_not_keep_leases_of_the_dead_from_being_taken() -> None:
    group = await settled(timing=COUNTING)
    await asyncio.sleep(2 * MINUTE)
    group.weather.judge = lambda request: Fate(late_s=60.0 if request.operation == "count" else 0.005)
    await asyncio.sleep(10 * MINUTE)
    assert not any(host.said("scan failed, retrying") for host in group.hosts)
    await group.hosts[0].kill()
    took = await until(lambda: "host-x" not in group.owners.values())
    assert took <= TIMING.look_s + TIMING.duration_s + TIMING.beat_timeout_s + 1


def slow_down(group: Group, lists_in_s: float) -> None:
    """From now on the feed takes so long to list its partitions."""
    partitions = group.feed.partitions

    async def list_slowly() -> object:
        await asyncio.sleep(lists_in_s)
        return await partitions()

    group.feed.partitions = list_slowly  # type: ignore[method-assign, assignment]


@pytest.mark.virtual
@pytest.mark.parametrize("lists_in_s", [2.0, 30.0])
async def test_a_feed_that_lists_slowly_does_not_keep_leases_of_the_dead_from_being_taken(lists_in_s: float) -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    slow_down(group, lists_in_s)
    await asyncio.sleep(MINUTE)
    await group.hosts[0].kill()
    assert await until(lambda: "host-x" not in group.owners.values()) <= TIMING.look_s + TIMING.duration_s + 1


@pytest.mark.virtual
@pytest.mark.parametrize("lists_in_s", [0.5, 1.0, 3.0])
async def test_children_of_a_split_wait_for_two_listings_of_a_slow_feed_at_most(lists_in_s: float) -> None:
    group = await settled(hosts="x")
    slow_down(group, lists_in_s)
    await asyncio.sleep(MINUTE)
    for parent in "abcdef":
        group.feed.split(parent, [f"{parent}1", f"{parent}2"])
        took = await until(lambda parent=parent: {f"{parent}1", f"{parent}2"} <= group.owners.keys())
        assert took <= 2 * lists_in_s + 0.5
        await asyncio.sleep(MINUTE / 3.5)


@pytest.mark.virtual
async def test_leases_that_a_slow_feed_turns_out_to_need_are_taken_as_soon_as_they_are_there() -> None:
    group = Group("ab", timing=TIMING)
    partitions = group.feed.partitions

    async def list_slowly() -> object:
        await asyncio.sleep(2.0)
        return await partitions()

    group.feed.partitions = list_slowly  # type: ignore[method-assign, assignment]
    await group.start("host-x")
    assert await until(lambda: len(group.owners) == 2 and None not in group.owners.values()) <= 2.3


@pytest.mark.virtual
async def test_an_owner_that_finds_its_lease_deleted_has_it_put_back_at_once() -> None:
    group = await far_from_an_audit()
    group.remove("bank/leases/a")
    group.append("a", 5)
    await until(lambda: group.leases.get("a"), within_s=5)
    await until(group.is_delivered)


@pytest.mark.virtual
async def test_a_free_lease_that_was_deleted_is_tried_once_and_then_all_are_listed() -> None:
    group = await far_from_an_audit(hosts="x")
    keeper = group.hosts[0].host.balancer._keeper
    seen = await keeper.read("bank", "a")
    await keeper.rewrite(seen, seen.lease.revoked())
    group.weather.judge = lambda request: Fate(late_s=0.2 if is_of_changes(request) else 0.005)
    await until(lambda: group.asked(is_of_changes))
    await asyncio.sleep(0.3)
    group.remove("bank/leases/a")
    await until(lambda: group.asked(is_listing), within_s=10)
    await until(group.is_balanced)


@pytest.mark.virtual
async def test_after_an_error_all_leases_are_listed_also_if_changes_cannot_be_read_at_all() -> None:
    group = await far_from_an_audit()
    group.weather.judge = lambda request: Fate(ends="refused" if is_of_changes(request) else "ok")
    await group.hosts[0].kill()
    await until(lambda: "host-x" not in group.owners.values(), within_s=20)
    assert group.asked(is_listing)


@pytest.mark.virtual
async def test_where_the_store_offers_no_changes_hosts_list_as_they_did(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_no_changes(prefix: str, since: str | None = None) -> None:
        return None

    group = Group("abcdef", timing=TIMING)
    monkeypatch.setattr(group.store, "read_changes", read_no_changes)
    for name in "xyz":
        await group.start(f"host-{name}")
    await until(group.is_balanced)
    await asyncio.sleep(MINUTE)
    await group.hosts[0].kill()
    assert await until(lambda: "host-x" not in group.owners.values()) <= 10


@pytest.mark.virtual
@pytest.mark.parametrize("slow_s", [3.3, 4.5])
async def test_listings_of_the_group_that_take_long_do_not_keep_a_dead_host_alive(slow_s: float) -> None:
    group = await settled()
    group.weather.judge = lambda request: Fate(slow_s if (request.operation, request.id) == ("list", "_") else 0.01)
    await asyncio.sleep(2 * MINUTE)
    await group.hosts[0].kill()
    assert await until(lambda: "host-x" not in group.owners.values()) <= 10 + slow_s


@pytest.mark.virtual
async def test_heartbeats_that_take_long_do_not_keep_a_dead_host_alive() -> None:
    for _ in range(5):
        group = await settled()
        group.weather.judge = lambda request: Fate(
            0.8 if request.operation == "replace" and request.id.startswith(HOSTS_PREFIX) else 0.01
        )
        await asyncio.sleep(2 * MINUTE)
        await group.hosts[0].kill()
        assert await until(lambda group=group: "host-x" not in group.owners.values()) <= 12


async def asked_in_vain() -> Group:
    """host-z waits for leases whose owners cannot finish their batches."""
    group = await settled(hosts="xy")
    group.weather.judge = lambda request: Fate(20.0 if request.operation == "write" else 0.01)
    for partition in "abcdef":
        group.append(partition, 5)
    await asyncio.sleep(1)
    group.started("host-z")
    await until(lambda: any(lease.handoff_to == "host-z" for lease in group.leases.values()))
    return group


def looks_a_minute(group: Group, since: float, minutes: float) -> float:
    return (
        sum(
            at >= since and request.host == "host-z" and request.id == LOOK_PREFIX
            for at, request in group.weather.requests
        )
        / minutes
    )


@pytest.mark.virtual
async def test_a_host_that_waits_for_a_lease_looks_no_more_often_while_writes_fail() -> None:
    group = await asked_in_vain()
    group.weather.judge = lambda request: Fate(
        ends="refused" if request.where == "store" and request.operation in ("replace", "create") else "ok"
    )
    await asyncio.sleep(30)
    since = asyncio.get_running_loop().time()
    await asyncio.sleep(3 * MINUTE)
    assert looks_a_minute(group, since, 3) <= 60 / TIMING.look_s + 10


@pytest.mark.virtual
async def test_a_host_that_cannot_read_leases_looks_at_hosts_no_more_often() -> None:
    """Otherwise the looks use up what the container has to give, and the leases are never read."""
    group = await settled(hosts="xz")
    await asyncio.sleep(MINUTE)
    dead, looker = group.hosts
    await dead.kill()
    group.weather.judge = lambda request: Fate(ends="refused" if is_write(request) else "ok")
    await until(lambda: looker.host.balancer.expired)
    group.weather.judge = lambda request: Fate(ends="refused" if request.operation == "replace" else "ok")
    await until(lambda: looker.host.balancer.lookout.is_unjudged)
    group.weather.judge = lambda request: Fate(
        ends="refused" if request.id == "bank/leases/" or is_write(request) else "ok", retry_after_s=1.0
    )
    await asyncio.sleep(30)
    since = asyncio.get_running_loop().time()
    await asyncio.sleep(3 * MINUTE)
    assert looks_a_minute(group, since, 3) <= 60 / TIMING.look_s + 10
    group.weather.judge = lambda request: Fate()
    await until(lambda: set(group.owners.values()) == {"host-z"})


@pytest.mark.virtual
async def test_a_host_that_waits_for_a_lease_looks_no_more_often_while_its_pipeline_is_paused() -> None:
    group = await asked_in_vain()
    await pause_pipeline(group.hosts[0].host.balancer._keeper, "bank", by="alice", at="")
    group.weather.judge = lambda request: Fate(0.01)
    await asyncio.sleep(MINUTE)
    since = asyncio.get_running_loop().time()
    await asyncio.sleep(3 * MINUTE)
    assert looks_a_minute(group, since, 3) <= 60 / TIMING.look_s + 10


@pytest.mark.virtual
async def test_changes_that_are_refused_once_are_read_again_instead_of_all_leases() -> None:
    group = await settled()
    await asyncio.sleep(MINUTE)
    await rest(group)
    seen: list[str] = []

    def judge(request: Request) -> Fate:
        if request.host != "host-x" or request.id != "bank/leases/":
            return Fate(0.01)
        seen.append(request.operation)
        return Fate(ends="refused", retry_after_s=1.0) if len(seen) == 1 else Fate(0.01)

    group.weather.judge = judge
    group.hosts[1].session.ring()
    await until(lambda: len(seen) >= 2)
    assert seen[:2] == ["changes", "changes"]


@pytest.mark.virtual
async def test_the_leases_of_a_dead_host_show_as_expired_until_they_are_taken() -> None:
    group = await settled(hosts="xy")
    await asyncio.sleep(MINUTE)
    looks, dies = group.hosts
    group.weather.judge = lambda request: Fate(ends="refused" if is_write(request) else "ok")
    await dies.kill()
    await until(lambda: looks.host.balancer.expired)
    found = unrenewed_of(looks.host)
    assert found is not None
    assert [*found.hosts] == ["host-y"]
    assert {key.partition for key in found.leases} == {
        name for name, owner in group.owners.items() if owner == "host-y"
    }
