"""The sink `kafka` keeps what every sink must hold, fencing included, on a real broker; seen by aiokafka."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from connectors.kafka.topics import Topics, committed

from leasehold import Sink
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.testing import Row, SinkContract, SinkHarness

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


class Harness(SinkHarness):
    partitions = ("0", "1")

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.sinks: list[KafkaOutputSink] = []

    async def sink(self) -> Sink:
        self.sinks.append(KafkaOutputSink(self.topics.access, self.topics.name))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        return [
            Row(int(json.loads(record.value or b"")["number"]))
            for record in await committed(self.topics, int(partition))
        ]


class TestKafkaSink(SinkContract):
    @pytest_asyncio.fixture
    async def harness(self, topics: Topics) -> AsyncIterator[Harness]:
        harness = Harness(topics)
        yield harness
        for sink in harness.sinks:
            await sink.close()
