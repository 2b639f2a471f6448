"""Topics of one test, what foreign clients write to them and read of them, and what owners claim and write."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import aiokafka
import pyarrow as pa
from aiokafka import ConsumerRecord
from confluent_kafka import Producer
from patience import PATIENCE_S, rhythm
from plugins_kafka import KafkaMachine

from leasehold import Claim, Output
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess

LOOKS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """name: a new topic."""

    machine: KafkaMachine
    name: str

    @property
    def access(self) -> KafkaAccess:
        return KafkaAccess(servers=self.machine.servers)

    def produce(
        self, partition: int, bodies: Sequence[bytes | None], *, by: Producer | None = None, **more: object
    ) -> None:
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


def make_topics(machine: KafkaMachine) -> Topics:
    """A new topic of four partitions."""
    name = f"topic-{uuid.uuid4().hex[:12]}"
    machine.make_topic(name, 4)
    return Topics(machine=machine, name=name)


async def committed(topics: Topics, partition: int = 0) -> list[ConsumerRecord[bytes, bytes]]:
    """What aiokafka reads of it with read_committed, up to its present end.

    A broker answers that a transaction is committed before readers see that, so they have LOOKS looks for it.
    """
    place = aiokafka.TopicPartition(topics.name, partition)
    consumer, onlooker = (
        aiokafka.AIOKafkaConsumer(
            bootstrap_servers=topics.machine.servers, isolation_level=level, enable_auto_commit=False
        )
        for level in ("read_committed", "read_uncommitted")
    )
    await consumer.start()
    await onlooker.start()
    try:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        async for look in rhythm(0.05):
            end, found = (await consumer.end_offsets([place]))[place], []
            if look == LOOKS or end == (await onlooker.end_offsets([place]))[place]:
                break
        async with asyncio.timeout(PATIENCE_S):
            while await consumer.position(place) < end:
                for batch in (await consumer.getmany(timeout_ms=100)).values():
                    found += batch
        return found
    finally:
        await consumer.stop()
        await onlooker.stop()


class Always:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


PERMIT = Always()


def claim(epoch: int = 1, **more: object) -> Claim:
    values = {"continuation": None, "state": "", "generation": 0, "owner": f"host-{epoch}", "partition": "0", **more}
    return Claim(pipeline="bank", epoch=epoch, compare=lambda a, b: int(a or 0) - int(b or 0), **values)  # type: ignore[arg-type]


def output(start: int, to: int, **columns: list[object]) -> Output:
    bodies = [b"%d" % number for number in range(start + 1, to + 1)]
    table = pa.table({"body": bodies, **columns})
    return Output(table=table, start=str(start) if start else None, to=str(to), events=to - start)
