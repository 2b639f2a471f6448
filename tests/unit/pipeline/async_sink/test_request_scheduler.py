"""The desk of an asynchronous sink: what it sends when, what an answer means to it, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from unit.pipeline.async_sink.test_buffer import entry, numbers

from leasehold.pipeline.async_sink import Converted, Entry, Failed, Limits
from leasehold.pipeline.async_sink.request_scheduler import Request, RequestScheduler
from leasehold.pipeline.errors import SinkRejected

LIMITS = Limits(
    batch_entries_max=10,
    batch_bytes_max=100,
    entry_bytes_max=50,
    in_flight_max=2,
    buffered_entries_max=25,
    buffer_age_max_s=1.0,
)


def desk_with(entries: int, *, size: int = 1, at: float = 0.0) -> RequestScheduler:
    desk = RequestScheduler(LIMITS, None)
    for number in range(entries):
        desk.take(Converted(value=number, bytes=size), str(number), at)
    return desk


def answered(desk: RequestScheduler, request: Request, *failed: Entry, at: float = 1.0) -> None:
    desk.answered(request, Failed(failed), at, jitter=0.0)


def test_a_request_is_due_when_it_is_full_or_its_first_entry_has_waited_long_enough() -> None:
    assert desk_with(10).due_in_s(0.0) == 0
    assert desk_with(9).due_in_s(0.25) == 0.75
    assert desk_with(9).due_in_s(1.5) <= 0  # type: ignore[operator]  # a number, since something waits
    assert desk_with(5, size=25).due_in_s(0.0) == 0
    assert desk_with(0).due_in_s(0.0) is None


def test_who_hurries_waits_for_no_request_to_fill() -> None:
    desk = desk_with(1)
    desk.is_hurried = True
    assert desk.due_in_s(0.0) == 0


def test_requests_at_a_time_are_bounded_by_number_and_by_the_limiter() -> None:
    desk = desk_with(25)
    first, second = desk.next(0.0), desk.next(0.0)
    assert desk.due_in_s(0.0) is None  # two at a time
    answered(desk, first, first.entries[0])
    assert desk.limiter.entries == 10
    assert desk.due_in_s(1.0) is None  # one of them is as much as the limiter allows
    answered(desk, second)
    assert desk.due_in_s(1.0) is not None


def test_requests_at_a_time_are_bounded_where_bytes_make_them_small() -> None:
    desk = desk_with(8, size=50)
    assert [len(desk.next(0.0).entries) for _ in range(LIMITS.in_flight_max)] == [2, 2]
    assert desk.limiter.entries - desk.in_flight > 2
    assert desk.due_in_s(0.0) is None


def test_a_request_that_nothing_more_can_fill_is_not_waited_for() -> None:
    desk = desk_with(25)
    _, second = desk.next(0.0), desk.next(0.0)
    answered(desk, second, at=0.0)
    assert not desk.has_room  # as the first request has no answer yet
    assert desk.due_in_s(0.0) == 0


def test_what_failed_does_not_wait_for_a_request_to_fill_once_more() -> None:
    desk = desk_with(9)
    request = desk.next(1.0)
    desk.answered(request, Failed(request.entries[:1], is_throttled=False), 1.1, jitter=0.0)
    assert desk.due_in_s(1.1) <= 0  # type: ignore[operator]  # a number, since something waits


def test_where_every_entry_failed_it_is_a_failure_of_the_whole() -> None:
    desk = desk_with(25)
    request = desk.next(0.0)
    desk.answered(request, Failed(request.entries, is_throttled=False), 1.0, jitter=0.0)
    assert (desk.limiter.entries, desk.limiter.failures) == (10, 1)
    assert desk.due_in_s(1.0) == pytest.approx(0.1)


@pytest.mark.parametrize("failed", [2, 10])
def test_what_a_destination_says_of_entries_that_failed_is_kept_to(failed: int) -> None:
    desk = desk_with(25)
    request = desk.next(0.0)
    desk.answered(request, Failed(request.entries[:failed], retry_after_s=3.0), 1.0, jitter=0.0)
    assert desk.due_in_s(1.0) == 3.0


def test_entries_that_failed_for_reasons_of_their_own_are_no_reason_to_send_less() -> None:
    desk = desk_with(25)
    request = desk.next(0.0)
    desk.answered(request, Failed(request.entries[3:5], is_throttled=False), 1.0, jitter=0.0)
    assert (desk.limiter.entries, desk.limiter.paused_until) == (20, 0.0)
    assert numbers(desk.next(1.0).entries)[:2] == [3, 4]


def test_a_low_limit_makes_requests_smaller() -> None:
    desk = desk_with(25)
    for second in range(3):
        desk.failed(desk.next(float(second)), second + 0.5, retry_after_s=None, jitter=0.0)
    assert desk.limiter.entries == 2
    assert len(desk.next(9.0).entries) == 2


def test_what_failed_as_a_whole_comes_again_in_order_after_a_pause() -> None:
    desk = desk_with(25)
    request = desk.next(0.0)
    desk.failed(request, 1.0, retry_after_s=3.0, jitter=0.0)
    assert desk.due_in_s(1.0) == 3.0
    assert numbers(desk.next(4.0).entries) == numbers(request.entries)


def desk_of(*orders: str) -> RequestScheduler:
    desk = RequestScheduler(LIMITS, None)
    for number, order in enumerate(orders):
        desk.take(Converted(value=number, bytes=1, order=order), str(number), 0.0)
    return desk


@pytest.mark.parametrize("by", ["one answer for all", "an answer for each"])
def test_a_successor_is_due_once_the_request_timeout_has_passed_again(by: str) -> None:
    desk = desk_of("doc", "doc")
    request = desk.next(1.0)
    if by == "one answer for all":
        desk.failed(request, 11.0, retry_after_s=None, jitter=0.0, may_land=True)
    else:
        desk.answered(request, Failed(request.entries, may_land=True), 11.0, jitter=0.0)
    retry = desk.next(12.0)
    answered(desk, retry, at=12.0)
    assert numbers(retry.entries) == [0]
    assert desk.due_in_s(12.0) == 9.0  # LIMITS.request_timeout_s after the failure
    assert desk.due_in_s(21.0) == 0
    assert numbers(desk.next(21.0).entries) == [1]


def test_a_successor_does_not_wait_where_the_request_surely_failed() -> None:
    desk = desk_of("doc", "doc")
    desk.failed(desk.next(1.0), 2.0, retry_after_s=None, jitter=0.0)
    answered(desk, desk.next(3.0), at=3.0)
    assert desk.due_in_s(3.0) == 0


def test_a_successor_that_rests_wakes_the_desk_before_what_waits_for_a_full_request() -> None:
    desk = RequestScheduler(replace(LIMITS, buffer_age_max_s=60.0), None)
    desk.take(Converted(value=0, bytes=1, order="doc"), "0", 0.0)
    desk.failed(desk.next(1.0), 11.0, retry_after_s=None, jitter=0.0, may_land=True)
    answered(desk, desk.next(12.0), at=12.0)
    desk.take(Converted(value=1, bytes=1, order="doc"), "1", 12.0)
    desk.take(Converted(value=2, bytes=1), "2", 12.0)
    assert desk.due_in_s(12.0) == 9.0


def test_no_more_is_taken_than_may_be_unsettled_acknowledged_behind_a_gap_or_not() -> None:
    desk = desk_with(25)
    assert not desk.has_room
    first = desk.next(0.0)
    answered(desk, first, first.entries[0])
    assert (desk.unsettled, desk.has_room) == (25, False)
    again = desk.next(1.0)
    assert again.entries[0].number == 0
    answered(desk, again)
    assert desk.has_room


def test_what_waits_is_bounded_in_bytes_too() -> None:
    desk = desk_with(4, size=50)
    assert not desk.has_room
    desk.next(0.0)
    assert desk.has_room


def test_an_entry_that_is_too_large_is_refused_by_its_name() -> None:
    with pytest.raises(SinkRejected, match=r"entry p/7/1/0 has 51 bytes.*entry_bytes_max is 50"):
        desk_with(0).take(Converted(value=b"", bytes=51), "p/7/1/0", 0.0)


@pytest.mark.parametrize("what", ["of nobody", "twice", "of another order"])
def test_a_destination_that_returns_what_it_was_not_given_is_told(what: str) -> None:
    desk = desk_with(10)
    request = desk.next(0.0)
    one = request.entries[0]
    failed, told = {
        "of nobody": ([entry(99)], "that it was not given"),
        "twice": ([one, one], "or one of them twice"),
        "of another order": ([replace(one, order="x")], "with a changed order key"),
    }[what]
    with pytest.raises(SinkRejected, match=told):
        answered(desk, request, *failed)


def test_a_destination_that_is_to_take_requests_whole_and_does_not_is_told() -> None:
    desk = RequestScheduler(LIMITS, None, takes_whole=True)
    for number in range(3):
        desk.take(Converted(value=number, bytes=1, order="a"), str(number), 0.0)
    request = desk.next(0.0)
    assert numbers(request.entries) == [0, 1, 2]
    with pytest.raises(SinkRejected, match="returned 1 of 3 entries, and its sink was made with takes_whole"):
        answered(desk, request, request.entries[0])
    answered(RequestScheduler(LIMITS, None, takes_whole=True), Request((), 0.0))


def test_limits_that_contradict_each_other_are_told() -> None:
    assert list(Limits().problems()) == []
    told = list(Limits(batch_bytes_max=1, buffered_entries_max=2, in_flight_max=0).problems())
    assert [text.partition(" ")[0] for text in told] == ["in_flight_max", "entry_bytes_max", "buffered_entries_max"]
