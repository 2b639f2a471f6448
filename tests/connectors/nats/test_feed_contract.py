"""The feed `nats` keeps what every feed must hold, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest_asyncio
from connectors.nats.streams import Made

from leasehold.testing import ChangeFeedContract, FeedHarness


class Harness(FeedHarness):
    partitions = ("0", "1", "2", "3")
    events_max = 8
    bytes_max = 4096
    times_are_apart = True

    def __init__(self, made: Made) -> None:
        self._made = made
        self.feed = made.feed(page_events_max=self.events_max, page_bytes_max=self.bytes_max)

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        await self._made.append(partition, bodies)


class TestNatsFeed(ChangeFeedContract):
    @pytest_asyncio.fixture
    async def harness(self, made: Made) -> AsyncIterator[Harness]:
        harness = Harness(made)
        yield harness
        await harness.feed.close()
