"""Sides over Kafka, but for Spark's: ours, and a loop as one would write it with confluent-kafka.

    python kafka_sides.py spark|loop

- spark: a topic -> Spark parses and sums -> PostgreSQL, ours with all settings as they are by default.
- loop: a topic -> another one, exactly once, by consume, produce, send offsets and commit. It takes all that has come as one
  transaction.

A job's source is `SERVERS/TOPIC`. Its `way` is the topic that is written to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Event, Thread

from confluent_kafka import Consumer, Message, Producer
from ours import run, run_with_spark, transform_of
from sides import Job, commands
from workload import BATCH_EVENTS, MERGE, PARTITIONS, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.sink import Sink
from leasehold.pipeline.transform import Transform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

TIMEOUT_S = 30.0
WAIT_S = 0.25
"""How long the loop waits for an event before it looks whether it is to end."""


def read_source(job: Job) -> tuple[str, str]:
    servers, _, topic = job.source.partition("/")
    return servers, topic


def processor_of(job: Job, transform: Transform, sink: Sink) -> ProcessorCore:
    servers, topic = read_source(job)
    feed = KafkaChangeFeed(KafkaAccess(servers=servers), topic)
    pipeline = PipelineParts(name="balances", feed=feed, transform=transform, sink=sink)
    return ProcessorCore([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


class Loop(Thread):
    """Exactly once: output and offsets are one transaction, and a group's generation fences."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        servers, topic = read_source(job)
        settings = {"bootstrap.servers": servers, "log_level": 3}
        self._target = job.way
        self._ends = Event()
        self._consumer = Consumer(
            {
                **settings,
                "group.id": f"loop-{job.way}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.queue.backoff.ms": 10,
            }
        )
        self._producer = Producer({**settings, "transactional.id": f"loop-{job.way}"})
        self._consumer.subscribe([topic])

    def run(self) -> None:
        self._producer.init_transactions(TIMEOUT_S)
        while not self._ends.is_set():
            if first := self._consumer.consume(1, WAIT_S):
                self._pass_on(first + self._consumer.consume(BATCH_EVENTS * PARTITIONS - 1, 0))
        self._consumer.close()

    def stop(self) -> None:
        self._ends.set()
        self.join()

    def _pass_on(self, messages: list[Message]) -> None:
        self._producer.begin_transaction()
        for message in messages:
            if (error := message.error()) is not None:
                raise RuntimeError(error.str())
            self._produce(message)
        positions = self._consumer.position(self._consumer.assignment())
        group = self._consumer.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(positions, group, TIMEOUT_S)
        self._producer.commit_transaction(TIMEOUT_S)

    def _produce(self, message: Message) -> None:
        while True:
            try:
                return self._producer.produce(
                    self._target, value=message.value(), key=message.key(), partition=message.partition() or 0
                )
            except BufferError:
                self._producer.poll(0.01)


def run_loops() -> None:
    loop: Loop | None = None
    for job in commands():
        if job is not None:
            loop = Loop(job)
            loop.start()
        elif loop is not None:
            loop.stop()
            loop = None


def main(kind: str) -> None:
    if kind == "spark":
        run(
            run_with_spark(
                lambda job, engine: processor_of(
                    job, transform_of(engine), PostgresOutputSink(job.dsn, setup=SETUP, merge=MERGE)
                )
            )
        )
    else:
        run_loops()


if __name__ == "__main__":
    main(sys.argv[1])
