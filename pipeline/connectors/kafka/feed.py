"""A Kafka topic as a feed: its partitions, read with read_committed, from offsets that leases hold.

Leases assign the partitions, not a consumer group. Each open partition has a consumer and a thread of its own, because the
client blocks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import Generic, TypeVar

from confluent_kafka import KafkaException

from leasehold.pipeline.connectors.kafka.cluster import FORBIDDEN, NO_TOPIC, KafkaAccess, KafkaCluster, Place, Topic
from leasehold.pipeline.connectors.kafka.position import Position, compared, position_of
from leasehold.pipeline.connectors.kafka.reader import OutOfRange, PartitionReader, ReadingLimits
from leasehold.pipeline.connectors.own_thread import reading_with
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start, milliseconds_of, reset_of_a_new_source

T = TypeVar("T")
CHECK_S = 5.0
"""The time between two looks at a topic's id, while one of its partitions is open."""


class Shared(Generic[T]):
    """One request for all callers that ask before it begins."""

    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._turn = asyncio.Lock()
        self._asked = self._answered = 0
        self._answer: T | FeedError

    async def answer(self) -> T:
        self._asked += 1
        number = self._asked
        async with self._turn:
            if number > self._answered:
                await asyncio.sleep(0)  # lets all tasks that are ready ask first
                asked = self._asked
                try:
                    self._answer = await self._ask()
                except FeedError as error:
                    self._answer = error
                self._answered = asked
            answer = self._answer
        if isinstance(answer, FeedError):
            raise answer
        return answer


