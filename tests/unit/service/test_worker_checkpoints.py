"""How far the lease may lag behind what was delivered, and what that costs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from lab.simulation.group import Group, Tenure, until
from lab.simulation.weather import Fate, Once, Outlet, Request, Weather, of

from leasehold.pipeline.connectors.memory import MemoryDestination
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import Claim

ONE = BatchLimits(events_max=1)


async def stopped(tenure: Tenure) -> None:
    tenure.worker.stop()
    outcome = await tenure.task
    assert (outcome.reason, outcome.error) == ("shutdown", None)


@pytest.mark.virtual
async def test_the_lease_follows_the_sink_within_the_checkpoint_interval() -> None:
    group = Group("a", limits=ONE, checkpoint_s=5.0)
    tenure = await group.tenure()
    arrived, lags = list[float](), list[float]()
    for n in range(600):
        if n % 3:
            group.append("a", 1)
        await asyncio.sleep(0.2)
        now = asyncio.get_running_loop().time()
        arrived += [now] * (len(group.delivered("a")) - len(arrived))
        kept = int(group.leases["a"].continuation or 0)
        lags.append(now - arrived[kept] if kept < len(arrived) else 0.0)
    assert 4.0 < max(lags) < 5.3
    assert len(group.asked(of("store", "replace", "/leases/"))) < 40
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_partition_that_falls_idle_gets_its_checkpoint_soon() -> None:
    group = Group("a", checkpoint_s=500.0)
    tenure = await group.tenure()
    await asyncio.sleep(1)
    group.append("a", 5)
    assert await until(lambda: group.leases["a"].continuation == "5") < 1
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_busy_lease_is_written_once_per_checkpoint_interval() -> None:
    group = Group("a", limits=ONE, checkpoint_s=5.0)
    tenure = await group.tenure()
    for _ in range(1200):
        group.append("a", 1)
        await asyncio.sleep(0.25)
    written = len(group.asked(of("store", "replace", "/leases/")))
    assert 55 <= written <= 65  # of 300 s, one every 5 s
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_trickle_of_events_does_not_cost_a_write_for_each() -> None:
    group = Group("a", checkpoint_s=5.0)
    tenure = await group.tenure()
    for _ in range(300):
        group.append("a", 1)
        await asyncio.sleep(1)
    assert len(group.asked(of("store", "replace", "/leases/"))) <= 105  # of 300 s, one every 3 s
    await stopped(tenure)


@pytest.mark.virtual
async def test_an_idle_lease_is_not_written() -> None:
    group = Group("a")
    tenure = await group.tenure()
    await asyncio.sleep(340)
    assert len(group.asked(of("store", "replace", "/leases/"))) == 1  # it was taken
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_checkpoint_that_fails_costs_nothing_but_time() -> None:
    group = Group("a", checkpoint_s=1.0)
    tenure = await group.tenure()
    await asyncio.sleep(0.5)
    group.weather.down.add(("", "store"))
    group.append("a", 5)
    await asyncio.sleep(30)
    assert group.is_delivered()
    assert len(tenure.said("checkpoint failed")) < 40
    group.weather.down.clear()
    await until(lambda: group.leases["a"].continuation == "5", within_s=10)
    await stopped(tenure)


@pytest.mark.virtual
async def test_a_position_that_is_reached_again_after_the_sink_was_put_back_gets_its_checkpoint() -> None:
    group = Group("a")
    tenure = await group.tenure()
    group.append("a", 5)
    await until(lambda: group.leases["a"].continuation == "5")
    group.destination._positions["bank", "a", 0] = "3"
    group.weather.down.add(("", "feed"))
    group.append("a", 0)  # wakes the reader, which then fails
    await until(lambda: tenure.said("partition failed"))
    group.weather.down.clear()
    await until(lambda: group.destination._positions["bank", "a", 0] == "5")
    await until(lambda: group.leases["a"].continuation == "5", within_s=10)
    await stopped(tenure)


class Forgetful(Outlet):
    """A sink that does not hold its position."""

    holds_position = False

    def __init__(self, destination: MemoryDestination, weather: Weather) -> None:
        super().__init__(destination, weather)

    async def open(self, claim: Claim) -> Any:
        self.destination._positions.pop((claim.pipeline, claim.partition, claim.generation), None)
        return await super().open(claim)


def forgetful(**settings: Any) -> Group:
    group = Group("a", **settings)
    group._sink = lambda: Forgetful(group.destination, group.weather)
    return group


@pytest.mark.virtual
@pytest.mark.parametrize("ends", ["ok", "refused", "lost", "ghost"])
async def test_for_a_sink_without_positions_every_batch_is_kept_before_the_next_is_sent(ends: str) -> None:
    group = forgetful(limits=ONE)
    group.append("a", 6)
    positions: list[str | None] = []
    faults = Once(of("store", "replace", "/leases/"), "ok", "ok", "ok", ends)

    def judge(request: Request) -> Fate:
        if of("sink", "write")(request):
            positions.append(group.leases["a"].continuation)
        return faults(request)

    group.weather.judge = judge
    tenure = await group.tenure()
    await until(lambda: len(positions) == 6)
    assert positions == [None, "1", "2", "3", "4", "5"]
    await until(group.is_delivered)
    await stopped(tenure)


@pytest.mark.virtual
async def test_what_such_a_sink_was_sent_may_go_unkept_for_as_long_as_was_agreed_to() -> None:
    """A busy handler costs a write per interval, and not one per batch."""
    group = forgetful(limits=ONE, unkept_s=5.0)
    tenure = await group.tenure()
    arrived, lags = list[float](), list[float]()
    for _ in range(1200):
        group.append("a", 1)
        await asyncio.sleep(0.25)
        now = asyncio.get_running_loop().time()
        arrived += [now] * (len(group.delivered("a")) - len(arrived))
        kept = int(group.leases["a"].continuation or 0)
        lags.append(now - arrived[kept] if kept < len(arrived) else 0.0)
    assert 4.0 < max(lags) < 5.6
    assert 55 <= len(group.asked(of("store", "replace", "/leases/"))) <= 66  # of 300 s, one every 5 s
    tenure.worker.stop()
    await tenure.task
    assert group.leases["a"].continuation == str(len(arrived))


@pytest.mark.virtual
async def test_a_trickle_to_such_a_sink_is_kept_as_seldom_as_was_agreed_to_and_its_last_event_too() -> None:
    group = forgetful(unkept_s=15.0)
    tenure = await group.tenure()
    for _ in range(300):
        group.append("a", 1)
        await asyncio.sleep(1)
    assert len(group.asked(of("store", "replace", "/leases/"))) <= 24  # of 300 s, one every 15 s
    await until(lambda: group.leases["a"].continuation == "300", within_s=15.6)
    await asyncio.sleep(20)
    group.append("a", 1)  # alone, it does not wait
    assert await until(lambda: group.leases["a"].continuation == "301") < 1
    await stopped(tenure)


@pytest.mark.virtual
async def test_where_the_container_is_away_no_more_goes_unkept_than_was_agreed_to() -> None:
    group = forgetful(limits=ONE, unkept_s=5.0)
    tenure = await group.tenure()
    await asyncio.sleep(20)
    group.append("a", 1)
    await until(lambda: group.leases["a"].continuation == "1")
    group.weather.down.add(("", "store"))
    for _ in range(80):
        group.append("a", 1)
        await asyncio.sleep(0.25)
    assert 16 <= len(group.delivered("a")) <= 24  # for 5 s, four each second
    group.weather.down.clear()
    await until(group.is_delivered)
    await stopped(tenure)


@pytest.mark.virtual
async def test_without_the_container_a_sink_without_positions_gets_one_batch_and_a_stop_does_not_wait_for_ever() -> (
    None
):
    group = forgetful(limits=ONE)
    tenure = await group.tenure()
    group.weather.down.add(("", "store"))
    group.append("a", 6)
    await asyncio.sleep(30)
    assert group.delivered("a") == [0]
    tenure.worker.stop()
    async with asyncio.timeout(11):
        assert (await tenure.task).reason == "shutdown"
    group.weather.down.clear()
    again = await group.tenure()
    await until(lambda: group.delivered("a") == [0, 0, 1, 2, 3, 4, 5])
    await stopped(again)
