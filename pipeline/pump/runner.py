"""One partition: page -> batch -> transform -> sink -> "safe up to here".

Three stages overlap: reading ahead, transforming batch n+1, and delivering batch n. At most one batch is unsettled at any
time (R2 of docs/protocol.md): n+1 may be read and transformed while n is delivered, and is sent only once n is settled. Writers
that buffer are the exception: they have several batches under way, and a position that follows.
If many events wait, executors read them (pipeline/ranges.py): the first stage plans ranges then, and the second has them read and
transformed in one job. What executors fail on, the host reads in the next run.
No stage keeps a reference to a passed batch while it waits for the next: a hundred idle partitions would hold as many batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from leasehold.common.cancellation import heeding, is_cancelled
from leasehold.common.clock import Clock
from leasehold.pipeline.batch import Batch, parts_without, without
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.dead_letter_transform import DeadLetters, DeadLetterTransform
from leasehold.pipeline.dead_letters.refusals import Refusals, Sent
from leasehold.pipeline.errors import (
    Ambiguous,
    EngineUnavailable,
    NotTrusted,
    OutputRefused,
    OutputSuspected,
    PipelineError,
    PoisonEvent,
    RangeRefused,
    SinkRejected,
    SinkUnavailable,
)
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, PartitionEnded, check_forward
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.buffer import PageBuffer
from leasehold.pipeline.pump.progress import InFlight, Progress
from leasehold.pipeline.pump.tap import Tap
from leasehold.pipeline.ranges import FAILURES_MAX, RangedBatch, RangePlan, RangeReader, range_events_for, why_for_host
from leasehold.pipeline.sink import Output, Permit, SinkWriter
from leasehold.pipeline.staging import NotStaged
from leasehold.pipeline.tracing import NO_CONTEXTS, BatchTracer, Contexts, TransformedBatch, contexts_in
from leasehold.pipeline.transform import Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """A batch that has become safe, without its data, and how long that took, stage after stage.

    start, to: its positions. rows: of its output. waited_s: from its first event read to its transform.
    queued_s: from its transform until the batches before it were settled.
    """

    start: str | None
    to: str
    events: int
    rows: int = 0
    dead_letters: int = 0
    waited_s: float
    transform_s: float
    queued_s: float = 0.0
    deliver_s: float


@dataclass(frozen=True, slots=True)
class Source:
    """The partition that is read. epoch: of the lease it is read for, passed to feeds that rank readers by it."""

    feed: ChangeFeed
    partition: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadAhead:
    """How much is read before it is delivered.

    - `bytes_max`: of this partition. `budget`: of all partitions of the process.
    - `plan`: who reads what. None: the host reads everything.
    """

    limits: BatchLimits
    bytes_max: int
    budget: Budget
    plan: RangePlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingEvents:
    """How a run treats events that cannot be processed.

    - `letters`: what becomes of them; None to stop at the first. With it the writer has to be one that keeps dead letters.
    - `refusals`: what is known of output that the sink refused in earlier runs, for the search for the event; None not to search.
    """

    letters: DeadLetters | None = None
    refusals: Refusals | None = None


STOP = FailingEvents()
"""At the first of them, without a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Where a run reports. tap: shows what is read and delivered to its watchers. tracer: of this run; None without traces."""

    progress: Progress
    tap: Tap = field(default_factory=Tap)
    tracer: BatchTracer | None = None


@dataclass(frozen=True, slots=True)
class _Ready:
    output: Output
    bytes: int
    waited_s: float
    transform_s: float
    since: float
    sent: Sent
    ranged: RangedBatch | None = None
    """What executors have read."""


class Runner:
    """Runs one partition from where its sink stands. `delivered` is awaited after every batch, before the next is sent."""

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
        self._feed, self._partition, self._epoch = source.feed, source.partition, source.epoch
        self._refusals = failing.refusals
        self._transform = transform
        self._plan = read_ahead.plan if transform.reads_ranges and not writer.is_buffering else None
        reader = self._feed.range_reader() if self._plan is not None else None
        self.why_host_reads = None if reader is None else why_for_host(reader, transform.range_reads)
        """Why this host reads all events although executors could read the feed."""
        self._reader = reader if self.why_host_reads is None else None
        self._last_sequence = -1
        self._dead_letter_transform = self._dead_letter_transform_of(transform, failing.letters, writer)
        self._writer = writer
        self._permit = permit
        self._clock = clock
        self._progress, self._tap, self._tracer = reporting.progress, reporting.tap, reporting.tracer
        self._delivered = delivered
        self._read_to = writer.position
        self._share = read_ahead.budget.share()
        self._buffer = PageBuffer(
            self._partition,
            writer.position,
            limits=read_ahead.limits,
            bytes_max=read_ahead.bytes_max,
            share=self._share,
            clock=clock,
        )
        self._ready: asyncio.Queue[_Ready | PipelineError] = asyncio.Queue(maxsize=1)
        self._writing: _Ready | None = None
        self._waits_for_turn = False
        self._parks = failing.letters is not None and writer.parks
        self._parked = writer.parked
        self._in_flight: InFlight[_Ready] = InFlight(
            writer, progress=self._progress, clock=clock, delivered=self._settle
        )

    async def run(self, stopping: asyncio.Event) -> PartitionEnded | None:
        """Until `stopping` is set: then the batch being sent is finished, everything behind it dropped, and None returned.

        Raises OutputSuspected if the next run is to find out more of what the sink refuses.
        Returns PartitionEnded once all of a partition that has ended is delivered. Raises what feed, transform and sink raise
        (see leasehold.pipeline.errors), after everything before it has been delivered; cancelled, it may leave one write
        unsettled.
        """
        self._progress.waiting.begin(self._writer.position)
        stages = [
            asyncio.create_task(self._read(), name=f"read {self._partition}"),
            asyncio.create_task(self._transform_batches(), name=f"transform {self._partition}"),
        ]
        try:
            return await self._deliver(stopping)
        except OutputRefused as refused:
            if self._refusals is None:
                raise
            if not self._narrow(self._refusals, refused):
                raise self._named(refused) from refused
            raise OutputSuspected(f"{refused}: looking for the event") from refused
        finally:
            await _end_all(*stages)
            self._in_flight.close()
            self._share.close()

    async def _read(self) -> None:
        try:
            while await self._plan_ranges() or await self._read_pages():
                pass
            self._buffer.end(
                PipelineError(f"the feed has no more pages for partition '{self._partition}', and does not say why")
            )
        except PipelineError as error:
            self._buffer.end(error)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            self._buffer.end(_unexpected("reading", self._partition, error))

    async def _plan_ranges(self) -> bool:
        """Whether so much waits that executors read it: then it is handed on as ranges."""
        plan = self._plan
        if plan is None or self._reader is None or self._is_for_host(plan):
            return False
        range_events = range_events_for(
            self._reader,
            self._transform.range_reads,
            events_max=plan.events_max,
            range_events=plan.limits.range_events,
        )
        ranges = await self._feed.plan_ranges(self._partition, self._read_to, plan.events_max, range_events)
        if sum(each.events for each in ranges) < plan.limits.from_events:
            return False
        batch = RangedBatch(self._partition, self._epoch, tuple(ranges), self._clock.monotonic())
        self._check_forward(batch.start, batch.to, batch.events)
        self._progress.waiting.add_unknown(batch.events)
        await self._buffer.wait_until_taken()
        for watcher in self._tap.watchers:
            watcher.see_ranges(batch)
        self._buffer.put_ranged(batch)
        self._read_to = batch.to
        return True

    def _is_for_host(self, plan: RangePlan) -> bool:
        """Whether some of the next events failed before, or may be dead: what becomes of those, the host decides one by one."""
        has_suspects = self._refusals is not None and self._refusals.has_suspects(self._read_to)
        has_buried = any(sequence > self._last_sequence for sequence in self._writer.buried or ())
        return has_suspects or has_buried or plan.is_for_host(self._read_to)

    async def _read_pages(self) -> bool:
        """Until it is time to look for ranges; False if there are no more pages."""
        pages = self._feed.open_as(self._epoch, self._partition, self._read_to)
        read = 0
        async with aclosing(pages):
            while (events := await self._read_page(pages)) is not None:
                read += events
                if self._reader is not None and self._plan is not None and read >= self._plan.asks_after:
                    return True
        return False

    async def _read_page(self, pages: AsyncGenerator[Page, None]) -> int | None:
        """How many events the next page had; None if there are no more. It is read as soon as there is room for it."""
        await self._buffer.wait_for_room()
        page = await heeding(anext(pages, None))
        if page is None:
            return None
        events = page.events.num_rows
        self._check_forward(self._read_to, page.to, events)
        self._read_to = page.to
        if events and self._writer.buried:
            self._last_sequence = page.events["sequence"][events - 1].as_py()
        self._progress.waiting.add(page.events)
        for watcher in self._tap.watchers:
            watcher.see_page(page)
        await self._buffer.put(page)
        crash_point("page read")
        return int(events)

    def _check_forward(self, start: str | None, to: str, events: int) -> None:
        check_forward(self._feed, self._partition, start, to, events=events)

    async def _transform_batches(self) -> None:
        try:
            while True:
                batch = await self._buffer.take_batch()
                if isinstance(batch, RangedBatch):
                    await self._ready.put(await self._transform_ranges(batch))
                else:
                    await self._pass_on(batch)
                del batch
        except PipelineError as error:
            await self._ready.put(error)
        except (Exception, asyncio.CancelledError) as error:
            if is_cancelled(error):
                raise
            await self._ready.put(_unexpected("transforming", self._partition, error))

    async def _pass_on(self, batch: Batch) -> None:
        """Transform a batch and queue it for delivery: whole, or in the parts that its transform and its sink can process.

        Events before a poison event are good. They are queued before it is raised, so that work continues from the poison
        event once that is corrected.
        """
        waiting, poison = [batch], None
        while waiting:
            batch = waiting.pop(0)
            parts, held = self._split_for_search(batch), batch.bytes
            if len(parts) == 1:
                try:
                    ready = await self._transform_batch(batch)
                except PoisonEvent as error:
                    parts = parts_without(batch, error)
                    if len(parts) < 2:
                        poison, waiting = error, parts
                        continue
                else:
                    parts = batch.cut(self._writer.parts(ready.output))
                    if len(parts) == 1:
                        await self._ready.put(ready)
                        continue
                    held = ready.bytes
                    del ready
            self._share.free(held)
            for part in parts:
                self._share.hold(part.bytes)
            waiting = parts + waiting
        if poison is not None:
            raise poison

    def _split_for_search(self, batch: Batch) -> list[Batch]:
        """Batches are smaller during the search for the event whose output the sink refuses."""
        most = None if self._refusals is None else self._refusals.most(batch)
        return [batch] if most is None or batch.events <= most else batch.cut_at(most)

    async def _transform_batch(self, batch: Batch) -> _Ready:
        self._check_forward(batch.start, batch.to, batch.events)
        started = self._clock.monotonic()
        with self._progress.working("transform", started), self._transform.noting_waits(self._has_found):
            table, dead, left_out = await self._dead_letter_transform.sift(batch)
        crash_point("batch transformed")
        size = table.nbytes + (0 if dead is None else dead.nbytes)
        source = without(batch.table, left_out) if self._parks else None
        if source is not None:
            size += source.nbytes
        self._share.hold(size)
        self._share.free(batch.bytes)
        output = Output(
            table=table,
            start=batch.start,
            to=batch.to,
            events=batch.events,
            dead=dead,
            source=source,
            receipt=batch.receipt,
        )
        ended = self._clock.monotonic()
        waited_s, took_s = started - batch.opened_at, ended - started
        output = self._trace(output, waited_s, took_s, self._contexts_of(batch))
        return _Ready(output, size, waited_s, took_s, ended, self._sent_of(batch))

    def _contexts_of(self, batch: Batch) -> Contexts:
        if self._tracer is None or not self._tracer.reads_contexts:
            return NO_CONTEXTS
        return contexts_in(page.events["properties"] for page in batch.pages)

    def _trace(self, output: Output, waited_s: float, transform_s: float, contexts: Contexts = NO_CONTEXTS) -> Output:
        """Begin its trace, which the size of what is published depends on."""
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

    async def _transform_ranges(self, batch: RangedBatch) -> _Ready:
        """Executors read and transform it. Raises RangeRefused, after which the host reads these events."""
        assert self._reader is not None, "ranges are planned for a reader"
        assert self._plan is not None, "ranges are planned"
        self._waits_for_turn = True
        self._progress.resume()
        async with self._share.take_turn() as bytes_max:
            self._waits_for_turn = False
            started = self._clock.monotonic()
            with self._progress.working("transform", started):
                output = await self._output_of(batch, self._reader, self._plan, bytes_max)
            size = output.table.nbytes
            self._share.hold_returned(size)
        crash_point("ranges staged")
        ended = self._clock.monotonic()
        self._dead_letter_transform.pass_over(self._count(output, self._reader))
        sent = Sent(to=batch.to, events=batch.events, only=None, most=None)
        waited_s, took_s = started - batch.opened_at, ended - started
        return _Ready(self._trace(output, waited_s, took_s), size, waited_s, took_s, ended, sent, batch)

    def _count(self, output: Output, reader: RangeReader) -> int:
        """How many events executors have read; 0 if that is unknown."""
        if reader.counts_events:
            return output.events
        return output.rows if self._transform.yields_events else 0

    async def _output_of(self, batch: RangedBatch, reader: RangeReader, plan: RangePlan, bytes_max: int) -> Output:
        """Raises RangeRefused; EngineUnavailable, SinkUnavailable, for another attempt."""
        bound = asyncio.timeout(plan.limits.job_s_max)
        try:
            async with bound:
                with self._noting_the_end_of(bound, plan.limits.job_s_max):
                    stager = await self._writer.make_stager(batch.start, self._transform.columns)
                    table, staged = await self._transform.apply_ranges(batch, reader, stager, bytes_max)
        except (RangeRefused, SinkRejected) as error:
            plan.refuse(batch)
            raise error if isinstance(error, RangeRefused) else RangeRefused(str(error)) from error
        except TimeoutError as error:
            if not bound.expired():
                raise
            plan.shrink(batch)
            raise RangeRefused(
                f"executors took more than {plan.limits.job_s_max:g} s for {batch.events} events"
            ) from error
        except (EngineUnavailable, SinkUnavailable) as error:
            if plan.fail(batch):
                raise _given_up(error) from error
            raise
        output = Output(table=table, start=batch.start, to=batch.to, events=batch.events, staged=staged)
        if self._writer.parts(output) > 1:
            plan.shrink(batch)
            raise RangeRefused(f"the output of {batch.events} events is too large for one step of the sink")
        return output

    @contextmanager
    def _noting_the_end_of(self, bound: asyncio.Timeout, job_s: float) -> Iterator[None]:
        """The end of a job's time is progress: Spark may take long to stop it, and the run must not end meanwhile.

        Otherwise the next run would plan the same batch again, and none would ever be smaller.
        The time begins again after each wait for executors.
        """
        loop = asyncio.get_running_loop()
        end = loop.call_later(job_s, self._has_found)

        def put_off() -> None:
            nonlocal end
            self._has_found()
            if not bound.expired():
                end.cancel()
                end = loop.call_later(job_s, self._has_found)
                bound.reschedule(loop.time() + job_s)

        try:
            with self._transform.noting_waits(put_off):
                yield
        finally:
            end.cancel()

    def _sent_of(self, batch: Batch) -> Sent:
        most = None if self._refusals is None else self._refusals.most(batch)
        return Sent(to=batch.to, events=batch.events, only=batch.only, most=most)

    def _narrow(self, refusals: Refusals, error: OutputRefused) -> bool:
        return refusals.narrow(error, self._under_way(), is_sure=self._transform.yields_events)

    def _named(self, refused: OutputRefused) -> OutputRefused:
        """With the event to blame, if that is known."""
        only = [sent.only for sent in self._under_way()]
        found = refused.sequences[0] if self._transform.yields_events and refused.sequences else None
        sequence = only[0] if len(only) == 1 and only[0] is not None else found
        if sequence is None:
            return refused
        return OutputRefused(
            f"partition '{self._partition}', sequence {sequence}: {refused}", sequences=refused.sequences
        )

    def _under_way(self) -> list[Sent]:
        """What was written and is not delivered, or was being written."""
        writing = [] if self._writing is None else [self._writing]
        return [ready.sent for ready in (*self._in_flight.held, *writing)]

    def _dead_letter_transform_of(
        self, transform: Transform, letters: DeadLetters | None, writer: SinkWriter
    ) -> DeadLetterTransform:
        buried = () if letters is None else writer.buried
        assert buried is not None, f"the sink of partition '{self._partition}' keeps no dead letters"
        return DeadLetterTransform(
            transform, letters, self._partition, buried, moved=self._has_found, refusals=self._refusals
        )

    def _has_found(self) -> None:
        """A search for poison may take long, and counts as progress while it finds some. So do a wait for executors and the end
        of a job's time."""
        self._progress.advance("transform", self._clock.monotonic())

    async def _deliver(self, stopping: asyncio.Event) -> PartitionEnded | None:
        stop = asyncio.create_task(stopping.wait(), name=f"stop {self._partition}")
        try:
            while await self._deliver_next(stop):
                pass
            await self._in_flight.flush(stop)
            return None
        except PartitionEnded as ended:
            return ended
        finally:
            await _end_all(stop)

    async def _deliver_next(self, stop: asyncio.Task[bool]) -> bool:
        """The next batch; False once stopping. Raises what came instead of a batch, behind everything before it."""
        item = await self._next(stop)
        if isinstance(item, PipelineError):
            if not await self._in_flight.flush(stop):
                return False
            raise item
        return item is not None and await self._write(item, stop)

    async def _next(self, stop: asyncio.Task[bool]) -> _Ready | PipelineError | None:
        """The next batch to deliver; None once stopping. Deliveries of the writer are reported meanwhile."""
        while not stop.done():
            if not self._ready.empty():
                return self._ready.get_nowait()
            if self._buffer.is_empty and not self._waits_for_turn:
                self._progress.rest(self._clock.monotonic())
            get = asyncio.create_task(self._ready.get(), name=f"next {self._partition}")
            moved = self._moved()
            try:
                await asyncio.wait({get, stop, *moved}, return_when=asyncio.FIRST_COMPLETED)
                for task in moved:
                    if task.done():
                        task.result()
                        await self._in_flight.report()
                if get.done() and not stop.done():
                    return get.result()
            finally:
                self._progress.resume()
                await _end_all(get, *moved)
        return None

    def _moved(self) -> set[asyncio.Task[None]]:
        """Undelivered batches to wait for."""
        if self._in_flight.is_empty:
            return set()
        return {asyncio.create_task(self._in_flight.wait_for_progress(), name=f"moved {self._partition}")}

    async def _write(self, ready: _Ready, stop: asyncio.Task[bool]) -> bool:
        """Whether the batch was written; False if we were told to stop while it could not be sent."""
        if self._tracer is not None:
            trace = self._tracer.begin_delivery(ready.output.to, self._writer.place)
            ready = replace(ready, output=replace(ready.output, trace=trace))
        while await self._wait_for_grant(stop):
            started = self._clock.monotonic()
            try:
                with self._progress.working("deliver", started):
                    crash_point("before write")
                    self._writing = ready
                    write = self._writer.write(ready.output, self._permit)
                    if not await self._in_flight.carry_out(write, stop):
                        return False
                    self._writing = None
                    crash_point("after write")
            except NotTrusted:
                continue  # nothing was sent; the same bytes go out when trust is back
            except NotStaged as error:
                raise self._refused(ready, error) from error
            except (SinkUnavailable, Ambiguous) as error:
                if ready.ranged is not None and self._plan is not None and self._plan.fail(ready.ranged):
                    raise _given_up(error) from error
                raise
            self._in_flight.add(ready.output.to, started, ready)
            await self._in_flight.report()
            if ready.sent.most is not None:  # of what is refused then, it is known whose it is
                return await self._in_flight.flush(stop)
            return True
        return False

    def _refused(self, ready: _Ready, error: NotStaged) -> RangeRefused:
        """The sink has taken nothing of what executors staged."""
        assert self._plan is not None, "executors read what was planned"
        assert ready.ranged is not None, "executors have staged it"
        self._plan.shrink(ready.ranged)
        return RangeRefused(str(error))

    async def _settle(self, ready: _Ready, took_s: float) -> None:
        self._progress.deliver(ready.output.events, ready.output.to)
        if ready.ranged is not None and self._plan is not None:
            self._plan.accept(ready.ranged, ready.transform_s + took_s)
        if ready.ranged is None:
            self._share.free(ready.bytes)
        else:
            self._share.free_returned(ready.bytes)
        output = ready.output
        for watcher in self._tap.watchers:
            watcher.see_output(output)
        batch = DeliveredBatch(
            start=output.start,
            to=output.to,
            events=output.events,
            rows=output.rows,
            dead_letters=(0 if output.dead is None else output.dead.num_rows) + self._count_parked(),
            waited_s=ready.waited_s,
            transform_s=ready.transform_s,
            queued_s=max(0.0, self._clock.monotonic() - took_s - ready.since),
            deliver_s=took_s,
        )
        await self._delivered(batch)

    def _count_parked(self) -> int:
        """Since the last batch."""
        before, self._parked = self._parked, self._writer.parked
        return self._parked - before

    async def _wait_for_grant(self, stop: asyncio.Task[bool]) -> bool:
        """Wait for leave to send; False if we were told to stop first."""
        try:
            self._permit.check()
            return True
        except NotTrusted:
            granted = asyncio.create_task(self._permit.wait_until_granted(), name=f"permit {self._partition}")
        try:
            await asyncio.wait({granted, stop}, return_when=asyncio.FIRST_COMPLETED)
            if granted.done():
                granted.result()
            return granted.done()
        finally:
            await _end_all(granted)


def _given_up(error: PipelineError) -> RangeRefused:
    return RangeRefused(f"a batch of theirs failed {FAILURES_MAX} times, the last time because: {error}")


async def _end_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what is not done, and wait for its end: nothing is left behind."""
    for task in tasks:
        task.cancel()
    if left := [task for task in tasks if not task.done()]:
        await asyncio.wait(left)


def _unexpected(doing: str, partition: str, error: BaseException) -> PipelineError:
    """An unexpected error: a fault of a connector or of this package. It stops the partition, not the host."""
    wrapped = PipelineError(f"{doing} partition '{partition}' failed unexpectedly: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
