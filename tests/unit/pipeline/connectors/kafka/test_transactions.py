"""What a commit that fails means: only a successful abort shows that nothing was committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster
from leasehold.pipeline.connectors.kafka.transactions import Record, Transactions
from leasehold.pipeline.errors import Ambiguous, OutputRefused
from leasehold.pipeline.sink import SENDS_MAX


def failure(**flags: bool) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._FAIL, "no answer", **flags))


class Producer:
    """Of confluent_kafka, without brokers. commit, abort: what these raise."""

    def __init__(self, commit: KafkaException, abort: KafkaException | None = None) -> None:
        self._commit = commit
        self._abort = abort
        self.commits = self.aborts = 0

    def __len__(self) -> int:
        return 0

    def begin_transaction(self) -> None: ...

    def produce(self, *_: object, **__: object) -> None:
        raise BufferError

    def send_offsets_to_transaction(self, *parts: object) -> None: ...

    def commit_transaction(self, timeout_s: float) -> None:
        self.commits += 1
        raise self._commit

    def abort_transaction(self, timeout_s: float) -> None:
        self.aborts += 1
        if self._abort is not None:
            raise self._abort


def commit(producer: Any, records: Sequence[Record] = ()) -> None:
    cluster = KafkaCluster(KafkaAccess(servers="127.0.0.1:9092"), timeout_s=1.0)
    transactions = Transactions(
        cluster, "leasehold.out/bank/0", "out", by_key=False, **{"transaction.timeout.ms": 1000}
    )
    transactions._producer = producer
    transactions.commit(records, 0, "{}", b"", lambda: None)


def test_an_event_that_the_empty_client_cannot_hold_is_refused_and_nothing_is_committed() -> None:
    producer = Producer(failure())
    with pytest.raises(OutputRefused, match="larger than 65536 KiB"):
        commit(producer, [(None, b"much", None)])
    assert (producer.commits, producer.aborts) == (0, 1)


def test_a_commit_that_failed_and_was_aborted_had_no_effect() -> None:
    producer = Producer(failure(txn_requires_abort=True))
    with pytest.raises(KafkaException) as failed:
        commit(producer)
    assert failed.value.args[0].txn_requires_abort()
    assert (producer.commits, producer.aborts) == (1, 1)


@pytest.mark.parametrize("abort", [failure(fatal=True), failure(retriable=True)])
def test_a_commit_that_failed_and_could_not_be_aborted_is_ambiguous(abort: KafkaException) -> None:
    producer = Producer(failure(txn_requires_abort=True), abort)
    with pytest.raises(Ambiguous, match="no answer"):
        commit(producer)
    assert (producer.commits, producer.aborts) == (1, 1)


def test_a_commit_without_an_answer_is_tried_again_and_never_aborted() -> None:
    producer = Producer(failure(retriable=True))
    with pytest.raises(Ambiguous, match="no answer to a commit"):
        commit(producer)
    assert (producer.commits, producer.aborts) == (SENDS_MAX, 0)
