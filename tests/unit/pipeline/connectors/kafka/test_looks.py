"""An open partition looks at its topic from time to time, and is read while the answer is on its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.connectors.kafka import feed as feed_module
from leasehold.pipeline.connectors.kafka.cluster import KafkaAccess, KafkaCluster, Topic
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.errors import FeedUnavailable, PositionLost
from leasehold.pipeline.event import EVENT_SCHEMA, Page


class Reader:
    """A partition with a page at each read."""

    def __init__(self, *_: object) -> None:
        self._read = 0

    def read(self) -> Page:
        self._read += 1
        return Page(EVENT_SCHEMA.empty_table(), f"{self._read}@id")

    def close(self) -> None: ...


class Broker:
    """It describes the topic at once, until it is frozen."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Topic] | None = None

    async def describe(self, name: str) -> Topic:
        if self.answer is None:
            return Topic("id", 1)
        return await self.answer

    def freeze(self) -> asyncio.Future[Topic]:
        self.answer = asyncio.get_running_loop().create_future()
        return self.answer


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(KafkaCluster, "describe", lambda self, name: broker.describe(name))
    monkeypatch.setattr(feed_module, "PartitionReader", Reader)
    monkeypatch.setattr(feed_module, "CHECK_S", 0.0)
    return broker


@pytest.fixture
async def feed(broker: Broker) -> AsyncIterator[KafkaChangeFeed]:
    feed = KafkaChangeFeed(KafkaAccess(servers="127.0.0.1:9092"), "orders")
    yield feed
    await feed.close()


async def test_a_partition_is_read_while_the_broker_that_is_asked_for_its_topic_is_frozen(
    broker: Broker, feed: KafkaChangeFeed
) -> None:
    pages = feed.open("0", None)
    async with asyncio.timeout(PATIENCE_S):
        await anext(pages)
        answer = broker.freeze()
        assert [(await anext(pages)).to for _ in range(20)] == [f"{number}@id" for number in range(2, 22)]
        answer.set_exception(FeedUnavailable("no answer"))
        assert [(await anext(pages)).to for _ in range(20)] == [f"{number}@id" for number in range(22, 42)]


async def test_an_answer_that_comes_late_counts(broker: Broker, feed: KafkaChangeFeed) -> None:
    pages = feed.open("0", None)
    async with asyncio.timeout(PATIENCE_S):
        await anext(pages)
        answer = broker.freeze()
        await anext(pages)
        answer.set_result(Topic("another", 1))
        with pytest.raises(PositionLost, match="it has the id another now"):
            [page async for page in pages]


async def test_a_feed_that_is_closed_waits_for_no_answer(broker: Broker, feed: KafkaChangeFeed) -> None:
    pages = feed.open("0", None)
    async with asyncio.timeout(PATIENCE_S):
        await anext(pages)
        answer = broker.freeze()
        await anext(pages)
        await asyncio.sleep(0)
        await pages.aclose()
        await feed.close()
        assert answer.cancelled()
