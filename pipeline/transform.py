"""A transform: what turns a batch of events into output.

The partition contract: output keeps the column `partition`, with no value that the input did not have, so that a result
never depends on which partitions happen to share a host. If order matters, it keeps `sequence` too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import pyarrow as pa

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.executors_wait import ExecutorsWait
from leasehold.pipeline.limits import RETURNED_BYTES_MAX
from leasehold.pipeline.ranges import RangedBatch, RangeReader, RangeReads
from leasehold.pipeline.staging import Ranged, Stager


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSpec:
    """A pipeline's transform, as its settings define it."""

    name: str
    sql: str | None = None
    """A query over the view `events`."""
    function: str | None = None
    """`module:function`, which turns a DataFrame of events into another. With neither, output is the events themselves."""
    schema: str | None = None
    """DDL of the JSON body's columns, which are added to the event's own."""
    goes_on: bool = False
    """Whether the rest of a batch is processed if some bodies do not fit `schema`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the check of a transform has found.

    - `reads`: the columns of events and bodies that it is given. `columns`: those that it yields.
    - `why_not_shared`: why each batch has a job to itself; None if batches share jobs.
    - `range_reads`: how its jobs read ranges.
    """

    reads: Sequence[str]
    columns: pa.Schema
    why_not_shared: str | None
    range_reads: RangeReads

    @property
    def shares_jobs(self) -> bool:
        return self.why_not_shared is None

    def __str__(self) -> str:
        sharing = "batches share jobs" if self.shares_jobs else f"one job per partition ({self.why_not_shared})"
        return f"yields {', '.join(self.columns.names)}; {sharing}"


class Transform(ABC):
    @property
    @abstractmethod
    def description(self) -> str:
        """For people, once it is prepared: what it yields, and how its batches share jobs."""

    @property
    def waits_for(self) -> str | None:
        """What `prepare` starts, if that takes seconds; for the log, such as `Spark (local[2])`."""
        return None

    @abstractmethod
    async def prepare(self) -> None:
        """Once per process, before any `apply`: start what the transform runs on, and check the transform. Raises TransformError,
        EngineUnavailable."""

    @abstractmethod
    async def apply(self, batch: Batch) -> pa.Table:
        """The batch's output, sorted by `sequence` if it has that column.

        Calls may run side by side. Cancelling one drops its output and stops its work unless other callers share it.
        Raises TransformError, PoisonEvent, EngineUnavailable.
        """

    yields_events: bool = False
    """Whether its output is the events, so that a row's `sequence` is its event's. Other transforms may give that name to a
    column of their own."""

    reads_ranges: bool = False
    """Whether `apply_ranges` is defined: the transform runs on executors, which can read events too."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the output, once the transform is prepared."""
        raise NotImplementedError

    @property
    def range_reads(self) -> RangeReads:
        """How `apply_ranges` reads ranges, once the transform is prepared."""
        return RangeReads()

    async def apply_ranges(
        self, batch: RangedBatch, reader: RangeReader, stager: Stager | None, bytes_max: int = RETURNED_BYTES_MAX
    ) -> Ranged:
        """The output of events that executors read. stager: for large output; without it, all rows are collected.

        bytes_max: of the rows that are collected.
        Cancelling it stops its work. Raises RangeRefused, EngineUnavailable, SinkUnavailable.
        """
        raise NotImplementedError

    @property
    def executors_wait(self) -> ExecutorsWait | None:
        """The present wait of its jobs for executors of a cluster; None if there is none. It does not count as a failure."""
        return None

    def noting_waits(self, note: Callable[[float], object]) -> AbstractContextManager[None]:
        """Within this context, call `note` about once a second while jobs wait for executors, with how many seconds longer they
        have waited: this time does not count."""
        return nullcontext()

    @abstractmethod
    async def close(self) -> None: ...


class NoTransform(Transform):
    """No transform: output is the events themselves, and Spark is not involved."""

    description = "none: events are delivered as they are"
    yields_events = True
    columns = EVENT_SCHEMA

    async def prepare(self) -> None:
        """Nothing to start."""

    async def apply(self, batch: Batch) -> pa.Table:
        return batch.table

    async def close(self) -> None:
        """Nothing to close."""
