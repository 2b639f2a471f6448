"""Topics of one test, and what foreign clients write to them and read of them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from confluent_kafka import Message, Producer, TopicPartition
from plugins_kafka import KafkaMachine

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from patience import PATIENCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """name: a new topic."""

    machine: KafkaMachine
    name: str

    @property
    def access(self) -> KafkaAccess:
        return KafkaAccess(servers=self.machine.servers)

    def produce(self, partition: int, bodies: Sequence[bytes | None], *, by: Producer | None = None, **more: object) -> None:
        """Stored when this returns, unless `by` has a transaction open."""
        producer = by or Producer({"bootstrap.servers": self.machine.servers})
        for body in bodies:
            producer.produce(self.name, value=body, partition=partition, **more)
        assert producer.flush(PATIENCE_S) == 0

    def transactional(self, id: str | None = None, **settings: object) -> Producer:
        """A foreign producer of transactions."""
        own = {"bootstrap.servers": self.machine.servers, "transactional.id": id or uuid.uuid4().hex, "log_level": 0}
        producer = Producer({**own, **settings})
        producer.init_transactions(PATIENCE_S)
        return producer


NAMES = map("topic-{}".format, itertools.count())
