"""Handlers that run side by side, in a host: order, positions, failures, limits and every end."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from itertools import chain, pairwise
from typing import Any

import pytest
from lab.simulation.group import Group, Tenure, until
from lab.simulation.handler import handled

from leasehold.pipeline.connectors.handlers import HandlerSink
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryFeed, MemorySink
from leasehold.pipeline.dead_letters import DeadLetters, LetterBox, beside
from leasehold.pipeline.errors import OutputRefused, SinkRejected, SinkUnavailable
from leasehold.pipeline.handlers.events import AckRefused, Events
from leasehold.pipeline.limits import BatchLimits, ParallelLimits
from leasehold.service.errors import BatchHung

TAKES_S = 0.1
Row = Mapping[str, Any]


class Recording:
    """Handles events, and remembers in which order, by key. does: called with each first."""

    def __init__(self, does: Callable[[Row], Awaitable[None]] | None = None) -> None:
        self.done: list[Row] = []
        self.running = self.most = 0
        self.cancelled = 0
        self._does = does

    async def __call__(self, event: Row) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            if self._does is not None:
                await self._does(event)
            else:
                await asyncio.sleep(TAKES_S)
            self.done.append(event)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    @property
    def bodies(self) -> list[str]:
        return [event["body"].decode() for event in self.done]

    @property
    def by_key(self) -> dict[str | None, list[int]]:
        found = defaultdict[str | None, list[int]](list)
        for event in self.done:
            found[event["key"]].append(event["sequence"])
        return dict(found)


def group_of(handler: Any, *, key: str = "key", **limits: Any) -> Group:
    """Whose sink calls that handler side by side."""
    of = ParallelLimits(**limits)
    return Group(
        "a",
        sink=lambda: HandlerSink(handler, key=key, limits=of),
        limits=BatchLimits(events_max=of.batch_events_max),
    )


def append(group: Group, text: str) -> None:
    """An event for each word, with its first letter as the key."""
    for word in text.split():
        group.feed.append("a", [word.encode()], key=word[0])


def append_keys(group: Group, events: int, keys: int) -> None:
    for number in range(events):
        group.feed.append("a", [b"%d" % number], key=str(number % keys))


def position(group: Group) -> int:
    return int(group.leases["a"].continuation or 0)


def group_with_letters(handler: Any, **limits: Any) -> tuple[Group, MemoryDestination]:
    """And where its dead letters are."""
    of, letters = ParallelLimits(**limits), MemoryDestination()
    policy = DeadLetters(now=lambda: datetime(2026, 1, 31, 12, tzinfo=UTC), share_max=1.0)
    group = Group(
        "a",
        sink=lambda: beside(
            HandlerSink(handler, key="key", limits=of),
            LetterBox(feed=MemoryFeed("a"), sink=MemorySink(letters)),
            policy,
        ),
        limits=BatchLimits(events_max=of.batch_events_max),
        letters=policy,
    )
    return group, letters


async def ended(tenure: Tenure) -> Exception | None:
    return (await tenure.task).error


async def time_to_stop(tenure: Tenure) -> float:
    began = asyncio.get_running_loop().time()
    tenure.worker.stop()
    assert await ended(tenure) is None
    return asyncio.get_running_loop().time() - began


async def time_to_handle(group: Group, events: int) -> float:
    append_keys(group, events, 1000)
    tenure = await group.tenure()
    seconds = await until(lambda: position(group) == events)
    tenure.worker.stop()
    await tenure.task
    return seconds


@pytest.mark.virtual
async def test_64_calls_at_a_time_are_57_times_as_fast_as_one_after_the_other() -> None:
    class Serial:
        async def open(self, context: Any) -> None: ...
        async def process(self, context: Any, table: Any) -> None:
            await asyncio.sleep(TAKES_S * table.num_rows)

        async def close(self, context: Any, reason: Any) -> None: ...

    serial = handled(Serial())  # type: ignore[arg-type]
    serial_s = await time_to_handle(serial, 640)
    parallel_s = await time_to_handle(group_of(Recording(), max=64), 640)
    assert serial_s / parallel_s >= 57, (serial_s, parallel_s)


@pytest.mark.virtual
async def test_events_of_one_key_are_handled_in_order_and_no_more_than_max_at_a_time() -> None:
    handler = Recording()
    group = group_of(handler, max=8, window=40)
    append_keys(group, 200, 10)
    await group.tenure()
    await until(lambda: position(group) == 200)
    assert handler.by_key == {str(key): list(range(key, 200, 10)) for key in range(10)}
    assert handler.most == 8


@pytest.mark.virtual
async def test_a_checkpoint_has_only_what_is_handled_without_a_gap() -> None:
    release = asyncio.Event()

    async def does(event: Row) -> None:
        if event["body"] == b"b1":
            await release.wait()

    handler = Recording(does)
    group = group_of(handler, max=4, window=8)  # batches of two events
    append(group, "a1 a2 a3 b1 a4 a5 a6 a7 a8 a9")
    await group.tenure()
    await until(lambda: len(handler.done) == 9)
    await asyncio.sleep(30)
    assert position(group) == 2
    release.set()
    await until(lambda: position(group) == 10)


@pytest.mark.virtual
async def test_a_slow_key_lets_the_others_go_on_for_a_window_and_no_further() -> None:
    async def does(event: Row) -> None:
        if event["body"] == b"s":
            await asyncio.Event().wait()

    handler = Recording(does)
    group = group_of(handler, max=4, window=20)
    append(group, "s " + " ".join(f"a{n}" for n in range(100)))
    await group.tenure()
    await until(lambda: len(handler.done) == 19)
    await asyncio.sleep(60)
    assert len(handler.done) == 19


@pytest.mark.virtual
async def test_a_failed_call_is_repeated_and_only_its_key_waits() -> None:
    failures = {b"a1": 3}
    began: list[tuple[float, str]] = []

    async def does(event: Row) -> None:
        began.append((asyncio.get_running_loop().time(), event["body"].decode()))
        if failures.get(event["body"], 0):
            failures[event["body"]] -= 1
            raise ValueError("not yet")

    handler = Recording(does)
    group = group_of(handler, backoff_s=1.0)
    append(group, "a1 a2 b1 b2")
    await group.tenure()
    await until(lambda: position(group) == 4)
    assert handler.bodies == ["b1", "b2", "a1", "a2"]
    tries = [at for at, body in began if body == "a1"]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert [0.5 <= pauses[0] <= 1, 1 <= pauses[1] <= 2, 2 <= pauses[2] <= 4] == [True] * 3, pauses


@pytest.mark.virtual
async def test_a_handler_that_is_not_available_is_called_again_for_as_long_as_it_takes() -> None:
    failures = [SinkUnavailable("away", retry_after_s=7.0)] * 8

    async def does(event: Row) -> None:
        if failures:
            raise failures.pop()

    group = group_of(handler := Recording(does), attempts=2)
    append(group, "a1")
    await group.tenure()
    assert await until(lambda: position(group) == 1) >= 56
    assert handler.bodies == ["a1"]


@pytest.mark.virtual
async def test_without_dead_letters_an_event_that_fails_too_often_stops_its_partition() -> None:
    async def does(event: Row) -> None:
        if event["body"] == b"b1":
            raise ValueError("never")

    group = group_of(handler := Recording(does), attempts=3)
    append(group, "a1 b1 c1")
    tenure = await group.tenure()
    error = await ended(tenure)
    assert isinstance(error, SinkRejected)
    assert "key 'b', sequence 1, 3 times: ValueError: never: correct the handler or the event" in str(error)
    assert handler.bodies == ["a1", "c1"]
    assert position(group) == 0


@pytest.mark.virtual
@pytest.mark.parametrize("error", [SinkRejected("stop"), AckRefused("stop")])
async def test_a_handler_may_stop_its_partition_at_once(error: Exception) -> None:
    async def does(event: Row) -> None:
        raise error

    group = group_of(Recording(does))
    append(group, "a1")
    assert await ended(await group.tenure()) is error


@pytest.mark.virtual
async def test_what_a_handler_refuses_is_not_tried_again() -> None:
    calls = []

    async def does(event: Row) -> None:
        calls.append(event)
        raise OutputRefused("not this one")

    group = group_of(Recording(does))
    append(group, "a1")
    assert "1 times: OutputRefused: not this one" in str(await ended(await group.tenure()))
    assert len(calls) == 1


@pytest.mark.virtual
async def test_a_call_that_takes_too_long_is_cancelled_and_counts_as_failed() -> None:
    async def does(event: Row) -> None:
        await asyncio.sleep(3600)

    group = group_of(handler := Recording(does), timeout_s=2.0, attempts=2)
    append(group, "a1")
    assert "2 times: it took longer than 2 s" in str(await ended(await group.tenure()))
    assert (handler.cancelled, handler.running) == (2, 0)


@pytest.mark.virtual
async def test_a_stop_finishes_what_was_taken_and_writes_it_down() -> None:
    group = group_of(handler := Recording(), max=10)
    append_keys(group, 50, 50)
    tenure = await group.tenure()
    await until(lambda: handler.done)
    tenure.worker.stop()
    assert await ended(tenure) is None
    assert (len(handler.done), position(group), handler.cancelled) == (50, 50, 0)


@pytest.mark.virtual
async def test_a_stop_waits_no_longer_than_its_bound_and_the_next_owner_continues_at_the_prefix() -> None:
    async def does(event: Row) -> None:
        await asyncio.sleep(3600 if event["body"] == b"x" else TAKES_S)

    group = group_of(handler := Recording(does), max=4, window=4)  # batches of one event
    append(group, "a b x c")
    tenure = await group.tenure()
    await until(lambda: len(handler.done) == 3)
    assert 10 <= await time_to_stop(tenure) < 10.5
    assert (handler.cancelled, handler.running, position(group)) == (1, 0, 2)
    assert group.leases["a"].owner is None


@pytest.mark.virtual
@pytest.mark.parametrize("events", [3, 8, 100])
async def test_a_stop_waits_as_long_however_full_the_window_is(events: int) -> None:
    async def does(event: Row) -> None:
        await asyncio.sleep(3600)

    group = group_of(handler := Recording(does), max=4, window=8)
    append_keys(group, events, events)
    tenure = await group.tenure()
    await asyncio.sleep(30)
    assert 10 <= await time_to_stop(tenure) < 10.5
    assert (handler.cancelled, handler.running) == (min(4, events), 0)
    assert group.leases["a"].owner is None


@pytest.mark.virtual
async def test_a_lost_lease_cancels_all_calls_at_once() -> None:
    async def does(event: Row) -> None:
        await asyncio.sleep(3600)

    group = group_of(handler := Recording(does), max=8)
    append(group, "a b c d")
    tenure = await group.tenure()
    await until(lambda: handler.running == 4)
    group.edit("a", lambda lease: lease.revoked())
    await tenure.task
    assert (handler.cancelled, handler.running) == (4, 0)


@pytest.mark.virtual
async def test_no_call_begins_while_the_lease_is_not_trusted() -> None:
    group = group_of(handler := Recording(), max=1)
    append(group, "a b c d e f")
    tenure = await group.tenure()
    await until(lambda: len(handler.done) == 2)
    tenure.clock.ahead_s += 3600
    await asyncio.sleep(TAKES_S)
    assert (len(handler.done), handler.running) == (3, 0)


@pytest.mark.virtual
async def test_a_missing_key_column_is_named_with_those_that_there_are() -> None:
    group = group_of(Recording(), key="account")
    append(group, "a")
    text = str(await ended(await group.tenure()))
    assert (
        "the output has no column 'account', which `parallel.key` names: select it, or name one of partition, " in text
    )


# Several events of a key, and acknowledgement by hand


@pytest.mark.virtual
async def test_a_handler_of_events_gets_those_of_one_key() -> None:
    calls: list[list[int]] = []

    async def handle(events: Events) -> None:
        calls.append([event["sequence"] for event in events])
        assert {event["key"] for event in events} == {events.key}
        await asyncio.sleep(TAKES_S)

    group = group_of(handle, events_max=4, window=100)
    append_keys(group, 20, 2)
    await group.tenure()
    await until(lambda: position(group) == 20)
    assert sorted(chain.from_iterable(calls)) == list(range(20))
    assert max(map(len, calls)) == 4


@pytest.mark.virtual
async def test_a_handler_sees_which_call_with_its_events_it_is() -> None:
    seen: list[tuple[list[int], int]] = []
    failures = [ValueError("not yet"), SinkUnavailable("away")]

    async def handle(events: Events) -> None:
        seen.append(([event["sequence"] for event in events], events.attempt))
        if failures:
            raise failures.pop(0)

    group = group_of(handle, events_max=2)
    append(group, "a1 a2")
    await group.tenure()
    await until(lambda: position(group) == 2)
    assert seen == [([0, 1], 1), ([0], 2), ([0], 3), ([1], 2)]


@pytest.mark.virtual
async def test_with_manual_acknowledgement_the_position_follows_what_is_acknowledged() -> None:
    kept: list[Events] = []

    async def handle(events: Events) -> None:
        kept.append(events)

    group = group_of(handle, events_max=2, manual_ack=True, window=4, max=2)  # batches of one event
    append(group, "a1 a2 a3")
    await group.tenure()
    await until(lambda: sum(map(len, kept)) == 3)
    await asyncio.sleep(60)
    assert position(group) == 0
    for events in kept:
        await events.ack(events[-1]["sequence"])
    await until(lambda: position(group) == 3)


@pytest.mark.virtual
async def test_what_was_acknowledged_before_an_error_is_not_handled_again() -> None:
    seen: list[list[int]] = []

    async def handle(events: Events) -> None:
        seen.append([event["sequence"] for event in events])
        if len(seen) == 1:
            await events.ack(1)
            raise ValueError("after two of them")

    group = group_of(handle, events_max=10)
    append(group, "a1 a2 a3")
    await group.tenure()
    await until(lambda: position(group) == 3)
    assert seen == [[0, 1, 2], [2]]


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([7], "position 7 is not among the 3 events of key 'a' in partition 'a'; they are 0 to 2"),
        ([None], "position None is not among"),
        ([1, 1], "position 1 of the 3 events of key 'a' in partition 'a' is acknowledged already"),
        ([1, 0], "position 0 of the 3 events of key 'a' in partition 'a' is acknowledged already"),
    ],
)
async def test_a_wrong_acknowledgement_stops_the_partition_with_the_reason(positions: list[Any], message: str) -> None:
    async def handle(events: Events) -> None:
        for each in positions:
            await events.ack(each)

    group = group_of(handle, events_max=3, window=12, max=2)
    append(group, "a1 a2 a3")
    error = await ended(await group.tenure())
    assert isinstance(error, AckRefused)
    assert message in str(error)


@pytest.mark.virtual
async def test_what_is_never_acknowledged_is_handled_again_by_the_next_owner() -> None:
    kept: list[Events] = []

    async def handle(events: Events) -> None:
        kept.append(events)

    group = group_of(handle, events_max=1, manual_ack=True)
    append(group, "a b")
    first = await group.tenure()
    await until(lambda: len(kept) == 2)
    first.worker.stop()
    assert await ended(first) is None
    assert position(group) == 0
    with pytest.raises(AckRefused, match="acknowledged too late: this host has released the partition"):
        await kept[0].ack(0)
    await group.tenure(name="host-b")
    await until(lambda: len(kept) == 4)
    assert [events[0]["body"] for events in kept] == [b"a", b"b"] * 2


@pytest.mark.virtual
async def test_an_event_that_is_acknowledged_cannot_be_refused_after_that() -> None:
    async def handle(events: Events) -> None:
        await events.ack(events[0]["sequence"])
        raise OutputRefused("not this one")

    group = group_of(handle, events_max=1)
    append(group, "a1 a2")
    await group.tenure()
    await until(lambda: position(group) == 2)


@pytest.mark.virtual
async def test_events_are_stale_once_their_host_has_lost_the_partition() -> None:
    kept: list[Events] = []

    async def handle(events: Events) -> None:
        kept.append(events)

    group = group_of(handle, events_max=1, manual_ack=True)
    append(group, "a")
    first = await group.tenure()
    await until(lambda: len(kept) == 1)
    assert not kept[0].is_stale
    group.edit("a", lambda lease: lease.revoked())
    await first.task
    assert kept[0].is_stale
    await group.tenure(name="host-b")
    await until(lambda: len(kept) == 2)
    assert [events.is_stale for events in kept] == [True, False]
    await kept[1].ack(0)
    await until(lambda: position(group) == 1)


@pytest.mark.virtual
async def test_a_window_that_is_never_acknowledged_ends_the_batch_after_its_time() -> None:
    async def handle(events: Events) -> None: ...

    group = group_of(handle, events_max=1, manual_ack=True, window=4, max=1)
    append_keys(group, 20, 20)
    error = await ended(await group.tenure())
    assert "made no progress for 300 s" in str(error)


# What hangs, and what only takes its time: of a batch that makes no progress, the lease is released after 300 s


@pytest.mark.virtual
@pytest.mark.parametrize(
    "limits",
    [
        {"timeout_s": 60.0, "attempts": 5},
        {"timeout_s": 400.0, "attempts": 2},
        {"timeout_s": 1.0, "attempts": 3, "backoff_s": 400.0},
    ],
)
async def test_an_event_whose_calls_take_too_long_becomes_a_dead_letter_within_one_tenure(
    limits: dict[str, Any],
) -> None:
    calls = Counter[bytes]()

    async def does(event: Row) -> None:
        calls[event["body"]] += 1
        if event["body"] == b"b1":
            await asyncio.sleep(3600)

    group, letters = group_with_letters(Recording(does), **limits)
    append(group, "a1 b1 c1")
    tenure = await group.tenure()
    await until(lambda: position(group) == 3 or tenure.task.done(), 2000)
    assert not tenure.task.done()
    assert [row["body"] for row in letters.rows("a")] == [b"b1"]
    assert calls == {b"a1": 1, b"b1": limits["attempts"], b"c1": 1}


@pytest.mark.virtual
@pytest.mark.parametrize("retry_after_s", [None, 7.0, 400.0])
async def test_a_handler_that_is_not_available_for_long_keeps_its_lease(retry_after_s: float | None) -> None:
    loop = asyncio.get_running_loop()
    back_at = loop.time() + 1000

    async def does(event: Row) -> None:
        if loop.time() < back_at:
            raise SinkUnavailable("away", retry_after_s=retry_after_s)

    group = group_of(handler := Recording(does), window=4, max=1)
    append_keys(group, 20, 20)
    tenure = await group.tenure()
    await until(lambda: position(group) == 20 or tenure.task.done(), 2000)
    assert not tenure.task.done()
    assert len(handler.done) == 20


@pytest.mark.virtual
@pytest.mark.parametrize("failures", [0, 2])
async def test_a_call_that_hangs_ends_the_batch_after_its_time(failures: int) -> None:
    left = [ValueError("not yet")] * failures

    async def does(event: Row) -> None:
        if left:
            raise left.pop()
        await asyncio.Event().wait()

    group = group_of(handler := Recording(does))
    append(group, "a1")
    tenure = await group.tenure()
    assert 300 <= await until(tenure.task.done) < 340
    assert isinstance(await ended(tenure), BatchHung)
    assert (handler.cancelled, handler.running) == (1, 0)
