"""Group commit: all waiting batches of one pipeline become one Spark job, whose output is split again.

Each batch is parsed separately as soon as it arrives, also while jobs run, and then waits. So the size of a group is that of
what Spark receives of its batches, which may be much less than their bodies.

Several jobs may run at the same time. A batch whose caller was cancelled is dropped, and its job is cancelled once no caller
wants any of it. If a shared job fails, each of its batches is tried alone, so that one partition's poison never costs another
its output; then the poison itself is isolated (leasehold.pipeline.poison).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from leasehold.common.clock import Clock, LoopClock
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import EngineUnavailable, PipelineError, TransformError
from leasehold.pipeline.limits import FIRST_ONE, Isolation
from leasehold.pipeline.poison import SEQUENCE, Job, JobFailed, Prepared, Refused, Slice, find_culprits, refused_events
from leasehold.pipeline.spark.partition_contract import PARTITION


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchLimits:
    """jobs_max: jobs of one pipeline that run at the same time. group_bytes_max: the most that Spark receives of the batches of
    one job; a larger batch has a job to itself."""

    jobs_max: int = 2
    group_bytes_max: int = 16 * 1024 * 1024


DEFAULT_LIMITS = MicroBatchLimits()


@dataclass(eq=False, slots=True)
class _Waiting:
    """A batch, and its output, for which a caller waits."""

    batch: Batch
    prepared: Prepared
    is_alone: bool = False
    output: asyncio.Future[pa.Table] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, output: pa.Table | Refused) -> None:
        if isinstance(output, Refused):
            self.fail(refused_events(self.batch, output))
        elif not self.output.done():
            self.output.set_result(output)

    def fail(self, error: Exception) -> None:
        if not self.output.done():
            self.output.set_exception(error)


class MicroBatches:
    """One pipeline's jobs. shares_jobs: whether one job may have batches of several partitions
    (leasehold.pipeline.spark.partition_contract)."""

    def __init__(
        self,
        job: Job,
        *,
        shares_jobs: bool,
        limits: MicroBatchLimits = DEFAULT_LIMITS,
        isolation: Isolation = FIRST_ONE,
        clock: Clock | None = None,
    ) -> None:
        """clock: for the pauses between the attempts of an isolation."""
        self._job = job
        self._isolation = isolation
        self._clock = clock or LoopClock()
        self._shares_jobs = shares_jobs
        self._limits = limits
        self._waiting: deque[_Waiting] = deque()
        self._running: dict[asyncio.Task[None], list[_Waiting]] = {}
        self._is_closed = False

    async def apply(self, batch: Batch) -> pa.Table:
        """The batch's output. Raises TransformError, PoisonEvent, EngineUnavailable."""
        if self._is_closed:
            raise EngineUnavailable("the transform is closed")
        waiting = _Waiting(batch, await self._job.prepare(_whole(batch)))
        if self._is_closed:
            raise EngineUnavailable("the transform was closed meanwhile")
        self._waiting.append(waiting)
        # Not at once: batches that become ready in the same turn of the loop share the job.
        asyncio.get_running_loop().call_soon(self._start_jobs)
        try:
            return await waiting.output
        finally:
            if waiting.output.cancelled():
                self._cancel_unwanted()

    async def close(self) -> None:
        """End every job. Waiting callers get EngineUnavailable."""
        self._is_closed = True
        for waiting in [*self._waiting, *(each for group in self._running.values() for each in group)]:
            waiting.fail(EngineUnavailable("the transform was closed meanwhile"))
        self._cancel_unwanted()
        if self._running:
            await asyncio.wait(list(self._running))

    def _start_jobs(self) -> None:
        while len(self._running) < self._limits.jobs_max and (group := self._next_group()):
            partitions = ", ".join(waiting.batch.partition for waiting in group[:3])
            task = asyncio.create_task(self._run(group), name=f"micro-batch of {partitions}")
            self._running[task] = group
            task.add_done_callback(self._ended)

    def _next_group(self) -> list[_Waiting]:
        """Take batches that may share a job off the queue, in order of arrival."""
        self._waiting = deque(waiting for waiting in self._waiting if not waiting.output.done())
        group: list[_Waiting] = []
        left: deque[_Waiting] = deque()
        for waiting in self._waiting:
            (group if not group or self._joins(waiting, group) else left).append(waiting)
        self._waiting = left
        return group

    def _joins(self, waiting: _Waiting, group: Sequence[_Waiting]) -> bool:
        if not self._shares_jobs or waiting.is_alone or group[0].is_alone:
            return False
        size = waiting.prepared.bytes + sum(each.prepared.bytes for each in group)
        # At most one batch of each partition: the outputs of two could not be separated.
        is_new = all(each.batch.partition != waiting.batch.partition for each in group)
        return is_new and size <= self._limits.group_bytes_max

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start_jobs()

    def _cancel_unwanted(self) -> None:
        for task, group in self._running.items():
            if all(waiting.output.done() for waiting in group):
                task.cancel()

    async def _run(self, group: list[_Waiting]) -> None:
        try:
            outputs = await self._job.run([waiting.prepared for waiting in group])
        except (JobFailed, TransformError) as failure:
            if len(group) > 1:
                self._retry_alone(group)
                return
            group[0].fail(await self._find_culprits(group[0].batch, failure))
        except Exception as error:
            for waiting in group:
                waiting.fail(error)
        else:
            for waiting, output in zip(group, outputs, strict=True):
                waiting.settle(output)

    def _retry_alone(self, group: Sequence[_Waiting]) -> None:
        for waiting in reversed(group):
            waiting.is_alone = True
            self._waiting.appendleft(waiting)

    async def _find_culprits(self, batch: Batch, failure: PipelineError) -> Exception:
        """The error of a batch that fails even on its own: its poison events, if there are any."""
        if not isinstance(failure, JobFailed):
            return failure
        try:
            return await find_culprits(batch, failure, self._job, self._isolation, self._clock)
        except Exception as error:
            return error


def _whole(batch: Batch) -> Slice:
    return Slice(batch, range(batch.events))


def split(output: pa.Table, partitions: Sequence[str]) -> list[pa.Table]:
    """Each partition's own rows, sorted by sequence if they have one. Raises TransformError for rows of any other partition."""
    owners = pc.index_in(output.column(PARTITION), value_set=pa.array(partitions, pa.string())).combine_chunks()
    if owners.null_count:
        foreign = pc.unique(output.column(PARTITION).filter(pc.is_null(owners))).to_pylist()
        raise TransformError(
            f"the transform yields rows of partition {', '.join(map(repr, foreign[:3]))}, which is not among its input's"
            f" ({', '.join(map(repr, partitions[:3]))}): keep the column `{PARTITION}` as it is"
        )
    keys = [("owner", "ascending")]
    columns = {"owner": owners}
    if SEQUENCE in output.column_names and pa.types.is_integer(output.schema.field(SEQUENCE).type):
        keys.append((SEQUENCE, "ascending"))
        columns[SEQUENCE] = output.column(SEQUENCE).combine_chunks()
    output = output.take(pc.sort_indices(pa.table(columns), sort_keys=keys))
    counts = {each["values"]: each["counts"] for each in pc.value_counts(owners).to_pylist()}
    parts, start = [], 0
    for owner in range(len(partitions)):
        parts.append(output.slice(start, counts.get(owner, 0)))
        start += counts.get(owner, 0)
    return parts
