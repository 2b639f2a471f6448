"""One owned lease: its runner, and the tasks that watch the lease meanwhile. Failures end here.

claim: raise the sink's fence, read its position, write it into the lease
  |
  v
run: read, transform, deliver --- checkpoints, lazily
  |
  +-- stop, or a requested handoff: finish or drop the batch in hand, checkpoint, release
  +-- lost: deliver nothing more, close
  +-- transient error, ambiguous write: back off, raise the epoch, claim again
  +-- the sink refuses some event's output, and there are dead letters: claim again, and look for that event
  +-- executors fail on a batch that they read: claim again, and read its events here
  +-- anything else: release, and let the host wait before it takes the lease again
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from leasehold.common.clock import Backoff, retry_after_s
from leasehold.leases.errors import OwnershipLost, StoreError
from leasehold.leases.lease import Child, Lease, LeaseKey
from leasehold.leases.tenure import WINNING, OwnedLease, keep_won
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.dead_letters.refusals import ATTEMPTS, Refusals
from leasehold.pipeline.errors import (
    Ambiguous,
    EngineUnavailable,
    FeedUnavailable,
    Fenced,
    NotTrusted,
    OutputSuspected,
    PipelineError,
    RangeRefused,
    SinkUnavailable,
)
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.imports import derived
from leasehold.pipeline.limits import Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, FailingEvents, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.pump.tap import Tap
from leasehold.pipeline.ranges import RangePlan
from leasehold.pipeline.sink import Claim, ClaimReports, CloseReason, SinkWriter
from leasehold.service.checkpoints import Checkpoints
from leasehold.service.errors import BatchHung
from leasehold.service.failures import Failures, Streak
from leasehold.service.outside_checkpoints import CheckpointWriter
from leasehold.service.permit import TrustPermit
from leasehold.service.pipeline import PipelineParts
from leasehold.service.runtime import Runtime
from leasehold.service.shutdown import CLOSING_TIMEOUT_S, retry_until_answered, run_uninterrupted, run_within
from leasehold.service.stopping import run_unless_stopped, sleep_unless_stopped

TRANSIENT = (FeedUnavailable, SinkUnavailable, EngineUnavailable, Ambiguous)
BACKOFF = Backoff(first_s=0.1, max_s=30.0)
OPENING = "opening the sink"
CONTINUATION_LOGGED = 60
"""How many characters are logged. Continuations of files are long; `leasehold leases show` prints them whole."""


@dataclass(frozen=True, slots=True)
class WorkerResult:
    """How a worker ended. error: the message for people after a failure."""

    reason: CloseReason
    error: Exception | None = None


class Worker:
    """Works on one lease until it is told to stop, loses it, or fails."""

    def __init__(
        self,
        owned: OwnedLease,
        pipeline: PipelineParts,
        *,
        runtime: Runtime,
        budget: Budget,
        failures: Failures,
        checkpoint_writer: CheckpointWriter | None = None,
        delivered: Callable[[LeaseKey], None] = lambda key: None,
    ) -> None:
        """delivered: called after each batch whose position is kept."""
        self.owned = owned
        self.pipeline = pipeline
        self.progress = Progress()
        self.tap = Tap()
        self._clock, self._timing, self._rng = runtime.clock, runtime.timing, runtime.rng
        self._log, self._stats = runtime.log.bind(**about(owned.lease)), runtime.stats
        self._budget = budget
        self._failures = failures
        self._checkpoint_writer = checkpoint_writer
        self._delivered = delivered
        self._renewal_streak, self._checkpoint_streak = Streak(self._clock), Streak(self._clock)
        self._stopping, self._retry = asyncio.Event(), asyncio.Event()
        self._attempt_over = asyncio.Event()
        self._broken: Exception | None = None
        self._permit = TrustPermit(owned, self._clock, self._suspended, self._restored)
        letters, compare = pipeline.letters, pipeline.feed.compare
        self._refusals = Refusals(ATTEMPTS if letters is None else letters.attempts, compare)
        self._plan = None if pipeline.ranges is None else RangePlan(compare, pipeline.ranges)
        self._has_noted_executors = False
        self._writer: SinkWriter | None = None
        self._checkpoints = Checkpoints(
            owned,
            pipeline,
            self.progress,
            clock=self._clock,
            stats=self._stats,
            failed=self._checkpoint_failed,
            kept=self._checkpoint_kept,
        )

    @property
    def partition(self) -> str:
        return self.owned.lease.partition

    def stop(self) -> None:
        """Finish or drop the batch in hand, checkpoint, release."""
        self._stopping.set()
        self._retry.set()
        self._attempt_over.set()

    def retry_now(self) -> None:
        """End the pause after a failure, or leave out the next one if an attempt is under way. Not if the error named a time."""
        self._retry.set()

    async def run(self) -> WorkerResult:
        """Work until stopped. Never raises, except for a cancellation: even then the lease is released, if that is quick."""
        self._log.info("lease acquired", continuation=_shortened(self.owned.lease.continuation))
        outcome = WorkerResult("shutdown")
        try:
            outcome = await self._supervise()
        finally:
            self.tap.close()
            await run_uninterrupted(self._close(outcome))
            self.owned.leave()
        return outcome

    async def _supervise(self) -> WorkerResult:
        work = asyncio.create_task(self._work(), name=f"work {self.partition}")
        beside = [
            asyncio.create_task(task, name=f"{name} {self.partition}")
            for name, task in (
                ("win", self._win()),
                ("watch", self._watch()),
                ("checkpoint", self._checkpoints.keep_lazily()),
                ("notice", self._notice()),
                ("follow", self._follow()),
            )
        ]
        tasks = (work, *beside)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return next(_outcome(task) for task in tasks if task.done())
        finally:
            for task in tasks:
                task.cancel()
            ended, stuck = await asyncio.wait(tasks, timeout=CLOSING_TIMEOUT_S)
            for task in ended:
                _ = task.cancelled() or task.exception()  # the first one's error is reported
            if stuck:
                self._log.error("cancelled work does not end; it continues without a lease, and may send nothing")

    async def _work(self) -> CloseReason:
        """Claim and run, again and again while errors are transient."""
        failures = 0
        fence: Exception | None = None
        while await self._may_send():
            delivered = self.progress.batches
            self._attempt_over, self._broken = asyncio.Event(), None
            try:
                await self._abandon()
                if fence is not None:
                    await self._raise_epoch(fence)
                    fence = None
                writer = await self._claim()
                runner = self._runner(writer)
                self._note_executors(runner)
                ended = await runner.run(self._attempt_over)
                if ended is not None:
                    return await self._end(writer, ended)
                if self._broken is not None:
                    raise self._broken
            except OutputSuspected as error:
                fence = error
                self._log.warning("output refused", error=str(error))
            except RangeRefused as error:
                fence = error
                self._log.warning("executors refused", error=str(error), then="this host reads these events")
            except (*TRANSIENT, Fenced, StoreError) as error:
                fence = fence if isinstance(error, StoreError) else error
                failures = 1 if self.progress.batches > delivered else failures + 1
                if failures > 1 or not isinstance(error, Fenced):
                    await self._back_off(error, failures)
        return "shutdown"

    def _note_executors(self, runner: Runner) -> None:
        """Log once why executors never read this partition."""
        if runner.why_host_reads is not None and not self._has_noted_executors:
            self._has_noted_executors = True
            self._log.warning("executors refused", error=runner.why_host_reads, then="this host reads all events")

    async def _may_send(self) -> bool:
        """Wait for permission to send. Returns False once a stop is requested."""
        if self.owned.is_trusted:
            return not self._stopping.is_set()
        return await run_unless_stopped(self._stopping, self._permit.wait_until_granted())

    @property
    def _position(self) -> str | None:
        """The position to continue from: after the delivered output."""
        return self.owned.lease.continuation if self._writer is None else self._writer.position

    async def _claim(self) -> SinkWriter:
        """Fence the sink before reading its position (R1), and write the position into the lease before anything is sent."""
        lease = self.owned.lease
        claim = Claim(
            pipeline=lease.pipeline,
            partition=lease.partition,
            owner=str(lease.owner),
            epoch=lease.epoch,
            generation=lease.generation,
            continuation=lease.continuation,
            state=lease.sink_state,
            compare=self.pipeline.feed.compare,
            reports=ClaimReports(
                progress=lambda: self.progress.advance(OPENING, self._clock.monotonic()),
                wait=lambda seconds: self.progress.excuse_sink(self._clock.monotonic() + seconds),
            ),
        )
        self.progress.excuse_sink(self._clock.monotonic(), is_new=True)
        with self.progress.working(OPENING, self._clock.monotonic()):
            writer = self._writer = derived(await self.pipeline.sink.open(claim), SinkWriter)
        crash_point("sink claimed")
        if (writer.position, writer.state) != (lease.continuation, lease.sink_state):
            await self.owned.checkpoint(writer.position, writer.state)
        crash_point("position written")
        self._note_position()
        return writer

    async def _abandon(self) -> None:
        """Close the writer of a failed attempt, if any, and keep what it made safe.

        Now, because a checkpoint of its state after the next claim would undo that claim.
        """
        await self._close_writer("failed")
        await self._checkpoints.keep()

    async def _raise_epoch(self, why: Exception) -> None:
        """This worker's earlier request may still be on its way, or the sink knows a higher epoch: outrank both.

        The compare-and-swap itself reads the lease again. If this host no longer owns it, OwnershipLost ends this worker.
        """
        above, known = (why.epoch, why.state) if isinstance(why, Fenced) else (0, None)
        await self.owned.raise_epoch(above, lambda kept: self.pipeline.claimed(kept if known is None else known))
        self._log = self._log.bind(**about(self.owned.lease))

    def _runner(self, writer: SinkWriter) -> Runner:
        return Runner(
            source=Source(self.pipeline.feed, self.partition, self.owned.lease.epoch),
            transform=self.pipeline.transform,
            writer=writer,
            permit=self._permit,
            read_ahead=ReadAhead(
                limits=self.pipeline.limits,
                bytes_max=self.pipeline.buffer_bytes_max,
                budget=self._budget,
                plan=self._plan,
            ),
            clock=self._clock,
            reporting=Reporting(
                progress=self.progress,
                tap=self.tap,
                tracer=self._stats.tracer(self.owned.lease, self.pipeline.feed.endpoint, self.pipeline.sink.endpoint),
            ),
            delivered=self._record_delivery,
            failing=FailingEvents(letters=self.pipeline.letters, refusals=self._refusals),
        )

    async def _record_delivery(self, batch: DeliveredBatch) -> None:
        """Record a delivered batch. If the sink holds no position and a checkpoint is due, recovery waits for it (R4)."""
        assert self._writer is not None, "a batch was delivered without a writer"
        self._stats.record_batch(self.owned.lease, batch)
        self._stats.record_event_ages(self.owned.lease, self.progress.delivered)
        if batch.dead_letters:
            trace = self._stats.trace_fields(self.owned.lease)
            self._log.warning("dead letters", count=batch.dead_letters, see="leasehold dead-letters list", **trace)
        if await self._keep_position():
            self._delivered(self.owned.lease.key)
            self._failures.record_recovery(self.owned.lease.key)

    async def _keep_position(self) -> bool:
        """Write a checkpoint that is due if the sink holds no position. Returns False if a stop leaves the delivered output
        without one: such a sink promises only at least once."""
        assert self._writer is not None, "a batch was delivered without a writer"
        attempt = 0
        if self._checkpoints.has_moved(self._writer.position, self._writer.state):
            while not self.pipeline.sink.holds_position and self._checkpoints.is_due:
                try:
                    await self._checkpoints.keep()
                except StoreError as error:
                    attempt += 1
                    if self._stopping.is_set():
                        return False
                    await self._back_off(error, attempt)
        return True

    async def _end(self, writer: SinkWriter, ended: PartitionEnded) -> CloseReason:
        """The partition was split or merged: close the sink's position, then the lease. Then the children may start (I7)."""
        while await self._may_send():
            try:
                with self.progress.working("ending the sink's partition", self._clock.monotonic()):
                    await writer.end(self._permit)
            except NotTrusted:
                continue
            children = tuple(Child(name, at, ended.scopes.get(name)) for name, at in ended.children)
            await self.owned.end(writer.position, children)
            self._log.info("partition ended", children=[child.partition for child in children])
            return "gone"
        return "shutdown"

    async def _win(self) -> CloseReason:
        await keep_won(
            self.owned,
            clock=self._clock,
            rng=self._rng,
            failed=self._renewal_failed,
            tried=self._renewal_tried,
        )
        raise AssertionError("this ends only by an error")

    def _renewal_tried(self, took_s: float, error: StoreError | None) -> None:
        self._stats.record_renewal(self.owned.lease, took_s, error)
        if error is None:
            self._renewal_streak.log_end(self._log, "renewal recovered")

    def _renewal_failed(self, error: StoreError, attempt: int) -> None:
        if self._renewal_streak.count_failure():
            self._log.warning("renewal failed", attempt=attempt, error=str(error))

    def _checkpoint_kept(self) -> None:
        self._checkpoint_streak.log_end(self._log, "checkpoint recovered")
        self._note_position()

    def _note_position(self, *, now: bool = False) -> None:
        """Pass the lease's position on to readers outside."""
        if self._checkpoint_writer is not None:
            self._checkpoint_writer.note(self.owned.lease, now=now)

    def _checkpoint_failed(self, error: StoreError) -> float:
        streak = self._checkpoint_streak
        streak.log_failure(self._log, "checkpoint failed", str(error))
        return self._timing.backoff.pause_s(streak.count, self._rng.random(), retry_after_s(error))

    async def _watch(self) -> CloseReason:
        """End a worker that makes no progress: holding a lease is not a substitute for working.

        Sleep until the oldest stage would be overdue, or, without a batch, for a whole timeout: nothing can be overdue earlier.
        No sleep is longer than the timeout, because other stages may begin while the sink is excused.
        """
        timeout = self.pipeline.batch_timeout_s
        while True:
            now = self._clock.monotonic()
            stage, since = self.progress.slowest or ("", now)
            left = since + timeout - now
            if left <= 0:
                raise BatchHung(
                    f"pipeline '{self.pipeline.name}', partition '{self.partition}': {stage} made no progress for"
                    f" {timeout:g} s; its batch was cancelled and the lease released. Look at what it waits for, or raise"
                    " batch_timeout_s"
                )
            await self._clock.sleep(min(left, timeout))

    async def _follow(self) -> CloseReason:
        """While nothing is delivered, let the sink's state in the lease follow what others write to the destination."""
        while True:
            await self._clock.sleep(self._timing.balance_s)
            writer = self._writer
            if writer is None or not self.progress.is_idle:
                continue
            before = writer.state
            try:
                await writer.follow()
            except (*TRANSIENT, Fenced) as error:
                if writer is self._writer:
                    self._broken = error
                    self._attempt_over.set()
                continue
            if writer is self._writer and writer.state != before:
                self._checkpoints.has_moved(writer.position, writer.state)

    async def _notice(self) -> CloseReason:
        """Stop when another host requests the lease. Raises OwnershipLost if a scan has shown that the lease is lost."""
        while True:
            self.owned.changed.clear()
            if self.owned.is_lost:
                await self.owned.renew()  # raises how the lease was lost
            if self.owned.is_doubted:
                await self._settle_doubt()
            if self._is_wanted:
                self._log.info("handoff request received", to=self.owned.lease.handoff_to)
                self._stats.record_handoff_request(self.owned.lease)
                self.stop()
            await self.owned.changed.wait()

    async def _settle_doubt(self) -> None:
        """Write the lease, to find out whether it is still this owner's. Raises OwnershipLost."""
        attempt = 0
        while self.owned.is_doubted:
            try:
                await self.owned.renew()
            except StoreError as error:
                attempt += 1
                pause_s = WINNING.pause_s(attempt, self._rng.random(), retry_after_s(error))
                await self._clock.sleep(pause_s)

    @property
    def _is_wanted(self) -> bool:
        """Whether another host requests the lease."""
        return self.owned.lease.handoff_to not in (None, self.owned.lease.owner)

    def _suspended(self, is_first: bool) -> None:
        self._stats.record_suspension(self.owned.lease, is_first=is_first)
        self._log.warning("suspended", why="no heartbeat arrived in time; nothing is sent until the lease is won again")

    def _restored(self) -> None:
        self._stats.record_restoration(self.owned.lease)
        self._log.info("suspension ended", why="the lease is won again")

    async def _back_off(self, error: Exception, failures: int) -> None:
        pause = min(BACKOFF.pause_s(failures, self._rng.random(), retry_after_s(error)), BACKOFF.max_s)
        position = self._position
        self._stats.record_work_failure(self.owned.lease, position, error)
        self._failures.record_retry(self.owned.lease.key, error, pause, self.owned.lease.continuation)
        log = self._log.bind(position=_shortened(position), **self._stats.trace_fields(self.owned.lease))
        log.warning("partition failed, retrying", error=str(error), in_s=round(pause, 2), attempt=failures)
        self.progress.resume()
        await sleep_unless_stopped(self._stopping if retry_after_s(error) else self._retry, pause)
        if not self._stopping.is_set():
            self._retry.clear()  # only now: an attempt that was under way when it was set may have begun too early

    async def _close(self, outcome: WorkerResult) -> None:
        """Write the last checkpoint and release the lease, each within its time. If that fails, another host requests or takes
        it."""
        await self._close_writer(outcome.reason)
        if outcome.reason in ("shutdown", "failed") and not self.owned.is_lost:
            await run_within(
                "checkpoint", retry_until_answered(self._checkpoints.keep, self._clock, self._log), self._log
            )
            crash_point("before release")
            await run_within("release", retry_until_answered(self.owned.release, self._clock, self._log), self._log)
            crash_point("released")
            self._note_position(now=True)
        if self._checkpoint_writer is not None and self.owned.is_lost and self.owned.lease.owner is not None:
            self._checkpoint_writer.drop(self.partition)  # another host has the lease, or an operator changed it
        level = self._log.error if outcome.reason == "failed" else self._log.info
        error = {"error": str(outcome.error)} if outcome.error else {}
        level("lease released", position=_shortened(self._position), **self._ending(outcome.reason), **error)

    def _ending(self, reason: CloseReason) -> dict[str, object]:
        """How a tenure ended, for the log. The writer gets `shutdown` for every release, even one to another host."""
        if reason != "shutdown":
            return {"reason": reason}
        return (
            {"reason": "handed_over", "to": self.owned.lease.handoff_to} if self._is_wanted else {"reason": "released"}
        )

    async def _close_writer(self, reason: CloseReason) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            await run_within("close", writer.close(reason), self._log)


def about(lease: Lease) -> dict[str, object]:
    """The fields of every log line about a lease."""
    return {"pipeline": lease.pipeline, "partition": lease.partition, "epoch": lease.epoch}


def _shortened(continuation: str | None) -> str | None:
    if continuation is None or len(continuation) <= CONTINUATION_LOGGED:
        return continuation
    return continuation[: CONTINUATION_LOGGED - 3] + "..."


def _outcome(task: asyncio.Task[CloseReason]) -> WorkerResult:
    if task.cancelled():
        return WorkerResult("failed", PipelineError(f"'{task.get_name()}' was cancelled by something that it called"))
    error = task.exception()
    if error is None:
        return WorkerResult(task.result())
    if isinstance(error, OwnershipLost):
        return WorkerResult("stolen" if error.taken_by else "lost", error)
    if not isinstance(error, Exception):
        raise error
    return WorkerResult("failed", error)
