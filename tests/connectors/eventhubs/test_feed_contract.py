"""The Event Hubs feed keeps what every feed must hold, on the wire server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.contract import ChangeFeedContract
from leasehold.pipeline.contract.feed import FeedHarness

HUB = "raw-event"
VARIABLE = "LEASEHOLD_TEST_HUB"


class Harness(FeedHarness):
    partitions = ("0", "1", "2", "3")
    events_max = 8
    bytes_max = 4096
    ranges_max = 5

    def __init__(self, eventhubs: EventHubs) -> None:
        self._control = eventhubs.control
        self.secrets = (eventhubs.key, eventhubs.connection_string)
        self.feed = EventHubsChangeFeed(
            account_of(connection_string=eventhubs.connection_string, event_hub=HUB),
            limits=ReceiverLimits(page_events=self.events_max, page_bytes=self.bytes_max),
            executors_group="sinks",
            executors_env=VARIABLE,
        )

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        await asyncio.to_thread(self._control.append, HUB, partition, [body.decode() for body in bodies])


class TestEventHubsFeed(ChangeFeedContract):
    @pytest_asyncio.fixture
    async def harness(self, eventhubs: EventHubs, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
        monkeypatch.setenv(VARIABLE, eventhubs.connection_string)
        harness = Harness(eventhubs)
        yield harness
        await harness.feed.close()
