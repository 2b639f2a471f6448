"""A large backlog: ranges are planned, executors process them, and what they refuse the host reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from lab.simulation.group import until
from unit.pipeline.pump.test_runner import Case, Transform, Writer

from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetters
from leasehold.pipeline.dead_letters.refusals import Refusals
from leasehold.pipeline.errors import (
    EngineUnavailable,
    OutputRefused,
    OutputSuspected,
    RangeRefused,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.limits import RANGED_JOBS_MAX, BatchLimits, Budget, RangeLimits
from leasehold.pipeline.ranges import SHORT_S, EventRange, RangedBatch, RangePlan, RangeReader, RangeReads
from leasehold.pipeline.sink import Output, Permit
from leasehold.pipeline.staging import Ranged, StagedPart, Stager

LIMITS = RangeLimits(from_events=10, events_max=40, range_events=5)


class Reader(RangeReader):
    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield event_table(partition, range(int(planned.start or 0), int(planned.to)))


class RangedFeed(MemoryChangeFeed):
    """planned: from where ranges were asked for."""

    def __init__(self) -> None:
        super().__init__("a", page_events_max=1)
        self.planned: list[str | None] = []
        self.reader: RangeReader = Reader()

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        self.planned.append(continuation)
        start = int(continuation or 0)
        end = min(start + events_max, await self.lag(partition, None))
        edges = [*range(start, end, range_events), end]
        return [EventRange(str(a) if a else None, str(b), b - a) for a, b in pairwise(edges)]

    def range_reader(self) -> RangeReader | None:
        return self.reader


class RangedTransform(Transform):
    """ranged: what executors were given. refused: sequences that they cannot process."""

    reads_ranges = True
    columns = event_table("a", []).schema

    def __init__(self, takes_s: float = 0.0) -> None:
        super().__init__(takes_s)
        self.ranged: list[RangedBatch] = []
        self.refused: set[int] = set()
        self.staged: tuple[StagedPart, ...] = ()
        self.stagers: list[Stager | None] = []
        self.failure: Exception | None = None
        self.bytes_max: list[int] = []

    async def apply_ranges(
        self, batch: RangedBatch, reader: RangeReader, stager: Stager | None, bytes_max: int
    ) -> Ranged:
        self.ranged.append(batch)
        self.stagers.append(stager)
        self.bytes_max.append(bytes_max)
        await asyncio.sleep(self.takes_s)
        if self.failure is not None:
            raise self.failure
        if self.refused & set(range(int(batch.start or 0), int(batch.to))):
            raise RangeRefused("one of them")
        if self.staged:
            return Ranged(self.columns.empty_table(), self.staged)
        tables = [table for each in batch.ranges for table in reader.read_range(batch.partition, each)]
        return Ranged(pa.concat_tables(tables))


def case(events: int, **settings: Any) -> tuple[Case, RangedFeed, RangedTransform]:
    feed, transform = RangedFeed(), RangedTransform()
    found = Case(events, feed=feed, **{"plan": RangePlan(feed.compare, LIMITS), **settings})
    found.transform = transform
    return found, feed, transform


@pytest.mark.virtual
async def test_a_backlog_is_processed_by_executors_and_its_rest_by_the_host() -> None:
    work, _, transform = case(47)
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(47)))
    assert [(batch.start, batch.to) for batch in transform.ranged] == [(None, "20"), ("20", "40")]
    assert transform.ranged[0].ranges[1][:2] == ("5", "10")
    assert [batch.start for batch in transform.batches] == [str(n) for n in range(40, 47)]
    work.append(3)
    await until(lambda: work.writer.numbers == list(range(50)))
    assert len(transform.ranged) == 2
    assert [batch.events for batch in work.delivered][:3] == [20, 20, 1]
    await work.stopped(running)


@pytest.mark.virtual
async def test_ranges_are_planned_again_once_the_host_has_read_as_many_events() -> None:
    work, feed, transform = case(9)
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(9)))
    assert transform.ranged == []
    work.append(30)
    await until(lambda: work.writer.numbers == list(range(39)))
    assert feed.planned[:2] == [None, "10"]
    assert [(batch.start, batch.to) for batch in transform.ranged] == [("10", "30")]
    await work.stopped(running)


@pytest.mark.virtual
async def test_without_a_plan_or_a_reader_the_host_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    work, _, transform = case(30, plan=None)
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(30)))
    await work.stopped(running)
    monkeypatch.setattr(RangedFeed, "range_reader", lambda feed: None)
    again, _, other = case(30)
    running = again.started()
    await until(lambda: again.writer.numbers == list(range(30)))
    await again.stopped(running)
    assert transform.ranged == other.ranged == []


@pytest.mark.virtual
async def test_a_refused_batch_ends_the_run_behind_what_came_before_and_the_host_reads_it_in_the_next() -> None:
    work, _, transform = case(50)
    transform.refused = {25}
    with pytest.raises(RangeRefused, match="one of them"):
        await work.started()
    assert work.writer.numbers == list(range(20))
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(50)))
    ranged = [(batch.start, batch.to) for batch in transform.ranged]
    assert ranged == [(None, "20"), ("20", "40"), ("40", "50")]
    assert [batch.start for batch in transform.batches] == [str(n) for n in range(20, 40)]
    await work.stopped(running)


@pytest.mark.virtual
async def test_an_engine_that_is_away_is_no_refusal() -> None:
    work, _, transform = case(50)
    transform.failure = EngineUnavailable("away")
    with pytest.raises(EngineUnavailable):
        await work.started()
    transform.failure = None
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(50)))
    assert transform.batches == []
    await work.stopped(running)


class Staging(Writer):
    """Makes stagers, and takes what they have staged."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str | None, pa.Schema]] = []

    async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
        self.made.append((start, columns))
        return Named()


