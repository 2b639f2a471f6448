"""The contract of feeds, as tests over a harness."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import pickle
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from leasehold.pipeline.errors import FeedError
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.ranges import EventRange, RangeReader

PATIENCE_S = 20.0
FOREIGN = ("", "garbage", "\x00", "-1", "9" * 30, "1e999", "null", "{}", "[]", '{"offset":', "é" * 40)
"""Texts that are not positions of any feed."""


def body(number: int, text: str = "") -> bytes:
    """The body of an event of the suites: a JSON object with the same two texts each time, so that a CSV row can be one too."""
    return json.dumps({"number": str(number), "text": text}).encode()


class FeedHarness(ABC):
    """A feed to be tested, and a way to put events into its source.

    - `events_max`, `bytes_max`: the page limits that the feed was made with; keep them small (8 events, 4 KiB).
    """

    feed: ChangeFeed
    partitions: tuple[str, ...]
    """Two names or more, in name order; they exist and are empty."""
    events_max: int
    bytes_max: int
    lag_is_exact: bool = True
    """False if the feed estimates."""
    secrets: tuple[str, ...] = ()
    """What no range reader may take to executors, such as a key. Name them if the feed has any."""
    ranges_max: int | None = None
    """The most ranges that a plan has; ranges may be larger because of it. None: no limit."""
    times_are_apart: bool = False
    """Whether the events of each call of `append` have a later time than those of the call before. Set it if the source can do
    that, so that a feed which finds the time of a wrong event is caught."""
    beginning: str | None = None
    """The first position to read from. A feed that yields only new events needs one; others have None."""

    @abstractmethod
    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        """Add one event for each body; they can be read when this returns. A body is what `contract.body` made."""

    async def make_other_reader(self, partition: str, bodies: Sequence[bytes]) -> RangeReader | None:
        """A range reader over another source, in which that partition has only these events.

        None if executors cannot find another source under the same name, as they may at a path on a volume of their own.
        """
        return None

    def number(self, event: dict[str, Any]) -> int:
        """Which of the appended events this is. Override it if the feed yields other bodies than were appended."""
        return int(json.loads(event["body"])["number"])


@pytest.mark.asyncio
class ChangeFeedContract:
    """Give a fixture `harness` that yields a FeedHarness, and closes its feed."""

    @pytest.fixture
    def harness(self) -> Any:
        raise NotImplementedError("define a fixture `harness` that yields a FeedHarness")

    async def test_partitions_are_listed_in_name_order(self, harness: FeedHarness) -> None:
        names = [partition.name for partition in await harness.feed.partitions()]
        assert names == sorted(set(names))
        assert set(harness.partitions) <= set(names)

    async def test_every_event_is_read_once_and_in_order(self, harness: FeedHarness) -> None:
        partition, other = harness.partitions[:2]
        count = await _fill(harness, partition)
        await harness.append(other, [body(1000)])
        assert _numbers(harness, await _read(harness.feed, partition, harness.beginning, count)) == list(range(count))
        assert _numbers(harness, await _read(harness.feed, other, harness.beginning, 1)) == [1000]

    async def test_pages_are_event_tables_of_their_partition(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        pages = await _read(harness.feed, partition, harness.beginning, await _fill(harness, partition))
        for page in pages:
            page.events.validate(full=True)
            assert page.events.schema.equals(EVENT_SCHEMA, check_metadata=True)
            assert set(page.events["partition"].to_pylist()) <= {partition}
            assert not any(page.events[field.name].null_count for field in EVENT_SCHEMA if not field.nullable)
        sequences = [sequence for page in pages for sequence in page.events["sequence"].to_pylist()]
        assert all(a < b for a, b in itertools.pairwise(sequences))

    async def test_reading_again_yields_the_same_events(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        count = await _fill(harness, partition)
        first, second = [await _read(harness.feed, partition, harness.beginning, count) for _ in range(2)]
        assert _events(first) == _events(second)

    async def test_pages_stay_within_the_limit_of_events(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        pages = await _read(harness.feed, partition, harness.beginning, await _fill(harness, partition))
        assert max(page.events.num_rows for page in pages) <= harness.events_max

    async def test_pages_stay_within_the_limit_of_bytes_unless_they_hold_one_event(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        sizes = [1, harness.bytes_max * 2, *([harness.bytes_max // 3] * 5), harness.bytes_max * 2, 1]
        await harness.append(partition, [body(n, "x" * size) for n, size in enumerate(sizes)])
        pages = await _read(harness.feed, partition, harness.beginning, len(sizes))
        assert _numbers(harness, pages) == list(range(len(sizes)))
        for page in pages:
            held = sum(len(event) for event in page.events["body"].to_pylist() if event)
            assert held <= harness.bytes_max or page.events.num_rows == 1

    async def test_reading_resumes_behind_every_page(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        count = await _fill(harness, partition)
        seen = 0
        for page in await _read(harness.feed, partition, harness.beginning, count):
            seen += page.events.num_rows
            rest = await _read(harness.feed, partition, page.to, count - seen)
            assert _numbers(harness, rest) == list(range(seen, count))

    async def test_reading_resumes_within_a_page_where_the_feed_can_be_cut(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        count = await _fill(harness, partition)
        seen = 0
        for page in await _read(harness.feed, partition, harness.beginning, count):
            for n in range(1, page.events.num_rows):
                position = page.position_after(n)
                if position is not None:
                    rest = await _read(harness.feed, partition, position, count - seen - n)
                    assert _numbers(harness, rest) == list(range(seen + n, count))
            seen += page.events.num_rows

    async def test_compare_orders_positions_as_they_are_read_and_none_first(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        pages = await _read(harness.feed, partition, harness.beginning, await _fill(harness, partition))
        positions = _positions(pages)
        for i, a in enumerate(positions):
            for j, b in enumerate(positions):
                order = harness.feed.compare(a, b)
                assert (order > 0) - (order < 0) == (i > j) - (i < j), f"compare({a!r}, {b!r}) is {order}"

    async def test_latest_lies_behind_the_last_event(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        assert await feed.latest(partition) is None
        before, last = _positions(await _read(feed, partition, harness.beginning, await _fill(harness, partition)))[-2:]
        latest = await feed.latest(partition)
        assert feed.compare(before, latest) < 0 <= feed.compare(last, latest)

    async def test_lag_counts_what_is_left_to_read(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        assert await feed.lag(partition, harness.beginning) == 0
        left = await _fill(harness, partition)
        assert await feed.lag(partition, await feed.latest(partition)) == 0
        if harness.lag_is_exact:
            assert await feed.lag(partition, harness.beginning) == left
        for page in await _read(feed, partition, harness.beginning, left):
            left -= page.events.num_rows
            lag = await feed.lag(partition, page.to)
            assert (lag == left) if harness.lag_is_exact else ((lag > 0) == (left > 0))

    async def test_the_first_event_after_a_position_has_the_time_that_readers_get(self, harness: FeedHarness) -> None:
        """Or None, from a feed that does not know."""
        feed, partition = harness.feed, harness.partitions[0]
        assert await feed.find_enqueued_time(partition, harness.beginning) is None
        count = 2 * harness.events_max + 1
        for number in range(count):
            await harness.append(partition, [body(number)])
        pages = await _read(feed, partition, harness.beginning, count)
        times = [event["enqueued_time"] for event in _events(pages)]
        assert not harness.times_are_apart or len(set(times)) == count, "the harness promises times that differ"
        seen, places = 0, [(harness.beginning, 0)]
        for page in pages:
            rows = page.events.num_rows
            within = ((page.position_after(n), seen + n) for n in range(1, rows))
            places += [*(place for place in within if place[0] is not None), (page.to, seen + rows)]
            seen += rows
        for position, index in places:
            found = await feed.find_enqueued_time(partition, position)
            assert found is None if index == count else found in (None, times[index])
        assert await feed.find_enqueued_time(partition, await feed.latest(partition)) is None

    async def test_nothing_is_held_back_where_every_event_is_whole(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        assert await feed.find_held_back(partition, harness.beginning) is None
        pages = await _read(feed, partition, harness.beginning, await _fill(harness, partition))
        for position in _positions(pages):
            assert await feed.find_held_back(partition, position) is None

    async def test_what_is_said_of_a_feed_without_partitions_is_one_line(self, harness: FeedHarness) -> None:
        assert len(harness.feed.no_partitions.splitlines()) == 1

    async def test_at_the_end_a_reader_waits_and_yields_what_is_appended(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        await harness.append(partition, [body(0)])
        waiting = asyncio.create_task(_read(feed, partition, await feed.latest(partition), 2))
        for number in (1, 2):
            await _is_waiting(feed, partition, waiting)
            await harness.append(partition, [body(number)])
        assert _numbers(harness, await waiting) == [1, 2]

    async def test_an_empty_partition_is_waited_for_from_its_beginning(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        waiting = asyncio.create_task(_read(feed, partition, harness.beginning, 1))
        await _is_waiting(feed, partition, waiting)
        await harness.append(partition, [body(7)])
        assert _numbers(harness, await waiting) == [7]

    async def test_a_reader_that_waits_can_be_closed(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        waiting = asyncio.create_task(_read(feed, partition, harness.beginning, 1))
        await _is_waiting(feed, partition, waiting)
        waiting.cancel()
        async with asyncio.timeout(PATIENCE_S):
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await harness.append(partition, [body(1)])
        assert _numbers(harness, await _read(feed, partition, harness.beginning, 1)) == [1]

    async def test_a_reader_can_be_closed_between_pages(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        count = await _fill(harness, partition)
        abandoned = harness.feed.open(partition, harness.beginning)
        await anext(abandoned)
        await _close(abandoned)
        assert _numbers(harness, await _read(harness.feed, partition, harness.beginning, count)) == list(range(count))

    async def test_two_readers_of_a_partition_are_independent(self, harness: FeedHarness) -> None:
        partition = harness.partitions[0]
        count = await _fill(harness, partition)
        readers = [harness.feed.open(partition, harness.beginning) for _ in range(2)]
        pages: list[list[Page]] = [[], []]
        async with asyncio.timeout(PATIENCE_S):
            while min(_count(each) for each in pages) < count:
                for reader, read in zip(readers, pages, strict=True):
                    if _count(read) < count:
                        read.append(await anext(reader))
        for reader, read in zip(readers, pages, strict=True):
            await _close(reader)
            assert _numbers(harness, read) == list(range(count))

    async def test_a_partition_starts_at_its_beginning_or_end(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        count = await _fill(harness, partition)
        latest = await feed.start_of(partition, "latest")
        await harness.append(partition, [body(count)])
        assert _numbers(harness, await _read(feed, partition, latest, 1)) == [count]
        if harness.beginning is None:
            earliest = await feed.start_of(partition, "earliest")
            assert _numbers(harness, await _read(feed, partition, earliest, count + 1)) == list(range(count + 1))
        else:
            with pytest.raises(FeedError):
                await feed.start_of(partition, "earliest")

    async def test_a_partition_starts_with_the_first_event_of_a_time(self, harness: FeedHarness) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        if harness.beginning is not None:
            with pytest.raises(FeedError):
                await feed.start_of(partition, datetime(2026, 1, 1, tzinfo=UTC))
            return
        await _fill(harness, partition)
        count = await _fill(harness, partition, first=100)
        times = [e["enqueued_time"] for e in _events(await _read(feed, partition, harness.beginning, 2 * count))]
        for time in (datetime(1970, 1, 1, tzinfo=UTC), times[0], times[count], times[-1]):
            first = next(i for i, enqueued in enumerate(times) if enqueued >= time)
            start = await feed.start_of(partition, time)
            assert await feed.lag(partition, start) > 0
            events = _events(await _read(feed, partition, start, 2 * count - first))
            assert [e["enqueued_time"] for e in events] == times[first:]
        assert await feed.lag(partition, await feed.start_of(partition, datetime(9000, 1, 1, tzinfo=UTC))) == 0

    async def test_an_unknown_partition_is_a_feed_error(self, harness: FeedHarness) -> None:
        for call in (
            _read(harness.feed, "no such partition", None, 1),
            harness.feed.latest("no such partition"),
            harness.feed.lag("no such partition", None),
            harness.feed.start_of("no such partition", "latest"),
        ):
            with pytest.raises(FeedError):
                await call

    @pytest.mark.parametrize("continuation", FOREIGN)
    async def test_a_foreign_continuation_is_a_feed_error(self, harness: FeedHarness, continuation: str) -> None:
        feed, partition = harness.feed, harness.partitions[0]
        await harness.append(partition, [body(0)])
        with pytest.raises(FeedError):
            await _read(feed, partition, continuation, 1)
        with pytest.raises(FeedError):
            await feed.lag(partition, continuation)
        with contextlib.suppress(FeedError):  # it may have an order, but must raise no other error
            assert isinstance(feed.compare(continuation, await feed.latest(partition)), int)

    async def test_ranges_are_consecutive_and_as_large_as_requested(self, harness: FeedHarness) -> None:
        feed, partition, _ = _with_ranges(harness)
        count = await _fill(harness, partition)
        for start in (harness.beginning, (await _read(feed, partition, harness.beginning, 1))[0].to):
            left = await feed.lag(partition, start)
            for events_max, size in ((count, 3), (6, 2), (1000, 5)):
                ranges = await feed.plan_ranges(partition, start, events_max, size)
                assert [each.start for each in ranges] == [start, *(each.to for each in ranges[:-1])]
                assert all(feed.compare(each.start, each.to) < 0 for each in ranges)
                expected = min(left, events_max)
                assert expected <= sum(each.events for each in ranges) <= expected + size
                most = size if harness.ranges_max is None else max(size, -(-expected // harness.ranges_max))
                assert all(1 <= each.events <= 2 * most for each in ranges)
                assert len(ranges) > 1

    async def test_ranges_read_elsewhere_have_the_events_of_the_feed(self, harness: FeedHarness) -> None:
        feed, partition, sent = _with_ranges(harness)
        count = await _fill(harness, partition)
        ranges = await feed.plan_ranges(partition, harness.beginning, count, 5)
        expected = _events(await _read(feed, partition, harness.beginning, count))
        assert [event for read in await _read_elsewhere(sent, partition, ranges) for event in read] == expected

    async def test_a_range_has_the_events_between_its_positions(self, harness: FeedHarness) -> None:
        feed, partition, sent = _with_ranges(harness)
        count = await _fill(harness, partition)
        (ranges, seen) = await feed.plan_ranges(partition, harness.beginning, count - 2, 4), 0
        for each in ranges:
            tables = await _read_range(sent, partition, each)
            for table in tables:
                assert table.schema.equals(EVENT_SCHEMA, check_metadata=True)
                table.validate(full=True)
            numbers = [harness.number(event) for table in tables for event in table.to_pylist()]
            assert numbers == list(range(seen, seen + len(numbers)))
            seen += len(numbers)
            rest = await _read(feed, partition, each.to, count - seen) if seen < count else []
            assert _numbers(harness, rest) == list(range(seen, count))

    async def test_a_range_that_cannot_be_read_to_its_end_is_a_feed_error(self, harness: FeedHarness) -> None:
        feed, partition, sent = _with_ranges(harness)
        other = harness.partitions[1]
        await harness.append(other, [body(0)])
        await _fill(harness, partition)
        end = (await feed.plan_ranges(partition, harness.beginning, 1000, 5))[-1]
        with pytest.raises(FeedError):
            await _read_range(sent, other, end)

    async def test_another_source_with_as_many_events_is_a_feed_error(self, harness: FeedHarness) -> None:
        feed, partition, _ = _with_ranges(harness)
        await harness.append(partition, [body(number) for number in range(10, 30)])
        other = await harness.make_other_reader(partition, [body(number) for number in range(50, 70)])
        if other is None:
            pytest.skip("executors cannot find another source under this name")
        for each in await feed.plan_ranges(partition, harness.beginning, 1000, 5):
            with pytest.raises(FeedError):
                await _read_range(pickle.dumps(other), partition, each)

    async def test_at_the_end_no_ranges_are_planned(self, harness: FeedHarness) -> None:
        feed, partition, _ = _with_ranges(harness)
        assert await feed.plan_ranges(partition, harness.beginning, 1000, 1) == []
        await _fill(harness, partition)
        assert await feed.plan_ranges(partition, await feed.latest(partition), 1000, 1) == []
        end = (await feed.plan_ranges(partition, harness.beginning, 1000, 5))[-1].to
        assert await feed.plan_ranges(partition, end, 1000, 1) == []
        await harness.append(partition, [body(1000)])
        (planned,) = await feed.plan_ranges(partition, end, 1000, 1)
        assert planned.start == end

    async def test_what_executors_get_has_no_secrets(self, harness: FeedHarness) -> None:
        feed, partition, sent = _with_ranges(harness)
        await _fill(harness, partition)
        ranges = await feed.plan_ranges(partition, harness.beginning, 1000, 5)
        for secret in harness.secrets:
            assert secret.encode() not in sent + pickle.dumps(ranges)


async def _fill(harness: FeedHarness, partition: str, first: int = 0) -> int:
    """Append enough events for three pages, numbered from `first`. Returns how many."""
    count = 2 * harness.events_max + 1
    await harness.append(partition, [body(n) for n in range(first, first + count)])
    return count


async def _read(feed: ChangeFeed, partition: str, continuation: str | None, count: int) -> list[Page]:
    pages: list[Page] = []
    reader = feed.open(partition, continuation)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while _count(pages) < count:
                pages.append(await anext(reader))
    finally:
        await _close(reader)
    return pages


async def _close(reader: AsyncGenerator[Page, None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await reader.aclose()


async def _is_waiting(feed: ChangeFeed, partition: str, reader: asyncio.Task[list[Page]]) -> None:
    """Let the reader reach the end: the calls here take the same path, after the reader's."""
    for _ in range(5):
        await feed.latest(partition)
    assert not reader.done()


