"""A merged partition whose parts go on under leases of their own: by the hosts, and in what is told of lag and idleness."""

from __future__ import annotations

import pytest
from lab.simulation.flow import NumberedFeed, part_of
from lab.simulation.group import Group, always, until

from leasehold.leases.membership import DEAD_AFTER
from leasehold.leases.timing import Timing
from leasehold.service.lag.backlog import read_backlog
from leasehold.service.lag.measurement import measure_lag


def merging(partitions: str, timing: Timing | None = None) -> Group:
    group = Group(partitions, timing=timing)
    feed = NumberedFeed(partitions)
    feed.weather = group.weather
    group.feed = feed
    return group


@pytest.mark.virtual
async def test_the_parts_of_a_merged_partition_go_on_where_their_leases_ended() -> None:
    group = merging("ab")
    a, b = await group.start("host-a"), await group.start("host-b")
    for name, events in (("a", 30), ("b", 5)):
        group.append(name, events)
    await until(lambda: group.delivered("a") == list(range(30)) and group.delivered("b") == list(range(5)))
    group.feed.merge_in_parts("ab")  # type: ignore[attr-defined]
    for name in "ab":
        group.append(part_of(name), 10)
    await until(lambda: {part_of(name) for name in "ab"} <= group.leases.keys())
    await until(lambda: len(group.delivered(part_of("a")) + group.delivered(part_of("b"))) == 20)
    assert group.delivered(part_of("a")) == list(range(30, 40))
    assert group.delivered(part_of("b")) == list(range(5, 15))
    await until(group.is_balanced)
    open_ones = {name: lease.scope for name, lease in group.leases.items() if not lease.closed}
    assert open_ones == {part_of("a"): "a", part_of("b"): "b"}
    assert not a.said("needs attention") + b.said("needs attention")


@pytest.mark.virtual
async def test_the_leases_of_what_was_merged_are_cleared_away_once_nobody_can_need_them() -> None:
    group = merging("ab", Timing(duration_s=6, balance_s=2, call_timeout_s=1))
    a, b = await group.start("host-a"), await group.start("host-b")
    group.feed.merge_in_parts("ab")  # type: ignore[attr-defined]
    parts = {part_of(name) for name in "ab"}
    await until(lambda: parts <= group.leases.keys())
    await always(lambda: group.leases.keys() == parts | {"a", "b"}, 2 * DEAD_AFTER * group.timing.patience_s)
    group.feed.forget("ab")  # type: ignore[attr-defined]
    took_s = await until(lambda: group.leases.keys() == parts, 2 * DEAD_AFTER * group.timing.patience_s)
    assert took_s >= DEAD_AFTER * group.timing.patience_s
    group.append(part_of("a"), 10)
    await until(lambda: len(group.delivered(part_of("a"))) == 10)
    await always(lambda: group.leases.keys() == parts and group.is_balanced(), 5 * group.timing.patience_s)
    assert not a.said("needs attention") + b.said("needs attention")


@pytest.mark.virtual
async def test_a_merged_partition_is_not_missing_where_its_parts_have_leases() -> None:
    group = merging("ab")
    await group.start("host-a")
    group.feed.merge_in_parts("ab")  # type: ignore[attr-defined]
    feeds = {"bank": group.feed}
    await until(lambda: {part_of(name) for name in "ab"} <= group.leases.keys())
    leases = list(group.leases.values())
    assert (await read_backlog(leases, feeds, {})).missing == frozenset()
    part = next(lease for lease in leases if lease.partition == part_of("a"))
    left = [lease for lease in leases if lease != part]
    assert (await read_backlog(left, feeds, {})).missing == {("bank", part_of("a"))}


@pytest.mark.virtual
async def test_a_feed_is_told_the_scopes_of_leases_before_it_is_asked_about_them() -> None:
    group = merging("ab")
    told: list[dict[str, str]] = []
    asked: list[str] = []

    class Telling(NumberedFeed):
        def remember(self, scopes: object) -> None:
            told.append(dict(scopes))  # type: ignore[call-overload]
            asked.append("remember")

        async def lag(self, partition: str, continuation: str | None) -> int:
            asked.append("lag")
            return 0

    feed = Telling("ab")
    feed.weather = group.weather
    group.feed = feed
    await group.start("host-a")
    feed.merge_in_parts("ab")
    await until(lambda: {part_of(name) for name in "ab"} <= group.leases.keys())
    asked.clear()
    await measure_lag(group.leases.values(), {"bank": feed})
    assert told[-1] == {part_of("a"): "a", part_of("b"): "b"}
    assert asked[0] == "remember"
    assert asked.count("lag") == 2
