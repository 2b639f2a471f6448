"""A large backlog: ranges are planned, executors process them, and what they refuse the host reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from unit.pipeline.pump.test_runner import Case, Transform, Writer

from pipeline.connectors.memory import MemoryFeed
from pipeline.contract import event_table
from pipeline.dead_letters.dead_letter_transform import Refusals
from pipeline.errors import EngineUnavailable, RangeRefused, SinkRejected, SinkUnavailable
from pipeline.limits import BatchLimits, RangeLimits
from pipeline.ranges import SHORT_S, EventRange, RangedBatch, RangePlan, RangeReader
from pipeline.sink import Output
from pipeline.staging import Ranged, StagedPart, Stager

LIMITS = RangeLimits(from_events=10, events_max=40, range_events=5)


class Reader(RangeReader):
    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield event_table(partition, range(int(planned.start or 0), int(planned.to)))


class RangedFeed(MemoryFeed):
    """planned: from where ranges were asked for."""

    def __init__(self) -> None:
        super().__init__("a", page_events_max=1)
        self.planned: list[str | None] = []

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        self.planned.append(continuation)
        start = int(continuation or 0)
        end = min(start + events_max, await self.lag(partition, None))
        edges = [*range(start, end, range_events), end]
        return [EventRange(str(a) if a else None, str(b), b - a) for a, b in pairwise(edges)]

    def range_reader(self) -> RangeReader | None:
        return Reader()


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

    async def apply_ranges(self, batch: RangedBatch, reader: RangeReader, stager: Stager | None) -> Ranged:
        self.ranged.append(batch)
        self.stagers.append(stager)
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
    await work.until(lambda: work.writer.numbers == list(range(47)))
    assert [(batch.start, batch.to) for batch in transform.ranged] == [(None, "20"), ("20", "40")]
    assert transform.ranged[0].ranges[1][:2] == ("5", "10")
    assert [batch.start for batch in transform.batches] == [str(n) for n in range(40, 47)]
    work.append(3)
    await work.until(lambda: work.writer.numbers == list(range(50)))
    assert len(transform.ranged) == 2
    assert [batch.events for batch in work.delivered][:3] == [20, 20, 1]
    await work.stopped(running)


@pytest.mark.virtual
async def test_ranges_are_planned_again_once_the_host_has_read_as_many_events() -> None:
    work, feed, transform = case(9)
    running = work.started()
    await work.until(lambda: work.writer.numbers == list(range(9)))
    assert transform.ranged == []
    work.append(30)
    await work.until(lambda: work.writer.numbers == list(range(39)))
    assert feed.planned[:2] == [None, "10"]
    assert [(batch.start, batch.to) for batch in transform.ranged] == [("10", "30")]
    await work.stopped(running)


@pytest.mark.virtual
async def test_without_a_plan_or_a_reader_the_host_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    work, _, transform = case(30, plan=None)
    running = work.started()
    await work.until(lambda: work.writer.numbers == list(range(30)))
    await work.stopped(running)
    monkeypatch.setattr(RangedFeed, "range_reader", lambda feed: None)
    again, _, other = case(30)
    running = again.started()
    await again.until(lambda: again.writer.numbers == list(range(30)))
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
    await work.until(lambda: work.writer.numbers == list(range(50)))
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
    await work.until(lambda: work.writer.numbers == list(range(50)))
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
    await work.until(lambda: work.delivered)
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
    await work.until(lambda: work.writer.numbers == list(range(20)))
    await work.stopped(running)


@pytest.mark.virtual
@pytest.mark.parametrize(
    "hold",
    [
        pytest.param(lambda work: work.settings.update(refusals=_searching()), id="a search for a refused event"),
        pytest.param(lambda work: setattr(work.writer, "buried", (12,)), id="buried dead letters"),
    ],
)
async def test_the_host_reads_while_events_are_looked_at_one_by_one(hold: Callable[[Case], None]) -> None:
    work, _, transform = case(40, limits=BatchLimits(events_max=1))
    hold(work)
    running = work.started()
    await work.until(lambda: len(work.writer.numbers) >= 13)
    first = min((int(batch.start or 0) for batch in transform.ranged), default=40)
    assert first >= 13
    await work.until(lambda: work.writer.numbers == list(range(40)))
    await work.stopped(running)


def _searching() -> Refusals:
    found = Refusals(2, lambda a, b: int(a or 0) - int(b or 0))
    found._until, found._events_max = "13", 1
    return found


@pytest.mark.virtual
@pytest.mark.parametrize("of", ["Spark", "the sink", "staging"])
async def test_a_batch_that_fails_with_spark_or_the_sink_is_read_by_the_host_in_the_end(of: str) -> None:
    work, _, transform = case(20)
    failure = EngineUnavailable("away") if of == "Spark" else SinkUnavailable("away")
    for _ in range(3):
        if of != "the sink":
            transform.failure = failure
        else:
            work.writer.error = failure
        with pytest.raises(type(failure)):
            await work.started()
    assert transform.batches == []
    transform.failure = work.writer.error = None
    running = work.started()
    await work.until(lambda: work.writer.numbers == list(range(20)))
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
    await work.until(lambda: work.writer.numbers == list(range(20)))
    assert len(transform.ranged) == 1
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
    await work.until(lambda: work.writer.numbers == list(range(300)))
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
