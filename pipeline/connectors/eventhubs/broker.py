"""Event Hubs as a broker of idempotent producers: a link for each partition, properties from `$management`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount
from leasehold.pipeline.connectors.eventhubs.amqp.connection import Hub
from leasehold.pipeline.connectors.eventhubs.amqp.encode import (
    ENVELOPE_KEY_BYTES,
    MARKS_BYTES_MAX,
    SECTION_BYTES,
    body_of,
)
from leasehold.pipeline.connectors.eventhubs.amqp.management import Management, PartitionExtent
from leasehold.pipeline.connectors.eventhubs.refusal import is_missing
from leasehold.pipeline.connectors.eventhubs.sink.sender import SenderLink, attach
from leasehold.pipeline.errors import FeedError, FeedUnavailable
from leasehold.pipeline.producer import (
    AttachRequest,
    HubProperties,
    OutgoingEvent,
    PartitionProperties,
    PublishError,
    Reason,
)
from leasehold.pipeline.producer.event import PreparedEvent

KEY_BYTES_MAX = 128
"""The most bytes that the service allows for a partition key."""
ENVELOPE_BYTES = ENVELOPE_KEY_BYTES + KEY_BYTES_MAX


class EventHubsBroker:
    """One hub. Implements leasehold.pipeline.producer.Broker. credential: an existing one of azure-identity's kind."""

    envelope_bytes = ENVELOPE_BYTES

    def __init__(self, account: EventHubAccount, *, credential: Any = None, timeout_s: float = 20.0) -> None:
        self.links = Hub(account, credential=credential)
        self._management = Management(self.links, timeout_s=timeout_s)

    @property
    def name(self) -> str:
        return f"'{self.links.name}'"

    @property
    def hub(self) -> str:
        return self.links.account.hub

    @property
    def namespace(self) -> str:
        """Fully qualified."""
        return self.links.account.host

    def prepared(self, event: OutgoingEvent) -> PreparedEvent:
        body = body_of(event)
        return PreparedEvent(body, size_of(body))

    async def attach(self, partition: str | None, asked: AttachRequest | None, *, idempotent: bool) -> SenderLink:
        return await attach(self.links, partition, asked, idempotent=idempotent)

    async def read_hub(self) -> HubProperties:
        try:
            created_ms, partitions = await self._management.read_hub()
        except FeedError as error:
            raise _translated(error) from error
        return HubProperties(name=self.hub, created_on=_time(created_ms), partitions=tuple(partitions))

    async def read_extent(self, partition: str) -> PartitionExtent:
        """Raises PublishError."""
        try:
            return await self._management.read_extent(partition)
        except FeedError as error:
            raise _translated(error) from error

    async def read_partition(self, partition: str) -> PartitionProperties:
        extent = await self.read_extent(partition)
        return PartitionProperties(
            partition=partition,
            first=extent.first,
            last=extent.last,
            last_offset=None if extent.is_new else extent.offset,
            last_enqueued_time=None if extent.is_new else _time(extent.time_ms),
            is_empty=extent.is_empty,
        )

    async def close(self) -> None:
        await self._management.close()
        await self.links.close()


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def size_of(body: bytes) -> int:
    """How many bytes an event with this body (`encode.body_of`) adds to a batch."""
    return len(body) + MARKS_BYTES_MAX + SECTION_BYTES


def _translated(error: FeedError) -> PublishError:
    if isinstance(error, FeedUnavailable):
        reason = Reason.SERVICE_COMMUNICATION_PROBLEM if error.retry_after_s is None else Reason.SERVICE_BUSY
        return PublishError(str(error), reason=reason, is_transient=True)
    return PublishError(str(error), reason=Reason.RESOURCE_NOT_FOUND if is_missing(error) else Reason.GENERAL_ERROR)
