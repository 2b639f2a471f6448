"""Lag and backlog: what a group still has to do, as its lease documents and feeds tell."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from leasehold.leases.lease import Child, Lease, LeaseKey
from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable
from leasehold.pipeline.feed import FeedPartition
from leasehold.service.lag.asking import LagTimeouts
from leasehold.service.lag.backlog import Backlog, read_backlog, verdict, wait_until_idle
from leasehold.service.lag.measurement import KEPT_S, Lag, PartitionLag, filled, measure_lag

T = TypeVar("T")


class Broken(MemoryChangeFeed):
    """Answers with `error` for the partitions in `broken`, or never."""

    def __init__(self, partitions: list[str], broken: set[str], error: Exception | None) -> None:
        super().__init__(partitions)
        self.broken, self.error = broken, error

    async def lag(self, partition: str, continuation: str | None) -> int:
        await self._fail(partition)
        return await super().lag(partition, continuation)

    async def latest(self, partition: str) -> str | None:
        await self._fail(partition)
        return await super().latest(partition)

    async def _fail(self, partition: str) -> None:
        if partition in self.broken:
            if self.error is None:
                await asyncio.Event().wait()
            raise self.error


class Holding(MemoryChangeFeed):
    """Ends with an event that is not finished, in the partitions in `held`."""

    def __init__(self, **held: str) -> None:
        super().__init__(["a", "b"])
        self.held = held

    no_partitions = "none yet"

    async def lag(self, partition: str, continuation: str | None) -> int:
        return await super().lag(partition, continuation) + (partition in self.held)

    async def find_held_back(self, partition: str, continuation: str | None) -> str | None:
        return self.held.get(partition)


class Crowded(MemoryChangeFeed):
    """Counts how many requests are on their way at once."""

    now = most = 0

    async def _request(self, request: Callable[[], T]) -> T:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        return request()


def feed(**events: int) -> MemoryChangeFeed:
    made = MemoryChangeFeed(events)
    for partition, count in events.items():
        made.append(partition, [b"{}"] * count)
    return made


def lease(partition: str, continuation: str | None = None, **fields: object) -> Lease:
    return replace(Lease(pipeline="bank", partition=partition, continuation=continuation), **fields)


OWNED = {"owner": "host-a", "incarnation": "1"}
NOTHING = Backlog(ends={}, behind=frozenset(), missing=frozenset(), failed={}, unknown=())


# Lag


async def test_lag_is_what_the_feed_holds_behind_each_lease() -> None:
    lag = await measure_lag([lease("a", "2"), lease("b")], {"bank": feed(a=5, b=4)})
    assert [(p.partition, p.events) for p in lag.partitions] == [("a", 3), ("b", 4)]
    assert (lag.events, lag.unknown) == (7, 0)


async def test_lag_is_told_for_one_pipeline_alone() -> None:
    leases = [lease("a"), replace(lease("a"), pipeline="other")]
    lag = await measure_lag(leases, {"bank": feed(a=5), "other": feed(a=2)})
    assert (lag.events, lag.of("other").events, lag.of("nowhere").events) == (7, 2, 0)


async def test_what_has_no_lease_or_one_that_nobody_can_read_counts_as_unknown() -> None:
    unreadable = {LeaseKey("bank", "b"): "document 'b' is not JSON"}
    lag = await measure_lag([lease("a", "2")], {"bank": feed(a=5, b=4, c=3)}, unreadable=unreadable)
    assert [(p.partition, p.events) for p in lag.partitions] == [("a", 3), ("b", None), ("c", None)]
    assert lag.partitions[1].error == "document 'b' is not JSON"
    assert "it has no lease" in str(lag.partitions[2].error)
    assert (lag.events, lag.unknown, lag.is_known) == (3, 2, False)


async def test_where_a_host_knows_why_there_is_no_lease_that_is_told() -> None:
    lag = await measure_lag(
        [], {"bank": feed(a=5)}, waiting={LeaseKey("bank", "a"): "it came from '0', whose lease is unreadable"}
    )
    assert [p.error for p in lag.partitions] == ["it came from '0', whose lease is unreadable"]
    assert not lag.is_known


async def test_what_waits_for_a_lease_is_unknown_and_not_done_though_the_feed_lists_it_no_more() -> None:
    waiting = {
        LeaseKey("bank", "a.0"): "its sink is still finding out where it begins",
        LeaseKey("bank", "a"): "before it had one",
    }
    lag = await measure_lag([lease("a", "5")], {"bank": feed(a=5)}, waiting=waiting)
    assert [(p.partition, p.error) for p in lag.partitions] == [("a", None), ("a.0", waiting["bank", "a.0"])]
    look = await read_backlog([lease("a", "5")], {"bank": feed(a=5)}, {}, waiting=waiting)
    assert look.missing == {LeaseKey("bank", "a.0")}
    assert not look.is_done


async def test_a_feed_that_cannot_list_its_partitions_may_have_more_than_there_are_leases() -> None:
    class Unlisted(MemoryChangeFeed):
        async def partitions(self) -> list[FeedPartition]:
            raise FeedUnavailable("the broker is away")

    unlisted = Unlisted(["a"])
    lag = await measure_lag([lease("a")], {"bank": unlisted})
    assert [(p.partition, p.events) for p in lag.partitions] == [("", None), ("a", 0)]
    assert "the feed cannot list its partitions (the broker is away)" in str(lag.partitions[0].error)


async def test_closed_leases_have_no_lag() -> None:
    closed = lease("a", closed=True, children=(Child("b", None),))
    lag = await measure_lag([closed, lease("b")], {"bank": feed(a=5, b=1)})
    assert lag.events == 1


async def test_a_partition_whose_feed_fails_is_reported_and_the_others_still_answer() -> None:
    broken = Broken(["a", "b"], {"a"}, FeedUnavailable("the broker is away"))
    broken.append("b", [b"{}"])
    lag = await measure_lag([lease("a"), lease("b")], {"bank": broken})
    assert [(p.events, p.error) for p in lag.partitions] == [(None, "the broker is away"), (1, None)]
    assert (lag.events, lag.unknown, lag.is_known) == (1, 1, False)


async def test_a_lost_position_and_a_faulty_connector_are_errors_of_one_partition() -> None:
    broken = Broken(["a", "b", "c"], {"b"}, ZeroDivisionError("division by zero"))
    lag = await measure_lag([lease("a", "99"), lease("b"), lease("c")], {"bank": broken})
    assert "99 is none of them" in str(lag.partitions[0].error)
    assert lag.partitions[1].error == "unexpected ZeroDivisionError: division by zero"
    assert lag.partitions[2].events == 0


async def test_a_feed_that_never_answers_costs_its_partition_the_call_timeout() -> None:
    silent = Broken(["a", "b"], {"a"}, None)
    lag = await measure_lag([lease("a"), lease("b")], {"bank": silent}, patience=LagTimeouts(call_s=0.02, total_s=5))
    assert [p.error for p in lag.partitions] == ["no answer within 0.02 s", None]


@pytest.mark.virtual
async def test_many_silent_partitions_together_cost_the_total_timeout() -> None:
    names = [str(n) for n in range(100)]
    silent = Broken(names, set(names), None)
    patience = LagTimeouts(call_s=0.05, total_s=0.12, at_once=2)
    async with asyncio.timeout(1):
        lag = await measure_lag(map(lease, names), {"bank": silent}, patience=patience)
    assert lag.unknown == 100
    assert not lag.is_known
    assert {p.error for p in lag.partitions} == {"no answer within 0.05 s", "no answer within 0.12 s"}


async def test_feeds_are_asked_a_few_at_a_time() -> None:
    names = [str(n) for n in range(50)]
    crowded = Crowded(names)
    await measure_lag(map(lease, names), {"bank": crowded}, patience=LagTimeouts(at_once=4))
    assert crowded.most == 4


async def test_asking_can_be_cancelled() -> None:
    silent = Broken(["a"], {"a"}, None)
    asking = asyncio.create_task(measure_lag([lease("a")], {"bank": silent}))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()


# What counts for partitions whose feed does not answer


def told(*events: int | None, pipeline: str = "bank") -> Lag:
    """Of the partitions "0", "1" ..."""
    return Lag(
        tuple(
            PartitionLag(pipeline=pipeline, partition=str(n), events=each, error=None if each is not None else "away")
            for n, each in enumerate(events)
        )
    )


def test_an_unknown_partition_beside_idle_ones_is_not_counted_as_idle() -> None:
    """Each unknown one counts as one event."""
    lag = told(*[0] * 9, None)
    assert (lag.is_known, lag.events, lag.unknown) == (True, 1, 1)


def test_more_than_a_tenth_of_unknown_partitions_is_an_unknown_lag() -> None:
    assert not told(*[50] * 8, None, None).is_known
    assert not told(*[50] * 8, None).is_known
    assert not told(None).is_known
    assert told().is_known


def test_the_partitions_of_one_pipeline_say_nothing_of_those_of_another() -> None:
    lag = Lag((*told(*[50] * 20).partitions, *told(None, pipeline="view").partitions))
    assert (lag.is_known, lag.of("bank").is_known, lag.of("view").is_known) == (False, True, False)
    lag = Lag((*told(*[50] * 9, None).partitions, *told(*[7] * 9, None, pipeline="view").partitions))
    assert (lag.is_known, lag.events) == (True, 515)


def test_the_last_known_lag_counts_for_a_minute_and_shows_how_old_it_is() -> None:
    kept = filled(told(None, 6), told(17, 5), KEPT_S)
    assert [(one.events, one.age_s, one.error) for one in kept.partitions] == [(17, KEPT_S, "away"), (6, 0.0, None)]
    later = filled(told(None, 7), kept, 1)
    assert [(one.events, one.age_s) for one in later.partitions] == [(None, 0.0), (7, 0.0)]
    assert filled(told(None), None, 0.0) == told(None), "nothing was known before"


def test_what_was_old_when_it_came_grows_no_younger() -> None:
    old = Lag((PartitionLag(pipeline="bank", partition="0", events=17, age_s=KEPT_S - 5),))
    assert filled(told(None), old, 5).partitions[0].age_s == KEPT_S
    assert filled(told(None), old, 6).unknown == 1


async def test_a_feed_that_could_list_its_partitions_a_moment_ago_has_no_unknown_ones() -> None:
    class Sometimes(MemoryChangeFeed):
        is_away = False

        async def partitions(self) -> list[FeedPartition]:
            if self.is_away:
                raise FeedUnavailable("the broker is away")
            return await super().partitions()

    source = Sometimes(["a"])
    source.append("a", [b"{}"] * 3)
    listed = await measure_lag([lease("a")], {"bank": source})
    source.is_away = True
    unlisted = await measure_lag([lease("a")], {"bank": source})
    lag = filled(unlisted, listed, KEPT_S)
    assert (lag.is_known, lag.events, len(lag.errors)) == (True, 3, 1)
    assert not filled(unlisted, lag, 1.0).is_known
    assert not filled(unlisted, filled(unlisted, None, 0.0), 1.0).is_known, "it never could"


# Backlog


async def test_a_group_that_has_read_everything_is_idle_after_two_equal_looks() -> None:
    at_end = [lease("a", "3", **OWNED), lease("b")]
    first = await read_backlog(at_end, {"bank": feed(a=3, b=0)}, {})
    assert verdict(None, first) == "busy"
    assert verdict(first, await read_backlog(at_end, {"bank": feed(a=3, b=0)}, {})) == "idle"


async def test_a_lease_behind_its_feed_keeps_the_group_busy() -> None:
    behind = await read_backlog([lease("a", "2")], {"bank": feed(a=3)}, {})
    assert behind.behind == {LeaseKey("bank", "a")}
    assert verdict(behind, behind) == "busy"


async def test_a_partition_without_a_lease_keeps_the_group_busy() -> None:
    missing = await read_backlog([lease("a", "3")], {"bank": feed(a=3, b=0)}, {})
    assert missing.missing == {LeaseKey("bank", "b")}
    assert verdict(missing, missing) == "busy"


async def test_an_upstream_that_moved_between_two_looks_keeps_the_group_busy() -> None:
    """The first look sees the downstream before the upstream writes to it. The second look finds that, in either order."""
    first = await read_backlog([lease("a", "3")], {"bank": feed(a=3)}, {})
    second = await read_backlog([lease("a", "4")], {"bank": feed(a=4)}, {})
    assert first.is_done
    assert second.is_done
    assert verdict(first, second) == "busy"


async def test_a_closed_lease_does_not_count_but_its_children_do() -> None:
    source = feed(a=3)
    source.split("a", ["a1"])
    closed = lease("a", "1", closed=True, children=(Child("a1", None),))
    without = await read_backlog([closed], {"bank": source}, {})
    assert (without.missing, without.behind) == ({LeaseKey("bank", "a1")}, frozenset())
    assert (await read_backlog([closed, lease("a1")], {"bank": source}, {})).is_done


async def test_a_partition_emptied_by_retention_is_not_behind() -> None:
    source = feed(a=5)
    source.trim("a", "5")
    assert (await read_backlog([lease("a")], {"bank": source}, {})).is_done


async def test_a_feed_that_does_not_answer_leaves_the_group_busy_and_is_named() -> None:
    broken = Broken(["a", "b"], {"a"}, FeedUnavailable("the broker is away"))
    look = await read_backlog([lease("a"), lease("b")], {"bank": broken}, {})
    assert look.unknown == ("pipeline 'bank', partition 'a': the broker is away",)
    assert verdict(look, look) == "busy"


async def test_a_partition_that_cannot_be_read_until_a_person_helps_ends_the_wait_although_its_owner_tries_again() -> (
    None
):
    for error in (FeedNotFound("the disk is broken"), FeedError("permission denied")):
        source = Broken(["a", "b"], {"a"}, error)
        source.append("b", [b"{}"])
        busy = await read_backlog([lease("a", **OWNED), lease("b")], {"bank": source}, {})
        assert verdict(busy, busy) == "busy"
        rest = await read_backlog([lease("a", **OWNED), lease("b", "1")], {"bank": source}, {})
        assert (rest.failed, rest.unknown) == ({LeaseKey("bank", "a"): str(error)}, ())
        assert verdict(rest, rest) == "failed"


async def test_a_failed_partition_ends_the_wait_once_all_others_are_idle() -> None:
    failures = {LeaseKey("bank", "a"): "line 17 is malformed"}
    source = feed(a=3, b=2)
    busy = await read_backlog([lease("a", "1"), lease("b", "1")], {"bank": source}, failures)
    assert verdict(busy, busy) == "busy"
    rest = await read_backlog([lease("a", "1"), lease("b", "2")], {"bank": source}, failures)
    assert verdict(rest, rest) == "failed"
    assert rest.failed == failures


async def test_a_failed_partition_that_somebody_works_on_again_is_busy() -> None:
    retried = await read_backlog(
        [lease("a", "1", **OWNED)], {"bank": feed(a=3)}, {LeaseKey("bank", "a"): "was malformed"}
    )
    assert (retried.failed, retried.behind) == ({}, {LeaseKey("bank", "a")})


async def test_a_partition_that_fails_although_nothing_waits_is_a_failure_too() -> None:
    look = await read_backlog([lease("a")], {"bank": feed(a=0)}, {LeaseKey("bank", "a"): "the sink refuses"})
    assert verdict(look, look) == "failed"


async def test_a_failed_partition_whose_feed_fails_as_well_does_not_hold_up_the_end() -> None:
    broken = Broken(["a"], {"a"}, FeedUnavailable("the file is gone"))
    look = await read_backlog([lease("a")], {"bank": broken}, {LeaseKey("bank", "a"): "the file is gone"})
    assert verdict(look, look) == "failed"


async def test_a_lease_that_cannot_be_read_ends_the_wait_and_so_do_partitions_that_wait_for_it() -> None:
    stuck = {
        LeaseKey("bank", "b"): "document 'b' is not JSON",
        LeaseKey("bank", "c"): "it came from 'b', whose lease is unreadable",
    }
    busy = await read_backlog([lease("a", "2")], {"bank": feed(a=3, b=2, c=0)}, {}, waiting=stuck, stuck=stuck)
    assert (busy.missing, verdict(busy, busy)) == (frozenset(), "busy")
    rest = await read_backlog([lease("a", "3")], {"bank": feed(a=3, b=2, c=0)}, {}, waiting=stuck, stuck=stuck)
    assert (rest.failed, verdict(rest, rest)) == (stuck, "failed")


async def test_a_lease_that_was_repaired_between_two_looks_is_worked_on_first() -> None:
    stuck = {LeaseKey("bank", "a"): "document 'a' is not JSON"}
    first = await read_backlog([], {"bank": feed(a=3)}, {}, stuck=stuck)
    second = await read_backlog([lease("a", "1")], {"bank": feed(a=3)}, {}, stuck=stuck)
    assert (second.failed, verdict(first, second)) == ({}, "busy")


async def test_a_pipeline_whose_partitions_cannot_be_listed_until_a_person_helps_ends_the_wait() -> None:
    class Unlisted(MemoryChangeFeed):
        async def partitions(self) -> list[FeedPartition]:
            raise FeedNotFound("directory 'in' cannot be listed")

    feeds = {"bank": Unlisted(["a"]), "other": feed(b=2)}
    other = replace(lease("b", "1"), pipeline="other")
    busy = await read_backlog([other], feeds, {})
    assert verdict(busy, busy) == "busy"
    rest = await read_backlog([replace(other, continuation="2")], feeds, {})
    assert (rest.failed, rest.unknown) == ({LeaseKey("bank", ""): "directory 'in' cannot be listed"}, ())
    assert verdict(rest, rest) == "failed"


async def test_a_pipeline_whose_leases_cannot_be_created_until_a_person_helps_ends_the_wait() -> None:
    stuck = {LeaseKey("bank", ""): "document 'bank/info' is not JSON"}
    look = await read_backlog([], {"bank": feed(a=3)}, {}, stuck=stuck)
    assert (look.failed, look.missing, verdict(look, look)) == (stuck, frozenset(), "failed")


async def test_what_a_feed_passes_over_ends_the_wait_once_the_others_are_read() -> None:
    class Partial(MemoryChangeFeed):
        @property
        def passed_over(self) -> dict[str, str]:
            return {"/in/loop.csv": "it leads nowhere"}

    source = Partial(["a"])
    source.append("a", [b"{}"])
    busy = await read_backlog([lease("a")], {"bank": source}, {})
    assert verdict(busy, busy) == "busy"
    rest = await read_backlog([lease("a", "1")], {"bank": source}, {})
    assert (rest.failed, verdict(rest, rest)) == ({LeaseKey("bank", "/in/loop.csv"): "it leads nowhere"}, "failed")


async def test_an_unfinished_event_that_is_all_a_partition_has_left_ends_the_wait_as_a_failure() -> None:
    source = Holding(a="line 3: a quote is open")
    source.append("b", [b"{}"])
    busy = await read_backlog([lease("a"), lease("b")], {"bank": source}, {})
    assert (busy.behind, busy.held) == ({LeaseKey("bank", "b")}, {LeaseKey("bank", "a"): "line 3: a quote is open"})
    assert verdict(busy, busy) == "busy"
    rest = await read_backlog([lease("a"), lease("b", "1")], {"bank": source}, {})
    assert verdict(rest, rest) == "failed"


async def test_whole_events_before_an_unfinished_one_keep_the_group_busy() -> None:
    source = Holding(a="line 3: a quote is open")
    source.append("a", [b"{}"])
    look = await read_backlog([lease("a")], {"bank": source}, {})
    assert (look.behind, look.held) == ({LeaseKey("bank", "a")}, {})


async def test_an_event_that_was_finished_between_two_looks_is_looked_at_again() -> None:
    source = Holding(a="line 3: a quote is open")
    first = await read_backlog([lease("a"), lease("b")], {"bank": source}, {})
    source.held.clear()
    second = await read_backlog([lease("a"), lease("b")], {"bank": source}, {})
    assert [verdict(first, second), verdict(second, second)] == ["busy", "idle"]


async def test_a_partition_that_failed_is_told_once_though_its_end_is_unfinished_too() -> None:
    source = Holding(a="line 3: a quote is open")
    look = await read_backlog([lease("a")], {"bank": source}, {LeaseKey("bank", "a"): "the sink refuses"})
    assert (look.failed, look.held) == ({LeaseKey("bank", "a"): "the sink refuses"}, {})


def test_a_failure_that_was_mended_between_two_looks_is_looked_at_again() -> None:
    failed = replace(NOTHING, failed={LeaseKey("bank", "a"): "malformed"})
    assert verdict(failed, NOTHING) == "busy"
    assert verdict(NOTHING, failed) == "busy"


async def test_waiting_until_idle_ends_with_the_look_that_found_nothing_to_do() -> None:
    behind = replace(NOTHING, behind=frozenset({LeaseKey("bank", "a")}))
    looks = iter(
        [behind, NOTHING, behind, NOTHING, replace(NOTHING, ends={LeaseKey("bank", "a"): ("1", "1")}), NOTHING, NOTHING]
    )

    async def look() -> Backlog:
        return next(looks)

    class Now:
        def monotonic(self) -> float:
            return 0.0

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(0)

    assert await wait_until_idle(look, clock=Now()) == NOTHING
    assert next(looks, None) is None
