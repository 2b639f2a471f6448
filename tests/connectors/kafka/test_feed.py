"""What the feed `kafka` makes of a broker's transactions, retention, headers and changes of a topic."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from confluent_kafka import TopicPartition, admin
from connectors.kafka.topics import Topics
from patience import PATIENCE_S, until_async

from leasehold import Page, PositionLost
from leasehold.pipeline.connectors.kafka.feed import KafkaChangeFeed
from leasehold.pipeline.connectors.kafka.reader import ReadingLimits
from leasehold.pipeline.errors import FeedNotFound, MalformedRecord

pytestmark = pytest.mark.xdist_group("kafka")
"""One broker, instead of one for each process."""


@pytest.fixture
async def feed(topics: Topics) -> AsyncIterator[KafkaChangeFeed]:
    feed = KafkaChangeFeed(topics.access, topics.name)
    yield feed
    await feed.close()


async def read(
    feed: KafkaChangeFeed, position: str | None = None, *, count: int = 1, partition: str = "0"
) -> list[Page]:
    """Pages with that many events; then one that only moves the position, if there is such."""
    pages: list[Page] = []
    reader = feed.open(partition, position)
    try:
        async with asyncio.timeout(PATIENCE_S):
            while sum(page.events.num_rows for page in pages) < count:
                pages.append(await anext(reader))
    finally:
        await reader.aclose()
    return pages


async def bodies(feed: KafkaChangeFeed, position: str | None = None, *, count: int) -> list[bytes]:
    return [body for page in await read(feed, position, count=count) for body in page.events["body"].to_pylist()]


async def test_what_an_aborted_transaction_left_is_never_read(topics: Topics, feed: KafkaChangeFeed) -> None:
    producer = topics.transactional()
    for number, is_kept in enumerate((True, False, True)):
        producer.begin_transaction()
        topics.produce(0, [b"%d" % number], by=producer)
        (producer.commit_transaction if is_kept else producer.abort_transaction)(PATIENCE_S)
    assert await bodies(feed, count=2) == [b"0", b"2"]


async def test_an_open_transaction_holds_back_what_follows_it(topics: Topics, feed: KafkaChangeFeed) -> None:
    topics.produce(0, [b"before"])
    producer = topics.transactional()
    producer.begin_transaction()
    topics.produce(0, [b"within"], by=producer)
    topics.produce(0, [b"behind"])
    end = await feed.latest("0")
    assert await bodies(feed, count=1) == [b"before"]
    assert await feed.lag("0", end) == 0
    producer.commit_transaction(PATIENCE_S)
    assert await bodies(feed, end, count=2) == [b"within", b"behind"]


async def test_a_topic_that_ends_with_the_end_of_a_transaction_has_no_lag(
    topics: Topics, feed: KafkaChangeFeed
) -> None:
    producer = topics.transactional()
    producer.begin_transaction()
    topics.produce(0, [b"0"], by=producer)
    producer.commit_transaction(PATIENCE_S)
    reader = feed.open("0", None)
    async with asyncio.timeout(PATIENCE_S):
        event, end = await anext(reader), await anext(reader)
    await reader.aclose()
    assert (event.events.num_rows, end.events.num_rows) == (1, 0)
    assert (await feed.lag("0", event.to), await feed.lag("0", end.to)) == (1, 0)
    assert end.to == await feed.latest("0")


async def test_retention_that_took_unread_events_is_a_lost_position(topics: Topics, feed: KafkaChangeFeed) -> None:
    topics.produce(0, [b"0", b"1", b"2"])
    [first] = await read(feed, count=3)
    client = topics.machine.admin()
    client.delete_records([TopicPartition(topics.name, 0, 2)])[TopicPartition(topics.name, 0)].result(PATIENCE_S)
    with pytest.raises(PositionLost, match=r"from offset 1 on .* first available is 2\. .*--to earliest"):
        await read(feed, first.position_after(1))
    with pytest.raises(PositionLost, match=r"from offset 0 on"):
        await read(feed)
    assert await bodies(feed, await feed.start_of("0", "earliest"), count=1) == [b"2"]


async def test_a_topic_that_was_created_again_is_a_lost_position(topics: Topics, feed: KafkaChangeFeed) -> None:
    topics.produce(0, [b"0", b"1"])
    [page] = await read(feed, count=2)
    topics.machine.delete_topic(topics.name)
    with pytest.raises(FeedNotFound, match=f"create the topic '{topics.name}'"):
        await feed.partitions()
    topics.machine.make_topic(topics.name, 4)
    topics.produce(0, [b"new"] * 5)
    for ask in (lambda: read(feed, page.to), lambda: feed.lag("0", page.to)):
        with pytest.raises(PositionLost, match=r"(?s)deleted and created again.*--to earliest"):
            await ask()
    with pytest.raises(PositionLost):
        feed.compare(page.to, await feed.latest("0"))


async def test_an_open_reader_notices_that_its_topic_was_created_again(topics: Topics, feed: KafkaChangeFeed) -> None:
    topics.produce(0, [b"0"])
    reader = feed.open("0", None)
    async with asyncio.timeout(PATIENCE_S):
        await anext(reader)
    topics.machine.delete_topic(topics.name)
    topics.machine.make_topic(topics.name, 4)
    topics.produce(0, [b"new"] * 5)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PositionLost):
            [page async for page in reader]


async def test_a_position_behind_the_end_is_lost(topics: Topics, feed: KafkaChangeFeed) -> None:
    topics.produce(0, [b"0"])
    for ask in (lambda: read(feed, "7"), lambda: feed.lag("0", "7")):
        with pytest.raises(PositionLost, match="it ends at 1"):
            await ask()


async def test_partitions_that_are_added_are_listed_and_read(topics: Topics, feed: KafkaChangeFeed) -> None:
    assert [each.name for each in await feed.partitions()] == ["0", "1", "2", "3"]
    topics.machine.add_partitions(topics.name, 11)

    async def names() -> list[str]:
        return [each.name for each in await feed.partitions()]

    await until_async(lambda: names(), "partitions are listed")
    assert await names() == ["0", "1", "10", "2", "3", "4", "5", "6", "7", "8", "9"]
    topics.produce(10, [b"ten"])
    [page] = await read(feed, partition="10")
    assert page.events["body"].to_pylist() == [b"ten"]


async def test_the_lag_of_all_partitions_is_one_request(
    topics: Topics, feed: KafkaChangeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ask = admin.AdminClient.list_offsets

    def counted(self: admin.AdminClient, wanted: dict[TopicPartition, object], **more: object) -> object:
        asked.append(len(wanted))
        return ask(self, wanted, **more)

    monkeypatch.setattr(admin.AdminClient, "list_offsets", counted)
    for partition in range(4):
        topics.produce(partition, [b"x"] * partition)
    assert await asyncio.gather(*(feed.lag(str(partition), None) for partition in range(4))) == [0, 1, 2, 3]
    assert asked == [4]


async def test_keys_headers_and_missing_bodies_become_columns(topics: Topics) -> None:
    headers = [("a", b"1"), ("b", b"\xff\x00"), ("a", b"2"), ("none", None), ("leasehold-operation", b"delete")]
    topics.produce(0, [b"with"], key="ключ", headers=headers, timestamp=1_700_000_000_123)
    topics.produce(0, [None])
    for trusts in (False, True):
        feed = KafkaChangeFeed(topics.access, topics.name, limits=ReadingLimits(trusts_headers=trusts))
        events = [event for page in await read(feed, count=2) for event in page.events.to_pylist()]
        await feed.close()
        operation = [] if trusts else [("leasehold-operation", "delete")]
        assert events[0] == {
            "partition": "0",
            "sequence": 0,
            "offset": "0",
            "enqueued_time": datetime(2023, 11, 14, 22, 13, 20, 123000, tzinfo=UTC),
            "key": "ключ",
            "body": b"with",
            "properties": [("a", "2"), ("b", "\\xff\x00"), ("none", None), *operation],
            "operation": "delete" if trusts else None,
        }
        assert {name: events[1][name] for name in ("key", "body", "properties", "operation")} == {
            **dict.fromkeys(("key", "body", "properties", "operation"))
        }


async def test_a_key_that_is_not_text_stops_behind_what_precedes_it_and_names_both_remedies(
    topics: Topics, feed: KafkaChangeFeed
) -> None:
    topics.produce(0, [b"%d" % number for number in range(5)], key="k")
    topics.produce(0, [b"binary"], key=b"\xff\x01")
    topics.produce(0, [b"behind"])
    pages: list[Page] = []

    async def read_all() -> None:
        async for page in feed.open("0", None):
            pages.append(page)  # noqa: PERF401  # they are looked at after an error

    with pytest.raises(MalformedRecord, match=r"at offset 5 has a key .*`keys: base64`") as refused:
        await asyncio.wait_for(read_all(), PATIENCE_S)
    assert [body for page in pages for body in page.events["body"].to_pylist()] == [b"0", b"1", b"2", b"3", b"4"]
    remedy = re.search(r"reset the lease to '(6@[^']+)'", str(refused.value))
    assert remedy is not None
    assert await bodies(feed, remedy[1], count=1) == [b"behind"]
    other = KafkaChangeFeed(topics.access, topics.name, limits=ReadingLimits(keys="base64"))
    assert (await read(other, pages[-1].to))[0].events["key"].to_pylist()[0] == "/wE="
    await other.close()


async def test_offsets_that_compaction_took_are_gaps(topics: Topics, feed: KafkaChangeFeed) -> None:
    """As after transactions: positions are offsets, and events are counted as they come."""
    producer = topics.transactional()
    for number in range(3):
        producer.begin_transaction()
        topics.produce(0, [b"%d" % number], by=producer)
        producer.commit_transaction(PATIENCE_S)
    [page] = [each for each in await read(feed, count=3) if each.events.num_rows]
    assert page.events["sequence"].to_pylist() == [0, 2, 4]
    assert await bodies(feed, page.position_after(1), count=2) == [b"1", b"2"]
