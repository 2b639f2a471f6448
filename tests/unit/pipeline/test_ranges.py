"""Who reads the next events of a partition, and how many events executors read at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator

import pyarrow as pa
import pytest

from leasehold.pipeline.errors import FeedError
from leasehold.pipeline.limits import RangeLimits
from leasehold.pipeline.ranges import (
    LONG_S,
    SHORT_S,
    EventRange,
    RangedBatch,
    RangePlan,
    RangeReader,
    RangeReads,
    iterate,
    range_events_for,
    secret_in,
    why_for_host,
)

LIMITS = RangeLimits(from_events=100, events_max=1000, range_events=10)


def compare(a: str | None, b: str | None) -> int:
    return int(a or 0) - int(b or 0)


def plan(limits: RangeLimits = LIMITS) -> RangePlan:
    return RangePlan(compare, limits)


def batch(start: int, to: int) -> RangedBatch:
    middle = (start + to) // 2
    ranges = (EventRange(str(start), str(middle), middle - start), EventRange(str(middle), str(to), to - middle))
    return RangedBatch("a", 1, ranges, 0.0)


def test_a_batch_covers_all_its_ranges() -> None:
    found = batch(10, 50)
    assert (found.start, found.to, found.events) == ("10", "50", 40)


def test_the_host_reads_what_executors_refused_and_nothing_behind_it() -> None:
    found = plan()
    assert not found.is_for_host(None)
    found.refuse(batch(10, 50))
    assert found.is_for_host("10")
    assert found.is_for_host("49")
    assert not found.is_for_host("50")


def test_after_each_refusal_in_a_row_the_host_reads_more_before_it_plans_again() -> None:
    found = plan()
    counts = []
    for _ in range(9):
        counts.append(found.asks_after)
        found.refuse(batch(10, 50))
    assert counts == [100, 200, 400, 800, 1600, 3200, 6400, 6400, 6400]
    found.accept(batch(50, 90), 1.0)
    assert found.asks_after == 100


def test_a_quick_batch_that_was_as_large_as_allowed_is_followed_by_a_larger_one() -> None:
    found = plan()
    assert found.events_max == 200
    found.accept(batch(0, 99), SHORT_S - 1)  # fewer events than half of what was allowed
    assert found.events_max == 200
    for large in (400, 800, 1000, 1000):
        found.accept(batch(0, found.events_max), SHORT_S - 1)
        assert found.events_max == large


def test_a_slow_batch_is_followed_by_a_smaller_one_and_a_refused_one_by_the_smallest() -> None:
    found = plan()
    for _ in range(3):
        found.accept(batch(0, found.events_max), SHORT_S - 1)
    found.accept(batch(0, 1000), (SHORT_S + LONG_S) / 2)
    assert found.events_max == 1000
    found.accept(batch(0, 1000), LONG_S + 1)
    assert found.events_max == 500
    for _ in range(5):
        found.accept(batch(0, 1000), LONG_S + 1)
    assert found.events_max == 100
    found.accept(batch(0, 100), SHORT_S - 1)
    found.accept(batch(0, 200), SHORT_S - 1)
    found.refuse(batch(0, 400))
    assert found.events_max == 200


def test_the_first_batch_is_not_above_the_limit() -> None:
    assert plan(RangeLimits(from_events=100, events_max=150)).events_max == 150


def test_batches_and_ranges_are_in_proportion() -> None:
    assert RangeLimits.beginning_at(200_000) == RangeLimits()
    assert RangeLimits.beginning_at(2).range_events == 1


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    monkeypatch.delenv("BANK_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("BANK_KEY", value)
    with pytest.raises(FeedError, match="variable BANK_KEY of Spark's executors is not set"):
        secret_in("BANK_KEY")


def test_a_variable_holds_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BANK_KEY", "secret")
    assert secret_in("BANK_KEY") == "secret"


class Source:
    """Three tables, each after a pause, then an error if there is one."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.is_closed = False

    async def read(self) -> AsyncGenerator[pa.Table, None]:
        try:
            for number in range(3):
                await asyncio.sleep(0)
                yield pa.table({"number": [number]})
            if self.error is not None:
                raise self.error
        finally:
            await asyncio.sleep(0)
            self.is_closed = True


def test_tables_of_a_coroutine_are_read_by_a_caller_that_blocks() -> None:
    source = Source()
    assert [table["number"][0].as_py() for table in iterate(source.read())] == [0, 1, 2]
    assert source.is_closed


def test_an_error_of_the_coroutine_reaches_the_caller_behind_the_tables() -> None:
    source = Source(FeedError("gone"))
    tables = iterate(source.read())
    assert len([next(tables) for _ in range(3)]) == 3
    with pytest.raises(FeedError, match="gone"):
        next(tables)


def test_a_coroutine_whose_caller_stops_is_closed() -> None:
    source = Source()
    tables = iterate(source.read())
    next(tables)
    tables.close()  # type: ignore[attr-defined]
    assert source.is_closed


def test_a_batch_that_fails_again_and_again_is_left_to_the_host_and_later_ones_begin_small() -> None:
    found = plan()
    for _ in range(2):
        found.accept(batch(0, found.events_max), SHORT_S - 1)
    most, first = found.events_max, 2 * found.limits.from_events
    assert not found.fail(batch(10, 510))
    found.fail(batch(510, 520))  # the next one, in turns
    assert not found.fail(batch(10, 510))
    found.fail(batch(510, 520))
    assert not found.is_for_host("10")
    assert found.fail(batch(10, 510))
    assert found.is_for_host("10")
    assert not found.is_for_host("510")
    assert found.events_max == first < most


def test_batches_grow_again_after_an_outage() -> None:
    found = plan()
    for _ in range(3):
        found.fail(batch(0, found.limits.from_events))
    assert found.events_max == found.limits.from_events
    for _ in range(10):
        found.accept(batch(0, found.events_max), SHORT_S - 1)
    assert found.events_max == found.limits.events_max


def test_failures_of_a_batch_that_was_delivered_count_no_more() -> None:
    found = plan()
    for _ in range(2):
        found.fail(batch(10, 510))
    found.accept(batch(10, 510), SHORT_S)
    found.fail(batch(10, 510))  # again, after a reset
    assert not found.is_for_host("10")


def test_a_job_ends_before_its_batch_times_out() -> None:
    assert RangeLimits.beginning_at(1, batch_timeout_s=100.0).job_s_max == 80.0


class Reader(RangeReader):
    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield from ()


class Changing(Reader):
    is_repeatable = False


class Five(Reader):
    readers_max = 5


def test_the_host_reads_if_a_changing_range_may_be_read_twice() -> None:
    twice = RangeReads(2, "the transform reads `events` 2 times")
    assert why_for_host(Reader(), twice) is None
    assert why_for_host(Changing(), RangeReads()) is None
    why = "a range of this feed may have other events when it is read again, and the transform reads `events` 2 times"
    assert why_for_host(Changing(), twice) == why


@pytest.mark.parametrize(
    ("reader", "times", "expected"),
    [(Reader(), 9, 10), (Five(), 1, 20), (Five(), 2, 50), (Five(), 3, 100), (Five(), 9, 100)],
)
def test_all_reads_of_a_job_together_stay_within_the_permitted_readers(
    reader: RangeReader, times: int, expected: int
) -> None:
    found = range_events_for(reader, RangeReads(times), events_max=100, range_events=10)
    assert found == expected
    assert range_events_for(reader, RangeReads(times), events_max=100, range_events=1000) == 1000
