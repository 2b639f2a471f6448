"""A job: what a transform is run over, off the event loop, and how it says that it failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pipeline.batch import Batch
from pipeline.errors import PipelineError, Poison
from pipeline.event import EVENT_SCHEMA


class JobFailed(PipelineError):
    """A job failed on these events; whether it is their fault is not known yet. Never leaves this package's insides."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A slice with events that the engine could tell at once: their bodies do not fit the schema.

    poison: by place in the slice, at least one. output: what the others became; None where they were not processed.
    """

    poison: tuple[Poison, ...]
    output: pa.Table | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Some consecutive events of a batch."""

    batch: Batch
    range: range

    @property
    def partition(self) -> str:
        return self.batch.partition

    @property
    def table(self) -> pa.Table:
        """As many chunks as pages; nothing is copied."""
        parts, start, stop = [], self.range.start, self.range.stop
        for page in self.batch.pages:
            rows = page.events.num_rows
            if start < rows and stop > 0:
                parts.append(page.events.slice(max(start, 0), stop - max(start, 0)))
            start, stop = start - rows, stop - rows
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *parts])


class Job(Protocol):
    """Whatever runs a transform over events, off the event loop."""

    async def run(self, slices: Sequence[Slice]) -> list[pa.Table | Refused]:
        """The output of each slice, whose partitions differ. Cancelling it ends the work, before the cancellation goes on.

        Raises JobFailed, TransformError, EngineUnavailable.
        """
        ...
