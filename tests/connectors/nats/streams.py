"""A stream of its own for every test, and what third parties do with it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from patience import until_async
from plugins_nats import NatsMachine

from leasehold.pipeline.connectors.nats.connection import NatsAccess, NatsConnection
from leasehold.pipeline.connectors.nats.consumer import StreamMessage, open_consumer
from leasehold.pipeline.connectors.nats.feed import NatsChangeFeed
from leasehold.pipeline.connectors.nats.sink import NatsOutputSink
from leasehold.pipeline.connectors.nats.stream import Stream

PARTITIONS = 4


class Made:
    def __init__(
        self,
        server: NatsMachine,
        access: NatsAccess | None = None,
        *,
        name: str | None = None,
        subject: str | None = None,
    ) -> None:
        name = name or f"s{uuid.uuid4().hex[:12]}"
        self.server = server
        self.access = access or NatsAccess(servers=server.servers)
        self.connection = NatsConnection(self.access)
        self.stream = Stream(self.connection, name, subject or name, PARTITIONS)

    @property
    def place(self) -> tuple[NatsAccess, str, str]:
        return self.access, self.stream.name, self.stream.subject

    def feed(self, **more: Any) -> NatsChangeFeed:
        return NatsChangeFeed(*self.place, **{"partitions": PARTITIONS, "trusts_headers": True, **more})

    def sink(self, **more: Any) -> NatsOutputSink:
        return NatsOutputSink(*self.place, **{"partitions": PARTITIONS, "replicas": 1, **more})

    async def update(self, **configuration: Any) -> None:
        """Of the stream."""
        known = await self.stream.find_configuration()
        await self.connection.ask(f"STREAM.UPDATE.{self.stream.name}", **known | configuration)

    async def remake(self, **configuration: Any) -> None:
        """Another stream of the same name."""
        await self.connection.ask(f"STREAM.DELETE.{self.stream.name}")
        if configuration:
            await self.connection.ask(f"STREAM.CREATE.{self.stream.name}", name=self.stream.name, **configuration)
        else:
            await self.stream.create(1)

    async def append(self, partition: str, bodies: Sequence[bytes], headers: dict[str, str] | None = None) -> None:
        for body in bodies:
            await self.connection.request(self.stream.events(partition), body, headers, what="appending")

    async def messages(self, partition: str) -> list[StreamMessage]:
        """All there are, in their order."""
        found: list[StreamMessage] = []
        async with open_consumer(self.stream, self.stream.events(partition), opt_start_seq=1) as consumer:
            left = consumer.pending
            while left:
                page = await consumer.read(1000, 1 << 22)
                found += page
                left = page[-1].left if page else 0  # retention may have been there first
        return found

    async def forget(self, first: int) -> None:
        """As retention does: what lies before the sequence `first`."""
        await self.connection.ask(f"STREAM.PURGE.{self.stream.name}", seq=first)

    async def forget_by_age(self) -> None:
        """As retention does: all events there are, and no position of a sink."""
        await self.update(max_age=100_000_000, duplicate_window=100_000_000)
        await until_async(self._has_no_events)
        await self.update(max_age=0)

    async def _has_no_events(self) -> bool:
        return await self.stream.find_first(f"{self.stream.subject}.*") is None
