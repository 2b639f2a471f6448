"""Hosts and stores that are neither well nor dead: work goes on where it can, and no lease moves without a reason."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from lab.simulation.group import Group, Running, always, until
from lab.simulation.weather import Fate, Outlet, Request, Weather

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.host_record import HOSTS_PREFIX
from leasehold.leases.lease import LeaseKey
from leasehold.leases.store import READS
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import MemoryDestination
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.fitness import PipelineHealth
from leasehold.service.pipeline import PipelineParts

MINUTE = 60.0
ELSEWHERE_S = 60.0
"""The promise: within so long, what a sick host should do is done by others; and after its recovery, shares are even again."""
SickIn = Callable[[Request], bool]


def cannot_list(request: Request) -> bool:
    return request.where == "store" and request.operation in ("list", "changes", "count")


def cannot_read(request: Request) -> bool:
    return request.where == "store" and request.operation in READS


def cannot_write_leases(request: Request) -> bool:
    return request.where == "store" and "/leases/" in request.id and request.operation in ("replace", "create")


def cannot_reach_sink(request: Request) -> bool:
    return request.where == "sink"


def cannot_reach_feed(request: Request) -> bool:
    return request.where == "feed"


def is_write(request: Request) -> bool:
    return request.where == "store" and request.operation in ("replace", "create")


async def settled(
    partitions: str = "abcdef", hosts: str = "xyz", timing: Timing | None = None, batch_timeout_s: float = 300.0
) -> Group:
    group = Group(partitions, timing=timing, batch_timeout_s=batch_timeout_s)
    for name in hosts:
        await group.start(f"host-{name}")
    await until(group.is_balanced)
    await asyncio.sleep(MINUTE)
    return group


def pour(group: Group, events: int = 5) -> None:
    for partition in group.feed._logs:
        group.append(partition, events)


def fall_ill(group: Group, sick: SickIn, ends: Fate = Fate(ends="refused")) -> None:  # noqa: B008 - a value
    """host-x does."""
    group.weather.judge = lambda request: ends if request.host == "host-x" and sick(request) else Fate()


def moves(group: Group) -> Counter[str]:
    """How often each lease was taken by a host."""
    return Counter(entry["partition"] for host in group.hosts for entry in host.said("lease acquired"))


# A store that is only slow


@pytest.mark.virtual
@pytest.mark.parametrize("slow_s", [1.0, 2.0, 3.0])
async def test_a_store_with_slow_writes_delivers_everything_and_moves_nothing(slow_s: float) -> None:
    group = await settled()
    epochs = group.epochs
    group.weather.judge = lambda request: Fate(slow_s) if is_write(request) else Fate()
    await asyncio.sleep(MINUTE)
    pour(group)
    await until(group.is_delivered, within_s=MINUTE)
    for _ in range(10):
        pour(group)
        await asyncio.sleep(MINUTE)
    assert group.is_delivered()
    assert group.epochs == epochs
    lapses = [each.session.lapses for each in group.hosts]
    await asyncio.sleep(10 * MINUTE)
    assert [each.session.lapses for each in group.hosts] == lapses, "it has found its pace"


@pytest.mark.virtual
async def test_one_host_whose_writes_are_slow_keeps_its_leases_and_delivers() -> None:
    group = await settled()
    epochs = group.epochs
    fall_ill(group, is_write, Fate(2.0))
    await asyncio.sleep(MINUTE)
    pour(group)
    await until(group.is_delivered, within_s=MINUTE)
    await asyncio.sleep(10 * MINUTE)
    assert group.epochs == epochs


@pytest.mark.virtual
async def test_once_a_slow_store_is_quick_again_a_dead_hosts_leases_are_taken_as_soon_as_ever() -> None:
    group = await settled()
    group.weather.judge = lambda request: Fate(3.0) if is_write(request) else Fate()
    await asyncio.sleep(3 * MINUTE)
    assert group.hosts[1].session.timing.duration_s > group.timing.duration_s
    group.weather.judge = lambda request: Fate()
    await asyncio.sleep(5 * MINUTE)
    await group.hosts[0].kill()
    assert await until(lambda: "host-x" not in group.owners.values()) <= 10


@pytest.mark.virtual
@pytest.mark.parametrize(("call_s", "within_s"), [(0.1, 10.0), (1.0, 16.0), (1.5, 19.0)])
async def test_a_dead_hosts_leases_are_taken_within_ten_seconds_and_six_calls(call_s: float, within_s: float) -> None:
    for number in range(3):
        group = await settled()
        group.weather.judge = lambda request: Fate(call_s if request.where == "store" else 0.01)
        await asyncio.sleep(2 * MINUTE + number)
        await group.hosts[0].kill()
        assert await until(lambda group=group: "host-x" not in group.owners.values()) <= within_s


@pytest.mark.virtual
@pytest.mark.parametrize("is_second", [True, False])
async def test_a_host_whose_answers_are_lost_but_whose_reads_are_answered_delivers(is_second: bool) -> None:
    """Every answer to its beats is lost, or every second one."""
    group, count = await settled(), 0

    def judge(request: Request) -> Fate:
        nonlocal count
        if request.host != "host-x" or not request.id.startswith(HOSTS_PREFIX) or request.operation != "replace":
            return Fate()
        count += 1
        return Fate(ends="lost" if count % 2 or not is_second else "ok")

    group.weather.judge = judge
    await asyncio.sleep(20)
    pour(group)
    await until(group.is_delivered, within_s=MINUTE)


@pytest.mark.virtual
async def test_a_host_whose_beats_arrive_without_answers_is_taken_over_within_30_seconds() -> None:
    group = await settled()
    x, dark = group.hosts[0], Fate(ends="lost")
    group.weather.judge = lambda request: (
        (dark if request.operation not in READS else Fate(ends="ghost"))
        if request.host == "host-x" and request.where == "store"
        else Fate()
    )
    pour(group)
    assert await until(lambda: "host-x" not in group.owners.values()) <= 30
    await until(group.is_delivered)
    assert not x.session.is_trusted


# A host that lives, and cannot do its work


async def has_recovered(group: Group) -> None:
    group.weather.judge = lambda request: Fate()
    pour(group)
    await until(group.is_balanced, within_s=ELSEWHERE_S)
    await until(group.is_delivered)


@pytest.mark.virtual
@pytest.mark.parametrize("sick", [cannot_list, cannot_read, cannot_write_leases, cannot_reach_sink, cannot_reach_feed])
async def test_what_a_sick_host_should_do_is_done_by_others_and_by_it_again_after_its_recovery(sick: SickIn) -> None:
    group = await settled()
    fall_ill(group, sick)
    await asyncio.sleep(30)
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    for _ in range(5):
        before = moves(group)
        pour(group)
        await asyncio.sleep(MINUTE)
        assert max((moves(group) - before).values(), default=0) <= 1
    assert group.is_delivered()
    await has_recovered(group)


@pytest.mark.virtual
@pytest.mark.parametrize("sick", [cannot_list, cannot_read, cannot_write_leases])
async def test_the_share_of_a_host_that_cannot_take_is_taken_by_others(sick: SickIn) -> None:
    group = await settled()
    fall_ill(group, sick)
    await asyncio.sleep(30)
    await group.hosts[1].kill()
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)


@pytest.mark.virtual
@pytest.mark.parametrize("sick", [cannot_list, cannot_read])
async def test_a_host_that_cannot_read_the_leases_keeps_its_own_idle_or_not_also_when_another_host_comes(
    sick: SickIn,
) -> None:
    """It would see no request, and who took the lease of an owner that works would have its handler called twice."""
    group = await settled()
    own = {name for name, owner in group.owners.items() if owner == "host-x"}
    fall_ill(group, sick)
    await asyncio.sleep(5 * MINUTE)
    await group.start("host-w")
    for _ in range(5):
        await asyncio.sleep(MINUTE)
        assert {name for name, owner in group.owners.items() if owner == "host-x"} == own
        pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    await has_recovered(group)


class TwoPipelines(Group):
    """The second one is `shop`, whose sinks have a weather of their own."""

    def __init__(self) -> None:
        super().__init__("abcd")
        self.shop_weather = Weather()

    def _pipelines(self, settings: Mapping[str, Any]) -> list[PipelineParts]:
        shop = {"name": "shop", "sink": Outlet(MemoryDestination(), self.shop_weather)}
        return [self._pipeline(settings), self._pipeline({**settings, **shop})]

    @property
    def shop_owners(self) -> set[str | None]:
        return {decode_lease(stored.id, stored.body).owner for stored in self.documents(lease_prefix("shop"))}


@pytest.mark.virtual
async def test_a_blind_host_that_cannot_process_one_of_its_pipelines_loses_the_leases_of_that_one_alone() -> None:
    group = TwoPipelines()
    for name in "xyz":
        await group.start(f"host-{name}")
    await until(lambda: None not in group.shop_owners and len(group.shop_owners) == 3)
    own = {name for name, owner in group.owners.items() if owner == "host-x"}
    fall_ill(group, cannot_read)
    await asyncio.sleep(MINUTE)
    group.shop_weather.judge = lambda request: Fate(ends="refused" if request.host == "host-x" else "ok")
    pour(group)
    stolen_within_s = group.timing.patience_s + 20.0
    await until(lambda: "host-x" not in group.shop_owners, within_s=stolen_within_s)
    assert {name for name, owner in group.owners.items() if owner == "host-x"} == own


@pytest.mark.virtual
async def test_a_host_that_let_leases_pass_and_asks_for_its_share_gets_it_and_keeps_it() -> None:
    """Only one of the others has seen that it let some pass."""
    group = await settled(hosts="xy")
    group.hosts[0].host.balancer.planner._shares.bench(["host-z"], group.hosts[0].clock.monotonic())
    await group.start("host-z")
    assert await until(group.is_balanced) <= 10
    before = moves(group)
    await asyncio.sleep(MINUTE)
    assert moves(group) == before


@pytest.mark.virtual
async def test_a_newcomer_that_cannot_reach_its_sink_requests_no_lease_that_another_host_works_on() -> None:
    group = await settled(hosts="yz")
    fall_ill(group, cannot_reach_sink)
    group.started("host-x")
    await always(lambda: not any(each.handoff_to for each in group.leases.values()), 3 * MINUTE)
    await has_recovered(group)


@pytest.mark.virtual
@pytest.mark.parametrize("sick", [cannot_write_leases, cannot_reach_sink, cannot_reach_feed])
async def test_if_no_host_is_fit_nothing_moves_and_all_goes_on_afterwards(sick: SickIn) -> None:
    group = await settled()
    before = moves(group)
    group.weather.judge = lambda request: Fate(ends="refused" if sick(request) else "ok")
    pour(group)
    await always(lambda: moves(group) == before, 5 * MINUTE)
    group.weather.judge = lambda request: Fate()
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    await asyncio.sleep(MINUTE)
    assert moves(group) == before, "a host that recovers first does not ask for the leases of those that are about to"
    assert group.is_balanced()


@pytest.mark.virtual
async def test_a_partition_whose_feed_answers_slowly_is_not_taken_for_one_that_has_recovered() -> None:
    """Nothing has been read yet of what the sink will refuse."""
    group = await settled("a", hosts="x", timing=Timing(balance_s=1.0))
    group.weather.judge = lambda request: Fate(
        ends="refused" if request.where == "sink" and request.operation == "write" else "ok",
        late_s=3.0 if request.where == "feed" else 0.005,
    )
    pour(group)
    await asyncio.sleep(2 * MINUTE)
    (host,) = group.hosts
    assert host.said("partition failed, retrying")
    assert host.said("partition recovered") == []


@pytest.mark.virtual
@pytest.mark.parametrize("outage_s", [20.0, 30.0, 45.0, 70.0])
async def test_after_an_outage_of_the_store_no_host_is_taken_for_sick(outage_s: float) -> None:
    """Listings that failed are tried again after a pause, which may be longer than a duration."""
    group = await settled(timing=Timing(balance_s=30.0))
    before = moves(group)
    group.weather.judge = lambda request: Fate(ends="refused" if request.where == "store" else "ok")
    await asyncio.sleep(outage_s)
    group.weather.judge = lambda request: Fate()
    pour(group)
    await until(group.is_delivered)
    await asyncio.sleep(2 * MINUTE)
    assert [host.said("fitness changed") for host in group.hosts] == [[], [], []]
    assert moves(group) == before


@pytest.mark.virtual
async def test_a_lease_that_fails_wherever_it_goes_moves_at_most_once_a_minute_and_ever_less() -> None:
    """Each host that has it has nothing else, so all that it does fails, and the others look fit."""
    group = await settled("a")
    group.weather.judge = lambda request: (
        Fate(ends="refused") if (request.where, request.operation) == ("sink", "write") else Fate()
    )
    pour(group)
    counts = list[int]()
    for _ in range(30):
        before = moves(group).total()
        await asyncio.sleep(MINUTE)
        counts.append(moves(group).total() - before)
    assert max(counts) == 1, counts
    assert sum(counts[:10]) > sum(counts[20:]), counts
    group.weather.judge = lambda request: Fate()
    await until(group.is_delivered, within_s=ELSEWHERE_S)


@pytest.mark.virtual
async def test_a_host_that_is_well_and_sick_by_turns_gets_leases_ever_less_often() -> None:
    group = await settled()
    began = group.hosts[0].clock.monotonic()

    def judge(request: Request) -> Fate:
        turn = int((group.hosts[0].clock.monotonic() - began) / 15)
        return Fate(ends="refused" if turn % 2 and request.host == "host-x" and cannot_reach_sink(request) else "ok")

    group.weather.judge = judge
    counts = list[int]()
    for _ in range(4):
        before = moves(group)
        for _ in range(50):
            pour(group, 1)
            await asyncio.sleep(10)
        counts.append((moves(group) - before).total())
    assert counts[0] >= 4, "it was sick, and well again"
    assert max(counts[2:]) <= counts[0] / 2, counts
    group.weather.judge = lambda request: Fate()
    await until(group.is_delivered, within_s=ELSEWHERE_S)


@pytest.mark.virtual
@pytest.mark.parametrize("ends", ["it dies", "it falls sick"])
async def test_a_host_that_was_sick_again_and_again_works_as_soon_as_it_can_and_the_last_other_host_cannot(
    ends: str,
) -> None:
    group = await settled("abcd", hosts="xy")
    x, y = group.hosts
    x.host.fitness._watched["bank"].health = PipelineHealth(since=x.clock.monotonic(), rests=5)
    fall_ill(group, cannot_reach_sink)
    pour(group)
    await until(lambda: group.is_delivered() and x.host.fitness.gives_up("bank"))
    fall_ill(group, lambda request: False)
    if ends == "it dies":
        await y.kill()
    else:
        group.weather.judge = lambda request: Fate(
            ends="refused" if request.host == y.name and cannot_reach_sink(request) else "ok"
        )
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)


@pytest.mark.virtual
async def test_a_sick_host_without_leases_probes_and_takes_over_from_the_last_other_host() -> None:
    """Others had got its leases before it renounced, so it never rests, and nothing that it works on shows that it is well."""
    group = await settled("a", hosts="xy")
    [last] = (host for host in group.hosts if host.name == group.owners["a"])
    [sick] = (host for host in group.hosts if host is not last)
    sick.host.failures.record_failure(LeaseKey("bank", "a"), ValueError("no"))
    sick.host.failures.record_recovery(LeaseKey("bank", "a"), by=last.name)
    sick.host.fitness._watched["bank"].health = PipelineHealth(state="sick", since=sick.clock.monotonic())
    await last.kill()
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)


@pytest.mark.virtual
async def test_one_partition_that_fails_evicts_nobody() -> None:
    group = await settled()
    for partition in "abcdef":
        group.append(partition, 5)
    await until(group.is_delivered)
    before = moves(group)
    group.weather.judge = lambda request: (
        Fate(ends="refused") if (request.where, request.operation, request.id) == ("sink", "write", "a") else Fate()
    )
    for _ in range(4):
        pour(group, 1)
        await asyncio.sleep(10)
    assert moves(group) == before
    group.weather.judge = lambda request: Fate()
    await until(group.is_delivered)


@pytest.mark.virtual
async def test_one_write_that_the_store_refuses_with_a_long_pause_evicts_nobody() -> None:
    group = await settled()
    before, owner = moves(group), group.owners["a"]
    refused = list[Request]()

    def judge(request: Request) -> Fate:
        if refused or request.host != owner or not cannot_write_leases(request):
            return Fate()
        refused.append(request)
        return Fate(ends="refused", retry_after_s=30.0)

    group.weather.judge = judge
    group.append("a", 1)
    await asyncio.sleep(2 * MINUTE)
    assert refused
    assert group.is_delivered()
    assert moves(group) == before
    assert not [entry for host in group.hosts for entry in host.said("fitness changed")]


@pytest.mark.virtual
async def test_an_answer_that_demands_an_hour_costs_a_minute() -> None:
    group = await settled()
    refused = set[tuple[str, str]]()

    def judge(request: Request) -> Fate:
        once = (request.host, request.operation)
        if request.where != "store" or once in refused or request.operation not in ("replace", "list", "changes"):
            return Fate()
        refused.add(once)
        return Fate(ends="refused", retry_after_s=3600.0)

    await group.hosts[0].kill()
    group.weather.judge = judge
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    assert {("host-y", "replace"), ("host-z", "replace")} <= refused


@pytest.mark.virtual
async def test_a_host_all_whose_lease_writes_are_throttled_gives_a_partition_away_though_it_never_gets_to_a_probe() -> (
    None
):
    group = await settled("abcdefghi")
    owner = group.owners["a"]
    busy = [name for name, each in group.owners.items() if each == owner][:2]

    def judge(request: Request) -> Fate:
        is_its_write = request.host == owner and cannot_write_leases(request)
        return Fate(ends="refused", retry_after_s=40.0) if is_its_write else Fate()

    group.weather.judge = judge
    for _ in range(6):
        for partition in busy:
            group.append(partition, 1)
            await asyncio.sleep(5)
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    assert owner not in {group.owners[partition] for partition in busy}


@pytest.mark.virtual
async def test_a_probe_that_fails_leaves_no_call_behind() -> None:
    group = await settled("a", "x")
    [host] = group.hosts
    under_way, never = 0, asyncio.Event()

    async def hang() -> list[FeedPartition]:
        nonlocal under_way
        under_way += 1
        try:
            await never.wait()
        finally:
            under_way -= 1
        return []

    group.weather.down.add(("", "sink"))
    group.feed.partitions = hang  # type: ignore[method-assign]
    for _ in range(5):
        await host.host.fitness._probe("bank")
    await asyncio.sleep(2 * group.timing.balance_s)
    assert under_way <= 1, "a round may list the partitions"
    await host.stop()


# Handlers: a failure ends the worker, which releases the lease, and no probe shows what they will do


def cannot_handle(request: Request) -> bool:
    return request.where == "sink" and request.operation == "write"


@pytest.mark.virtual
@pytest.mark.parametrize("partitions", ["abcdef", "abcdefghijklmnopqr"])
async def test_a_host_at_which_every_batch_ends_its_worker_leaves_the_work_to_others_and_tries_one_lease(
    partitions: str,
) -> None:
    group = await settled(partitions)
    fall_ill(group, cannot_handle, Fate(ends="rejected"))
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    counts = list[int]()
    for _ in range(5):
        before = group.epochs
        for _ in range(24):
            pour(group, 1)
            await asyncio.sleep(4)
            await until(group.is_delivered, within_s=ELSEWHERE_S)
        counts.append(sum(group.epochs[name] - before[name] for name in group.epochs))
    assert max(counts) <= 1.5 * len(partitions), counts
    assert sum(counts[3:]) <= len(partitions), counts
    assert Counter(group.owners.values())["host-x"] <= 1


@pytest.mark.virtual
async def test_a_lease_that_fails_at_one_host_alone_stays_ever_longer_where_it_works() -> None:
    group = await settled("abcd", hosts="xy")
    lame = group.owners["a"]
    group.weather.judge = lambda request: Fate(
        ends="rejected" if request.host == lame and request.id == "a" and cannot_handle(request) else "ok"
    )
    counts = list[int]()
    for _ in range(4):
        before = group.epochs["a"]
        for _ in range(120):
            pour(group, 1)
            await asyncio.sleep(5)
        counts.append(group.epochs["a"] - before)
    assert sum(counts) <= 40, counts
    assert counts[0] > counts[3], counts
    assert not any(host.said("fitness changed") for host in group.hosts)


@pytest.mark.virtual
async def test_a_batch_that_hangs_at_one_host_is_tried_by_another_after_it_hung_once() -> None:
    group = await settled("abcd", hosts="xy", batch_timeout_s=30.0)
    lame = group.owners["a"]
    group.weather.judge = lambda request: Fate(
        late_s=10 * MINUTE if request.host == lame and request.id == "a" and cannot_handle(request) else 0.005
    )
    pour(group)
    await until(group.is_delivered, within_s=30.0 + ELSEWHERE_S)


@pytest.mark.virtual
async def test_a_failure_of_a_partition_that_has_ended_counts_no_more() -> None:
    group = await settled()
    x = group.hosts[0]
    x.host.failures.record_failure(LeaseKey("bank", "gone"), ValueError("no"))
    x.host.failures.record_recovery(LeaseKey("bank", "gone"), by="host-y")
    x.host.wake()
    await until(lambda: LeaseKey("bank", "gone") not in x.host.failures.ended, within_s=MINUTE)


@pytest.mark.virtual
async def test_a_host_whose_handler_works_again_gets_its_share_back() -> None:
    group = await settled()
    fall_ill(group, cannot_handle, Fate(ends="rejected"))
    pour(group)
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    group.weather.judge = lambda request: Fate()
    for _ in range(24):
        pour(group, 1)
        await asyncio.sleep(5)
    assert group.is_balanced()


@pytest.mark.virtual
@pytest.mark.parametrize("minutes", [1, 10, 60])
async def test_if_every_handler_fails_each_host_tries_once_a_minute_and_all_goes_on_afterwards(minutes: int) -> None:
    group = await settled()
    group.weather.judge = lambda request: Fate(ends="rejected" if cannot_handle(request) else "ok")
    for minute in range(minutes):
        before = moves(group)
        pour(group)
        await asyncio.sleep(MINUTE)
        tries = moves(group) - before
        assert minute < 2 or max(tries.values()) <= len(group.hosts), "a host's pauses have grown by then"
    assert not any(host.host.fitness.gives_up("bank") for host in group.hosts), "nobody is known to do better"
    group.weather.judge = lambda request: Fate()
    await until(group.is_delivered, within_s=ELSEWHERE_S)
    await until(group.is_balanced, within_s=2 * ELSEWHERE_S)


# A lease store that is restored


def restore(group: Group, backup: Mapping[str, str]) -> None:
    """As other documents, with new ETags."""
    for name in list(group.store._documents):
        if name not in backup:
            group.remove(name)
    for name, body in backup.items():
        group.put(name, body)


def backup_of(group: Group) -> Mapping[str, str]:
    return {name: stored.body for name, stored in group.store._documents.items()}


async def works_on(group: Group, hosts: int) -> None:
    pour(group)
    await until(lambda: len(group.alive) == hosts and group.is_delivered(), within_s=30)


@pytest.mark.virtual
@pytest.mark.parametrize("restarts", [0, 1, 2])
async def test_after_the_lease_store_was_restored_all_hosts_work_on(restarts: int) -> None:
    """From a backup that is older than the last starts of the hosts, or older than those before."""
    group = await settled()
    backup = backup_of(group)
    for _ in range(restarts):
        for host in list(group.alive):
            await host.kill()
            await group.start(host.name)
        await until(group.is_balanced)
        pour(group)
        await asyncio.sleep(MINUTE)
    pour(group)
    await asyncio.sleep(MINUTE)
    restore(group, backup)
    await works_on(group, 3)
    await always(lambda: len(group.alive) == 3, 2 * MINUTE)


@pytest.mark.virtual
async def test_after_all_documents_were_deleted_all_hosts_work_on() -> None:
    group = await settled()
    pour(group)
    await asyncio.sleep(30)
    restore(group, {})
    pour(group)
    await until(group.is_delivered, within_s=5 * MINUTE)
    assert len(group.alive) == 3


@pytest.mark.virtual
async def test_documents_of_hosts_that_are_deleted_again_and_again_hide_no_dead_host() -> None:
    group = await settled()
    epochs = group.epochs

    async def sweep() -> None:
        while True:
            for stored in group.documents(HOSTS_PREFIX):
                group.remove(stored.id)
            await asyncio.sleep(10)

    sweeping = asyncio.create_task(sweep())
    await asyncio.sleep(3 * MINUTE)
    pour(group)
    await until(group.is_delivered)
    assert group.epochs == epochs
    dies: Running = group.hosts[0]
    await dies.kill()
    assert await until(lambda: dies.name not in group.owners.values()) <= 90
    sweeping.cancel()
