"""The sink `files` holds the contract, in memory and in a real directory, as Parquet and as JSON lines."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from unit.pipeline.connectors.files.sink.places import FilesSinkHarness, MemoryPlace

from leasehold.pipeline.connectors.files.sink import Directory
from leasehold.pipeline.contract import SinkContract, SinkHarness


class TestFilesSinkInMemory(SinkContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[SinkHarness]:
        place = MemoryPlace()
        harness = FilesSinkHarness(lambda: place)
        yield harness
        await harness.close()


class TestFilesSinkInADirectory(SinkContract):
    @pytest.fixture(params=["parquet", "jsonl"])
    async def harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SinkHarness]:
        harness = FilesSinkHarness(lambda: Directory(tmp_path / "out"), request.param)
        yield harness
        await harness.close()
