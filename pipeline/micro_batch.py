"""Group commit: the batches of one pipeline that wait at this moment become one job, and its output is split again.

Two jobs may be under way at a time, so that the next is prepared while one runs. A batch whose caller was cancelled is
dropped, and its job cancelled once nobody wants any of it. Where a shared job fails, every batch is tried alone, so that
one partition's poison never costs another its output; then the poison itself is isolated (pipeline.poison).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.batch import Batch
from pipeline.errors import PipelineError, PoisonEvent, TransformError
from pipeline.event import EVENT_SCHEMA
from pipeline.plan import PARTITION
from pipeline.poison import isolation

JOBS_MAX = 2
GROUP_BYTES_MAX = 64 * 1024 * 1024
SEQUENCE = "sequence"


class JobFailed(PipelineError):
    """The job failed on these events; whether it is their fault is not known yet."""


class Jobs(Protocol):
    """Whatever runs a transform over a table of events (EVENT_SCHEMA, of one or several partitions)."""

    async def run(self, events: pa.Table) -> pa.Table:
        """Cancelling it ends the job. Raises JobFailed, EngineUnavailable."""
        ...

    async def misfit(self, events: pa.Table) -> tuple[int, str] | None:
        """The first event that does not fit the pipeline's schema: its index and why. Raises JobFailed, EngineUnavailable."""
        ...


@dataclass(eq=False, slots=True)
class _Waiting:
    batch: Batch
    output: asyncio.Future[pa.Table] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class MicroBatches:
    """One pipeline's jobs. shares_jobs: whether batches of several partitions may be in one (pipeline.plan)."""

    def __init__(
        self, jobs: Jobs, *, shares_jobs: bool, jobs_max: int = JOBS_MAX, group_bytes_max: int = GROUP_BYTES_MAX
    ) -> None:
        self._jobs = jobs
        self._shares_jobs = shares_jobs
        self._jobs_max = jobs_max
        self._group_bytes_max = group_bytes_max
        self._waiting: deque[_Waiting] = deque()
        self._running: dict[asyncio.Task[None], list[_Waiting]] = {}

    async def apply(self, batch: Batch) -> pa.Table:
        """The batch's output. Raises TransformError, PoisonEvent, EngineUnavailable."""
        waiting = _Waiting(batch)
        self._waiting.append(waiting)
        self._start_jobs()
        try:
            return await waiting.output
        except asyncio.CancelledError:
            self._drop_unwanted()
            raise

    async def close(self) -> None:
        tasks = list(self._running)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_jobs(self) -> None:
        while self._waiting and len(self._running) < self._jobs_max:
            if group := self._next_group():
                task = asyncio.create_task(self._run(group), name="micro-batch")
                self._running[task] = group
                task.add_done_callback(self._ended)

    def _next_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting:
            waiting = self._waiting[0]
            fits = not group or (self._shares_jobs and size + waiting.batch.bytes <= self._group_bytes_max)
            if not waiting.output.done() and not fits:
                break
            self._waiting.popleft()
            if not waiting.output.done():
                group.append(waiting)
                size += waiting.batch.bytes
        return group

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._start_jobs()

    def _drop_unwanted(self) -> None:
        for task, group in self._running.items():
            if all(waiting.output.done() for waiting in group):
                task.cancel()

    async def _run(self, group: list[_Waiting]) -> None:
        try:
            outputs = await self._together([waiting.batch for waiting in group])
        except JobFailed:
            for waiting in group:
                if not waiting.output.done():
                    await self._alone(waiting)
        except Exception as error:
            for waiting in group:
                _fail(waiting, error)
        else:
            for waiting, output in zip(group, outputs, strict=True):
                if not waiting.output.done():
                    waiting.output.set_result(output)

    async def _together(self, batches: Sequence[Batch]) -> list[pa.Table]:
        output = await self._jobs.run(_events(batches))
        return _split(output, [batch.partition for batch in batches])

    async def _alone(self, waiting: _Waiting) -> None:
        try:
            try:
                (output,) = await self._together([waiting.batch])
            except JobFailed as failure:
                raise await self._blamed(waiting.batch, failure) from failure
            waiting.output.set_result(output)
        except Exception as error:
            _fail(waiting, error)

    async def _blamed(self, batch: Batch, failure: JobFailed) -> PipelineError:
        """What is to blame for a batch that fails even on its own."""
        if await self._fails(EVENT_SCHEMA.empty_table()):
            return TransformError(f"the transform fails whatever the events are: {failure}")
        events = batch.table
        if (misfit := await self._jobs.misfit(events)) is not None:
            index, reason = misfit
            return _poison(events, index, index + 1, reason)
        search = isolation(events.num_rows)
        blamed = next(search)
        while True:
            try:
                blamed = search.send(await self._fails(events.slice(blamed[0], blamed[1] - blamed[0])))
            except StopIteration as found:
                start, stop = found.value
                return _poison(events, start, stop, await self._reason(events.slice(start, stop - start), failure))

    async def _fails(self, events: pa.Table) -> bool:
        try:
            await self._jobs.run(events)
        except JobFailed:
            return True
        return False

    async def _reason(self, events: pa.Table, failure: JobFailed) -> str:
        """What the job says of these events alone; the first failure where it now passes."""
        try:
            await self._jobs.run(events)
        except JobFailed as error:
            return str(error)
        return str(failure)


def _events(batches: Sequence[Batch]) -> pa.Table:
    if len(batches) == 1:
        return batches[0].table
    return pa.concat_tables([batch.table for batch in batches]).combine_chunks()


def _split(output: pa.Table, partitions: Sequence[str]) -> list[pa.Table]:
    """Each partition's own rows, by sequence where there is one."""
    if PARTITION not in output.column_names:
        raise TransformError(f"the transform drops the column '{PARTITION}': keep it, and group by it")
    column = output.column(PARTITION)
    parts = [output.filter(pc.equal(column, partition)) for partition in partitions]
    if sum(part.num_rows for part in parts) != output.num_rows:
        foreign = sorted({str(value) for value in pc.unique(column).to_pylist()} - set(partitions))
        raise TransformError(
            f"the transform yields rows of partition {', '.join(foreign[:3])}, which is not among its input's"
            f" ({', '.join(partitions[:3])}): keep the column '{PARTITION}' as it is"
        )
    return [part.sort_by(SEQUENCE) if SEQUENCE in part.column_names else part for part in parts]


def _poison(events: pa.Table, start: int, stop: int, reason: str) -> PoisonEvent:
    first = events.slice(start, 1).to_pylist()[0]
    source = dict(first["properties"] or ())
    where = f"partition '{first['partition']}', sequence {first['sequence']}"
    if "file" in source and "line" in source:
        where += f" (file '{source['file']}', line {source['line']})"
    which = where if stop - start == 1 else f"{stop - start} events together, from {where}"
    return PoisonEvent(
        f"{which}: {reason}: mend the event or the transform, and processing goes on from there",
        before=start,
        sequence=first["sequence"],
        events=stop - start,
    )


def _fail(waiting: _Waiting, error: Exception) -> None:
    if not waiting.output.done():
        waiting.output.set_exception(error)
