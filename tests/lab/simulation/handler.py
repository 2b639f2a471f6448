"""A handler that writes down what it is told, on a simulation's time."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa
from lab.simulation.group import Group

from leasehold.pipeline.connectors.python import PythonOutputSink
from leasehold.pipeline.handlers.changes import Context
from leasehold.pipeline.limits import BatchLimits
from leasehold.pipeline.sink import CloseReason


class Handler:
    """Writes down what it is told. hangs_in: a method that never returns; error: what `process` raises."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str | None]] = []
        self.hangs_in = ""
        self.takes_s = 0.0
        self.error: Exception | None = None

    async def open(self, context: Context) -> None:
        await self._told("open", context.position)

    async def process(self, context: Context, table: pa.Table) -> None:
        await self._told("process", context.to)
        await asyncio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error

    async def close(self, context: Context, reason: CloseReason) -> None:
        await self._told("close", reason)

    async def _told(self, method: str, what: str | None) -> None:
        self.calls.append((method, what))
        if method == self.hangs_in:
            await asyncio.Event().wait()


def handled(handler: Handler, **settings: Any) -> Group:
    """A group whose sink is that handler, batch by batch."""
    return Group("a", sink=lambda: PythonOutputSink(lambda: handler), limits=BatchLimits(events_max=1), **settings)
