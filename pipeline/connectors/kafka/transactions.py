"""One transactional producer: a claim's. It blocks, and has a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, NamedTuple

from confluent_kafka import KafkaException, Producer, TopicPartition

from leasehold.pipeline.connectors.kafka.cluster import KafkaCluster
from leasehold.pipeline.connectors.own_thread import OwnThread
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, SinkUnavailable
from leasehold.pipeline.sink import SENDS_MAX

GRACE_S = 1.0
"""How long a call may outlast its own timeout."""
POLL_S = 0.1
"""How soon a batch ends that may no longer be sent."""


Record = tuple[str | None, bytes | None, list[tuple[str, str | bytes | None]] | None]
"""Key, body and headers."""


class Committed(NamedTuple):
    """metadata: of the group's offset; None without one. group: as `commit` takes it."""

    metadata: str | None
    group: bytes


def find_committed(cluster: KafkaCluster, lease: str, topic: str, patience_s: float) -> Committed:
    """Once no transaction has another offset for the group. Raises KafkaException.

    By a consumer: the admin's request ends the process if the group's coordinator moves (confluent-kafka-javascript#374).
    """
    consumer = cluster.make_consumer(lease)
    try:
        [found] = consumer.committed([TopicPartition(topic, 0)], patience_s)
        if found.error is not None:
            raise KafkaException(found.error)
        return Committed((found.metadata or "") if found.offset >= 0 else None, consumer.consumer_group_metadata())
    finally:
        consumer.close()


class Transactions(OwnThread):
    """lease: the transactional id, and the group whose offset of `topic`, partition 0, has the position in its metadata."""

    def __init__(self, cluster: KafkaCluster, lease: str, topic: str, *, by_key: bool, **producing: Any) -> None:
        super().__init__("kafka-sink")
        self._cluster = cluster
        self._lease = lease
        self._topic = topic
        self._by_key = by_key
        self._producing = producing
        self._producer: Producer | None = None

    def begin(self) -> None:
        """Fence earlier producers of this lease. Raises KafkaException."""
        own = {"partitioner": "murmur2_random", "queue.buffering.max.kbytes": 65536}
        self._producer = self._cluster.make_producer(self._lease, **own, **self._producing)
        self._producer.init_transactions(self._cluster.timeout_s)

    def commit(
        self, records: Sequence[Record], target: int, metadata: str, group: bytes, check: Callable[[], None]
    ) -> None:
        """All of it and the position, or nothing. check: called before what makes it count.

        Raises KafkaException, SinkUnavailable and what `check` does if nothing was committed; Ambiguous.
        """
        producer = self._producer
        assert producer is not None, "it was begun, and not left"
        producer.begin_transaction()
        try:
            self._fill(producer, records, target, check)
            self._add_position(producer, metadata, group)
            crash_point("transaction filled")
            check()
        except BaseException as error:
            self._abort(producer, error)
            raise
        self._settle(producer)

    def close(self) -> None:
        """The transaction that it may have open is ended by the next claim."""
        self._producer = None

    def _fill(self, producer: Producer, records: Sequence[Record], target: int, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._producing["transaction.timeout.ms"] / 1000

        def wait(step: Callable[[float], object]) -> None:
            if time.monotonic() > deadline:
                raise SinkUnavailable(
                    f"topic '{self._topic}': the brokers did not take a batch within `transaction_timeout_s`"
                )
            check()
            step(POLL_S)

        for key, body, headers in records:
            place = -1 if self._by_key and key is not None else target
            while True:
                try:
                    producer.produce(self._topic, value=body, key=key, headers=headers, partition=place)
                    break
                except BufferError:  # the brokers take less than comes
                    wait(producer.poll)
        while len(producer):
            wait(producer.flush)

    def _add_position(self, producer: Producer, metadata: str, group: bytes) -> None:
        """On a thread that can be left behind: the call may outlast its timeout by minutes (librdkafka#5456)."""
        place, added = TopicPartition(self._topic, 0, 0, metadata), Future[None]()

        def add() -> None:
            try:
                producer.send_offsets_to_transaction([place], group, self._cluster.timeout_s)
            except BaseException as error:
                added.set_exception(error)
            else:
                added.set_result(None)

        Thread(target=add, name="kafka-position", daemon=True).start()
        try:
            added.result(self._cluster.timeout_s + GRACE_S)
        except TimeoutError:
            raise SinkUnavailable(f"topic '{self._topic}': the brokers did not take a position in time") from None

    def _abort(self, producer: Producer, error: BaseException) -> None:
        """Raises Ambiguous if that fails, which makes the writer claim again."""
        if isinstance(error, KafkaException) and error.args[0].fatal():
            return
        try:
            producer.abort_transaction(self._cluster.timeout_s)
        except KafkaException as failed:
            if not failed.args[0].fatal():
                raise Ambiguous(f"{error}; it could not be aborted: {failed.args[0].str()}") from failed

    def _settle(self, producer: Producer) -> None:
        """Only an abort that succeeds shows that a commit which failed has no effect."""
        doubt = ""
        for _ in range(SENDS_MAX):
            try:
                return producer.commit_transaction(self._cluster.timeout_s)
            except KafkaException as error:
                doubt = error.args[0].str()
                if error.args[0].txn_requires_abort():
                    self._abort(producer, error)
                    raise
                if not error.args[0].retriable():
                    raise
        raise Ambiguous(f"topic '{self._topic}': no answer to a commit: {doubt}")