def _count(pages: Sequence[Page]) -> int:
    return sum(page.events.num_rows for page in pages)


def _events(pages: Sequence[Page]) -> list[dict[str, Any]]:
    return [event for page in pages for event in page.events.to_pylist()]


def _numbers(harness: FeedHarness, pages: Sequence[Page]) -> list[int]:
    return [harness.number(event) for event in _events(pages)]


def _positions(pages: Sequence[Page]) -> list[str | None]:
    """None and every position after at least one more event, in reading order."""
    positions: list[str | None] = [None]
    for page in pages:
        cuts = (page.position_after(n) for n in range(1, page.events.num_rows))
        positions += [cut for cut in cuts if cut is not None]
        positions += [page.to] if page.events.num_rows else []
    return positions


def _with_ranges(harness: FeedHarness) -> tuple[ChangeFeed, str, bytes]:
    """The feed, its first partition, and its range reader as executors get it. Skips the test if it has none."""
    reader = harness.feed.range_reader()
    if reader is None:
        pytest.skip("this feed is not read by executors")
    return harness.feed, harness.partitions[0], pickle.dumps(reader)


async def _read_range(sent: bytes, partition: str, planned: EventRange) -> list[pa.Table]:
    """Read a range on a thread, because readers block."""
    async with asyncio.timeout(PATIENCE_S):
        return await asyncio.to_thread(lambda: list(_loaded(sent).read_range(partition, planned)))


async def _read_elsewhere(sent: bytes, partition: str, ranges: Sequence[EventRange]) -> list[list[dict[str, Any]]]:
    """The events of each range, as another process reads them."""
    given = pickle.dumps((_loaded(sent), partition, list(ranges)))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _READ_ELSEWHERE), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        answer, _ = await process.communicate(given)
    assert process.returncode == 0
    return list(_loaded(answer))


def _loaded(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - pickled here, or by the process above


_READ_ELSEWHERE = """
import pickle, sys

reader, partition, ranges = pickle.load(sys.stdin.buffer)
read = [[event for table in reader.read_range(partition, each) for event in table.to_pylist()] for each in ranges]
sys.stdout.buffer.write(pickle.dumps(read))
"""
