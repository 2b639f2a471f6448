"""For hosts of scenarios: files in small pages; slow sinks, whose second batch of a partition waits for a file, the gate."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from leasehold.pipeline.connectors.files.feed import FilesChangeFeed
from leasehold.pipeline.connectors.files.feed.reader import Reading
from leasehold.pipeline.connectors.log import LogOutputSink
from leasehold.pipeline.connectors.postgres import PostgresOutputSink, Tables
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, SinkWriter

LOOK_S = 0.02


class PagedFiles(FilesChangeFeed):
    def __init__(self, page_events_max: int, **settings: Any) -> None:
        super().__init__(reading=Reading(page_events_max=page_events_max), **settings)


class SlowWriter(SinkWriter):
    def __init__(self, writer: SinkWriter, gate: Path) -> None:
        self._writer = writer
        self._gate = gate
        self._is_first = True

    @property
    def position(self) -> str | None:
        return self._writer.position

    @property
    def state(self) -> str:
        return self._writer.state

    async def write(self, output: Output, permit: Permit) -> None:
        while not (self._is_first or self._gate.exists()):  # noqa: ASYNC110  # another process makes it
            await asyncio.sleep(LOOK_S)
        self._is_first = False
        await self._writer.write(output, permit)

    def parts(self, output: Output) -> int:
        return self._writer.parts(output)

    async def end(self, permit: Permit) -> None:
        await self._writer.end(permit)

    async def close(self, reason: CloseReason) -> None:
        await self._writer.close(reason)


class SlowLog(LogOutputSink):
    def __init__(self, gate: str, **settings: Any) -> None:
        super().__init__(**settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)


class SlowPostgres(PostgresOutputSink):
    def __init__(self, gate: str, history: bool, **settings: Any) -> None:
        super().__init__(tables=Tables(history=history), **settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)
