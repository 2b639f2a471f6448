"""The transactional producer of a claim. It blocks, and has a thread of its own."""

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
from leasehold.pipeline.errors import Ambiguous, OutputRefused, SinkUnavailable
from leasehold.pipeline.sink import SENDS_MAX

GRACE_S = 1.0
"""How long a call may outlast its own timeout."""
BUFFER_KB = 65_536
"""How much of a batch the client holds until the brokers have it."""
POLL_S = 0.1
"""How soon sending stops once the batch may no longer be sent."""


Record = tuple[str | None, bytes | None, list[tuple[str, str | bytes | None]] | None]
"""Key, body and headers."""


class Committed(NamedTuple):
    """metadata: of the group's offset; None if it has no offset. group: what `commit` needs of the group."""

    metadata: str | None
    group: bytes


def find_committed(cluster: KafkaCluster, lease: str, topic: str, patience_s: float) -> Committed:
    """Read the group's offset, once no open transaction has another one for it. Raises KafkaException.

    It uses a consumer: the admin's request ends the process if the group's coordinator moves (confluent-kafka-javascript#374).
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
        own = {"partitioner": "murmur2_random", "queue.buffering.max.kbytes": BUFFER_KB}
        self._producer = self._cluster.make_producer(self._lease, **own, **self._producing)
        self._producer.init_transactions(self._cluster.timeout_s)

    def commit(
        self, records: Sequence[Record], target: int, metadata: str, group: bytes, check: Callable[[], None]
    ) -> None:
        """Commit all records and the position, or nothing. check: called while it waits, and right before the commit.

        If nothing was committed, raises KafkaException, SinkUnavailable, or what `check` raises; if that is unknown, Ambiguous
        or a KafkaException that `as_sink_error` translates to Ambiguous.
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
        """The next claim ends a transaction that is still open."""
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
                except BufferError:  # events come faster than the brokers take them
                    if not len(producer):
                        raise OutputRefused(
                            f"an event is larger than {BUFFER_KB} KiB, the most that the client can hold"
                        ) from None
                    wait(producer.poll)
        while len(producer):
            wait(producer.flush)

    def _add_position(self, producer: Producer, metadata: str, group: bytes) -> None:
        """The call runs on a thread that can be abandoned, because it may outlast its timeout by minutes (librdkafka#5456)."""
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

    def _abort(self, producer: Producer, error: BaseException) -> bool:
        """Abort the transaction. Returns False if this producer can do nothing any more.

        If it fails otherwise, raises Ambiguous, which makes the writer claim again.
        """
        if isinstance(error, KafkaException) and error.args[0].fatal():
            return False
        try:
            producer.abort_transaction(self._cluster.timeout_s)
        except KafkaException as failed:
            if not failed.args[0].fatal():
                raise Ambiguous(f"{error}; it could not be aborted: {failed.args[0].str()}") from failed
            return False
        return True

    def _settle(self, producer: Producer) -> None:
        """Commit. Only a successful abort shows that a failed commit had no effect."""
        doubt = ""
        for _ in range(SENDS_MAX):
            try:
                return producer.commit_transaction(self._cluster.timeout_s)
            except KafkaException as error:
                doubt = error.args[0].str()
                if error.args[0].txn_requires_abort():
                    if not self._abort(producer, error):
                        break
                    raise
                if not error.args[0].retriable():
                    raise
        raise Ambiguous(f"topic '{self._topic}': no answer to a commit: {doubt}")
