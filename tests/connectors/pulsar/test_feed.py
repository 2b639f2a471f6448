"""What a reader meets in a topic: retention, brokers that die, topics that are created again, and others' messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from connectors.pulsar.topics import Topics
from patience import PATIENCE_S, until_async
from plugins_node import free_port
from plugins_pulsar import PulsarMachine, pulsar_machine

from leasehold import FeedError, FeedUnavailable, PositionLost
from leasehold.pipeline.connectors.pulsar import reader as reader_module
from leasehold.pipeline.connectors.pulsar.broker import PulsarAccess
from leasehold.pipeline.connectors.pulsar.feed import PulsarChangeFeed, between
from leasehold.pipeline.connectors.pulsar.position import MessagePlace, compared, place_of
from leasehold.pipeline.connectors.pulsar.reader import TopicReader
from leasehold.pipeline.errors import FeedNotFound, MalformedRecord

pytestmark = pytest.mark.xdist_group("pulsar")
"""One broker, instead of one for each process."""


@pytest.fixture
async def feed(topics: Topics) -> AsyncIterator[PulsarChangeFeed]:
    feed = topics.feed(events_max=4)
    yield feed
    await feed.close()


@pytest.fixture(scope="session")
def brief_namespace(pulsar_server: PulsarMachine) -> str:
    """Retention takes what lies in closed ledgers. No numbers are kept, which would hold it up."""
    pulsar_server.admin("PUT", "namespaces/public/passing", {})
    nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    pulsar_server.admin("POST", "namespaces/public/passing/retention", nothing)
    pulsar_server.admin("POST", "namespaces/public/passing/deduplication", False)
    return "public/passing"


@pytest.fixture
async def passing(pulsar_server: PulsarMachine, brief_namespace: str) -> AsyncIterator[Topics]:
    topics = Topics(pulsar_server, namespace=brief_namespace)
    pulsar_server.make_topic(topics.name, 1, brief_namespace)
    yield topics
    topics.close()


async def bodies(reader: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += (await anext(reader)).events["body"].to_pylist()
    return found


async def position_behind(feed: PulsarChangeFeed, count: int) -> str:
    reader, left = feed.open("0", None), count
    async with asyncio.timeout(PATIENCE_S):
        while left > (page := await anext(reader)).events.num_rows:
            left -= page.events.num_rows
    await reader.aclose()
    return page.position_after(left) or page.to


async def test_others_properties_and_keys_are_there_and_markers_are_not(topics: Topics, feed: PulsarChangeFeed) -> None:
    topics.produce("0", [b"1"], properties={"trace": "7", "leasehold-lease": "x"}, partition_key="k")
    topics.produce("0", [None], properties={"leasehold-event": "{not JSON"})
    reader = feed.open("0", None)
    rows: list[dict[str, Any]] = []
    while len(rows) < 2:
        rows += (await anext(reader)).events.to_pylist()
    await reader.aclose()
    shown = [{name: row[name] for name in ("body", "key", "properties", "operation")} for row in rows]
    assert shown == [
        {"body": b"1", "key": "k", "properties": [("trace", "7")], "operation": None},
        {"body": None, "key": None, "properties": None, "operation": None},
    ]


async def test_a_property_that_is_not_text_stops_the_partition_at_its_event(
    topics: Topics, feed: PulsarChangeFeed
) -> None:
    topics.produce("0", [b"1"])
    topics.produce("0", [b"2"], properties={"a": b"\xff"})
    topics.produce("0", [b"3"])
    reader = feed.open("0", None)
    assert (await anext(reader)).events["body"].to_pylist() == [b"1"]
    with pytest.raises(MalformedRecord, match=r"not UTF-8 text .*reset the lease to '\d+:\d+'$") as malformed:
        await anext(reader)
    place = str(malformed.value).rpartition(" to ")[2].strip("'")
    after = feed.open("0", place)
    assert (await anext(after)).events["body"].to_pylist() == [b"3"]
    await after.aclose()


async def test_a_message_in_chunks_stops_the_partition_at_its_event(topics: Topics, feed: PulsarChangeFeed) -> None:
    topics.produce("0", [b"1"])
    topics.produce("0", [b"2" * 6_000_000], in_chunks=True)
    topics.produce("0", [b"3"])
    reader = feed.open("0", None)
    assert (await anext(reader)).events["body"].to_pylist() == [b"1"]
    with pytest.raises(MalformedRecord, match=r"at (\d+:\d+) is in chunks.*reset the lease to '\1'$") as malformed:
        await anext(reader)
    place = str(malformed.value).rpartition(" to ")[2].strip("'")
    after = feed.open("0", place)
    assert (await anext(after)).events["body"].to_pylist() == [b"3"]
    await after.aclose()


async def test_a_position_whose_ledger_retention_has_taken_is_lost(passing: Topics) -> None:
    feed = passing.feed()
    passing.produce("0", [b"1", b"2"])
    position = await position_behind(feed, 1)
    passing.forget("0")
    with pytest.raises(PositionLost, match=r"no longer has ledger \d+ of the position .*has no events now"):
        await anext(feed.open("0", position))
    passing.produce("0", [b"3"])
    for call in (anext(feed.open("0", position)), feed.lag("0", position), feed.find_enqueued_time("0", position)):
        with pytest.raises(PositionLost, match="set the lease's position to") as lost:
            await call
    there = str(lost.value).partition("set the lease's position to '")[2].partition("'")[0]
    assert await bodies(feed.open("0", there), 1) == [b"3"]
    await feed.close()


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_reader_at_the_end_is_lost_where_retention_passes_it_only_if_it_has_paused(
    passing: Topics, monkeypatch: pytest.MonkeyPatch, pauses: bool
) -> None:
    feed, wait, looks = passing.feed(), TopicReader._await, []
    monkeypatch.setattr(reader_module, "AT_END_S", PATIENCE_S)

    def noted(self: TopicReader) -> bool:
        has_come = wait(self)
        looks.append(self._at_end_at is not None)
        return has_come

    async def has_looked() -> bool:
        return any(looks)

    monkeypatch.setattr(TopicReader, "_await", noted)
    passing.produce("0", [b"1"])
    reader = feed.open("0", None)
    assert await bodies(reader, 1) == [b"1"]
    following = asyncio.create_task(anext(reader))
    await until_async(has_looked, "the reader knows that it is at the end")
    passing.forget("0")
    if pauses:  # it is long ago that the broker answered
        monkeypatch.setattr(reader_module, "AT_END_S", 0.0)
    passing.produce("0", [b"2"])
    if pauses:
        with pytest.raises(PositionLost):
            await asyncio.wait_for(following, PATIENCE_S)
    else:
        assert (await asyncio.wait_for(following, PATIENCE_S)).events["body"].to_pylist() == [b"2"]
    await reader.aclose()
    await feed.close()


async def test_retention_that_overtakes_a_slow_reader_is_noticed(passing: Topics) -> None:
    feed = passing.feed(events_max=2)
    passing.produce("0", [b"%d" % number for number in range(8)])
    reader = feed.open("0", None)
    assert await bodies(reader, 2) == [b"0", b"1"]
    passing.forget("0")
    passing.produce("0", [b"8"])
    with pytest.raises(PositionLost):
        await bodies(reader, 8)
    await feed.close()


async def test_a_topic_that_was_created_again_is_another_one(topics: Topics, feed: PulsarChangeFeed) -> None:
    topics.produce("0", [b"1"])
    position = await position_behind(feed, 1)
    topics.remake()
    topics.produce("0", [b"2"])
    with pytest.raises(PositionLost, match="deleted, and created again"):
        await anext(feed.open("0", position))


async def test_a_reader_continues_once_its_broker_is_there_again() -> None:
    with pulsar_machine() as machine:
        topics = Topics(machine)
        machine.make_topic(topics.name, 1)
        topics.produce("0", [b"1"])
        feed = PulsarChangeFeed(topics.access, topics.topic, timeout_s=2.0)
        reader = feed.open("0", None)
        assert await bodies(reader, 1) == [b"1"]
        machine.kill()
        with pytest.raises(FeedUnavailable):
            await bodies(reader, 1)
        machine.start()
        await asyncio.to_thread(machine.await_serving)
        topics.client.close()
        again = Topics(machine, topics.name)
        again.produce("0", [b"2"])
        assert await bodies(feed.open("0", None), 2) == [b"1", b"2"]
        await feed.close()
        again.close()


async def test_a_topic_without_partitions_is_one_partition(pulsar_server: PulsarMachine) -> None:
    topics = Topics(pulsar_server)
    pulsar_server.admin("PUT", f"persistent/{topics.topic}")
    producer = topics.client.create_producer(topics.topic)
    producer.send(b"1")
    feed = topics.feed()
    assert [each.name for each in await feed.partitions()] == ["0"]
    assert await bodies(feed.open("0", None), 1) == [b"1"]
    await feed.close()
    topics.close()


async def test_partitions_that_are_added_are_listed(topics: Topics, feed: PulsarChangeFeed) -> None:
    assert [each.name for each in await feed.partitions()] == ["0", "1", "2", "3"]
    topics.machine.admin("POST", f"persistent/{topics.topic}/partitions", 5)
    assert [each.name for each in await feed.partitions()] == ["0", "1", "2", "3", "4"]


async def test_a_topic_that_is_missing_is_named(pulsar_server: PulsarMachine) -> None:
    topics = Topics(pulsar_server)
    feed = topics.feed()
    with pytest.raises(FeedNotFound, match=f"topic 'public/default/{topics.name}'.*create the topic"):
        await feed.partitions()
    await feed.close()
    topics.close()


async def test_brokers_that_are_away_are_an_error() -> None:
    away = PulsarChangeFeed(PulsarAccess(servers=f"127.0.0.1:{free_port()}"), "public/default/a", timeout_s=1.0)
    with pytest.raises(FeedUnavailable, match=r"Pulsar 127\.0\.0\.1"):
        await away.partitions()
    await away.close()


@pytest.mark.parametrize("text", ["", "41", "1:2:3:4", "1:-2", "a:b", "1:2:-1"])
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(PositionLost, match="like '17:41'"):
        place_of(text)


def test_places_are_ordered_as_they_are_read() -> None:
    ordered = [None, *map(place_of, ("1:-1", "1:0:0", "1:0:1", "1:0", "1:1", "2:-1", "2:0"))]
    for at, place in enumerate(ordered):
        assert [compared(place, other) for other in ordered] == [(at > n) - (at < n) for n in range(len(ordered))]


def test_sequences_grow_with_places_and_end_somewhere() -> None:
    places = [MessagePlace(7, 0), MessagePlace(7, 1, 0), MessagePlace(7, 1, 2047), MessagePlace(8, 0)]
    sequences = [place.sequence for place in places]
    assert sequences == sorted(set(sequences))
    for place in (MessagePlace(2**30, 0), MessagePlace(1, 2**22), MessagePlace(1, 1, 2048)):
        with pytest.raises(FeedError, match="cannot be numbered"):
            _ = place.sequence


def test_what_lies_between_is_counted_in_one_entry_and_estimated_over_several() -> None:
    assert between(MessagePlace(1, 1, 2), MessagePlace(1, 1, 4)) == 3
    assert between(MessagePlace(1, 1), MessagePlace(1, 3)) == 3
    assert between(MessagePlace(1, 1), MessagePlace(2, 0, 1)) == 4


async def test_a_batch_that_ends_within_a_page_is_read_on_from_there(topics: Topics, feed: PulsarChangeFeed) -> None:
    topics.produce("0", [b"%d" % number for number in range(6)], as_batch=True)
    position = await position_behind(feed, 3)
    assert position.endswith(":2")
    assert await bodies(feed.open("0", position), 3) == [b"3", b"4", b"5"]