class Named(Stager):
    def stage(self, table: pa.Table, unique: str) -> StagedPart:
        raise AssertionError("executors stage")


@pytest.mark.virtual
async def test_what_executors_staged_is_written_and_counted() -> None:
    work, _, transform = case(20)
    work.writer = writer = Staging()
    transform.staged = (StagedPart(epoch=1, start=None, name="x", rows=17),)
    running = work.started()
    await until(lambda: work.delivered)
    assert writer.outputs[0].staged == transform.staged
    assert (work.delivered[0].rows, work.delivered[0].events) == (17, 20)
    assert writer.made == [(None, transform.columns)]
    assert isinstance(transform.stagers[0], Named)
    await work.stopped(running)


@pytest.mark.virtual
async def test_output_that_the_sink_wants_in_parts_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts(writer: Writer, output: Output) -> int:
        return 2 if output.events > 10 else 1

    monkeypatch.setattr(Writer, "parts", parts)
    work, _, _ = case(20)
    with pytest.raises(RangeRefused, match="too large for one step of the sink"):
        await work.started()
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(20)))
    await work.stopped(running)


class Picky(Writer):
    """Refuses outputs with one of `refused`. names: whether it names those by their `sequence`."""

    buried = ()

    def __init__(self, refused: set[int], *, names: bool) -> None:
        super().__init__()
        self.refused = refused
        self.names = names
        self.refusals: list[Output] = []

    async def write(self, output: Output, permit: Permit) -> None:
        if found := sorted(self.refused & set(output.table["sequence"].to_pylist())):
            self.refusals.append(output)
            raise OutputRefused(f"no {found}", sequences=found if self.names else ())
        await super().write(output, permit)


