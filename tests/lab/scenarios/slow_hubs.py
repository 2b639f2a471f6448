"""An event hub as hosts of scenarios read it, page by page, and as they publish to it, slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.scenarios.slow import SlowWriter

from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.eventhubs.feed.receiver import ReceiverLimits
from leasehold.pipeline.connectors.eventhubs.sink.sink import EventHubsOutputSink
from leasehold.pipeline.sink import Claim


class PagedHub(EventHubsChangeFeed):
    """Pages of at most so many events, however many have arrived."""

    def __init__(
        self, connection_string: str, event_hub: str, page_events_max: int, timeout_s: float, **settings: Any
    ) -> None:
        limits = ReceiverLimits(page_events=page_events_max, timeout_s=timeout_s)
        super().__init__(
            account_of(connection_string=connection_string, event_hub=event_hub), limits=limits, **settings
        )


class SlowHub(EventHubsOutputSink):
    def __init__(self, connection_string: str, event_hub: str, gate: str, **settings: Any) -> None:
        super().__init__(account_of(connection_string=connection_string, event_hub=event_hub), **settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)
