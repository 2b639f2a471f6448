"""The port to a broker that keeps the numbers of its producers, as an idempotent producer needs it.

Two brokers implement it: Event Hubs over AMQP (connectors/eventhubs/broker.py) and the embedded log (connectors/log/broker.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from leasehold.pipeline.producer.event import AttachRequest, OutgoingEvent, PreparedEvent, ProducerPosition
from leasehold.pipeline.producer.properties import HubProperties, PartitionProperties


class ProducerLink(Protocol):
    """A way into one partition. After any error it is dropped, and another one is made.

    numbers: what the broker replied to the attach; None for a link that is not idempotent. bytes_max: the largest batch.
    """

    numbers: ProducerPosition | None
    bytes_max: int

    @property
    def is_usable(self) -> bool:
        """False once it has been idle for so long that its other end may have gone."""
        ...

    async def send(
        self, payloads: Sequence[Any], after: ProducerPosition | None, key: str | None, sending: Callable[[], None]
    ) -> None:
        """Send one atomic batch whose first event has the number after `after`. Returns once the broker has it, perhaps from an
        earlier send that it recognizes.

        `sending` is called right before anything is sent, with nothing awaited in between; if it raises, nothing is sent.
        Raises PublishError, with the outcome UNKNOWN only if the broker may have taken the batch.
        """
        ...

    async def close(self) -> None: ...


class Broker(Protocol):
    """One hub: a name and its partitions."""

    @property
    def name(self) -> str:
        """For people, and without secrets."""
        ...

    @property
    def hub(self) -> str:
        """The hub's own name."""
        ...

    @property
    def namespace(self) -> str | None:
        """The fully qualified namespace of the hub; None if it has none."""
        ...

    def prepared(self, event: OutgoingEvent) -> PreparedEvent:
        """The event as this broker takes it. Pure. Raises ValueError if the event cannot be encoded."""
        ...

    @property
    def envelope_bytes(self) -> int:
        """What a batch takes in addition to its events."""
        ...

    async def attach(self, partition: str | None, asked: AttachRequest | None, *, idempotent: bool) -> ProducerLink:
        """asked: None leaves all to the broker. Without a partition the broker routes events. Raises PublishError."""
        ...

    async def read_hub(self) -> HubProperties:
        """Raises PublishError."""
        ...

    async def read_partition(self, partition: str) -> PartitionProperties:
        """Raises PublishError."""
        ...

    async def close(self) -> None: ...
