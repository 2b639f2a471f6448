"""An event hub as hosts of scenarios read it, page by page, and as they publish to it, slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.scenarios.slow import SlowWriter

from leasehold.pipeline.connectors.eventhubs import EventHubsFeed, EventHubsSink, account_of
from leasehold.pipeline.sink import Claim


class PagedHub(EventHubsFeed):
    """Pages of at most so many events, however many have arrived."""

    def __init__(self, connection_string: str, event_hub: str, **settings: Any) -> None:
        super().__init__(account_of(connection_string=connection_string, event_hub=event_hub), **settings)


class SlowHub(EventHubsSink):
    def __init__(self, connection_string: str, event_hub: str, gate: str, **settings: Any) -> None:
        super().__init__(account_of(connection_string=connection_string, event_hub=event_hub), **settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)