async def run_on(work: Case, runs_max: int) -> None:
    """As a worker does: again, while events that the sink refuses are looked for, until all is delivered."""
    for _ in range(runs_max):
        running = work.started()
        delivered = asyncio.create_task(until(lambda: work.writer.position == "40"))
        await asyncio.wait({running, delivered}, return_when=asyncio.FIRST_COMPLETED)
        delivered.cancel()
        if not running.done():
            await work.stopped(running)
            return
        with pytest.raises(OutputSuspected):
            running.result()
    raise AssertionError(f"not delivered after {runs_max} runs")


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("yields_events", "names"),
    [(True, True), (False, True), (True, False)],
    ids=["named by events of its own", "named by hints", "not named"],
)
@pytest.mark.parametrize("refused", [{7}, {3, 17}, {19}, {7, 30}], ids=str)
async def test_the_host_reads_while_refused_events_are_looked_for(
    refused: set[int], yields_events: bool, names: bool
) -> None:
    letters = DeadLetters(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), share_max=1.0)
    work, feed, transform = case(40, limits=BatchLimits(events_max=100), letters=letters)
    work.settings["refusals"] = Refusals(letters.attempts, feed.compare)
    work.writer, transform.yields_events = Picky(refused, names=names), yields_events
    await run_on(work, runs_max=len(refused) * 10)
    assert work.writer.numbers == sorted(set(range(40)) - refused)
    of_executors = {(batch.start, batch.to) for batch in transform.ranged}
    for each in refused:  # of what executors made of it, one output is refused
        outputs = [output for output in work.writer.refusals if int(output.start or 0) <= each < int(output.to)]
        again = [output for output in outputs if output.events > 1 and (output.start, output.to) in of_executors]
        assert len(again) <= (1 if names else len(refused))


@pytest.mark.virtual
async def test_the_host_reads_up_to_buried_dead_letters() -> None:
    work, _, transform = case(40, limits=BatchLimits(events_max=1))
    work.writer.buried = (12,)
    running = work.started()
    await until(lambda: len(work.writer.numbers) >= 13)
    first = min((int(batch.start or 0) for batch in transform.ranged), default=40)
    assert first >= 13
    await until(lambda: work.writer.numbers == list(range(40)))
    await work.stopped(running)


@pytest.mark.virtual
@pytest.mark.parametrize("of", ["Spark", "the sink", "staging"])
async def test_a_batch_that_fails_with_spark_or_the_sink_is_read_by_the_host_in_the_end(of: str) -> None:
    work, _, transform = case(20)
    failure = EngineUnavailable("away") if of == "Spark" else SinkUnavailable("away")
    for words in ("^away$", "^away$", "a batch of executors failed 3 times, the last time because: away"):
        if of != "the sink":
            transform.failure = failure
        else:
            work.writer.error = failure
        with pytest.raises(RangeRefused if "3 times" in words else type(failure), match=words):
            await work.started()
    assert transform.batches == []
    transform.failure = work.writer.error = None
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(20)))
    assert len(transform.ranged) == 3
    assert len(transform.batches) == 20
    await work.stopped(running)


@pytest.mark.virtual
async def test_executors_that_take_too_long_are_stopped_and_the_host_reads() -> None:
    work, _, transform = case(20)
    transform.takes_s = LIMITS.job_s_max + 1
    with pytest.raises(RangeRefused, match="more than 240 s for 20 events"):
        await work.started()
    transform.takes_s = 0.0
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(20)))
    assert len(transform.ranged) == 1
    await work.stopped(running)


def sharing(budget: Budget, count: int) -> list[tuple[Case, RangedTransform]]:
    """Runners of as many partitions of a host, each with a batch for executors."""
    made = []
    for _ in range(count):
        work, _, transform = case(20)
        work.budget = budget
        made.append((work, transform))
    return made


@pytest.mark.virtual
async def test_few_jobs_of_executors_run_at_once_and_the_time_of_each_counts_from_its_beginning() -> None:
    sharers = sharing(Budget(1 << 40), 5 * RANGED_JOBS_MAX)
    running = []
    for work, transform in sharers:
        transform.takes_s = LIMITS.job_s_max - 1
        running.append(work.started())
    await asyncio.sleep(1)
    waiting = [work for work, transform in sharers if not transform.ranged]
    assert len(waiting) == 4 * RANGED_JOBS_MAX
    assert [(work.progress.slowest, work.progress.is_idle) for work in waiting] == [(None, False)] * len(waiting)
    for work, _ in sharers:
        await until(lambda work=work: work.delivered)
    assert work.clock.monotonic() == pytest.approx(5 * (LIMITS.job_s_max - 1), abs=1)
    assert max(one.transform_s for work, _ in sharers for one in work.delivered) < LIMITS.job_s_max
    for work, _ in sharers:
        work.stopping.set()
    assert await asyncio.gather(*running) == [None] * len(sharers)


