"""The sink `pulsar` keeps what every sink must hold, fencing included, on a real broker; seen by pulsar-client itself."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from connectors.pulsar.topics import PERMIT, Topics, claim, output

from leasehold import Sink
from leasehold.pipeline.errors import SinkRejected
from leasehold.testing import Row, SinkContract, SinkHarness

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""


class Harness(SinkHarness):
    partitions = ("0", "1")

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.sinks: list[Sink] = []

    async def sink(self) -> Sink:
        self.sinks.append(self.topics.sink())
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        return [Row(int(json.loads(message.data())["number"])) for message in self.topics.messages(partition)]


class TestPulsarSink(SinkContract):
    @pytest_asyncio.fixture
    async def harness(self, topics: Topics) -> AsyncIterator[Harness]:
        harness = Harness(topics)
        yield harness
        for sink in harness.sinks:
            await sink.close()

    async def test_pipelines_are_independent(self, harness: SinkHarness) -> None:
        """They would shut each other out, so the second one is refused, and the first one notices nothing."""
        sink = await harness.sink()
        writer = await sink.open(claim())
        await writer.write(output(0, 2), PERMIT)
        with pytest.raises(SinkRejected, match=r"output of lease 'bank/0'.*a topic of its own"):
            await sink.open(claim(pipeline="another"))
        await writer.write(output(2, 3), PERMIT)