class KafkaChangeFeed(ChangeFeed):
    """group: the consumer group in which the feed reads. The group has no members, and its offsets are never read.

    Raises PositionLost if retention deletes events before they are read, and if the topic is created again. The ends of
    transactions have offsets too, so `lag` is an estimate. It is 0 once a reader has reached the end.
    """

    def __init__(
        self,
        access: KafkaAccess,
        topic: str,
        *,
        group: str = "leasehold",
        limits: ReadingLimits | None = None,
        timeout_s: float = 20.0,
    ) -> None:
        self._cluster = KafkaCluster(access, timeout_s=timeout_s)
        self._topic = topic
        self._group = group
        self._limits = limits or ReadingLimits()
        self._described = Shared(lambda: self._asked(self._cluster.describe(topic)))
        self._ends = Shared(self._find_ends)
        self._known: Topic
        self._known_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    @property
    def identity(self) -> str:
        """It has no addresses of servers, because a cluster has many. Positions have the topic's id, if brokers give ids."""
        return f"kafka:{self._topic}"

    @property
    def endpoint(self) -> Endpoint:
        return self._cluster.access.endpoint(self._topic, self._group)

    async def partitions(self) -> list[FeedPartition]:
        topic = await self._described.answer()
        return [FeedPartition(name) for name in sorted(map(str, range(topic.partitions)))]

    async def start_of(self, partition: str, start: Start) -> str | None:
        number = self._number(partition)
        if start == "latest":
            return await self.latest(partition)
        if start == "earliest":
            return await self._find_start(number, "earliest")
        assert isinstance(start, datetime)
        end = await self.latest(partition)  # before the search, so that events that arrive meanwhile are not skipped
        return await self._find_start(number, milliseconds_of(start), or_else=end)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        number, position = self._number(partition), position_of(continuation)
        self._known = await self._described.answer()
        position = self._checked(number, position, self._known)
        async with self._reading(number, position, self._limits) as read:
            while True:
                page = await read()
                self._look()
                self._checked(number, position, self._known)
                if page is not None:
                    yield page

    async def latest(self, partition: str) -> str | None:
        number = self._number(partition)
        topic, ends = await self._ends.answer()
        end = self._offset(ends[self._existing(number, topic)])
        return str(Position(end, topic.id)) if end else None

    async def lag(self, partition: str, continuation: str | None) -> int:
        """One request gets the ends of all partitions, for all callers that ask at the same time."""
        number, position = self._number(partition), position_of(continuation)
        topic, ends = await self._ends.answer()
        self._checked(number, position, topic)
        end = self._offset(ends[number])
        if position.next > end:
            raise self._lost(number, position, f"it ends at {end}")
        return end - position.next

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        number, position = self._number(partition), position_of(continuation)
        if await self.lag(partition, continuation) == 0:
            return None
        try:
            async with (
                asyncio.timeout(self._cluster.timeout_s),
                self._reading(number, position, replace(self._limits, events_max=1)) as read,
            ):
                while (page := await read()) is None:
                    pass
        except TimeoutError:
            raise FeedUnavailable(f"{self._named(number)}: no answer in {self._cluster.timeout_s:g} s") from None
        times = page.events["enqueued_time"].to_pylist()
        return times[0] if times else None

    def compare(self, a: str | None, b: str | None) -> int:
        return compared(position_of(a), position_of(b))

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        await self._cluster.close()

    @asynccontextmanager
    async def _reading(
        self, number: int, position: Position, limits: ReadingLimits
    ) -> AsyncGenerator[Callable[[], Awaitable[Page | None]], None]:
        place = (self._cluster, self._group, self._topic, number, position, limits)
        try:
            async with reading_with("kafka-feed", lambda: PartitionReader(*place), PartitionReader.read) as read:
                yield read
        except KafkaException as error:
            raise self._as_feed_error(error) from error
        except OutOfRange as error:
            raise await self._explain(number, error.position) from None

    async def _explain(self, number: int, position: Position) -> FeedError:
        """The error that explains why the brokers have nothing at the position."""
        self._checked(number, position, await self._described.answer())
        first, end = await self._find(number, "earliest"), await self._find(number, "latest")
        if position.next < first:
            return PositionLost(
                f"{self._named(number)}: retention has deleted the events from offset {position.next} on before they were"
                f" read; the first available is {first}. {reset_of_a_new_source(str(number))}"
            )
        if position.next > end:
            return self._lost(number, position, f"it ends at {end}")
        return FeedUnavailable(f"{self._named(number)}: the brokers refused offset {position.next}, and have it now")

    def _look(self) -> None:
        """Describe the topic from time to time, once for all open partitions: events do not show that it was created again.

        Nothing waits for the answer: the broker that gives it may be frozen while those of the partitions serve them.
        """
        now = asyncio.get_running_loop().time()
        if now - self._known_at >= CHECK_S and (self._looking is None or self._looking.done()):
            self._known_at = now
            self._looking = asyncio.create_task(self._describe_again(), name=f"look at topic {self._topic}")

    async def _describe_again(self) -> None:
        with suppress(FeedError):  # a reader notices by itself that it cannot read
            self._known = await self._described.answer()

    async def _find_ends(self) -> tuple[Topic, dict[int, int | KafkaException]]:
        topic = await self._described.answer()
        return topic, await self._asked(self._cluster.find_offsets(self._topic, range(topic.partitions), "latest"))

    async def _find_start(self, number: int, at: Place, or_else: str | None = None) -> str | None:
        """or_else: returned if there is no such offset. A result of None is the beginning of the partition."""
        topic = await self._described.answer()
        offset = await self._find(self._existing(number, topic), at)
        return str(Position(offset, topic.id)) if offset > 0 else None if offset == 0 else or_else

    async def _find(self, number: int, at: Place) -> int:
        return self._offset((await self._asked(self._cluster.find_offsets(self._topic, [number], at)))[number])

    def _offset(self, found: int | KafkaException) -> int:
        """Raises FeedError for a partition whose leader did not answer, which leaves others alone."""
        if isinstance(found, KafkaException):
            raise self._as_feed_error(found) from found
        return found

    async def _asked(self, question: Awaitable[T]) -> T:
        try:
            return await question
        except KafkaException as error:
            raise self._as_feed_error(error) from error

    def _as_feed_error(self, error: KafkaException) -> FeedError:
        return as_feed_error(self._cluster, error, self._topic, self._group)

    def _checked(self, number: int, position: Position, topic: Topic) -> Position:
        """The position with the topic's id. Raises PositionLost if it is of another topic."""
        self._existing(number, topic)
        if None not in (position.topic, topic.id) and position.topic != topic.id:
            raise self._lost(number, position, f"it has the id {topic.id} now")
        return position._replace(topic=topic.id)

    def _existing(self, number: int, topic: Topic) -> int:
        if number >= topic.partitions:
            raise FeedError(f"{self._named(number)}: the topic has {topic.partitions} partitions, numbered from 0")
        return number

    def _number(self, partition: str) -> int:
        if not (partition.isascii() and partition.isdecimal() and len(partition) < 10):
            raise FeedError(f"{self._named(partition)}: Kafka has no such partition: partitions are numbered from 0")
        return int(partition)

    def _lost(self, number: int, position: Position, why: str) -> PositionLost:
        return PositionLost(
            f"{self._named(number)} no longer has the position '{position}' ({why}): the topic was deleted and created again,"
            f" or has lost its newest events. {reset_of_a_new_source(str(number))}"
        )

    def _named(self, partition: str | int) -> str:
        return f"topic '{self._topic}', partition '{partition}'"


def as_feed_error(cluster: KafkaCluster, error: KafkaException, topic: str, group: str) -> FeedError:
    code, text = error.args[0].code(), cluster.described(error)
    if code in NO_TOPIC:
        return FeedNotFound(f"{text}: create the topic '{topic}', or correct `topic`")
    if code in FORBIDDEN:
        return FeedNotFound(f"{text}: look at the user, the password and the rights to read '{topic}' as '{group}'")
    return FeedUnavailable(text)
