"""What the sink `kafka` builds on, as tests that a real broker and the simulation's model of it both pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from patience import PATIENCE_S, until

GROUP = "leasehold.contract/bank/0"
FENCED = {KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH}


class TransactionsHarness(ABC):
    """One topic. name: its name."""

    name: str

    @abstractmethod
    def producer(self, **settings: object) -> Any:
        """A producer of the transactional id GROUP, initialized."""

    @abstractmethod
    def consumer(self) -> Any:
        """Of the group GROUP, with read_committed."""

    @abstractmethod
    async def committed(self) -> list[bytes | None]:
        """What a third party reads in partition 0 with read_committed, up to its end now."""

    @abstractmethod
    def pass_time(self, seconds: float) -> None:
        """Nothing, if it passes by itself."""

    def fill(self, producer: Any, *values: bytes) -> None:
        for value in values:
            producer.produce(self.name, value=value, partition=0)
        producer.flush(PATIENCE_S)

    def write(self, producer: Any, metadata: str, *values: bytes) -> None:
        """In a transaction that stays open."""
        producer.begin_transaction()
        self.fill(producer, *values)
        group, place = self.consumer().consumer_group_metadata(), TopicPartition(self.name, 0, 0, metadata)
        producer.send_offsets_to_transaction([place], group, PATIENCE_S)

    def position(self, timeout_s: float = PATIENCE_S) -> str | None:
        consumer = self.consumer()
        try:
            [found] = consumer.committed([TopicPartition(self.name, 0)], timeout_s)
        finally:
            consumer.close()
        return found.metadata if found.offset >= 0 else None


def held(position: int) -> str:
    """Metadata as the sink's."""
    return f'{{"generation":0,"epoch":1,"position":"{position}"}}'


class TransactionsContract:
    """Give a fixture `broker` that yields a TransactionsHarness."""

    @pytest.fixture
    def broker(self) -> Any:
        raise NotImplementedError("define a fixture `broker` that yields a TransactionsHarness")

    async def test_output_and_position_are_committed_together(self, broker: TransactionsHarness) -> None:
        producer = broker.producer()
        broker.write(producer, held(2), b"1", b"2")
        producer.commit_transaction(PATIENCE_S)
        assert (broker.position(), await broker.committed()) == (held(2), [b"1", b"2"])
        broker.write(producer, held(3), b"3")
        producer.abort_transaction(PATIENCE_S)
        assert (broker.position(), await broker.committed()) == (held(2), [b"1", b"2"])

    async def test_nobody_reads_past_an_open_transaction(self, broker: TransactionsHarness) -> None:
        first, second = broker.producer(), broker.producer(**{"transactional.id": "another"})
        broker.write(first, held(1), b"open")
        second.begin_transaction()
        broker.fill(second, b"1")
        second.commit_transaction(PATIENCE_S)
        assert await broker.committed() == []
        first.abort_transaction(PATIENCE_S)
        assert await broker.committed() == [b"1"]

    async def test_a_position_is_not_known_while_its_transaction_is_open(self, broker: TransactionsHarness) -> None:
        producer = broker.producer()
        broker.write(producer, held(1), b"1")
        with pytest.raises(KafkaException):
            broker.position(0.5)
        producer.commit_transaction(PATIENCE_S)
        assert broker.position() == held(1)

    async def test_a_later_producer_ends_what_an_earlier_one_has_open_and_fences_it(
        self, broker: TransactionsHarness
    ) -> None:
        earlier = broker.producer()
        broker.write(earlier, held(1), b"left open")
        later = broker.producer()
        assert broker.position() is None
        with pytest.raises(KafkaException) as fenced:
            earlier.commit_transaction(PATIENCE_S)
        assert fenced.value.args[0].code() in FENCED
        assert fenced.value.args[0].fatal()
        broker.write(later, held(1), b"1")
        later.commit_transaction(PATIENCE_S)
        assert (broker.position(), await broker.committed()) == (held(1), [b"1"])

    async def test_a_fenced_producer_begins_nothing(self, broker: TransactionsHarness) -> None:
        earlier = broker.producer()
        broker.write(earlier, held(1), b"1")
        earlier.commit_transaction(PATIENCE_S)
        broker.producer()
        with pytest.raises(KafkaException) as fenced:
            broker.write(earlier, held(2), b"2")
        assert fenced.value.args[0].code() in FENCED
        assert (broker.position(), await broker.committed()) == (held(1), [b"1"])

    async def test_a_transaction_that_lasts_too_long_is_aborted_and_cannot_be_committed(
        self, broker: TransactionsHarness
    ) -> None:
        """The brokers look every 10 s."""
        producer = broker.producer(**{"transaction.timeout.ms": 1000})
        broker.write(producer, held(1), b"1")
        broker.pass_time(1.1)
        until(lambda: self._is_free(broker), "the brokers abort it")
        with pytest.raises(KafkaException) as fenced:
            producer.commit_transaction(PATIENCE_S)
        assert fenced.value.args[0].code() in FENCED
        assert (broker.position(), await broker.committed()) == (None, [])

    def _is_free(self, broker: TransactionsHarness) -> bool:
        """Whether no transaction has the position."""
        try:
            broker.position(0.5)
        except KafkaException:
            return False
        return True
