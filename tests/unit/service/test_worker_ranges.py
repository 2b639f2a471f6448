"""A worker whose executors take too long: the job ends, and the host reads the events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from lab.simulation.group import Group, until
from lab.simulation.weather import Once, Source, of

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.contract import event_table
from leasehold.pipeline.limits import RANGES_TIMEOUT_S_MIN, RangeLimits
from leasehold.pipeline.ranges import EventRange, RangeReader, RangeReads
from leasehold.pipeline.staging import Ranged
from leasehold.pipeline.transform import NoTransform
from leasehold.service.errors import BatchHung
from leasehold.service.pipeline import PipelineParts

STOP_S = 50.0
"""As long as Spark may take to stop a job: ANSWER_S and CANCEL_TIMEOUT_S of pipeline/spark/runs.py."""
EVENTS = 40


class Reader(RangeReader):
    def read_range(self, partition: str, planned: EventRange) -> Any:
        yield event_table(partition, range(int(planned.start or 0), int(planned.to)))


class RangedSource(Source):
    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        start = int(continuation or 0)
        end = min(start + events_max, self._log(partition).end)
        edges = [*range(start, end, range_events), end]
        return [EventRange(str(a) if a else None, str(b), b - a) for a, b in pairwise(edges)]

    def range_reader(self) -> RangeReader | None:
        return Reader()


class Endless(NoTransform):
    """jobs: how many events each had. None of them ends by itself, and each takes a while to stop."""

    reads_ranges = True
    columns: pa.Schema = event_table("a", []).schema

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[int] = []

    async def apply_ranges(self, batch: Any, reader: Any, stager: Any, bytes_max: int) -> Any:
        self.jobs.append(batch.events)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(STOP_S)


@pytest.mark.virtual
@pytest.mark.parametrize("batch_timeout_s", [300.0, 240.0, RANGES_TIMEOUT_S_MIN])
async def test_the_host_reads_what_takes_executors_too_long_however_long_spark_takes_to_stop(
    batch_timeout_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.simulation.group.Source", RangedSource)
    transform = Endless()
    limits = RangeLimits.beginning_at(10, batch_timeout_s)
    group = Group("a", transform=transform, batch_timeout_s=batch_timeout_s, ranges=limits)
    group.append("a", EVENTS)
    running = await group.start("host-a")
    await until(lambda: len(group.delivered("a")) == EVENTS, 2 * batch_timeout_s)
    assert len(transform.jobs) == 1
    await running.kill()


class Patient(NoTransform):
    """Its jobs wait for executors for waits_s, and then take takes_s."""

    reads_ranges = True
    columns: pa.Schema = event_table("a", []).schema

    def __init__(self, waits_s: float, takes_s: float) -> None:
        super().__init__()
        self.waits_s, self.takes_s = waits_s, takes_s
        self._noted: list[Callable[[float], object]] = []

    @contextmanager
    def noting_waits(self, note: Callable[[float], object]) -> Iterator[None]:
        self._noted.append(note)
        try:
            yield
        finally:
            self._noted.remove(note)

    async def apply(self, batch: Batch) -> pa.Table:
        await self._run()
        return await super().apply(batch)

    async def apply_ranges(self, batch: Any, reader: Any, stager: Any, bytes_max: int) -> Any:
        await self._run()
        return Ranged(pa.concat_tables(t for each in batch.ranges for t in reader.read_range(batch.partition, each)))

    async def _run(self) -> None:
        await self._wait()
        await asyncio.sleep(self.takes_s)

    async def _wait(self) -> None:
        for _ in range(int(self.waits_s)):
            await asyncio.sleep(1)
            for note in self._noted:
                note(1.0)


@pytest.mark.virtual
@pytest.mark.parametrize("executors_read", [False, True])
@pytest.mark.parametrize(("takes_s", "is_hung"), [(70.0, False), (110.0, True)])
async def test_the_wait_for_executors_does_not_count_and_what_follows_does(
    executors_read: bool, takes_s: float, is_hung: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that executors read has 0.8 of the time. Then the host reads its events, which is another job."""
    monkeypatch.setattr("lab.simulation.group.Source", RangedSource)
    transform = Patient(600.0, takes_s)
    limits = RangeLimits.beginning_at(10, 100.0) if executors_read else None
    group = Group("a", transform=transform, batch_timeout_s=100.0, ranges=limits)
    group.append("a", EVENTS)
    tenure = await group.tenure()
    await until(lambda: bool(group.destination.commits) or tenure.task.done(), 2000)
    assert tenure.task.done() == is_hung
    assert bool(tenure.said("executors refused")) == (is_hung and executors_read)
    if is_hung:
        assert isinstance(tenure.task.result().error, BatchHung)
    tenure.worker.stop()
    await tenure.task


class Preempted(Patient):
    """Its executors die each minute, after takes_s of work."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.takes_s)
            await self._wait()


@pytest.mark.virtual
@pytest.mark.parametrize("executors_read", [False, True])
async def test_a_job_whose_executors_die_each_minute_has_an_end(
    executors_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the time of its waits does not count."""
    monkeypatch.setattr("lab.simulation.group.Source", RangedSource)
    limits = RangeLimits.beginning_at(10, 100.0) if executors_read else None
    group = Group("a", transform=Preempted(40.0, 20.0), batch_timeout_s=100.0, ranges=limits)
    group.append("a", EVENTS)
    tenure = await group.tenure()
    await until(tenure.task.done, 2000)
    assert isinstance(tenure.task.result().error, BatchHung)
    assert bool(tenure.said("executors refused")) == executors_read


class Changing(Reader):
    is_repeatable = False


class ChangingSource(RangedSource):
    def range_reader(self) -> RangeReader | None:
        return Changing()


@pytest.mark.virtual
async def test_why_the_host_reads_ranges_that_change_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.simulation.group.Source", ChangingSource)
    monkeypatch.setattr(Endless, "range_reads", RangeReads(2, "the transform reads `events` 2 times"))
    transform = Endless()
    group = Group("a", transform=transform, ranges=RangeLimits.beginning_at(10, 300.0))
    group.append("a", EVENTS)
    refusing = Once(of("sink", "write"), "refused", "refused")
    group.weather.judge = refusing
    running = await group.start("host-a")
    await until(lambda: len(group.delivered("a")) == EVENTS, 300.0)
    assert refusing.ends == []
    (refused,) = running.said("executors refused")
    assert "events when it is read again, and the transform reads `events` 2 times" in refused["error"]
    assert (refused["then"], transform.jobs) == ("this host reads all events", [])
    await running.kill()


def test_executors_that_may_take_as_long_as_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ranges.job_s_max \(240\) has to be below batch_timeout_s \(100\): use"):
        PipelineParts(
            name="p",
            feed=MemoryChangeFeed("a"),
            sink=MemoryOutputSink(MemoryDestination()),
            ranges=RangeLimits(),
            batch_timeout_s=100.0,
        )
