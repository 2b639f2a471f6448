"""A transform: what turns a batch of events into output.

The partition contract: output keeps the column `partition`, with no value that the input did not have, so that a result
never depends on which partitions happen to share a host. Where order matters it keeps `sequence` too.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from pipeline.batch import Batch


class Transform(Protocol):
    @property
    def description(self) -> str:
        """For people, once it is prepared: what it yields, and how its batches share jobs."""
        ...

    async def prepare(self) -> None:
        """Once per process, before any `apply`: start what it runs on, check what it is. Raises TransformError,
        EngineUnavailable."""
        ...

    async def apply(self, batch: Batch) -> pa.Table:
        """The batch's output, sorted by `sequence` where it has that column.

        Calls may run side by side. Cancelling one drops its output and stops its work where nobody else shares it.
        Raises TransformError, PoisonEvent, EngineUnavailable.
        """
        ...

    async def close(self) -> None: ...


class Identity:
    """No transform: output is the events themselves, and Spark is not involved."""

    description = "none: events are delivered as they are"

    async def prepare(self) -> None:
        """Nothing to start."""

    async def apply(self, batch: Batch) -> pa.Table:
        return batch.table

    async def close(self) -> None:
        """Nothing to let go of."""
