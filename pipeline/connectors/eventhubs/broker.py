"""Event Hubs as a broker of idempotent producers: a link for each partition, properties from `$management`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pipeline.connectors.eventhubs.account import Account
from pipeline.connectors.eventhubs.asking import asked_of
from pipeline.connectors.eventhubs.encoding import ENVELOPE_KEY_BYTES, MARKS_BYTES_MAX, SECTION_BYTES, body_of
from pipeline.connectors.eventhubs.hub import Hub
from pipeline.connectors.eventhubs.sender import SenderLink, attached
from pipeline.producer import Asked, Event, HubProperties, PartitionProperties
from pipeline.producer.broker import Prepared

KEY_BYTES_MAX = 128
"""What the service allows a partition key."""


class EventHubsBroker:
    """One hub. Implements pipeline.producer.Broker. credential: of azure-identity's kind, for whoever has one already."""

    def __init__(self, account: Account, *, credential: Any = None) -> None:
        self._hub = Hub(account, credential=credential)

    @property
    def name(self) -> str:
        return f"'{self._hub.name}'"

    @property
    def envelope_bytes(self) -> int:
        return ENVELOPE_KEY_BYTES + KEY_BYTES_MAX

    def prepared(self, event: Event) -> Prepared:
        return prepared(body_of(event))

    async def attach(self, partition: str | None, asked: Asked | None, *, idempotent: bool) -> SenderLink:
        return await attached(self._hub, partition, asked, idempotent=idempotent)

    async def hub(self) -> HubProperties:
        said = await asked_of(self._hub)
        created = said.get(b"created_at")
        return HubProperties(
            name=said[b"name"].decode(),
            partitions=tuple(one.decode() for one in said[b"partition_ids"]),
            created_at=datetime.fromtimestamp(created / 1000, UTC) if created is not None else None,
        )

    async def partition(self, partition: str) -> PartitionProperties:
        said = await asked_of(self._hub, partition)
        return PartitionProperties(
            partition=partition,
            first=int(said[b"begin_sequence_number"]),
            last=int(said[b"last_enqueued_sequence_number"]),
            is_empty=bool(said[b"is_partition_empty"]),
        )

    async def close(self) -> None:
        await self._hub.close()


def prepared(body: bytes) -> Prepared:
    """body: of `encoding.body_of`."""
    return Prepared(body, len(body) + MARKS_BYTES_MAX + SECTION_BYTES)
