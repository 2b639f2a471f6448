"""What a reader meets in a stream: retention, a server that dies, consumers that go away, and others' messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from connectors.nats.streams import Made
from nats.aio.msg import Msg
from patience import PATIENCE_S, until_async
from plugins_nats import nats_machine

from leasehold import FeedError, FeedUnavailable, Page, PositionLost
from leasehold.pipeline.connectors.nats import consumer
from leasehold.pipeline.connectors.nats.connection import NatsError, Unanswered
from leasehold.pipeline.connectors.nats.consumer import Broken, StreamConsumer, StreamMessage
from leasehold.pipeline.connectors.nats.feed import NatsChangeFeed
from leasehold.pipeline.errors import FeedNotFound


@pytest.fixture
async def feed(made: Made) -> AsyncIterator[NatsChangeFeed]:
    feed = made.feed(page_events_max=4)
    yield feed
    await feed.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers at the end look at the stream every now and then."""
    monkeypatch.setattr(consumer, "IDLE_S", 0.05)


async def bodies(reader: Any, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += (await anext(reader)).events["body"].to_pylist()
    return found


async def test_others_headers_are_properties(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"1"], {"Trace-Id": "7"})
    await made.append("0", [b"2"], {"leasehold-event": "{not JSON", "Trace-Id": "8"})
    await made.append("0", [b"3"])
    reader = feed.open("0", None)
    found: list[Any] = []
    while len(found) < 3:
        found += (await anext(reader)).events["properties"].to_pylist()
    await reader.aclose()
    assert found == [[("Trace-Id", "7")], [("leasehold-event", "{not JSON"), ("Trace-Id", "8")], None]


async def test_events_that_retention_has_taken_before_they_were_read_stop_the_reader(
    made: Made, feed: NatsChangeFeed
) -> None:
    await made.append("0", [b"1", b"2", b"3", b"4"])
    await made.forget(4)
    with pytest.raises(PositionLost, match=r"what is left begins at 4\. .* set the lease's position to '3'"):
        await anext(feed.open("0", "1"))
    assert await bodies(feed.open("0", "3"), 1) == [b"4"]


async def test_retention_that_overtakes_a_slow_reader_is_told(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"%d" % number for number in range(1, 5)])
    reader = feed.open("0", None)
    assert await bodies(reader, 4) == [b"1", b"2", b"3", b"4"]
    await made.append("0", [b"%d" % number for number in range(5, 13)])
    await made.forget(11)
    with pytest.raises(PositionLost):
        await bodies(reader, 8)


