"""The third stage: writes ready output to the sink, in order, with at most one batch unsettled (R2 of docs/protocol.md).

Buffering writers are the exception: they have several batches under way, and their position follows later.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any

from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.refusals import Sent
from leasehold.pipeline.errors import Ambiguous, NotTrusted, PipelineError, SinkUnavailable
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.pump.progress import DELIVER, SETTLE
from leasehold.pipeline.pump.range_jobs import RangeJobs
from leasehold.pipeline.pump.run_parts import DeliveredBatch, RunParts
from leasehold.pipeline.pump.transforming import Ready, TransformStage
from leasehold.pipeline.sink import Permit
from leasehold.pipeline.staging import NotStaged

STOP_S_MAX = 10.0
"""How long a stop waits for a destination. Batches that are left then are repeated by the next owner."""
LOOK_S = 1.0
"""How often to check what is delivered while a write waits for room."""


class DeliverStage:
    """transforming: the stage before, whose batches are delivered. delivered: awaited after each, before the next is sent."""

    def __init__(
        self,
        parts: RunParts,
        jobs: RangeJobs | None,
        *,
        transforming: TransformStage,
        permit: Permit,
        delivered: Callable[[DeliveredBatch], Awaitable[None]],
    ) -> None:
        self._jobs = jobs
        self._transforming = transforming
        self._permit = permit
        self._delivered = delivered
        self._partition, self._writer = parts.source.partition, parts.writer
        self._share, self._clock = parts.share, parts.clock
        reporting = parts.reporting
        self._progress, self._tap, self._tracer = reporting.progress, reporting.tap, reporting.tracer
        self._writing: Ready | None = None
        self._parked = self._writer.parked
        self._in_flight = InFlight(parts, self._settle)

    @property
    def under_way(self) -> list[Sent]:
        """What was written and is not delivered, or was being written."""
        held = [*self._in_flight.held, *([] if self._writing is None else [self._writing])]
        return [Sent(to=each.output.to, events=each.output.events, only=each.only, most=each.most) for each in held]

    async def run(self, stopping: asyncio.Event) -> PartitionEnded | None:
        """As `Runner.run`."""
        stop = asyncio.create_task(stopping.wait(), name=f"stop {self._partition}")
        try:
            while await self._deliver_next(stop):
                pass
            await self._in_flight.flush(stop)
            return None
        except PartitionEnded as ended:
            return ended
        finally:
            await end_all(stop)

    async def _deliver_next(self, stop: asyncio.Task[bool]) -> bool:
        """Deliver the next batch; False once stopping. Raises what came instead of a batch, after all before it is delivered."""
        item = await self._next(stop)
        if isinstance(item, PipelineError):
            if not await self._in_flight.flush(stop):
                return False
            raise item
        return item is not None and await self._write(item, stop)

    async def _next(self, stop: asyncio.Task[bool]) -> Ready | PipelineError | None:
        """The next batch to deliver; None once stopping. Deliveries of the writer are reported meanwhile."""
        queue = self._transforming.ready
        while not stop.done():
            if not queue.empty():
                return queue.get_nowait()
            if self._transforming.is_out_of_events:
                self._progress.rest(self._clock.monotonic())
            get = asyncio.create_task(queue.get(), name=f"next {self._partition}")
            moved = set[asyncio.Task[None]]()
            if self._in_flight.held:
                moved.add(asyncio.create_task(self._writer.wait_for_progress(), name=f"moved {self._partition}"))
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
                await end_all(get, *moved)
        return None

    async def _write(self, ready: Ready, stop: asyncio.Task[bool]) -> bool:
        """Write the batch. Returns whether it was written: False if we were told to stop while it could not be sent."""
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
            except (NotStaged, SinkUnavailable, Ambiguous) as error:
                if ready.ranged is not None and self._jobs is not None:
                    self._jobs.fail(ready.ranged, error)
                raise
            self._in_flight.add(ready, started)
            await self._in_flight.report()
            if ready.most is not None:  # one batch at a time, so that a refusal is surely of this one
                return await self._in_flight.flush(stop)
            return True
        return False

    async def _wait_for_grant(self, stop: asyncio.Task[bool]) -> bool:
        """Wait for permission to send; False if we were told to stop first."""
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
            await end_all(granted)

    async def _settle(self, ready: Ready, took_s: float) -> None:
        self._progress.deliver(ready.output.events, ready.output.to)
        if ready.ranged is not None and self._jobs is not None:
            self._jobs.plan.accept(ready.ranged, ready.transform_s + took_s)
            self._share.free_returned(ready.bytes)
        else:
            self._share.free(ready.bytes)
        output = ready.output
        for watcher in self._tap.watchers:
            watcher.see_output(output)
        parked, self._parked = self._writer.parked - self._parked, self._writer.parked
        batch = DeliveredBatch(
            start=output.start,
            to=output.to,
            events=output.events,
            rows=output.rows,
            dead_letters=(0 if output.dead is None else output.dead.num_rows) + parked,
            waited_s=ready.waited_s,
            transform_s=ready.transform_s,
            queued_s=max(0.0, self._clock.monotonic() - took_s - ready.since),
            deliver_s=took_s,
        )
        await self._delivered(batch)

    def close(self) -> None:
        """Forget what is not delivered."""
        self._in_flight.close()


class InFlight:
    """What the writer has not delivered yet. Most writers deliver within `write`; then a batch is settled right after it.

    settle: awaited for each batch once it is delivered, in their order, with the seconds since its write began.
    """

    def __init__(self, parts: RunParts, settle: Callable[[Ready, float], Awaitable[None]]) -> None:
        self._writer, self._clock, self._progress = parts.writer, parts.clock, parts.reporting.progress
        self._settle = settle
        self._held: deque[tuple[Ready, float]] = deque()
        self._acknowledged = 0
        self._gives_up_at: float | None = None
        """Set when we are told to stop, for all steps that follow."""

    @property
    def held(self) -> list[Ready]:
        """What is written and not delivered yet, in its order."""
        return [ready for ready, _ in self._held]

    def add(self, ready: Ready, began: float) -> None:
        """It was written."""
        self._held.append((ready, began))
        self._progress.begin(SETTLE, self._clock.monotonic())

    async def report(self) -> None:
        """Report every batch that is delivered by now."""
        if self._writer.acknowledged != self._acknowledged:
            self._acknowledged = self._writer.acknowledged
            for stage in (DELIVER, SETTLE):
                self._progress.advance(stage, self._clock.monotonic())
        for _ in range(self._count()):
            ready, began = self._held.popleft()
            self._idle()
            await self._settle(ready, self._clock.monotonic() - began)

    async def flush(self, stop: asyncio.Task[bool]) -> bool:
        """Flush the writer. Returns whether all is delivered: after a stop, this waits a little longer, and then gives up."""
        return await self.carry_out(self._writer.flush(), stop)

    async def carry_out(self, step: Coroutine[Any, Any, None], stop: asyncio.Task[bool]) -> bool:
        """Carry out a write or flush, and report what is delivered meanwhile. False if it did not end soon after a stop."""
        if not self._writer.is_buffering:
            await step
            return True
        task = asyncio.create_task(step, name="write or flush")
        try:
            return await self._wait_until_done(task, stop)
        finally:
            task.cancel()
            await asyncio.wait({task})
            _ = task.cancelled() or task.exception()  # if it matters, it was raised above

    def close(self) -> None:
        """Forget all batches."""
        self._held.clear()
        self._idle()

    async def _wait_until_done(self, task: asyncio.Task[None], stop: asyncio.Task[bool]) -> bool:
        while True:
            now = self._clock.monotonic()
            if stop.done() and self._gives_up_at is None:
                self._gives_up_at = now + STOP_S_MAX
            left = None if self._gives_up_at is None else max(0.0, self._gives_up_at - now)
            waiting = {task} if stop.done() else {task, stop}
            timeout = LOOK_S if left is None else min(LOOK_S, left)
            await asyncio.wait(waiting, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            await self.report()
            if task.done():
                task.result()
                return True
            if left is not None and left <= LOOK_S:
                return False

    def _count(self) -> int:
        """How many of those held end at or before the writer's position."""
        position = self._writer.position
        return max((n for n, (ready, _) in enumerate(self._held, 1) if ready.output.to == position), default=0)

    def _idle(self) -> None:
        if not self._held:
            self._progress.end(SETTLE)


async def end_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel what is not done, and wait for its end: nothing is left behind."""
    for task in tasks:
        task.cancel()
    if left := [task for task in tasks if not task.done()]:
        await asyncio.wait(left)
