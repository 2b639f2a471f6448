"""The Event Hubs sink holds the contract of sinks, on the wire server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from plugins_eventhubs import EventHubs

from leasehold.pipeline.connectors.eventhubs import account_of
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsSink
from leasehold.pipeline.contract import Row, SinkContract, SinkHarness
from leasehold.pipeline.markers import marker_in
from leasehold.pipeline.producer import RetryPolicy
from leasehold.pipeline.sink import Sink

HUB = "transformed-event"
QUICK = RetryPolicy(retries_max=2, delay_s=0.01, try_timeout_s=5)


class HubHarness(SinkHarness):
    partitions = ("0", "1")

    def __init__(self, eventhubs: EventHubs) -> None:
        self.eventhubs = eventhubs
        self.sinks: list[EventHubsSink] = []

    async def sink(self) -> Sink:
        account = account_of(connection_string=self.eventhubs.connection_string, event_hub=HUB)
        self.sinks.append(EventHubsSink(account, consumer_group="sinks", retry=QUICK, quiet_s=0.1))
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        rows = []
        for event in self.eventhubs.control.events(HUB, partition):
            marker = marker_in(event.properties)
            assert marker is not None
            rows.append(Row(int(json.loads(event.body)["number"]), marker.start, marker.to))
        return rows


class TestEventHubsSink(SinkContract):
    @pytest.fixture(params=[{"nothing": 0}, {"nothing": -1}], ids=str)
    async def harness(self, request: pytest.FixtureRequest, eventhubs: EventHubs) -> AsyncIterator[SinkHarness]:
        eventhubs.control.rules(**request.param)
        harness = HubHarness(eventhubs)
        yield harness
        for sink in harness.sinks:
            await sink.close()