async def test_retention_that_overtakes_a_page_on_its_way_is_noticed(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, read = made.feed(page_events_max=8), StreamConsumer.read
    await made.append("0", [b"1", b"2"])
    reader = feed.open("0", None)
    assert await bodies(reader, 2) == [b"1", b"2"]

    async def read_around(self: StreamConsumer, events_max: int, bytes_max: int) -> list[StreamMessage]:
        head = list[StreamMessage]()
        while len(head) < 6:  # which the open pull wants
            head += await read(self, 6 - len(head), bytes_max)
        await made.forget(15)
        return head + await read(self, events_max, bytes_max)

    monkeypatch.setattr(StreamConsumer, "read", read_around)
    await made.append("0", [b"%d" % number for number in range(3, 21)])
    with pytest.raises(PositionLost, match="what is left begins at 15"):
        await bodies(reader, 8)
    await feed.close()


@pytest.mark.parametrize("answer", [[], Broken("gone")], ids=["nothing", "broken"])
async def test_a_start_that_a_consumer_does_not_show_is_not_available(
    made: Made, feed: NatsChangeFeed, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    async def read(*_: object) -> Any:
        if answer:
            raise answer
        return answer

    await made.append("0", [b"1"])
    monkeypatch.setattr(StreamConsumer, "read", read)
    with pytest.raises(FeedUnavailable):
        await feed.start_of("0", datetime(2020, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("answer", [b"[]", b'{"error": 7}', b'{"error": {"code": "many"}}'])
async def test_an_answer_that_is_not_jetstreams_counts_as_none(made: Made, answer: bytes) -> None:
    client, subject = await made.connection.client(), f"foreign.{made.stream.name}"

    async def respond(request: Msg) -> None:
        await request.respond(answer)

    await client.subscribe(subject, cb=respond)
    with pytest.raises(Unanswered, match=r"^asking: the answer.* not one of JetStream"):
        await made.connection.request(subject, b"", what="asking")


@pytest.mark.usefixtures("impatient")
async def test_a_reader_at_the_end_is_not_lost_where_retention_passes_it(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"1"])
    reader = feed.open("0", None)
    assert await bodies(reader, 1) == [b"1"]
    moved = asyncio.create_task(anext(reader))
    await made.append("1", [b"another's"] * 5)
    await made.forget(5)
    page: Page = await asyncio.wait_for(moved, PATIENCE_S)
    assert (page.events.num_rows, page.to.partition("@")[0]) == (0, "6")
    await made.append("0", [b"2"])
    assert await bodies(reader, 1) == [b"2"]
    assert await bodies(feed.open("0", page.to), 1) == [b"2"]


async def test_a_stream_that_was_made_again_stops_the_reader(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"1", b"2", b"3"])
    await made.remake()
    await made.append("0", [b"another"])
    for call in (anext(feed.open("0", "3")), feed.lag("0", "3")):
        with pytest.raises(PositionLost, match="it ends at 1, so it was created again or restored"):
            await call


async def test_a_consumer_that_goes_away_is_made_again(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"1"])
    reader = feed.open("0", None)
    assert await bodies(reader, 1) == [b"1"]
    waiting = asyncio.create_task(bodies(reader, 2))
    for body in (b"2", b"3"):
        await _without_consumers(made)
        await made.append("0", [body])
    assert await waiting == [b"2", b"3"]


async def test_an_event_that_was_lost_on_its_way_is_asked_for_again(
    made: Made, feed: NatsChangeFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made.append("0", [b"%d" % number for number in range(1, 7)])
    taken = consumer.StreamConsumer._next
    seen: list[str] = []

    async def lossy(self: consumer.StreamConsumer) -> Any:
        message = await taken(self)
        seen.append(message.reply)
        return await taken(self) if len(seen) == 3 else message

    monkeypatch.setattr(consumer.StreamConsumer, "_next", lossy)
    assert await bodies(feed.open("0", None), 6) == [b"%d" % number for number in range(1, 7)]


async def _without_consumers(made: Made) -> None:
    for name in (await made.connection.ask(f"CONSUMER.NAMES.{made.stream.name}"))["consumers"]:
        await made.connection.ask(f"CONSUMER.DELETE.{made.stream.name}.{name}")


async def test_a_reader_leaves_no_consumer_behind(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"1"])
    reader = feed.open("0", None)
    await anext(reader)
    await reader.aclose()
    assert await feed.lag("0", None) == 1
    await until_async(lambda: _has_no_consumers(made))


async def _has_no_consumers(made: Made) -> bool:
    return not (await made.connection.ask(f"CONSUMER.NAMES.{made.stream.name}"))["consumers"]


async def test_a_server_that_dies_and_comes_back_is_read_on_where_it_was() -> None:
    with nats_machine() as machine:
        made = Made(machine)
        await made.stream.create(1)
        feed = made.feed(timeout_s=5)
        await made.append("0", [b"1"])
        found, position = await _read(feed, None, 1)
        machine.kill()
        with pytest.raises(FeedUnavailable):
            await _read(feed, position, 1)
        machine.start()
        machine.await_serving()
        await until_async(lambda: _appends(made, b"2"))
        again, _ = await _read(feed, position, 1)
        assert found + again == [b"1", b"2"]
        await feed.close()
        await made.connection.close()


async def _read(feed: NatsChangeFeed, position: str | None, count: int) -> tuple[list[bytes], str | None]:
    """As a host does: after an error another reader."""
    found: list[bytes] = []
    reader = feed.open("0", position)
    try:
        while len(found) < count:
            page = await asyncio.wait_for(anext(reader), PATIENCE_S)
            found, position = found + page.events["body"].to_pylist(), page.to
    finally:
        await reader.aclose()
    return found, position


async def _appends(made: Made, body: bytes) -> bool:
    try:
        await made.append("0", [body])
    except NatsError:
        return False
    return True


async def test_a_stream_that_is_missing_is_named_with_the_remedy(made: Made, feed: NatsChangeFeed) -> None:
    await made.connection.ask(f"STREAM.DELETE.{made.stream.name}")
    for call in (feed.partitions(), anext(feed.open("0", None)), feed.lag("0", None)):
        with pytest.raises(FeedNotFound, match="create the stream, or start the pipeline whose sink creates it"):
            await call
    await made.stream.create(1)


async def test_a_partition_beyond_those_of_the_settings_is_refused(feed: NatsChangeFeed) -> None:
    with pytest.raises(FeedError, match="it has 4, numbered from 0"):
        await feed.latest("4")


async def test_a_stream_that_was_made_again_is_noticed_even_if_it_has_grown_beyond_the_position(
    made: Made, feed: NatsChangeFeed
) -> None:
    await made.append("0", [b"1", b"2"])
    position = await feed.latest("0")
    await made.remake()
    await made.append("0", [b"%d" % number for number in range(5)])
    for call in (anext(feed.open("0", position)), feed.lag("0", position), feed.find_enqueued_time("0", position)):
        with pytest.raises(PositionLost, match="it was created again"):
            await call
    with pytest.raises(PositionLost, match="positions of two streams"):
        feed.compare(position, await feed.latest("0"))


@pytest.mark.usefixtures("impatient")
async def test_a_stream_that_is_made_again_stops_the_reader_that_waits_at_its_end(
    made: Made, feed: NatsChangeFeed
) -> None:
    await made.append("0", [b"1"])
    reader = feed.open("0", None)
    first = await anext(reader)
    waiting = asyncio.create_task(anext(reader))
    await made.remake()
    with pytest.raises((FeedNotFound, PositionLost)):  # it may look while there is none
        await asyncio.wait_for(waiting, PATIENCE_S)
    with pytest.raises(PositionLost, match="created again"):
        await anext(feed.open("0", first.to))


async def test_events_that_retention_took_are_missed_although_a_position_keeps_the_front_of_the_stream(
    made: Made, feed: NatsChangeFeed
) -> None:
    """A sink's positions never expire, so a stream may begin long before its first event."""
    await _keep_a_position(made)
    await made.append("0", [b"1", b"2", b"3", b"4"])
    position = await _position(feed, made, b"2")
    await made.forget_by_age()
    await made.append("0", [b"5"])
    for call in (anext(feed.open("0", position)), feed.lag("0", position)):
        with pytest.raises(PositionLost, match="what is left begins at 6"):
            await call


@pytest.mark.usefixtures("impatient")
async def test_a_reader_at_the_end_is_not_lost_if_all_events_expire_behind_a_position(
    made: Made, feed: NatsChangeFeed
) -> None:
    await _keep_a_position(made)
    await made.append("0", [b"1"])
    reader = feed.open("0", None)
    assert await bodies(reader, 1) == [b"1"]
    moved = asyncio.create_task(anext(reader))
    await _keep_a_position(made)
    await made.forget_by_age()
    page: Page = await asyncio.wait_for(moved, PATIENCE_S)
    assert page.events.num_rows == 0
    assert await feed.lag("0", page.to) == 0
    await made.append("0", [b"2"])
    assert await bodies(feed.open("0", page.to), 1) == [b"2"]


async def _keep_a_position(made: Made) -> None:
    headers = {"Nats-TTL": "never"}
    await made.connection.request(made.stream.lease("orders", "0"), b"{}", headers, what="as a sink does")


async def _position(feed: NatsChangeFeed, made: Made, behind: bytes) -> str:
    page = await anext(feed.open("0", None))
    return page.position_after(page.events["body"].to_pylist().index(behind) + 1) or ""


async def test_a_lone_sequence_is_a_position_and_other_texts_are_not(made: Made, feed: NatsChangeFeed) -> None:
    await made.append("0", [b"1", b"2"])
    assert await bodies(feed.open("0", "1"), 1) == [b"2"]
    for text in ("1@", "@1", "1@x", "-1", "1 ", "9" * 19):
        with pytest.raises(PositionLost, match="not a position of a stream"):
            feed.compare(text, None)


@pytest.mark.parametrize(
    ("configuration", "told"),
    [
        ({"retention": "workqueue"}, "its retention must be `limits`"),
        ({"max_msgs_per_subject": 1}, "`max_msgs_per_subject` must be off"),
        (
            {"subject_delete_marker_ttl": 10**9, "allow_rollup_hdrs": True, "allow_msg_ttl": True},
            "`subject_delete_marker_ttl` must be off",
        ),
        ({"subjects": ["other.>"]}, "it takes 'other.>', and not '.*.0': add that, or correct `subject`"),
    ],
)
async def test_a_stream_that_would_lose_events_unnoticed_is_not_read(
    made: Made, feed: NatsChangeFeed, configuration: dict[str, Any], told: str
) -> None:
    await made.remake(**{"subjects": [f"{made.stream.subject}.>"], **configuration})
    for call in (feed.partitions(), anext(feed.open("0", None)), feed.lag("0", None)):
        with pytest.raises(FeedError, match=told):
            await call


async def test_a_header_with_an_operation_is_a_property_unless_it_is_trusted(made: Made, feed: NatsChangeFeed) -> None:
    header = {"leasehold-event": '{"key": "a", "operation": "delete"}'}
    await made.append("0", [b"1"], header)
    careful = made.feed(trusts_headers=False)
    [[doubted], [trusted]] = [(await anext(each.open("0", None))).events.to_pylist() for each in (careful, feed)]
    await careful.close()
    assert (doubted["key"], doubted["operation"], doubted["properties"]) == (None, None, list(header.items()))
    assert (trusted["key"], trusted["operation"], trusted["properties"]) == ("a", "delete", None)
