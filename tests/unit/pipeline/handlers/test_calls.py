"""Which call is due: in order for each key, side by side for different keys, and again after a failure."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.handlers.calls import Call, CallScheduler
from leasehold.pipeline.limits import ParallelLimits

HALF = 0.5
"""The jitter: of the pause, a quarter is cut."""


def scheduler(keys: str = "", **limits: Any) -> CallScheduler:
    """With an event for each letter; a dot has no key. Their batch ends at their number."""
    calls = CallScheduler(ParallelLimits(**{"backoff_s": 1.0, **limits}), "0")
    for number, key in enumerate(keys):
        calls.take(key, 10, None if key == "." else key, number, 0.0)
    calls.close(str(len(keys)))
    return calls


def due(calls: CallScheduler, now: float = 0.0) -> list[Call]:
    found = []
    while calls.due_in_s(now) == 0:
        found.append(calls.next(now))
    return found


def numbers(calls: list[Call]) -> list[list[int]]:
    return [[entry.number for entry in call.entries] for call in calls]


def test_different_keys_run_side_by_side_and_each_key_in_order() -> None:
    calls = scheduler("abaab")
    first = due(calls)
    assert numbers(first) == [[0], [1]]
    calls.finish(first[0], 1.0)
    second = due(calls, 1.0)
    assert numbers(second) == [[2]]
    calls.finish(second[0], 2.0)
    assert numbers(due(calls, 2.0)) == [[3]]


def test_no_more_calls_run_than_are_allowed() -> None:
    calls = scheduler("abcd", max=3)
    first = due(calls)
    assert (numbers(first), calls.in_flight) == ([[0], [1], [2]], 3)
    calls.finish(first[1], 0.0)
    assert numbers(due(calls)) == [[3]]


def test_events_without_a_key_wait_for_none() -> None:
    assert numbers(due(scheduler("...a.a"))) == [[0], [1], [2], [3], [4]]


def test_a_call_takes_several_events_of_one_key_and_of_no_other() -> None:
    assert numbers(due(scheduler("abaaba", events_max=3))) == [[0, 2, 3], [1, 4]]


def test_the_position_passes_only_what_is_processed_without_a_gap() -> None:
    calls = scheduler("abc")
    calls.take("d", 10, "d", 3, 0.0)
    calls.close("4")
    first = due(calls)
    for call in (first[3], first[1], first[2]):
        calls.finish(call, 0.0)
        assert calls.position == "0"
    calls.finish(first[0], 0.0)
    assert calls.position == "4"
    assert calls.is_settled


def test_a_failed_call_is_repeated_after_a_pause_before_all_that_follow_it() -> None:
    calls = scheduler("aab")
    failing, other = due(calls)
    assert calls.fail(failing, 0.0, jitter=HALF)
    assert calls.due_in_s(0.0) == pytest.approx(0.75)
    calls.finish(other, 0.1)
    again = due(calls, 0.8)
    assert numbers(again) == [[0]]
    assert calls.fail(again[0], 0.8, jitter=HALF)
    assert calls.due_in_s(0.8) == pytest.approx(1.5), "pauses double"


def test_a_call_that_fails_too_often_is_given_up_and_keeps_its_place_meanwhile() -> None:
    calls, now = scheduler("aa", attempts=3), 0.0
    for _ in range(2):
        assert calls.fail(due(calls, now)[0], now, jitter=0.0)
        now += 100
    (last,) = due(calls, now)
    assert not calls.fail(last, now, jitter=0.0)
    assert (calls.failures(last), calls.in_flight, due(calls, now)) == (3, 1, [])


def test_an_outage_is_no_fault_of_the_event() -> None:
    calls, now = scheduler("a", attempts=1), 0.0
    for _ in range(50):
        (call,) = due(calls, now)
        assert calls.fail(call, now, jitter=0.0, counts=False)
        now += 100
    assert numbers(due(calls, now)) == [[0]]


@pytest.mark.parametrize("counts", [True, False])
def test_an_attempt_is_each_call_with_an_event_whatever_the_last_one_failed_with(counts: bool) -> None:
    calls = scheduler("aaa", events_max=3)
    (first,) = due(calls)
    assert (numbers([first]), calls.attempt(first)) == ([[0, 1, 2]], 1)
    calls.acknowledge(first.entries[:1])
    assert calls.fail(first, 0.0, jitter=0.0, counts=counts)
    (second,) = due(calls, 100.0)
    assert (numbers([second]), calls.attempt(second)) == ([[1]] if counts else [[1, 2]], 2)
    calls.finish(second, 100.0)
    assert [calls.attempt(call) for call in due(calls, 100.0)] == ([2] if counts else [])


def test_what_is_known_of_events_is_forgotten_once_they_are_processed() -> None:
    calls = scheduler("aaab", events_max=4)
    for now in (0.0, 100.0):
        for call in due(calls, now):
            calls.acknowledge(call.entries[1:])
            calls.fail(call, now, jitter=0.0)
    for call in due(calls, 300.0):
        calls.finish(call, 300.0)
    assert calls.is_settled
    assert not calls._repeats
    assert not calls._failures
    assert not calls._pauses


def test_what_is_known_of_an_event_is_forgotten_once_it_is_acknowledged_in_a_call_that_fails() -> None:
    calls = scheduler("aaa", events_max=3)
    calls.fail(due(calls)[0], 0.0, jitter=0.0, counts=False)
    (call,) = due(calls, 100.0)
    calls.acknowledge(call.entries[:1])
    calls.fail(call, 100.0, jitter=0.0, counts=False)
    assert (calls._pauses.keys(), calls._repeats.keys()) == ({1}, {1, 2})


def test_a_destination_may_ask_for_a_longer_pause() -> None:
    calls = scheduler("a")
    calls.fail(due(calls)[0], 0.0, jitter=0.0, at_least_s=50.0)
    assert calls.due_in_s(0.0) == 50


def test_a_call_of_several_events_that_fails_is_repeated_event_by_event() -> None:
    calls = scheduler("aaaa", events_max=3, attempts=2)
    assert calls.fail(due(calls)[0], 0.0, jitter=0.0)
    for number in (0, 1, 2):
        alone = due(calls, 10.0)
        assert numbers(alone) == [[number]]
        calls.finish(alone[0], 10.0)
    assert numbers(due(calls, 10.0)) == [[3]]


def test_what_was_acknowledged_before_a_failure_is_not_repeated() -> None:
    calls = scheduler("aaa", events_max=3)
    (call,) = due(calls)
    calls.acknowledge(call.entries[:2])
    assert calls.fail(call, 0.0, jitter=0.0)
    assert numbers(due(calls, 10.0)) == [[2]]
    assert calls.acknowledged == 2


def test_later_events_of_a_parked_key_are_parked_too_until_its_time_is_over() -> None:
    calls = scheduler("aaab", attempts=1, park_s=60.0)
    poisoned, other = due(calls)
    assert not calls.fail(poisoned, 0.0, jitter=0.0)
    calls.park(poisoned, 0.0)
    calls.finish(other, 0.0)
    (parked,) = due(calls, 1.0)
    assert (numbers([parked]), parked.is_parked) == ([[1, 2]], True)
    calls.park(parked, 1.0)
    assert (calls.position, calls.parked_keys(59.0), calls.parked_keys(60.0)) == ("4", 1, 0)
    calls.take("a", 10, "a", 4, 61.0)
    assert not due(calls, 61.0)[0].is_parked


def test_an_event_without_a_key_parks_no_other() -> None:
    calls = scheduler(".", attempts=1)
    (call,) = due(calls)
    assert not calls.fail(call, 0.0, jitter=0.0)
    calls.park(call, 0.0)
    assert calls.parked_keys(0.0) == 0


def test_there_is_room_for_so_many_events_and_bytes_that_are_not_processed() -> None:
    calls = scheduler("ab", max=2, window=2)
    assert not calls.has_room
    calls.finish(due(calls)[0], 0.0)
    assert calls.has_room
    calls = scheduler("ab", window_bytes=20)
    assert not calls.has_room
    calls.finish(due(calls)[1], 0.0)
    assert calls.has_room, "bytes count until their event is processed, whatever its place"
    assert scheduler("ab", window_bytes=21).has_room


def test_a_slow_key_leaves_no_room_once_the_window_is_full_behind_it() -> None:
    calls = scheduler("abcd", max=4, window=4)
    for call in due(calls)[1:]:
        calls.finish(call, 0.0)
    assert (calls.has_room, calls.position) == (False, "0")


def test_with_manual_acknowledgement_a_key_continues_and_the_position_does_not() -> None:
    calls = scheduler("aa", events_max=1, manual_ack=True)
    (first,) = due(calls)
    calls.finish(first, 0.0)
    (second,) = due(calls)
    calls.finish(second, 0.0)
    assert (calls.position, calls.unsettled) == ("0", 2)
    calls.acknowledge(second.entries)
    assert calls.position == "0"
    calls.acknowledge(first.entries)
    assert calls.position == "2"


@given(st.data())
def test_whatever_fails_each_key_is_handled_in_order_and_all_is_settled_in_the_end(data: st.DataObject) -> None:
    keys = data.draw(st.text("abc.", max_size=40))
    limits = {"max": data.draw(st.integers(1, 5)), "events_max": data.draw(st.none() | st.integers(1, 4))}
    calls = scheduler(keys, attempts=2, park_s=data.draw(st.sampled_from([0.0, 5.0])), **limits)
    handled, now, running = defaultdict[str, list[int]](list), 0.0, list[Call]()
    while not calls.is_settled:
        running += due(calls, now)
        assert len(running) <= limits["max"]
        busy = [call.first.order for call in running]
        assert len(set(busy)) == len(busy), "two calls of one key at a time"
        now += 1.0
        if not running:
            continue
        call = running.pop(data.draw(st.integers(0, len(running) - 1)))
        is_failing = data.draw(st.booleans())
        if call.is_parked or (is_failing and not calls.fail(call, now, jitter=0.0)):
            calls.park(call, now)
        elif is_failing:
            continue
        else:
            calls.finish(call, now)
        handled[call.first.key] += [entry.number for entry in call.entries]
    assert all(found == sorted(found) for key, found in handled.items() if key)
    assert sorted(number for found in handled.values() for number in found) == list(range(len(keys)))
    assert (calls.position, calls.in_flight) == (str(len(keys)), 0)
