"""A stream as hosts of scenarios publish to it, slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.scenarios.slow import SlowWriter

from leasehold.pipeline.connectors.nats.connection import NatsAccess
from leasehold.pipeline.connectors.nats.sink import NatsOutputSink
from leasehold.pipeline.sink import Claim


class SlowStream(NatsOutputSink):
    def __init__(self, gate: str, servers: str, **settings: Any) -> None:
        super().__init__(NatsAccess(servers=servers), **settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)
