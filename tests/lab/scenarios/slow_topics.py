"""A topic as hosts of scenarios read it, page by page, and as they write to it, slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.scenarios.slow import SlowWriter

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.kafka.reader import ReadingLimits
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.pipeline.sink import Claim


class PagedTopic(KafkaChangeFeed):
    def __init__(self, servers: str, page_events_max: int, **settings: Any) -> None:
        limits = ReadingLimits(events_max=page_events_max)
        super().__init__(KafkaAccess(servers=servers), limits=limits, **settings)


class SlowTopic(KafkaOutputSink):
    def __init__(self, servers: str, gate: str, **settings: Any) -> None:
        super().__init__(KafkaAccess(servers=servers), **settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)
