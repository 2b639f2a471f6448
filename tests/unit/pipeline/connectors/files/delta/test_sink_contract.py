"""The sink `files` with `format: delta` holds the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from unit.pipeline.connectors.files.delta.tables import numbers_in, sink_in

from leasehold.pipeline.connectors.files.delta import DeltaSink
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness


class DeltaHarness(SinkHarness):
    partitions = ("a", "b/ü c")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sinks: list[DeltaSink] = []

    async def sink(self) -> DeltaSink:
        self.sinks.append(sink_in(self.path))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        return [Row(number) for number in numbers_in(self.path, partition)]

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()


class TestDeltaSink(SinkContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[SinkHarness]:
        harness = DeltaHarness(tmp_path / "table")
        yield harness
        await harness.close()
