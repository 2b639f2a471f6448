"""The sink `files` holds the contract, in memory and in a real directory, as Parquet and as JSON lines."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from unit.pipeline.connectors.files.sink.places import MemoryPlace

from leasehold.pipeline.connectors.files.sink import Directory, FilesSink, snapshot_of
from leasehold.pipeline.connectors.files.sink.formats import Format
from leasehold.pipeline.connectors.files.sink.storage import Storage
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness


class FilesSinkHarness(SinkHarness):
    """Readers have a place of their own, as other programs would."""

    partitions = ("a", "b/ü c")

    def __init__(self, place: Callable[[], Storage], format: Format = "parquet") -> None:
        self.place = place
        self.format: Format = format
        self.sinks: list[FilesSink] = []

    async def sink(self) -> FilesSink:
        self.sinks.append(FilesSink(self.place(), format=self.format))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        snapshot = snapshot_of(self.place(), pipeline="suite", partition=partition)
        files = zip(snapshot.files, snapshot.tables(), strict=True)
        return [
            Row(number_in(body), file.start, file.to) for file, table in files for body in table["body"].to_pylist()
        ]

    async def close(self) -> None:
        for sink in self.sinks:
            await sink.close()


def number_in(body: Any) -> int:
    return int(json.loads(body if isinstance(body, bytes) else base64.b64decode(body))["number"])


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
