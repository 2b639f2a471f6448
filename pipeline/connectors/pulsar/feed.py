"""A Pulsar topic as a feed: its partitions, read from message ids that leases hold.

Leases assign the partitions, not a subscription. Each open partition has a reader and a thread of its own, because the client
blocks.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TypeVar

import pulsar

from leasehold.pipeline.connectors.own_thread import reading_with
from leasehold.pipeline.connectors.pulsar.broker import (
    FORBIDDEN,
    MISSING,
    PlaceGone,
    PulsarAccess,
    PulsarBroker,
    place_in,
    text_of,
)
from leasehold.pipeline.connectors.pulsar.message import time_of
from leasehold.pipeline.connectors.pulsar.position import MessagePlace, compared, place_of
from leasehold.pipeline.connectors.pulsar.reader import TopicLimits, TopicReader
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start, milliseconds_of, reset_of_a_new_source

T = TypeVar("T")


class PulsarChangeFeed(ChangeFeed):
    """topic: `TENANT/NAMESPACE/NAME`. `lag` is an estimate, because brokers count batches; it is 0 only at the end.

    Raises PositionLost if retention deleted ledgers before they were read, and if the topic was created again.
    """

    def __init__(
        self, access: PulsarAccess, topic: str, *, limits: TopicLimits | None = None, timeout_s: float = 20.0
    ) -> None:
        self._broker = PulsarBroker(access, topic, timeout_s=timeout_s)
        self._limits = limits or TopicLimits()
        self._topics: dict[str, str] = {}

    @property
    def identity(self) -> str:
        """It has no addresses of servers, because a cluster has many."""
        return f"pulsar:{self._broker.topic}"

    @property
    def endpoint(self) -> Endpoint:
        return self._broker.access.endpoint(self._broker.topic)

    async def partitions(self) -> list[FeedPartition]:
        self._topics = await self._asked(self._broker.find_partitions())
        return [FeedPartition(name) for name in self._topics]

    async def start_of(self, partition: str, start: Start) -> str | None:
        topic = await self._topic(partition)
        if start == "latest":
            return await self.latest(partition)
        time_ms = milliseconds_of(start) if isinstance(start, datetime) else None
        end = await self.latest(partition)  # before the search, so that events that arrive meanwhile are not skipped
        first = await self._call(lambda: self._broker.find_first(topic, None, time_ms))
        if first is None:
            return end
        return str(place_in(first).before)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        place, topic = place_of(continuation), await self._topic(partition)
        make = partial(TopicReader, self._broker, topic, partition, place, self._limits)
        with translated(self._broker):
            async with reading_with("pulsar-feed", make, TopicReader.read) as read:
                while True:
                    if (page := await read()) is not None:
                        yield page

    async def latest(self, partition: str) -> str | None:
        topic = await self._topic(partition)
        last = await self._call(lambda: self._broker.find_last(topic))
        return None if last is None else str(last)

    async def lag(self, partition: str, continuation: str | None) -> int:
        place, topic = place_of(continuation), await self._topic(partition)

        def measure() -> int:
            first, last = self._broker.find_first(topic, place), self._broker.find_last(topic)
            return 0 if first is None or last is None else between(place_in(first), last)

        return await self._call(measure)

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        place, topic = place_of(continuation), await self._topic(partition)
        first = await self._call(lambda: self._broker.find_first(topic, place))
        return None if first is None else time_of(first)

    def compare(self, a: str | None, b: str | None) -> int:
        return compared(place_of(a), place_of(b))

    async def close(self) -> None:
        await self._broker.close()

    async def _topic(self, partition: str) -> str:
        if partition not in self._topics:
            await self.partitions()
        if partition not in self._topics:
            raise FeedError(
                f"'{partition}' is not a partition of {self.identity}: it has {len(self._topics)}, numbered from 0"
            )
        return self._topics[partition]

    async def _call(self, call: Callable[[], T]) -> T:
        return await self._asked(self._broker.run(call))

    async def _asked(self, question: Awaitable[T]) -> T:
        return await asked(self._broker, question)


async def asked(broker: PulsarBroker, question: Awaitable[T]) -> T:
    """Raises FeedError."""
    with translated(broker):
        return await question


@contextmanager
def translated(broker: PulsarBroker) -> Iterator[None]:
    """Raises FeedError."""
    try:
        yield
    except pulsar.PulsarException as error:
        raise as_feed_error(broker, error) from error
    except PlaceGone as gone:
        raise lost(broker.topic, gone) from None


def between(first: MessagePlace, last: MessagePlace) -> int:
    """About how many events there are, including both. Each batch counts as being as large as the last one. Pure."""
    events = max(last.within, 0) + 1
    if first.ledger != last.ledger:
        return (last.entry + 2) * events
    if first.entry != last.entry:
        return (last.entry - first.entry + 1) * events
    return events - max(first.within, 0)


def lost(topic: str, gone: PlaceGone) -> PositionLost:
    there = (
        "the topic has no events now"
        if gone.first is None
        else f"the first available is {gone.first}. To continue there, set the lease's position to '{gone.first.before}'"
    )
    return PositionLost(
        f"topic '{topic}' no longer has ledger {gone.place.ledger} of the position '{gone.place}'. Retention may have deleted"
        f" events before they were read, or the topic was deleted, and created again; {there}."
        f" {reset_of_a_new_source('PARTITION')}"
    )


def as_feed_error(broker: PulsarBroker, error: pulsar.PulsarException) -> FeedError:
    text = f"Pulsar {broker.access.servers}, topic '{broker.topic}': {text_of(error)}"
    if isinstance(error, MISSING):
        return FeedNotFound(f"{text}: create the topic, or correct `topic`")
    if isinstance(error, FORBIDDEN):
        return FeedNotFound(f"{text}: look at the token, and at the permissions that docs/pulsar.md lists")
    return FeedUnavailable(text)
