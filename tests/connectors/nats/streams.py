"""A stream of its own for every test, and what third parties do with it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from plugins_nats import NatsMachine

from leasehold.pipeline.connectors.nats.connection import Connection
from leasehold.pipeline.connectors.nats.consumer import Message, consuming
from leasehold.pipeline.connectors.nats.stream import Stream

PARTITIONS = 4


class Made:
    """settings: of a feed or sink over it."""

    def __init__(self, server: NatsMachine) -> None:
        name = f"s{uuid.uuid4().hex[:12]}"
        self.settings: dict[str, Any] = {
            "servers": server.url,
            "stream": name,
            "subject": name,
            "partitions": PARTITIONS,
        }
        self.connection = Connection(server.url)
        self.stream = Stream(self.connection, name, name, PARTITIONS)

    async def append(self, partition: str, bodies: Sequence[bytes], headers: dict[str, str] | None = None) -> None:
        for body in bodies:
            await self.connection.told(self.stream.events(partition), body, headers, what="appending")

    async def messages(self, partition: str) -> list[Message]:
        """All there are, in their order."""
        found: list[Message] = []
        async with consuming(self.stream, self.stream.events(partition), opt_start_seq=1) as consumer:
            left = consumer.pending
            while left:
                page = await consumer.page(1000, 1 << 22)
                found += page
                left = page[-1].left if page else 0  # retention may have been there first
        return found

    async def forget(self, first: int) -> None:
        """As retention does: what lies before the sequence `first`."""
        await self.connection.api(f"STREAM.PURGE.{self.stream.name}", seq=first)
