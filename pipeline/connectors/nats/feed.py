"""Subjects of a stream as the partitions of a feed, read from sequences that leases hold.

Retention deletes messages from the front of a stream, whatever subject they have. A position is lost if retention may have
deleted events after it. Each open partition has a consumer of its own, which acknowledges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from leasehold.pipeline.connectors.nats.connection import (
    Forbidden,
    NatsAccess,
    NatsConnection,
    NatsError,
    RefusedRequest,
)
from leasehold.pipeline.connectors.nats.consumer import Broken, StreamConsumer, open_consumer
from leasehold.pipeline.connectors.nats.message import table_of
from leasehold.pipeline.connectors.nats.position import StreamPosition, compared, position_of
from leasehold.pipeline.connectors.nats.stream import NO_STREAM, Extent, Stream
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable, PositionLost
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start, reset_of_a_new_source

T = TypeVar("T")
BREAKS_MAX = 3
"""After this many consumers in a row that broke before a read succeeded, the feed raises, and the worker pauses."""
SMALL = 100
"""Up to this many events become a table directly; more do so on a thread."""
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""Later starts are sent as this one, because the server counts nanoseconds in 63 bits."""


class NatsChangeFeed(ChangeFeed):
    """Partitions are the subjects `{subject}.0` to `{subject}.{partitions - 1}`.

    - `trusts_headers`: whether the header `leasehold-event` is an event's key and operation.

    Raises PositionLost if retention deleted events before they were read, and if the stream was created again.
    """

    def __init__(
        self,
        access: NatsAccess,
        stream: str,
        subject: str,
        *,
        partitions: int,
        trusts_headers: bool = False,
        timeout_s: float = 5.0,
        page_events_max: int = 1000,
        page_bytes_max: int = 4 * 1024 * 1024,
    ) -> None:
        self._stream = Stream(NatsConnection(access, timeout_s=timeout_s), stream, subject, partitions)
        self._trusts_headers = trusts_headers
        self._events_max = page_events_max
        self._bytes_max = page_bytes_max

    @property
    def identity(self) -> str:
        return self._stream.identity

    @property
    def endpoint(self) -> Endpoint:
        return self._stream.connection.access.endpoint(self._stream.name)

    async def partitions(self) -> list[FeedPartition]:
        await self._find_extent()
        return [FeedPartition(name) for name in self._stream.partitions]

    async def start_of(self, partition: str, start: Start) -> str | None:
        subject = self._subject(partition)
        if start == "latest":
            return await self.latest(partition)
        if isinstance(start, datetime):
            return await self._find_start(subject, start)
        first = await _asked(self._stream.find_first(subject))
        return None if first is None else await self._position(first.sequence - 1)

    async def _find_start(self, subject: str, time: datetime) -> str | None:
        try:
            async with self._reading(subject, opt_start_time=min(time, LATEST).isoformat()) as consumer:
                if consumer.pending:
                    found = await consumer.read(1, self._bytes_max)
                    if not found:
                        raise Broken("the server has events, and sent none")
                    return await self._position(found[0].sequence - 1)
        except Broken as broken:
            raise FeedUnavailable(f"{subject}: {broken}") from broken
        last = await _asked(self._stream.find_last(subject))
        return None if last is None else await self._position(last.sequence)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        subject, place = self._subject(partition), _StreamPlace(partition, position_of(continuation))
        breaks = 0
        while True:
            extent = await self._find_extent()
            place.resume(extent, await self._find_front(extent, place.clear))
            try:
                async with self._reading(subject, opt_start_seq=place.position.last + 1) as consumer:
                    while True:
                        page = await self._read(consumer, place)
                        breaks = 0
                        if page is not None:
                            yield page
            except Broken as broken:
                breaks += 1
                if breaks == BREAKS_MAX:
                    raise FeedUnavailable(f"{subject}: {broken}") from broken

    async def _read(self, consumer: StreamConsumer, place: _StreamPlace) -> Page | None:
        """The next page, without events if only the position moves; None at the end. Raises Broken."""
        messages = await _asked(consumer.read(self._events_max, self._bytes_max))
        if not messages:
            extent = await self._find_extent()
            is_moved = place.wait(extent, await self._find_front(extent, place.clear))
            return Page(EVENT_SCHEMA.empty_table(), str(place.position)) if is_moved else None
        first, last = messages[0].sequence, messages[-1].sequence
        # Retention may have been quicker than this page.
        if not place.is_next(first) or last - first >= len(messages):
            extent = await self._find_extent()
            place.check(extent, await self._find_front(extent, place.clear))
        place.read(last)
        make_table = partial(table_of, place.partition, messages, trusts_headers=self._trusts_headers)
        table = make_table() if len(messages) <= SMALL else await asyncio.to_thread(make_table)
        positions = [place.position._replace(last=message.sequence) for message in messages]
        return Page(table, str(positions[-1]), lambda n: str(positions[n - 1]))

    async def latest(self, partition: str) -> str | None:
        last = await _asked(self._stream.find_last(self._subject(partition)))
        return None if last is None else await self._position(last.sequence)

    async def lag(self, partition: str, continuation: str | None) -> int:
        subject, position = self._subject(partition), position_of(continuation)
        await self._check(partition, position)
        last = await _asked(self._stream.find_last(subject))
        if last is None or last.sequence <= position.last:
            return 0
        async with self._reading(subject, opt_start_seq=position.last + 1) as consumer:
            return consumer.pending

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        subject, position = self._subject(partition), position_of(continuation)
        await self._check(partition, position)
        found = await _asked(self._stream.find_first(subject, position.last + 1))
        return None if found is None else found.time

    def compare(self, a: str | None, b: str | None) -> int:
        return compared(position_of(a), position_of(b))

    async def close(self) -> None:
        await self._stream.connection.close()

    async def _check(self, partition: str, position: StreamPosition) -> None:
        extent = await self._find_extent()
        _StreamPlace(partition, position).resume(extent, await self._find_front(extent, position.last))

    async def _position(self, sequence: int) -> str | None:
        created = (await self._find_extent()).created
        return str(StreamPosition(sequence, created)) if sequence else None

    async def _find_extent(self) -> Extent:
        return await _asked(self._stream.find_extent())

    async def _find_front(self, extent: Extent, passed: int) -> int:
        return await _asked(self._stream.find_front(extent, passed))

    def _subject(self, partition: str) -> str:
        if partition not in self._stream.partitions:
            raise FeedError(
                f"'{partition}' is not a partition of {self.identity}: it has {len(self._stream.partitions)}, numbered from 0"
            )
        return self._stream.events(partition)

    @asynccontextmanager
    async def _reading(self, subject: str, **start: Any) -> AsyncIterator[StreamConsumer]:
        try:
            async with open_consumer(self._stream, subject, **start) as consumer:
                yield consumer
        except NatsError as error:
            raise as_feed_error(error) from error


