"""The second stage: turns batches from the buffer into output that is ready for the sink.

No stage keeps a reference to a batch that it passed on while it waits for the next one: otherwise a hundred idle partitions would
hold a hundred batches.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import NoReturn

from leasehold.pipeline.batch import Batch, parts_without, without
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetterTransform
from leasehold.pipeline.errors import PipelineError, PoisonEvent
from leasehold.pipeline.feed import check_forward
from leasehold.pipeline.pump.range_jobs import RangeJobs
from leasehold.pipeline.pump.run_parts import RunParts
from leasehold.pipeline.ranges import RangedBatch
from leasehold.pipeline.sink import Output
from leasehold.pipeline.tracing import NO_CONTEXTS, Contexts, TransformedBatch, contexts_in


@dataclass(frozen=True, slots=True)
class Ready:
    """bytes: what it holds of the share. since: when it was transformed (Clock seconds). ranged: what executors have read.

    only: the sequence of its only event, or None. most: during a search, the most events that it should have.
    """

    output: Output
    bytes: int
    waited_s: float
    transform_s: float
    since: float
    only: int | None = None
    most: int | None = None
    ranged: RangedBatch | None = None


class TransformStage:
    """ready: the next batch for the sink, or the error that came instead of one."""

    def __init__(self, parts: RunParts, jobs: RangeJobs | None) -> None:
        self.ready: asyncio.Queue[Ready | PipelineError] = asyncio.Queue(maxsize=1)
        self._jobs = jobs
        self._source, self._transform, self._writer = parts.source, parts.transform, parts.writer
        self._buffer, self._share, self._clock = parts.buffer, parts.share, parts.clock
        self._progress, self._tracer = parts.reporting.progress, parts.reporting.tracer
        self._waits_for_turn = False
        letters, self._refusals = parts.failing.letters, parts.failing.refusals
        self._parks = letters is not None and self._writer.parks
        partition, buried = self._source.partition, () if letters is None else self._writer.buried
        assert buried is not None, f"the sink of partition '{partition}' keeps no dead letters"
        if self._refusals is not None:
            self._refusals.forget_before(self._writer.position)
        refused = {} if self._refusals is None else self._refusals.dead
        self._dead_letter_transform = DeadLetterTransform(
            self._transform, letters, partition, buried, moved=self._has_moved, refused=refused
        )

    @property
    def is_out_of_events(self) -> bool:
        """Whether nothing waits to be transformed."""
        return self._buffer.is_empty and not self._waits_for_turn

    async def run(self) -> NoReturn:
        """Raises what the first stage did, after all that it had read before that, and what the transform does."""
        while True:
            batch = await self._buffer.take_batch()
            if isinstance(batch, RangedBatch):
                await self.ready.put(await self._transform_ranges(batch))
            else:
                await self._pass_on(batch)
            del batch

    async def _pass_on(self, batch: Batch) -> None:
        """Transform a batch and queue it for delivery: whole, or in the parts that its transform and its sink can process.

        Events before a poison event are good. They are queued before it is raised, so that work continues from the poison
        event once that is corrected. Batches are smaller during the search for the event whose output the sink refuses.
        """
        waiting, poison = [batch], None
        while waiting:
            batch = waiting.pop(0)
            most, held = None if self._refusals is None else self._refusals.most(batch), batch.bytes
            parts = [batch] if most is None or batch.events <= most else batch.cut_at(most)
            if len(parts) == 1:
                try:
                    ready = await self._transform_batch(batch, most)
                except PoisonEvent as error:
                    parts = parts_without(batch, error)
                    if len(parts) < 2:
                        poison, waiting = error, parts
                        continue
                else:
                    parts = batch.cut(self._writer.parts(ready.output))
                    if len(parts) == 1:
                        await self.ready.put(ready)
                        continue
                    held = ready.bytes
                    del ready
            self._share.free(held)
            for part in parts:
                self._share.hold(part.bytes)
            waiting = parts + waiting
        if poison is not None:
            raise poison

    async def _transform_batch(self, batch: Batch, most: int | None) -> Ready:
        """most: during a search, the most events that the batch should have."""
        check_forward(self._source.feed, batch.partition, batch.start, batch.to, events=batch.events)
        started = self._clock.monotonic()
        with self._progress.working("transform", started), self._transform.noting_waits(self._has_waited):
            table, dead, left_out = await self._dead_letter_transform.sift(batch)
        crash_point("batch transformed")
        size = table.nbytes + (0 if dead is None else dead.nbytes)
        source = without(batch.table, left_out) if self._parks else None
        if source is not None:
            size += source.nbytes
        self._share.hold(size)
        self._share.free(batch.bytes)
        start, to, events, receipt = batch.start, batch.to, batch.events, batch.receipt
        output = Output(table=table, start=start, to=to, events=events, dead=dead, source=source, receipt=receipt)
        ended = self._clock.monotonic()
        waited_s, took_s = started - batch.opened_at, ended - started
        reads_contexts = self._tracer is not None and self._tracer.reads_contexts
        contexts = contexts_in(page.events["properties"] for page in batch.pages) if reads_contexts else NO_CONTEXTS
        output = self._trace(output, waited_s, took_s, contexts)
        return Ready(output, size, waited_s, took_s, ended, batch.only, most)

    def _trace(self, output: Output, waited_s: float, transform_s: float, contexts: Contexts = NO_CONTEXTS) -> Output:
        """Begin the output's trace now, because the size of what is published depends on it."""
        if self._tracer is None:
            return output
        batch = TransformedBatch(
            start=output.start,
            to=output.to,
            events=output.events,
            rows=output.rows,
            waited_s=waited_s,
            transform_s=transform_s,
            contexts=contexts,
        )
        return replace(output, trace=self._tracer.begin(batch))

    async def _transform_ranges(self, batch: RangedBatch) -> Ready:
        """Let executors read and transform the batch. Raises RangeRefused, after which the host reads these events."""
        assert self._jobs is not None, "ranges are planned for executors"
        self._waits_for_turn = True
        self._progress.resume()
        async with self._share.take_turn() as bytes_max:
            self._waits_for_turn = False
            started = self._clock.monotonic()
            with self._progress.working("transform", started):
                output = await self._jobs.output_of(batch, bytes_max, self._has_moved, self._has_waited)
            size = output.table.nbytes
            self._share.hold_returned(size)
        crash_point("ranges staged")
        ended = self._clock.monotonic()
        self._dead_letter_transform.pass_over(self._jobs.count(output))
        waited_s, took_s = started - batch.opened_at, ended - started
        return Ready(self._trace(output, waited_s, took_s), size, waited_s, took_s, ended, ranged=batch)

    def _has_moved(self) -> None:
        """A search for poison may take a long time, and counts as progress while it finds some. So does the end of a job's
        time."""
        self._progress.advance("transform", self._clock.monotonic())

    def _has_waited(self, more_s: float) -> None:
        """For executors, which takes none of its time."""
        self._progress.excuse("transform", more_s, self._clock.monotonic())
