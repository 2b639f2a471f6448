"""One transactional producer: a claim's. It blocks, and belongs to one thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from leasehold.pipeline.connectors.kafka.cluster import KafkaCluster
from leasehold.pipeline.crash_point import crash_point
from leasehold.pipeline.errors import Ambiguous, SinkUnavailable
from leasehold.pipeline.sink import SENDS_MAX

POLL_S = 0.05


class Record(NamedTuple):
    key: str | None
    body: bytes | None
    headers: list[tuple[str, str | bytes | None]]


class TooLarge(Exception):
    """index: of the record that the topic does not take."""

    def __init__(self, index: int, size: int) -> None:
        super().__init__(f"record {index} has {size} bytes")
        self.index = index
        self.size = size


class Transactions:
    """lease: the transactional id, and the group whose offset of `topic`, partition 0, has the position in its metadata."""

    def __init__(self, cluster: KafkaCluster, lease: str, topic: str, *, by_key: bool, **producing: Any) -> None:
        self._cluster = cluster
        self._lease = lease
        self._topic = topic
        self._by_key = by_key
        self._producing = producing
        self._producer: Producer | None = None
        self._group = b""

    def begin(self) -> None:
        """Fence earlier producers of this lease. Raises KafkaException."""
        consumer = self._cluster.make_consumer(self._lease, lambda error: None)
        self._group = consumer.consumer_group_metadata()
        consumer.close()
        self._producer = self._cluster.make_producer(
            self._lease, **{"partitioner": "murmur2_random", "queue.buffering.max.kbytes": 65536, **self._producing}
        )
        self._producer.init_transactions(self._cluster.timeout_s)

    def commit(self, records: Sequence[Record], target: int, metadata: str, check: Callable[[], None]) -> None:
        """All of it and the position, or nothing. check: called before what makes it count.

        Raises KafkaException, TooLarge, SinkUnavailable and what `check` does if nothing was committed; Ambiguous.
        """
        producer = self._required()
        producer.begin_transaction()
        try:
            self._fill(producer, records, target)
            place = TopicPartition(self._topic, 0, 0, metadata)
            producer.send_offsets_to_transaction([place], self._group, self._cluster.timeout_s)
            crash_point("transaction filled")
            check()
        except BaseException as error:
            self._abort(producer, error)
            raise
        self._settle(producer)

    def leave(self, thread: ThreadPoolExecutor) -> None:
        """Once it has done what it is doing. The transaction that it may have open is ended by the next claim."""
        thread.submit(self._forget)
        thread.shutdown(wait=False)

    def _forget(self) -> None:
        self._producer = None

    def _required(self) -> Producer:
        assert self._producer is not None, "it was begun, and not left"
        return self._producer

    def _fill(self, producer: Producer, records: Sequence[Record], target: int) -> None:
        deadline = time.monotonic() + self._producing["transaction.timeout.ms"] / 1000
        for index, record in enumerate(records):
            self._send(producer, index, record, -1 if self._by_key and record.key is not None else target, deadline)
        if producer.flush(max(0.0, deadline - time.monotonic())):
            raise self._late()

    def _send(self, producer: Producer, index: int, record: Record, partition: int, deadline: float) -> None:
        while True:
            try:
                return producer.produce(
                    self._topic, value=record.body, key=record.key, headers=record.headers, partition=partition
                )
            except BufferError:  # the brokers take less than comes
                if time.monotonic() > deadline:
                    raise self._late() from None
                producer.poll(POLL_S)
            except KafkaException as error:
                if error.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE:
                    raise TooLarge(index, len(record.body or b"") + len((record.key or "").encode())) from error
                raise

    def _late(self) -> SinkUnavailable:
        return SinkUnavailable(
            f"topic '{self._topic}': the brokers did not take a batch within `transaction_timeout_s`"
        )

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
