"""What executors read of a partition instead of the host: planned by the first stage, run as one job by the second, and settled
by the third (leasehold.pipeline.ranges). What they fail on, the host reads in the next run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from leasehold.pipeline.errors import EngineUnavailable, PipelineError, RangeRefused, SinkRejected, SinkUnavailable
from leasehold.pipeline.pump.run_parts import RunParts
from leasehold.pipeline.ranges import FAILURES_MAX, RangedBatch, RangePlan, RangeReader, range_events_for
from leasehold.pipeline.sink import Output
from leasehold.pipeline.staging import NotStaged


class RangeJobs:
    """The jobs of one partition. plan: who reads what, and how the executors fare. reader: what they read with."""

    def __init__(self, parts: RunParts, plan: RangePlan, reader: RangeReader) -> None:
        self.plan = plan
        self._reader = reader
        self._source, self._clock = parts.source, parts.clock
        self._transform, self._writer = parts.transform, parts.writer

    async def next_batch(self, start: str | None) -> RangedBatch | None:
        """The batch that executors are to read after `start`; None if too few events wait there."""
        limits, partition = self.plan.limits, self._source.partition
        range_events = range_events_for(
            self._reader,
            self._transform.range_reads,
            events_max=self.plan.events_max,
            range_events=limits.range_events,
        )
        ranges = await self._source.feed.plan_ranges(partition, start, self.plan.events_max, range_events)
        if sum(each.events for each in ranges) < limits.from_events:
            return None
        return RangedBatch(partition, self._source.epoch, tuple(ranges), self._clock.monotonic())

    async def output_of(
        self, batch: RangedBatch, bytes_max: int, moved: Callable[[], None], waited: Callable[[float], None]
    ) -> Output:
        """The output of the executors' job. moved: called when its time ends. waited: called with how much longer it has waited
        for executors.

        Raises RangeRefused, after which the host reads these events; EngineUnavailable, SinkUnavailable, for another attempt.
        """
        plan, job_s_max = self.plan, self.plan.limits.job_s_max
        bound = asyncio.timeout(job_s_max)
        try:
            async with bound:
                with self._noting_the_end_of(bound, job_s_max, moved, waited):
                    stager = await self._writer.make_stager(batch.start, self._transform.columns)
                    table, staged = await self._transform.apply_ranges(batch, self._reader, stager, bytes_max)
        except (RangeRefused, SinkRejected) as error:
            plan.refuse(batch)
            raise error if isinstance(error, RangeRefused) else RangeRefused(str(error)) from error
        except TimeoutError as error:
            if not bound.expired():
                raise
            plan.shrink(batch)
            raise RangeRefused(f"executors took more than {job_s_max:g} s for {batch.events} events") from error
        except (EngineUnavailable, SinkUnavailable) as error:
            self.fail(batch, error)
            raise
        output = Output(table=table, start=batch.start, to=batch.to, events=batch.events, staged=staged)
        if self._writer.parts(output) > 1:
            plan.shrink(batch)
            raise RangeRefused(f"the output of {batch.events} events is too large for one step of the sink")
        return output

    @contextmanager
    def _noting_the_end_of(
        self, bound: asyncio.Timeout, job_s: float, moved: Callable[[], None], waited: Callable[[float], None]
    ) -> Iterator[None]:
        """The end of a job's time is progress: Spark may take a long time to stop it, and the run must not end meanwhile.

        Otherwise the next run would plan the same batch again, and no batch would ever be smaller.
        Waits for executors are not part of the time.
        """
        loop = asyncio.get_running_loop()
        end = loop.call_later(job_s, moved)

        def put_off(more_s: float) -> None:
            nonlocal end
            waited(more_s)
            if not bound.expired():
                due = min(loop.time() + job_s, end.when() + more_s)
                end.cancel()
                end = loop.call_at(due, moved)
                bound.reschedule(due)

        try:
            with self._transform.noting_waits(put_off):
                yield
        finally:
            end.cancel()

    def fail(self, batch: RangedBatch, error: PipelineError) -> None:
        """Spark or the sink failed with the batch. Raises RangeRefused if the host has to read its events: the sink cannot take
        it as it was staged, or it has failed too often."""
        if isinstance(error, NotStaged):
            self.plan.shrink(batch)
            raise RangeRefused(str(error)) from error
        if self.plan.fail(batch):
            raise RangeRefused(
                f"a batch of executors failed {FAILURES_MAX} times, the last time because: {error}"
            ) from error

    def count(self, output: Output) -> int:
        """How many events executors have read; 0 if that is unknown."""
        if self._reader.counts_events:
            return output.events
        return output.rows if self._transform.yields_events else 0
