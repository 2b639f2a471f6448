"""A sink with a box of dead letters beside it is a sink like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from unit.pipeline.burials import files_box, log_box

from leasehold.pipeline.connectors.memory import MemoryDestination, MemorySink
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness
from leasehold.pipeline.dead_letters import LetterBox, beside
from leasehold.pipeline.sink import Sink


class Harness(SinkHarness):
    partitions = ("a", "b")

    def __init__(self, path: Path, box_of: Callable[[Path], LetterBox]) -> None:
        self._path = path
        self._box_of = box_of
        self._destination = MemoryDestination()
        self.sinks: list[Sink] = []

    async def sink(self) -> Sink:
        self.sinks.append(beside(MemorySink(self._destination), self._box_of(self._path)))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        return [
            Row(number, commit.output.start, commit.output.to)
            for commit in self._destination.commits
            if commit.claim.partition == partition
            for number in commit.output.table["sequence"].to_pylist()
        ]


class TestBeside(SinkContract):
    @pytest.fixture(params=[log_box, files_box], ids=["log", "files"])
    async def harness(self, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
        harness = Harness(tmp_path, request.param)
        yield harness
        await asyncio.gather(*(sink.close() for sink in harness.sinks), return_exceptions=True)
