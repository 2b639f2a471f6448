"""The simulation's model of a Kafka topic does what a real broker does, and the sink `kafka` keeps its contract over it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from connectors.kafka.topics import PERMIT, claim
from connectors.kafka.transactions_contract import GROUP, TransactionsContract, TransactionsHarness
from lab.simulation.topic import NAME, Consumer, KafkaTopic, Producer, clients_of
from patience import PATIENCE_S

from leasehold import Output, Sink
from leasehold.pipeline.connectors.kafka.sink import KafkaOutputSink
from leasehold.pipeline.connectors.kafka.transactions import Transactions
from leasehold.pipeline.contract.sink import event_table
from leasehold.testing import Row, SinkContract, SinkHarness


class Model(TransactionsHarness):
    name = NAME

    def __init__(self) -> None:
        self._now = 0.0
        self._topic = KafkaTopic(1, lambda: self._now)

    def producer(self, **settings: object) -> Any:
        producer = Producer(self._topic, {"transactional.id": GROUP, **settings})
        producer.init_transactions(1.0)
        return producer

    def consumer(self) -> Any:
        return Consumer(self._topic, {"group.id": GROUP, "isolation.level": "read_committed"})

    async def committed(self) -> list[bytes | None]:
        return self._topic.read_committed(0)

    def pass_time(self, seconds: float) -> None:
        self._now += seconds


class TestModel(TransactionsContract):
    @pytest.fixture
    def broker(self) -> TransactionsHarness:
        return Model()

    def test_a_commit_is_answered_before_offsets_show_it(self) -> None:
        """As brokers do now and then: who does not ask for stable offsets gets the one before."""
        model = Model()
        producer = model.producer()
        for position in ("1", "2"):
            model.write(producer, json.dumps({"position": position}), b"1")
            producer.commit_transaction(1.0)
        topic = model._topic
        assert topic.offset_of(GROUP, is_stable=False) == json.dumps({"position": "1"})
        assert topic.offset_of(GROUP, is_stable=True) == json.dumps({"position": "2"})


class Harness(SinkHarness):
    partitions = ("0", "1")

    def __init__(self) -> None:
        self.topic = KafkaTopic(2)
        self.sinks: list[KafkaOutputSink] = []

    async def sink(self) -> Sink:
        self.sinks.append(self.topic.sink())
        await self.sinks[-1].prepare()
        return self.sinks[-1]

    async def rows(self, partition: str) -> list[Row]:
        found = self.topic.read_committed(int(partition))
        return [Row(int(json.loads(value or b"")["number"])) for value in found]


@pytest.fixture
async def model() -> AsyncIterator[Harness]:
    harness = Harness()
    with clients_of(harness.topic):
        yield harness
        for sink in harness.sinks:
            await sink.close()


async def test_a_claim_continues_behind_what_its_predecessor_commits_until_it_is_fenced(
    model: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The predecessor writes while the claim is under way."""
    sink, table = await model.sink(), event_table("0", [3, 4])
    older = await sink.open(claim(1, continuation="2"))
    begin, loop = Transactions.begin, asyncio.get_running_loop()

    def begin_late(self: Transactions) -> None:
        monkeypatch.setattr(Transactions, "begin", begin)
        write = older.write(Output(table=table, start="2", to="4", events=2), PERMIT)
        asyncio.run_coroutine_threadsafe(write, loop).result(PATIENCE_S)
        begin(self)

    monkeypatch.setattr(Transactions, "begin", begin_late)
    assert (await sink.open(claim(2, continuation="2"))).position == "4"


class TestSinkOverTheModel(SinkContract):
    @pytest.fixture
    def harness(self, model: Harness) -> SinkHarness:
        return model
