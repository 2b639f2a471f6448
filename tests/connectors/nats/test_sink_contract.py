"""The sink `nats` keeps what every sink must hold, fencing included, on a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest_asyncio
from connectors.nats.streams import Made

from leasehold import Sink
from leasehold.testing import Row, SinkContract, SinkHarness


class Harness(SinkHarness):
    partitions = ("0", "1")

    def __init__(self, made: Made) -> None:
        self.made = made
        self.sinks: list[Sink] = []

    async def sink(self) -> Sink:
        self.sinks.append(self.made.sink())
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        return [Row(int(json.loads(message.body)["number"])) for message in await self.made.messages(partition)]


class TestNatsSink(SinkContract):
    @pytest_asyncio.fixture
    async def harness(self, made: Made) -> AsyncIterator[Harness]:
        harness = Harness(made)
        yield harness
        for sink in harness.sinks:
            await sink.close()
