"""The feed `pulsar` keeps what every feed must hold, on a real broker: of single messages, and of batches."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from connectors.pulsar.topics import Topics

from leasehold.testing import ChangeFeedContract, FeedHarness

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""


class Harness(FeedHarness):
    partitions = ("0", "1", "2", "3")
    events_max = 8
    bytes_max = 4096
    lag_is_exact = False  # brokers count batches
    times_are_apart = True

    def __init__(self, topics: Topics, *, as_batch: bool) -> None:
        self._topics = topics
        self._as_batch = as_batch
        self.feed = topics.feed(events_max=self.events_max, bytes_max=self.bytes_max)

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        self._topics.produce(partition, bodies, as_batch=self._as_batch)


class TestPulsarFeed(ChangeFeedContract):
    @pytest_asyncio.fixture(params=[False, True], ids=["single", "batches"])
    async def harness(self, topics: Topics, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
        harness = Harness(topics, as_batch=request.param)
        yield harness
        await harness.feed.close()
