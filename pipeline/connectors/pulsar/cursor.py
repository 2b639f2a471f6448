"""The cursor of a subscription, for KEDA and Pulsar's own tools, and so that brokers keep what is not processed.

Leasehold never reads it.
"""

from __future__ import annotations

import pulsar

from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess, PulsarBroker, place_in
from leasehold.pipeline.connectors.pulsar.feed import asked
from leasehold.pipeline.connectors.pulsar.position import place_of
from leasehold.pipeline.outside_checkpoints import Outcome

INTERVAL_S = 5.0


class SubscriptionCursors:
    """A replaced owner may move a cursor back; the next commit of the new owner corrects that."""

    title = "cursor"

    def __init__(self, access: PulsarAccess, topic: str, subscription: str, *, timeout_s: float) -> None:
        self.interval_s = INTERVAL_S
        self._broker = PulsarBroker(access, topic, timeout_s=timeout_s)
        self._subscription = subscription

    def name_of(self, partition: str) -> str:
        return f"{self._broker.topic}/{partition}/{self._subscription}"

    async def write(self, partition: str, position: str | None, generation: int) -> Outcome:
        topics = await asked(self._broker, self._broker.find_partitions())
        await asked(self._broker, self._broker.run(lambda: self._move(topics[partition], position)))
        return "written"

    def _move(self, topic: str, position: str | None) -> None:
        """The cursor passes an entry once all events of the entry are processed."""
        place, to = place_of(position), pulsar.MessageId.earliest
        if place is not None:
            following = self._broker.find_first(topic, place) if place.within >= 0 else None
            is_within = following is not None and place_in(following)[:2] == place[:2]
            to = pulsar.MessageId(-1, place.ledger, place.entry + (not is_within), -1)
        consumer = self._subscribed(topic)
        try:
            consumer.seek(to)
        finally:
            consumer.close()

    def _subscribed(self, topic: str) -> pulsar.Consumer:
        """A consumer to which nothing is sent. Several may exist at a time."""
        return self._broker.client().subscribe(
            topic,
            self._subscription,
            consumer_type=pulsar.ConsumerType.Failover,
            initial_position=pulsar.InitialPosition.Earliest,
            receiver_queue_size=0,
            consumer_name="leasehold",
        )

    async def count(self) -> int:
        """Count the cursors, after creating those that are missing."""
        topics = await asked(self._broker, self._broker.find_partitions())

        def make() -> int:
            for topic in topics.values():
                self._subscribed(topic).close()
            return len(topics)

        return await asked(self._broker, self._broker.run(make))

    async def close(self) -> None:
        await self._broker.close()
