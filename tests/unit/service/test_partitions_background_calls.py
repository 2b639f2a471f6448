"""A sink or feed that is slow to say where one partition begins: the others do not wait, and people see what does."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import pytest
from lab.simulation.group import Group, Running, until
from lab.simulation.weather import Outlet

from leasehold.common.clock import LoopClock
from leasehold.common.standing import Standing
from leasehold.leases.bootstrap import decode_info
from leasehold.leases.document import lease_id
from leasehold.leases.errors import Undecided
from leasehold.leases.lease import LeaseKey
from leasehold.leases.timing import Timing
from leasehold.pipeline.connectors.memory import _Log
from leasehold.pipeline.errors import SinkUnavailable
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.group.activity import activity_of
from leasehold.service.group.view import View
from leasehold.service.partitions import Asks


class Slow(Outlet):
    """Takes so long to say where a partition stands, as an event hub does that has to be read for it."""

    takes_s: float
    fails = 0
    asked: Counter[str]

    async def standing(self, pipeline: str, partition: str) -> Standing | None:
        self.asked[partition] += 1
        await asyncio.sleep(self.takes_s)
        if self.fails:
            self.fails -= 1
            raise SinkUnavailable("the hub is away, TrackingId:" + str(asyncio.get_running_loop().time()))
        return await super().standing(pipeline, partition)


async def lost_child(sink: Slow) -> tuple[Group, Running]:
    """A host that starts where a child's lease and its parent's were deleted; a partition has been added since."""
    group = Group("ab", sink=lambda: sink)
    sink.destination, sink._weather = group.destination, group.weather
    truth = group.feed.partitions

    async def there_now() -> list[FeedPartition]:
        return [each for each in await truth() if group.feed._logs[each.name].children is None]

    group.feed.partitions = there_now  # type: ignore[method-assign]
    group.append("a", 10)
    host = await group.start("host-a")
    await until(lambda: len(group.delivered("a")) == 10)
    group.feed.split("a", ["a.0", "a.1"])
    await until(lambda: "a.0" in group.owners and "a.1" in group.owners)
    group.append("a.0", 5)
    await until(lambda: len(group.delivered("a.0")) == 5)
    await host.stop()
    for name in ("a", "a.0"):
        group.remove(lease_id("bank", name))
    group.feed._logs["new"] = _Log()
    group.append("new", 3)
    group.append("a.0", 5)
    return group, group.started("host-b")


def sink_of(*, takes_s: float, fails: int = 0) -> Slow:
    sink = Slow(None, None)  # type: ignore[arg-type]  # of the group that comes
    sink.takes_s, sink.fails, sink.asked = takes_s, fails, Counter()
    return sink


def view_of(group: Group, host: Running) -> View:
    keeper = group.keeper("onlooker", "onlooker-1")
    pipelines = [*host.host.pipelines.values()]
    return View(keeper, pipelines, clock=host.clock, now=lambda: datetime.now(UTC), host=host.host)


@pytest.mark.virtual
async def test_a_slow_answer_for_one_partition_delays_no_other_and_comes_in_the_background() -> None:
    sink = sink_of(takes_s=60.0)
    group, host = await lost_child(sink)
    began = asyncio.get_running_loop().time()
    await until(lambda: group.delivered("new") == [0, 1, 2], within_s=5)
    await asyncio.sleep(20)
    key = ("bank", "a.0")
    assert key not in host.host.waiting or "its sink is still finding out" in host.host.waiting[key]
    assert host.host.waiting.keys() == {key}
    assert host.said("partitions wait for a lease")[0]["first"] == "a.0"
    assert [each.partition for each in activity_of(host.host, now=datetime.now(UTC), monotonic_s=0.0).waiting] == [
        "a.0"
    ]
    view = view_of(group, host)
    assert [each.error for each in (await view.read_lag()).partitions if each.key == key] == [host.host.waiting[key]]
    assert not (await view.read_backlog()).is_done
    await until(lambda: len(group.delivered("a.0")) == 10)
    assert asyncio.get_running_loop().time() - began <= 60 + 5
    assert host.host.waiting == {}
    assert host.said("waiting partitions recovered")
    await asyncio.sleep(10)
    assert (await view.read_backlog()).is_done
    assert max(sink.asked.values()) == 1  # neither for itself nor for its family a second time
    await host.stop()


@pytest.mark.virtual
async def test_an_answer_that_fails_is_asked_for_again_and_the_log_does_not_grow_by_it() -> None:
    sink = sink_of(takes_s=0.0, fails=40)
    group, host = await lost_child(sink)
    await until(lambda: group.delivered("new") == [0, 1, 2], within_s=5)
    await until(lambda: len(group.delivered("a.0")) == 10, within_s=3600)
    assert sink.asked["a.0"] == 41
    assert len(host.said("partitions wait for a lease")) <= 10
    assert not host.said("needs attention")[1:]
    await host.stop()


@pytest.mark.virtual
async def test_a_host_stops_at_once_while_an_answer_is_awaited() -> None:
    group, host = await lost_child(sink_of(takes_s=3000.0))
    await until(lambda: bool(host.host.waiting))
    began = asyncio.get_running_loop().time()
    await host.stop()
    assert asyncio.get_running_loop().time() - began < 5
    assert set(group.owners.values()) == {None}


@pytest.mark.virtual
@pytest.mark.parametrize("is_slow", [True, False])
async def test_in_the_first_round_one_partition_of_which_the_feed_does_not_say_where_it_begins_keeps_no_other_waiting(
    is_slow: bool,
) -> None:
    group, back = Group("abc", start="latest"), asyncio.Event()
    start_of: Callable[..., Awaitable[str | None]] = group.feed.start_of

    async def answered(partition: str, start: object) -> str | None:
        if is_slow and partition == "b":
            await back.wait()
        if not back.is_set() and partition == "b":
            raise SinkUnavailable("away")
        return await start_of(partition, start)

    group.feed.start_of = answered  # type: ignore[method-assign, assignment]
    host = await group.start("host-a")
    await until(lambda: group.owners == {"a": "host-a", "c": "host-a"}, within_s=5)
    await asyncio.sleep(30)
    assert decode_info(group.info.id, group.info.body).pending == ("b",)
    assert host.host.waiting.keys() == {("bank", "b")}
    group.feed._logs["new"] = _Log()
    group.append("new", 7)
    await until(lambda: group.delivered("new") == [*range(7)], within_s=30)  # which is new, and read whole
    back.set()
    await until(lambda: group.owners.get("b") == "host-a", within_s=20)
    await until(lambda: decode_info(group.info.id, group.info.body).pending == (), within_s=20)
    await host.stop()


@pytest.mark.virtual
async def test_slow_answers_do_not_hold_up_a_quick_one() -> None:
    clock, timing = LoopClock(), Timing()
    asks = Asks(clock, timing, random.Random(1), lambda: None)
    slow = [
        asks.get("standing", LeaseKey("bank", f"slow-{n}"), lambda: asyncio.sleep(1800), "its sink") for n in range(16)
    ]
    assert all(isinstance(each, Undecided) for each in await asyncio.gather(*slow, return_exceptions=True))
    quick, began = LeaseKey("bank", "quick"), clock.monotonic()
    assert await asks.get("start", quick, lambda: asyncio.sleep(0.1, "earliest"), "its feed") == "earliest"
    with suppress(Undecided):
        await asks.get("standing", quick, lambda: asyncio.sleep(0.1, "found"), "its sink")
    await asyncio.sleep(timing.call_timeout_s)
    assert await asks.get("standing", quick, lambda: asyncio.sleep(0.1, "again"), "its sink") == "found"
    assert clock.monotonic() - began < 2 * timing.call_timeout_s
    await asks.close()
