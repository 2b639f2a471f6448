"""What decides in an asynchronous sink, each part alone: buffer, limiter and prefix."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.pipeline.async_sink import Entry
from leasehold.pipeline.async_sink.buffer import EntryBuffer
from leasehold.pipeline.async_sink.rate_limiter import BACKOFF, RETRY_AFTER_MAX_S, RateLimiter
from leasehold.pipeline.async_sink.scheduler import AckPrefix

PLENTY = 1_000_000


def entry(number: int, order: str | None = None, size: int = 1) -> Entry:
    return Entry(number=number, key=str(number), value=number, bytes=size, order=order)


def numbers(entries: tuple[Entry, ...]) -> list[int]:
    return [each.number for each in entries]


def buffer_of(*entries: Entry, shares_requests: bool = False) -> EntryBuffer:
    buffer = EntryBuffer(shares_requests=shares_requests)
    for each in entries:
        buffer.add(each, now=float(each.number))
    return buffer


# Buffer


def test_what_failed_is_at_the_front_again_in_its_order() -> None:
    buffer = buffer_of(*map(entry, range(10)))
    first, second = buffer.cut(4, PLENTY), buffer.cut(4, PLENTY)
    buffer.put_back(second[1:])
    buffer.put_back(first)
    assert numbers(buffer.cut(20, PLENTY)) == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_a_rewritten_entry_takes_the_place_of_the_one_that_failed() -> None:
    buffer = buffer_of(entry(0), entry(1))
    sent = buffer.cut(1, PLENTY)
    buffer.put_back([replace(sent[0], value="smaller", bytes=7)])
    assert (buffer.bytes, buffer.entries) == (8, 2)
    assert [each.value for each in buffer.cut(2, PLENTY)] == ["smaller", 1]
    assert buffer.bytes == 0


def test_a_request_holds_no_more_bytes_than_it_may_but_always_one_entry() -> None:
    buffer = buffer_of(entry(0, size=9), entry(1, size=4), entry(2, size=4), entry(3, size=4))
    assert [numbers(buffer.cut(10, 8)) for _ in range(3)] == [[0], [1, 2], [3]]


def test_entries_of_one_order_key_are_sent_one_after_the_other() -> None:
    buffer = buffer_of(entry(0, "a"), entry(1, "a"), entry(2, "b"), entry(3, "a"), entry(4))
    sent = buffer.cut(10, PLENTY)
    assert numbers(sent) == [0, 2, 4]
    assert buffer.cut(10, PLENTY) == ()
    buffer.put_back(sent[:1])
    assert numbers(buffer.cut(10, PLENTY)) == [0]
    buffer.acknowledged(sent[0], 0.0)
    assert numbers(buffer.cut(10, PLENTY)) == [1]
    buffer.acknowledged(entry(1, "a"), 0.0)
    assert numbers(buffer.cut(10, PLENTY)) == [3]


def test_what_follows_a_late_request_of_its_order_key_waits_until_that_had_its_time() -> None:
    buffer = buffer_of(entry(0, "a"), entry(1, "a"), entry(2, "b"), entry(3, "b"))
    sent = buffer.cut(10, PLENTY)
    buffer.put_back(sent[:1], late_until=9.0)
    assert numbers(buffer.cut(10, PLENTY)) == [0]  # itself is sent again at once
    for each in sent:
        buffer.acknowledged(each, 5.0)
    buffer.add(entry(4, "a"), 6.0)
    buffer.rouse(8.9)
    assert (numbers(buffer.cut(10, PLENTY)), buffer.rests_until) == ([3], 9.0)
    buffer.rouse(9.0)
    assert (numbers(buffer.cut(10, PLENTY)), buffer.rests_until) == ([1], None)
    buffer.acknowledged(entry(1, "a"), 9.1)
    assert numbers(buffer.cut(10, PLENTY)) == [4]


def test_a_key_that_comes_again_after_its_late_request_waits_too() -> None:
    buffer = buffer_of(entry(0, "a"))
    buffer.put_back(buffer.cut(1, PLENTY), late_until=9.0)
    buffer.acknowledged(buffer.cut(1, PLENTY)[0], 5.0)
    buffer.add(entry(1, "a"), 6.0)
    assert buffer.ready == 0
    buffer.rouse(9.0)
    assert numbers(buffer.cut(1, PLENTY)) == [1]
    buffer.acknowledged(entry(1, "a"), 9.5)
    buffer.add(entry(2, "a"), 9.5)
    assert buffer.ready == 1


def test_a_late_request_that_had_its_time_before_its_retry_arrived_delays_nobody() -> None:
    buffer = buffer_of(entry(0, "a"), entry(1, "a"))
    buffer.put_back(buffer.cut(1, PLENTY), late_until=9.0)
    buffer.acknowledged(buffer.cut(1, PLENTY)[0], 9.0)
    assert (buffer.ready, buffer.rests_until) == (1, None)


def test_entries_of_one_order_key_share_a_request_where_they_may() -> None:
    """And never two requests at a time, whatever room there is."""
    a, b = (lambda number: entry(number, "a")), (lambda number: entry(number, "b"))
    buffer = buffer_of(a(0), a(1), b(2), a(3), entry(4), a(5), shares_requests=True)
    assert (buffer.ready, buffer.ready_bytes) == (6, 6)
    sent = buffer.cut(4, PLENTY)
    assert numbers(sent) == [0, 1, 2, 3]
    buffer.add(a(6), now=6.0)
    buffer.add(b(7), now=7.0)
    assert (buffer.entries, buffer.ready, buffer.oldest_since) == (4, 1, 4.0)
    assert numbers(buffer.cut(10, PLENTY)) == [4]
    buffer.acknowledged(b(2), 8.0)
    assert (buffer.ready, buffer.oldest_since) == (1, 7.0)
    buffer.put_back([each for each in sent if each.order == "a"])
    assert (buffer.ready, buffer.oldest_since) == (6, 0.0)
    assert [numbers(buffer.cut(10, 3)), numbers(buffer.cut(10, 3))] == [[0, 1, 3], [7]]
    for number in (0, 1, 3):
        assert buffer.ready == 0
        buffer.acknowledged(a(number), 8.0)
    assert numbers(buffer.cut(10, PLENTY)) == [5, 6]


def test_a_shared_request_that_may_be_late_is_repeated_at_once_and_only_its_own_rows_are() -> None:
    a = lambda number: entry(number, "a")  # noqa: E731
    buffer = buffer_of(a(0), a(1), shares_requests=True)
    first = buffer.cut(10, PLENTY)
    buffer.add(a(2), 1.0)
    buffer.put_back(first, late_until=9.0)
    assert numbers(buffer.cut(1, PLENTY)) == [0]
    buffer.acknowledged(a(0), 2.0)
    assert numbers(buffer.cut(10, PLENTY)) == [1]
    buffer.acknowledged(a(1), 3.0)
    buffer.add(a(3), 4.0)
    assert (buffer.ready, numbers(buffer.cut(10, PLENTY)), buffer.rests_until) == (0, [], 9.0)
    buffer.rouse(9.0)
    assert (buffer.ready, numbers(buffer.cut(10, PLENTY))) == (2, [2, 3])


def test_while_two_requests_may_be_late_only_rows_of_both_are_sent() -> None:
    """The second is smaller, since the destination is slow: a row behind it could be replaced by what it still brings."""
    a = lambda number: entry(number, "a")  # noqa: E731
    buffer = buffer_of(*map(a, range(4)), shares_requests=True)
    buffer.put_back(buffer.cut(10, PLENTY), late_until=9.0)
    buffer.put_back(buffer.cut(2, PLENTY), late_until=19.0)
    assert numbers(buffer.cut(10, PLENTY)) == [0, 1]
    buffer.acknowledged(a(0), 10.0)
    buffer.acknowledged(a(1), 10.0)
    assert (buffer.ready, buffer.rests_until) == (0, 19.0)
    buffer.rouse(19.0)
    assert numbers(buffer.cut(10, PLENTY)) == [2, 3]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30), st.randoms(use_true_random=False))
def test_requests_that_fail_as_a_whole_come_again_in_the_order_of_each_key(orders: list[str], rng: object) -> None:
    draw = rng.random  # type: ignore[attr-defined]  # hypothesis' Random, which reports what it drew
    waiting = [entry(n, order, size=1 + n % 3) for n, order in enumerate(orders)]
    buffer = buffer_of(shares_requests=True)
    flying: list[tuple[Entry, ...]] = []
    taken: list[Entry] = []
    while waiting or buffer.entries or flying:
        for _ in range(int(draw() * 4)):
            if waiting:
                buffer.add(waiting.pop(0), now=0.0)
        ready = buffer.ready
        request = buffer.cut(1 + int(draw() * 6), PLENTY)
        assert bool(request) == bool(ready)
        flying.extend([request] if request else [])
        keys = [{each.order for each in sent} - {None} for sent in flying]
        assert sum(map(len, keys)) == len(set().union(*keys))
        if flying:
            landed = flying.pop(int(draw() * len(flying)))
            if draw() < 0.4:
                buffer.put_back(landed[::-1])
            else:
                taken.extend(landed)
                for each in landed:
                    buffer.acknowledged(each, 0.0)
    assert sorted(numbers(tuple(taken))) == list(range(len(orders)))
    for order in "abc":
        of_one = [each.number for each in taken if each.order == order]
        assert of_one == sorted(of_one)
    assert (buffer.bytes, buffer.ready_bytes, buffer.ready) == (0, 0, 0)


@given(st.lists(st.sampled_from("abc"), max_size=30), st.randoms(use_true_random=False))
def test_whatever_fails_all_is_sent_and_no_key_loses_its_order(orders: list[str], rng: object) -> None:
    draw = rng.random  # type: ignore[attr-defined]  # hypothesis' Random, which reports what it drew
    buffer = buffer_of(*(entry(n, order) for n, order in enumerate(orders)))
    taken: list[Entry] = []
    flying: list[Entry] = []
    while buffer.entries or flying:
        flying.extend(buffer.cut(3, PLENTY))
        landed = flying.pop(int(draw() * len(flying)))
        if draw() < 0.4:
            buffer.put_back([landed])
        else:
            taken.append(landed)
            buffer.acknowledged(landed, 0.0)
    assert sorted(numbers(tuple(taken))) == list(range(len(orders)))
    for order in "abc":
        of_one = [each.number for each in taken if each.order == order]
        assert of_one == sorted(of_one)
    assert (buffer.bytes, buffer.ready_bytes, buffer.ready) == (0, 0, 0)


# Limiter


def test_success_adds_ten_and_failure_halves() -> None:
    limiter = RateLimiter(entries_max=800, entries=100)
    assert limiter.succeeded().entries == 110
    assert limiter.throttled(now=1.0, sent_at=0.5, retry_after_s=None).entries == 50
    assert limiter.failed(now=1.0, sent_at=0.5, retry_after_s=None, jitter=0.0).entries == 50


def test_the_limit_stays_between_one_entry_and_its_most() -> None:
    limiter = RateLimiter(entries_max=105, entries=100)
    assert limiter.succeeded().succeeded().entries == 105
    for second in range(20):
        limiter = limiter.failed(now=second + 0.5, sent_at=float(second), retry_after_s=None, jitter=0.0)
    assert limiter.entries == 1


def test_requests_of_one_round_halve_the_limit_once() -> None:
    limiter = RateLimiter(entries_max=800, entries=800)
    for answered_at in (2.0, 2.1, 2.2):
        limiter = limiter.failed(now=answered_at, sent_at=1.0, retry_after_s=None, jitter=0.0)
    assert (limiter.entries, limiter.failures) == (400, 1)
    assert limiter.failed(now=3.0, sent_at=2.5, retry_after_s=None, jitter=0.0).entries == 200
    assert limiter.throttled(now=2.3, sent_at=1.0, retry_after_s=None).entries == 400


def test_nothing_is_sent_before_the_destination_says() -> None:
    limiter = RateLimiter(entries_max=800, entries=800)
    assert limiter.throttled(now=2.0, sent_at=1.0, retry_after_s=30.0).paused_until == 32.0
    paused = limiter.failed(now=2.0, sent_at=1.0, retry_after_s=30.0, jitter=1.0)
    assert paused.paused_until == 32.0
    assert paused.failed(now=2.1, sent_at=1.0, retry_after_s=40.0, jitter=1.0).paused_until == 42.1
    assert paused.failed(now=2.1, sent_at=1.0, retry_after_s=None, jitter=1.0).paused_until == 32.0
    absurd = limiter.failed(now=0.0, sent_at=0.0, retry_after_s=1e9, jitter=0.0)
    assert absurd.paused_until == RETRY_AFTER_MAX_S


def test_pauses_grow_up_to_a_bound_and_end_with_the_first_success() -> None:
    limiter, pauses = RateLimiter(entries_max=800, entries=800), []
    for second in range(0, 100, 10):
        limiter = limiter.failed(now=second + 1.0, sent_at=float(second), retry_after_s=None, jitter=0.0)
        pauses.append(limiter.paused_until - second - 1)
    assert pauses == sorted(pauses)
    assert pauses[0] == pytest.approx(0.1)
    assert pauses[-1] == BACKOFF.max_s
    assert limiter.succeeded().failures == 0


def test_senders_that_fail_together_do_not_come_back_together() -> None:
    limiter = RateLimiter(entries_max=800, entries=800)
    paused = [
        limiter.failed(now=1.0, sent_at=0.0, retry_after_s=None, jitter=jitter).paused_until for jitter in (1.0, 0.0)
    ]
    assert paused == [pytest.approx(1.05), pytest.approx(1.1)]


# Prefix


def test_the_position_covers_only_what_is_acknowledged_without_a_gap() -> None:
    prefix = AckPrefix("start")
    for batch in ("10", "20"):
        for _ in range(2):
            prefix.take()
        prefix.close(batch)
    prefix.acknowledge([1])
    prefix.acknowledge([2])
    prefix.acknowledge([3])
    assert (prefix.position, prefix.unsettled, prefix.acknowledged) == ("start", 4, 3)
    prefix.acknowledge([0])
    assert (prefix.position, prefix.unsettled) == ("20", 0)


def test_a_batch_that_is_still_being_taken_is_not_covered() -> None:
    prefix = AckPrefix(None)
    prefix.acknowledge([prefix.take()])
    assert prefix.position is None
    prefix.close("5")
    assert prefix.position == "5"


def test_a_batch_without_entries_is_covered_once_those_before_it_are() -> None:
    prefix = AckPrefix(None)
    prefix.close("1")
    assert prefix.position == "1"
    number = prefix.take()
    prefix.close("2")
    prefix.close("3")
    assert prefix.position == "1"
    prefix.acknowledge([number])
    assert prefix.position == "3"
