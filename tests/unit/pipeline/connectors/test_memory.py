"""The memory feed and sink: the contract, and what only they do."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import pytest
from patience import PATIENCE_S

from leasehold.pipeline.connectors.memory import MemoryChangeFeed, MemoryDestination, MemoryOutputSink
from leasehold.pipeline.contract import ChangeFeedContract, FeedHarness, Row, SinkContract, SinkHarness, event_table
from leasehold.pipeline.errors import Ambiguous, Fenced, PositionLost
from leasehold.pipeline.feed import PartitionEnded
from leasehold.pipeline.sink import Claim, Output

T = TypeVar("T")


class MemoryFeedHarness(FeedHarness):
    times_are_apart = True

    def __init__(self) -> None:
        self.partitions = ("a", "b")
        self.events_max = 8
        self.bytes_max = 4096
        self.feed: MemoryChangeFeed = MemoryChangeFeed(
            self.partitions, page_events_max=self.events_max, page_bytes_max=self.bytes_max
        )
        self._now = datetime(2026, 1, 1, tzinfo=UTC)

    async def append(self, partition: str, bodies: Sequence[bytes]) -> None:
        self._now += timedelta(seconds=1)
        self.feed.append(partition, bodies, at=self._now)


class TestMemoryFeed(ChangeFeedContract):
    @pytest.fixture
    def harness(self) -> FeedHarness:
        return MemoryFeedHarness()


class MemorySinkHarness(SinkHarness):
    def __init__(self) -> None:
        self.partitions = ("a", "b")
        self._destination = MemoryDestination()

    async def sink(self) -> MemoryOutputSink:
        return MemoryOutputSink(self._destination)

    async def rows(self, partition: str) -> list[Row]:
        return [
            Row(number, commit.output.start, commit.output.to)
            for commit in self._destination.commits
            if commit.claim.partition == partition
            for number in commit.output.table["sequence"].to_pylist()
        ]


class TestMemorySink(SinkContract):
    @pytest.fixture
    def harness(self) -> SinkHarness:
        return MemorySinkHarness()


async def test_a_split_partition_ends_behind_its_last_event_and_names_its_children() -> None:
    feed = MemoryChangeFeed(["a"])
    feed.append("a", [b"1", b"2"])
    feed.split("a", ["a1", "a2"])
    reader = feed.open("a", None)
    assert (await anext(reader)).events["body"].to_pylist() == [b"1", b"2"]
    with pytest.raises(PartitionEnded) as ended:
        await anext(reader)
    assert ended.value.children == (("a1", None), ("a2", None))
    assert {p.name: p.parents for p in await feed.partitions()} == {"a": (), "a1": ("a",), "a2": ("a",)}


async def test_a_reader_that_waits_learns_of_the_split() -> None:
    feed = MemoryChangeFeed(["a"])
    waiting = asyncio.create_task(anext(feed.open("a", None)))
    await feed.latest("a")
    feed.split("a", ["a1"])
    with pytest.raises(PartitionEnded):
        await waiting


async def test_partitions_that_split_into_one_child_are_merged() -> None:
    feed = MemoryChangeFeed(["a", "b"])
    feed.split("a", ["c"])
    feed.split("b", ["c"])
    assert (await feed.partitions())[-1].parents == ("a", "b")


async def test_a_trimmed_position_is_lost_and_the_beginning_is_what_is_left() -> None:
    feed = MemoryChangeFeed(["a"])
    feed.append("a", [b"0", b"1", b"2"])
    feed.trim("a", "2")
    with pytest.raises(PositionLost, match="positions 2 to 3, and 1"):
        await anext(feed.open("a", "1"))
    assert (await anext(feed.open("a", "2"))).events["sequence"].to_pylist() == [2]
    assert (await anext(feed.open("a", None))).events["sequence"].to_pylist() == [2]
    assert await feed.lag("a", None) == 1


async def test_a_reader_that_retention_overtakes_does_not_skip_in_silence() -> None:
    feed = MemoryChangeFeed(["a"], page_events_max=1)
    feed.append("a", [b"0", b"1", b"2"])
    reader = feed.open("a", None)
    await anext(reader)
    feed.trim("a", "2")
    with pytest.raises(PositionLost, match="trimmed to 2"):
        await anext(reader)


class SlowAnswers(MemoryChangeFeed):
    """A source whose answers take a few turns of the loop."""

    async def _request(self, request: Callable[[], T]) -> T:
        answer = request()
        for _ in range(5):
            await asyncio.sleep(0)
        return answer


async def test_an_event_that_comes_while_an_answer_is_on_its_way_is_not_slept_through() -> None:
    feed = SlowAnswers(["a"])
    reading = asyncio.create_task(anext(feed.open("a", None)))
    await asyncio.sleep(0)
    feed.append("a", [b"0"])
    async with asyncio.timeout(PATIENCE_S):
        assert (await reading).events.num_rows == 1


class AlwaysTrusted:
    def check(self) -> None: ...

    async def wait_until_granted(self) -> None: ...


class LosesAnswers(MemoryOutputSink):
    """A way to the destination on which writes can be kept back."""

    losing = False
    on_the_wire: Callable[[], object]

    async def _request(self, request: Callable[[], T]) -> T:
        if not self.losing:
            return request()
        self.on_the_wire = request
        raise Ambiguous("the answer is lost")


def claim(epoch: int) -> Claim:
    return Claim(
        pipeline="p",
        partition="a",
        owner="host",
        epoch=epoch,
        generation=0,
        continuation=None,
        state="",
        compare=lambda a, b: int(a or 0) - int(b or 0),
    )


def output() -> Output:
    return Output(table=event_table("a", [1]), start=None, to="1", events=1)


async def test_a_write_that_arrives_after_the_next_claim_is_fenced() -> None:
    sink = LosesAnswers()
    writer = await sink.open(claim(epoch=1))
    sink.losing = True
    with pytest.raises(Ambiguous):
        await writer.write(output(), AlwaysTrusted())
    await MemoryOutputSink(sink.destination).open(claim(epoch=2))
    with pytest.raises(Fenced):
        sink.on_the_wire()
    assert sink.destination.rows("a") == []


async def test_a_write_from_another_place_than_the_position_is_fenced() -> None:
    sink = LosesAnswers()
    writer = await sink.open(claim(epoch=1))
    sink.losing = True
    with pytest.raises(Ambiguous):
        await writer.write(output(), AlwaysTrusted())
    sink.on_the_wire()
    sink.losing = False
    with pytest.raises(Fenced, match="is at 1"):
        await writer.write(output(), AlwaysTrusted())
    assert len(sink.destination.rows("a")) == 1
