"""What executors staged and the sink cannot take: the host reads those events itself, and smaller batches follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import until
from unit.pipeline.pump.test_runner import Case, Transform, Writer, assert_nothing_left

from leasehold.pipeline.connectors.memory import MemoryChangeFeed
from leasehold.pipeline.errors import RangeRefused
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.limits import BatchLimits, RangeLimits
from leasehold.pipeline.ranges import EventRange, RangedBatch, RangePlan, RangeReader
from leasehold.pipeline.sink import Output, Permit
from leasehold.pipeline.staging import NotStaged, Ranged, StagedPart, Stager

LIMITS = RangeLimits(from_events=4, events_max=100, range_events=4)


class Reader(RangeReader):
    """Nothing calls it, since no job runs."""

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        raise AssertionError("no job runs")


class Planned(MemoryChangeFeed):
    """One range for all that waits, up to `events_max`."""

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        start = int(continuation or 0)
        to = min(start + events_max, len(self._logs[partition].events))
        return [EventRange(continuation, str(to), to - start)] if to > start else []

    def range_reader(self) -> Any:
        return Reader()


class OnExecutors(Transform):
    reads_ranges = True
    columns = EVENT_SCHEMA

    async def apply_ranges(self, batch: RangedBatch, reader: Any, stager: Stager | None, bytes_max: int) -> Ranged:
        part = StagedPart(epoch=batch.epoch, start=batch.start, name="x", rows=batch.events)
        return Ranged(pa.table({}), (part,))


class Staging(Writer):
    """Takes so many staged rows in one step at most; `in_time` of them at all."""

    def __init__(self, rows_max: int, in_time: int = 1000) -> None:
        super().__init__()
        self.rows_max = rows_max
        self.in_time = in_time

    def parts(self, output: Output) -> int:
        return 1 if output.rows <= self.rows_max else 2

    async def write(self, output: Output, permit: Permit) -> None:
        if output.staged and output.rows > self.in_time:
            raise NotStaged("too slow")
        await super().write(output, permit)

    @property
    def ranges(self) -> list[tuple[str | None, str, bool]]:
        return [(output.start, output.to, bool(output.staged)) for output in self.outputs]


def case_of(writer: Staging, plan: RangePlan) -> Case:
    case = Case(40, feed=Planned("a", page_events_max=1), limits=BatchLimits(events_max=100, age_max_s=0.01), plan=plan)
    case.writer = writer
    case.transform = OnExecutors()
    return case


@pytest.mark.virtual
@pytest.mark.parametrize("writer", [Staging(10), Staging(1000, in_time=10)], ids=["at its size", "in its time"])
async def test_what_the_sink_cannot_take_is_read_by_the_host_and_smaller_batches_follow(writer: Staging) -> None:
    plan = RangePlan(MemoryChangeFeed("a").compare, LIMITS)
    plan.events_max = 20
    case = case_of(writer, plan)
    with pytest.raises(RangeRefused, match=r"too slow|too large for one step"):
        await case.started()
    assert writer.outputs == []
    assert_nothing_left()
    assert plan.limits.events_max == 10
    running = case.started()
    await until(lambda: writer.position == "40")
    of_host = [each for each in writer.ranges if not each[2]]
    assert of_host[0][0] is None
    assert int(of_host[-1][1]) >= 20
    staged = [each for each in writer.ranges if each[2]]
    assert staged
    assert max(int(to) - int(start or 0) for start, to, _ in staged) <= 10
    await case.stopped(running)


@pytest.mark.virtual
async def test_what_the_sink_takes_is_not_cut() -> None:
    plan = RangePlan(MemoryChangeFeed("a").compare, LIMITS)
    plan.events_max = 20
    case = case_of(Staging(1000), plan)
    running = case.started()
    await until(lambda: case.writer.position == "40")
    assert isinstance(case.writer, Staging)
    assert case.writer.ranges == [(None, "20", True), ("20", "40", True)]
    assert plan.limits == LIMITS
    await case.stopped(running)
