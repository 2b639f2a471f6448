"""Offsets that are committed to a consumer group, for KEDA, Burrow and Kafka's own tools. Leasehold never reads them."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.feed import as_feed_error
from leasehold.pipeline.connectors.kafka.position import position_of
from leasehold.pipeline.errors import FeedError
from leasehold.pipeline.outside_checkpoints import Outcome

T = TypeVar("T")
INTERVAL_S = 5.0


class CommittedOffsets:
    """A replaced owner may move an offset back; the next commit of the new owner corrects that."""

    title = "committed offset"

    def __init__(self, access: KafkaAccess, topic: str, group: str, *, timeout_s: float) -> None:
        self.interval_s = INTERVAL_S
        self._cluster = KafkaCluster(access, timeout_s=timeout_s)
        self._topic = topic
        self._group = group
        self._making = Lock()
        self._consumer: Consumer | None = None

    def name_of(self, partition: str) -> str:
        return f"{self._group}/{self._topic}/{partition}"

    async def write(self, partition: str, position: str | None, generation: int) -> Outcome:
        place = TopicPartition(self._topic, int(partition), position_of(position).next)

        def commit(consumer: Consumer) -> None:
            [done] = consumer.commit(offsets=[place], asynchronous=False)
            if done.error is not None:
                raise KafkaException(done.error)

        await self._asked(commit)
        return "written"

    async def count(self) -> int:
        def count(consumer: Consumer) -> int:
            known = consumer.list_topics(self._topic, self._cluster.timeout_s).topics[self._topic].partitions
            found = consumer.committed([TopicPartition(self._topic, each) for each in known], self._cluster.timeout_s)
            return sum(each.offset >= 0 for each in found)

        return await self._asked(count)

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await self._cluster.run(consumer.close)
        await self._cluster.close()

    async def _asked(self, ask: Callable[[Consumer], T]) -> T:
        try:
            return await self._cluster.run(lambda: ask(self._made()))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID:
                raise FeedError(f"group '{self._group}' has members: let nothing but this pipeline use it") from error
            raise as_feed_error(self._cluster, error, self._topic, self._group) from error

    def _made(self) -> Consumer:
        """Called on a thread of the cluster. A commit waits for the group's coordinator for up to the session timeout."""
        with self._making:
            if self._consumer is None:
                milliseconds: Any = int(self._cluster.timeout_s * 1000)
                patience = dict.fromkeys(("session.timeout.ms", "socket.timeout.ms"), milliseconds)
                self._consumer = self._cluster.make_consumer(self._group, **patience)
            return self._consumer
