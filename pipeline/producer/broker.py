"""The port to a broker that keeps the numbers of its producers, as an idempotent producer needs it.

Two brokers implement it: Event Hubs over AMQP (connectors/eventhubs/broker.py) and the embedded log (connectors/log/broker.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from leasehold.common.clock import Backoff
from leasehold.pipeline.producer.event import (
    AttachRequest,
    HubProperties,
    OutgoingEvent,
    PartitionProperties,
    Prepared,
    ProducerPosition,
)

# How often, and how long, a send is tried. Pure.


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """retries_max: further tries after the first. delay_s: before the first of them; with `exponential` each is twice the last.

    try_timeout_s: how long one try may take, its link included.
    """

    retries_max: int = 3
    delay_s: float = 0.8
    delay_max_s: float = 60.0
    try_timeout_s: float = 60.0
    mode: Literal["exponential", "fixed"] = "exponential"

    def __post_init__(self) -> None:
        if self.retries_max < 0 or self.delay_s < 0 or self.delay_max_s < 0 or self.try_timeout_s <= 0:
            raise ValueError("a retry policy needs retries and delays of 0 or more, and a time for each try")

    def pause_s(self, retry: int) -> float:
        """Before retry number `retry`, from 1 on."""
        backoff = Backoff(first_s=self.delay_s, max_s=self.delay_max_s)
        return backoff.pause_s(1 if self.mode == "fixed" else retry, 0.0)


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
        Raises PublishError, its outcome being UNKNOWN only where the broker may have taken the batch.
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

    def prepared(self, event: OutgoingEvent) -> Prepared:
        """Pure. Raises ValueError where the event cannot be encoded."""
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