class _StreamPlace:
    """The place of a reader, and what it knows of the stream around it.

    - `position`: after the last event that was read.
    - `clear`: all events of the partition up to this sequence were read, so retention may delete up to it.
    """

    def __init__(self, partition: str, position: StreamPosition) -> None:
        self.partition = partition
        self.position = position
        self.clear = position.last
        self._seen = 0

    def resume(self, extent: Extent, front: int) -> None:
        """Check the position, and note the stream's state, before a consumer is made. Raises PositionLost."""
        self.check(extent, front)
        if self.position.last > extent.last:
            raise self._replaced(f"it ends at {extent.last}, so it was created again or restored")
        self.position = self.position._replace(created=extent.created)
        self._seen = extent.last

    def check(self, extent: Extent, front: int) -> None:
        """Raises PositionLost."""
        if self.position.created not in (None, extent.created):
            raise self._replaced("it was created again")
        if self.clear and front > self.clear + 1:
            raise PositionLost(
                f"partition '{self.partition}': retention has deleted messages after the position {self.clear}, which may have"
                f" been unread events; what is left begins at {front}. To continue there, set the lease's position"
                f" to '{front - 1}'"
            )

    def _replaced(self, why: str) -> PositionLost:
        return PositionLost(
            f"the stream no longer has the position '{self.position}' of partition '{self.partition}': {why}."
            f" {reset_of_a_new_source(self.partition)}"
        )

    def is_next(self, sequence: int) -> bool:
        """Whether there is no message of any subject between `clear` and this one."""
        return sequence == self.clear + 1

    def read(self, sequence: int) -> None:
        self.position, self.clear = self.position._replace(last=sequence), sequence

    def wait(self, extent: Extent, front: int) -> bool:
        """Note that a pull ended without events. Return whether the position moved, because retention passed it.

        Raises PositionLost.
        """
        if self.position.created not in (None, extent.created):
            raise self._replaced("it was created again")
        self.clear = max(self.clear, self._seen)
        self._seen = extent.last
        if 0 < self.position.last < min(front - 1, self.clear):
            self.position = self.position._replace(last=self.clear)
            return True
        return False


async def _asked(question: Awaitable[T]) -> T:
    try:
        return await question
    except NatsError as error:
        raise as_feed_error(error) from error


def as_feed_error(error: NatsError) -> FeedError:
    if isinstance(error, RefusedRequest) and error.number == NO_STREAM:
        return FeedNotFound(f"{error}: create the stream, or start the pipeline whose sink creates it")
    if isinstance(error, Forbidden):
        return FeedNotFound(
            f"{error}: look at the settings of the login, and at the permissions that docs/nats.md lists"
        )
    if isinstance(error, RefusedRequest) and 400 <= error.status < 500:
        return FeedError(str(error))
    return FeedUnavailable(str(error))
