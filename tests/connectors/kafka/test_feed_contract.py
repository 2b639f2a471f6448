"""The feed `kafka` keeps what every feed must hold, on a real broker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from connectors.kafka.topics import Topics

from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.kafka.reader import ReadingLimits
from leasehold.testing import ChangeFeedContract, FeedHarness

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


class Harness(FeedHarness):
    partitions = ("0", "1")
    events_max = 8
    bytes_max = 4096
    lag_is_exact = False  # the ends of transactions count

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        self.feed = KafkaChangeFeed(
            topics.access, topics.name, limits=ReadingLimits(events_max=self.events_max, bytes_max=self.bytes_max)
        )

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        self.topics.produce(int(partition), bodies)


class TestKafkaFeed(ChangeFeedContract):
    @pytest_asyncio.fixture
    async def harness(self, topics: Topics) -> AsyncIterator[Harness]:
        harness = Harness(topics)
        yield harness
        await harness.feed.close()
