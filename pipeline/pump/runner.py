"""One partition: page -> batch -> transform -> sink -> "safe up to here".

Three stages overlap, each a module of its own: reading ahead, transforming batch n+1, and delivering batch n. Batch n+1 may be
read and transformed while n is delivered, and is sent only once n is settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn

from leasehold.common.cancellation import is_cancelled
from leasehold.common.clock import Clock
from leasehold.pipeline.dead_letters.refusals import Sent
from leasehold.pipeline.errors import OutputRefused, OutputSuspected, PipelineError
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.pump.buffer import PageBuffer
from leasehold.pipeline.pump.delivering import DeliverStage, end_all
from leasehold.pipeline.pump.range_jobs import RangeJobs
from leasehold.pipeline.pump.reading import ReadStage
from leasehold.pipeline.pump.run_parts import (
    STOP,
    DeliveredBatch,
    FailingEvents,
    ReadAhead,
    Reporting,
    RunParts,
    Source,
)
from leasehold.pipeline.pump.transforming import TransformStage
from leasehold.pipeline.ranges import why_for_host
from leasehold.pipeline.sink import Permit, SinkWriter
from leasehold.pipeline.transform import Transform


class Runner:
    """Runs one partition from where its sink stands. `delivered` is awaited after every batch, before the next is sent.

    why_host_reads: why this host reads all events although executors could read the feed; None if that is not so.
    """

    def __init__(
        self,
        *,
        source: Source,
        transform: Transform,
        writer: SinkWriter,
        permit: Permit,
        read_ahead: ReadAhead,
        clock: Clock,
        reporting: Reporting,
        delivered: Callable[[DeliveredBatch], Awaitable[None]],
        failing: FailingEvents = STOP,
    ) -> None:
        share = read_ahead.budget.share()
        self._buffer = PageBuffer(
            source.partition,
            writer.position,
            limits=read_ahead.limits,
            bytes_max=read_ahead.bytes_max,
            share=share,
            clock=clock,
        )
        self._parts = parts = RunParts(
            source=source,
            transform=transform,
            writer=writer,
            failing=failing,
            buffer=self._buffer,
            share=share,
            clock=clock,
            reporting=reporting,
        )
        plan = read_ahead.plan if transform.reads_ranges and not writer.is_buffering else None
        reader = source.feed.range_reader() if plan is not None else None
        self.why_host_reads = None if reader is None else why_for_host(reader, transform.range_reads)
        jobs = None
        if plan is not None and reader is not None and self.why_host_reads is None:
            jobs = RangeJobs(parts, plan, reader)
        self._reading = ReadStage(parts, jobs)
        self._transforming = TransformStage(parts, jobs)
        self._delivering = DeliverStage(
            parts, jobs, transforming=self._transforming, permit=permit, delivered=delivered
        )

    async def run(self, stopping: asyncio.Event) -> PartitionEnded | None:
        """Run until `stopping` is set: then the batch being sent is finished, all after it is dropped, and None is returned.

        Raises OutputSuspected if the next run is to find out more about what the sink refuses.
        Returns PartitionEnded once all of a partition that has ended is delivered. Raises what feed, transform and sink raise
        (see leasehold.pipeline.errors), after everything before it has been delivered. If cancelled, it may leave one write
        unsettled.
        """
        parts, partition = self._parts, self._parts.source.partition
        parts.reporting.progress.waiting.begin(parts.writer.position)
        stages = [
            asyncio.create_task(self._read(), name=f"read {partition}"),
            asyncio.create_task(self._transform(), name=f"transform {partition}"),
        ]
        try:
            return await self._delivering.run(stopping)
        except OutputRefused as refused:
            refusals, sent = parts.failing.refusals, self._delivering.under_way
            if refusals is None:
                raise
            if not refusals.narrow(refused, sent, is_sure=parts.transform.yields_events):
                raise self._named(refused, sent) from refused
            raise OutputSuspected(f"{refused}: looking for the event") from refused
        finally:
            await end_all(*stages)
            self._delivering.close()
            parts.share.close()

    async def _read(self) -> None:
        self._buffer.end(await self._error_of("reading", self._reading.run))

    async def _transform(self) -> None:
        await self._transforming.ready.put(await self._error_of("transforming", self._transforming.run))

    async def _error_of(self, doing: str, run: Callable[[], Coroutine[Any, Any, NoReturn]]) -> PipelineError:
        """What a stage ends with. An unexpected error is a fault of a connector or of this package. It stops the partition, not
        the host."""
        try:
            await run()
        except PipelineError as error:
            return error
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            partition = self._parts.source.partition
            wrapped = PipelineError(
                f"{doing} partition '{partition}' failed unexpectedly: {type(error).__name__}: {error}"
            )
            wrapped.__cause__ = error
            return wrapped

    def _named(self, refused: OutputRefused, sent: list[Sent]) -> OutputRefused:
        """The refusal with the event to blame, if that is known."""
        found = refused.sequences[0] if self._parts.transform.yields_events and refused.sequences else None
        sequence = sent[0].only if len(sent) == 1 and sent[0].only is not None else found
        if sequence is None:
            return refused
        partition = self._parts.source.partition
        return OutputRefused(f"partition '{partition}', sequence {sequence}: {refused}", sequences=refused.sequences)