@pytest.mark.virtual
async def test_a_partition_that_waits_for_its_turn_behind_a_delivered_batch_is_not_idle() -> None:
    sharers = sharing(Budget(), RANGED_JOBS_MAX + 1)
    (first, _), *others = sharers
    first.append(20)
    running = [first.started()]
    for work, transform in others:
        transform.takes_s = 100.0
        running.append(work.started())
    await until(lambda: first.delivered)
    await asyncio.sleep(1)
    assert (len(first.delivered), first.progress.slowest, first.progress.is_idle) == (1, None, False)
    await until(lambda: first.progress.is_idle)
    assert len(first.delivered) == 2
    for work, _ in sharers:
        work.stopping.set()
    assert await asyncio.gather(*running) == [None] * len(sharers)


@pytest.mark.virtual
@pytest.mark.parametrize("end", ["stopped", "cancelled"])
async def test_a_partition_that_ends_while_it_waits_for_its_turn_leaves_the_turn_to_others(end: str) -> None:
    budget = Budget()
    sharers = sharing(budget, RANGED_JOBS_MAX + 2)
    running = []
    for work, transform in sharers:
        transform.takes_s = 100.0
        running.append(work.started())
    await asyncio.sleep(1)
    work, transform = sharers[-2]
    if end == "stopped":
        work.stopping.set()
    else:
        running[-2].cancel()
    await asyncio.wait({running[-2]}, timeout=1)
    assert running[-2].done()
    last, _ = sharers[-1]
    await until(lambda: last.delivered)
    assert (transform.ranged, last.clock.monotonic()) == ([], pytest.approx(200, abs=1))
    for other, _ in sharers:
        other.stopping.set()
    await asyncio.wait(running)
    assert (budget.held, budget.returned) == (0, 0)


@pytest.mark.virtual
async def test_what_executors_returned_to_all_partitions_is_bounded_until_it_is_delivered() -> None:
    size = pa.concat_tables(event_table("a", range(n, n + 5)) for n in (0, 5, 10, 15)).nbytes
    budget = Budget(RANGED_JOBS_MAX * size)
    sharers = sharing(budget, 3 * RANGED_JOBS_MAX)
    for work, _ in sharers:
        work.trust.given.clear()
    running = [work.started() for work, _ in sharers]
    await asyncio.sleep(60)
    assert {limit for _, transform in sharers for limit in transform.bytes_max} == {size}
    assert sum(len(transform.ranged) for _, transform in sharers) == RANGED_JOBS_MAX
    assert budget.held == budget.returned == budget.bytes_max
    running.pop(0).cancel()
    (lost, _), *others = sharers
    await asyncio.sleep(1)
    assert sum(len(transform.ranged) for _, transform in others) == RANGED_JOBS_MAX
    for work, _ in others:
        work.trust.given.set()
    for work, _ in others:
        await until(lambda work=work: work.writer.numbers == list(range(20)))
    assert (lost.writer.began, budget.held, budget.returned) == ([], 0, 0)
    for work, _ in others:
        work.stopping.set()
    assert await asyncio.gather(*running) == [None] * len(others)


@pytest.mark.virtual
async def test_executors_and_hosts_that_read_do_not_wait_for_each_other() -> None:
    budget = Budget()
    budget.share().hold(budget.bytes_max)
    sharers = sharing(budget, RANGED_JOBS_MAX)
    running = []
    for work, transform in sharers:
        transform.takes_s = 10.0
        running.append(work.started())
    await asyncio.sleep(1)
    assert [len(transform.ranged) for _, transform in sharers] == [1] * RANGED_JOBS_MAX
    assert (budget.held, budget.returned) == (budget.bytes_max, budget.bytes_max)
    for work, _ in sharers:
        await until(lambda work=work: work.writer.numbers == list(range(20)))
        work.stopping.set()
    assert await asyncio.gather(*running) == [None] * len(sharers)


