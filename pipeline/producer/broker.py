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

    numbers: what the broker replied to the attach; None of a link that is not idempotent. bytes_max: the largest batch.
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
        """One atomic batch whose first event bears the number behind `after`. Returns once the broker has it: now, or from
        an earlier time that it knows again.

        `sending` is called right before anything is sent, with nothing awaited in between; where it raises, nothing is.
        Raises PublishError, its outcome being UNKNOWN only if the broker may have taken the batch.
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
        """Pure. Raises ValueError if the event cannot be encoded."""
        ...

    @property
    def envelope_bytes(self) -> int:
        """What a batch takes beside its events."""
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
