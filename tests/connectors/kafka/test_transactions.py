"""A real broker does what the sink `kafka` builds on, and what the simulation's model of it does."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer
from connectors.kafka.topics import Topics, committed
from connectors.kafka.transactions_contract import GROUP, TransactionsContract, TransactionsHarness

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


class Broker(TransactionsHarness):
    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.name = topics.name

    def producer(self, **settings: object) -> Any:
        return self._topics.transactional(f"{self.name}/{settings.pop('transactional.id', GROUP)}", **settings)

    def consumer(self) -> Any:
        group = {"group.id": f"{self.name}/{GROUP}", "isolation.level": "read_committed"}
        return Consumer({"bootstrap.servers": self._topics.machine.servers, "log_level": 0, **group})

    async def committed(self) -> list[bytes | None]:
        return [record.value for record in await committed(self._topics)]

    def pass_time(self, seconds: float) -> None: ...


class TestBroker(TransactionsContract):
    @pytest.fixture
    def broker(self, topics: Topics) -> TransactionsHarness:
        return Broker(topics)
