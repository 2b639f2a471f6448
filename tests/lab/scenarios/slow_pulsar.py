"""A topic of Pulsar as hosts of scenarios write to it, slowly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab.scenarios.slow import SlowWriter

from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
from leasehold.pipeline.connectors.pulsar.sink import PulsarOutputSink
from leasehold.pipeline.sink import Claim


class SlowPulsar(PulsarOutputSink):
    def __init__(self, servers: str, topic: str, gate: str, **settings: Any) -> None:
        super().__init__(PulsarAccess(servers=servers), f"public/default/{topic}", **settings)
        self._gate = Path(gate)

    async def open(self, claim: Claim) -> SlowWriter:  # type: ignore[override]  # in place of the real one
        return SlowWriter(await super().open(claim), self._gate)