class Estimating(Reader):
    """Reads two events of each range, however many were planned."""

    counts_events = False

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        start = int(planned.start or 0)
        yield event_table(partition, range(start, start + 2))


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("reader", "yields_events", "events", "is_forgotten"),
    [
        (Reader(), False, 20, True),
        (Reader(), False, 21, False),
        (Estimating(), False, 8, False),
        (Estimating(), True, 8, True),
        (Estimating(), True, 9, False),
    ],
)
async def test_dead_letters_are_forgotten_only_behind_as_many_good_events_as_are_known(
    reader: RangeReader, yields_events: bool, events: int, is_forgotten: bool
) -> None:
    letters = DeadLetters(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), share_max=0.5, share_events=events)
    guard = letters.guard_of("a")
    guard.record(-events, events, range(events - guard.most, events))
    work, feed, transform = case(20, letters=letters)
    feed.reader, transform.yields_events, work.writer.buried = reader, yields_events, ()
    running = work.started()
    await until(lambda: work.delivered)
    assert len(transform.ranged) == 1
    assert guard.one_too_many(20, [0]) == (None if is_forgotten else 0)
    await work.stopped(running)


@pytest.mark.virtual
async def test_a_stager_that_cannot_be_made_is_a_refusal() -> None:
    class Refusing(Writer):
        async def make_stager(self, start: str | None, columns: pa.Schema) -> Stager | None:
            raise SinkRejected("no such role")

    work, _, _ = case(20)
    work.writer = Refusing()
    with pytest.raises(RangeRefused, match="no such role"):
        await work.started()


@pytest.mark.virtual
async def test_batches_grow_by_what_delivery_takes_too() -> None:
    slow = SHORT_S + 1
    work, _, transform = case(300)
    work.writer.takes_s = slow
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(300)))
    assert {batch.events for batch in transform.ranged} == {20}
    await work.stopped(running)


@pytest.mark.virtual
async def test_a_writer_that_buffers_gets_what_the_host_reads() -> None:
    class Buffering(Writer):
        is_buffering = True

    work, _, transform = case(20)
    work.writer = Buffering()
    with suppress(Exception):
        async with asyncio.timeout(1):
            await work.started()
    assert transform.ranged == []


class Moving(Reader):
    """Of the latest versions: one document changes after each read, and its range lacks it from then on."""

    is_repeatable = False

    def __init__(self) -> None:
        self.moved: set[int] = set()

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        numbers = range(int(planned.start or 0), int(planned.to))
        yield event_table(partition, [number for number in numbers if number not in self.moved])
        self.moved.add(numbers[0])


class Joining(RangedTransform):
    """Joins the events with themselves: all of them."""

    range_reads = RangeReads(2, "the transform reads `events` 2 times")

    async def apply_ranges(
        self, batch: RangedBatch, reader: RangeReader, stager: Stager | None, bytes_max: int
    ) -> Ranged:
        left, _ = await super().apply_ranges(batch, reader, stager, bytes_max)
        right, _ = await super().apply_ranges(batch, reader, stager, bytes_max)
        return Ranged(left.filter(pc.is_in(left["sequence"], right["sequence"])))


@pytest.mark.virtual
async def test_ranges_that_change_are_read_by_the_host_if_a_job_reads_them_twice() -> None:
    work, feed, _ = case(40)
    feed.reader, work.transform = Moving(), Joining()
    running = work.started()
    await until(lambda: len(work.writer.numbers) >= 40)
    assert work.writer.numbers == list(range(40))
    assert (work.transform.ranged, feed.planned) == ([], [])
    await work.stopped(running)


@pytest.mark.virtual
@pytest.mark.parametrize(
    ("reader", "transform"),
    [(Moving(), RangedTransform()), (Reader(), Joining())],
    ids=["read once", "the same whenever they are read"],
)
async def test_executors_read_ranges_that_are_read_once_or_do_not_change(
    reader: RangeReader, transform: RangedTransform
) -> None:
    work, feed, _ = case(40)
    feed.reader, work.transform = reader, transform
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(40)))
    assert sum(batch.events for batch in dict.fromkeys(transform.ranged)) == 40
    await work.stopped(running)


@pytest.mark.virtual
async def test_ranges_are_larger_if_all_reads_of_a_job_would_be_more_than_are_permitted() -> None:
    class Few(Reader):
        readers_max = 4

    work, feed, _ = case(40)
    feed.reader, work.transform = Few(), Joining()
    running = work.started()
    await until(lambda: work.writer.numbers == list(range(40)))
    assert {len(batch.ranges) for batch in work.transform.ranged} == {2}
    await work.stopped(running)
