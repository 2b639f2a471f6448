"""The sink over tables keeps what every sink must hold, fencing included."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from plugins.tables import TableSink

from leasehold import Claim, Sink, SinkRejected
from leasehold.testing import Row, SinkContract, SinkHarness


class Harness(SinkHarness):
    partitions = ("0", "1")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sinks: list[TableSink] = []

    async def sink(self) -> Sink:
        self.sinks.append(TableSink(str(self.path)))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        query = "SELECT body FROM events WHERE partition = ? ORDER BY number"
        found = sqlite3.connect(self.path).execute(query, (partition,)).fetchall()
        return [Row(int(json.loads(body)["number"])) for (body,) in found]


class TestTableSink(SinkContract):
    @pytest_asyncio.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[Harness]:
        harness = Harness(tmp_path / "output.db")
        yield harness
        for sink in harness.sinks:
            await sink.close()


async def test_a_position_that_is_gone_stops_the_lease_until_it_is_reset(tmp_path: Path) -> None:
    def claim(generation: int) -> Claim:
        own = {"pipeline": "orders", "partition": "0", "owner": "host-a", "epoch": 2, "continuation": "3"}
        return Claim(**own, generation=generation, state="known:0", compare=lambda a, b: 0)  # type: ignore[arg-type]

    sink = TableSink(str(tmp_path / "output.db"))
    with pytest.raises(SinkRejected, match="no longer has the position of '0'"):
        await sink.open(claim(0))
    assert (await sink.open(claim(1))).position == "3"
    await sink.close()
