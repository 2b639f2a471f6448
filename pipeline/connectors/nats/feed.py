"""Subjects of a stream as the partitions of a feed. A position is the sequence in the stream of the last event read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from pydantic import Field, SecretStr

from leasehold import EVENT_SCHEMA, ChangeFeed, FeedError, FeedPartition, FeedUnavailable, Page, PositionLost, Start
from leasehold.pipeline.connectors.nats.connection import Connection, NatsError, Refused
from leasehold.pipeline.connectors.nats.consumer import Broken, Consumer, consuming
from leasehold.pipeline.connectors.nats.message import table_of
from leasehold.pipeline.connectors.nats.stream import NO_STREAM, Extent, Stream

T = TypeVar("T")
POSITION_DIGITS_MAX = 18
BREAKS_MAX = 3
"""So many consumers in a row that yielded nothing: then the worker is told, who pauses."""
SMALL = 100
"""So many events are made a table of at once; more on a thread."""

LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""The server counts nanoseconds in 63 bits."""


class JetStreamFeed(ChangeFeed):
    """Partitions are there from the beginning: `{subject}.0` to `{subject}.{partitions - 1}`.

    Retention takes messages from a stream's front, whoever they are for. A position is lost where it may have taken events
    behind it; a stream that limits messages per subject would lose them unseen, and must not.
    """

    leasehold_interface = 1

    def __init__(
        self,
        servers: str,
        stream: str,
        subject: str,
        *,
        partitions: Annotated[int, Field(ge=1, le=1024)],
        user: str | None = None,
        password: SecretStr | None = None,
        token: SecretStr | None = None,
        timeout_s: Annotated[float, Field(gt=0)] = 5.0,
        page_events_max: Annotated[int, Field(ge=1)] = 1000,
        page_bytes_max: Annotated[int, Field(ge=1)] = 4 * 1024 * 1024,
    ) -> None:
        connection = Connection(servers, user=user, password=password, token=token, timeout_s=timeout_s)
        self._stream = Stream(connection, stream, subject, partitions)
        self._events_max = page_events_max
        self._bytes_max = page_bytes_max

    @property
    def identity(self) -> str:
        return self._stream.identity

    async def partitions(self) -> list[FeedPartition]:
        await _translated(self._stream.extent())
        return [FeedPartition(name) for name in self._stream.partitions]

    async def start_of(self, partition: str, start: Start) -> str | None:
        subject = self._subject(partition)
        if start == "latest":
            return await self.latest(partition)
        if isinstance(start, datetime):
            return await self._start_at(subject, start)
        first = await _translated(self._stream.first(subject))
        return None if first is None else _position(first.sequence - 1)

    async def _start_at(self, subject: str, time: datetime) -> str | None:
        async with self._consuming(subject, opt_start_time=min(time, LATEST).isoformat()) as consumer:
            if consumer.pending:
                return _position((await consumer.page(1, self._bytes_max))[0].sequence - 1)
        last = await _translated(self._stream.last(subject))
        return None if last is None else _position(last.sequence)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        subject, place = self._subject(partition), _Place(_number(continuation))
        breaks = 0
        while True:
            place.resume(await _translated(self._stream.extent()), self._stream.events(partition))
            try:
                async with self._consuming(subject, opt_start_seq=place.behind + 1) as consumer:
                    while True:
                        page = await self._page(partition, consumer, place)
                        breaks = 0
                        if page is not None:
                            yield page
            except Broken as broken:
                breaks += 1
                if breaks == BREAKS_MAX:
                    raise FeedUnavailable(f"{subject}: {broken}") from broken

    async def _page(self, partition: str, consumer: Consumer, place: _Place) -> Page | None:
        """Events; none where their absence has to be told; None at the end. Raises Broken."""
        messages = await _translated(consumer.page(self._events_max, self._bytes_max))
        if not messages:
            moved = place.waited(await _translated(self._stream.extent()))
            return Page(EVENT_SCHEMA.empty_table(), str(place.behind)) if moved else None
        if not place.is_next(messages[0].sequence):
            place.check(await _translated(self._stream.extent()), self._stream.events(partition))
        place.read(messages[-1].sequence)
        small = len(messages) <= SMALL
        table = table_of(partition, messages) if small else await asyncio.to_thread(table_of, partition, messages)
        sequences = [message.sequence for message in messages]
        return Page(table, str(sequences[-1]), lambda n: str(sequences[n - 1]))

    async def latest(self, partition: str) -> str | None:
        last = await _translated(self._stream.last(self._subject(partition)))
        return None if last is None else _position(last.sequence)

    async def lag(self, partition: str, continuation: str | None) -> int:
        subject, behind = self._subject(partition), _number(continuation)
        _Place(behind).resume(await _translated(self._stream.extent()), subject)
        async with self._consuming(subject, opt_start_seq=behind + 1) as consumer:
            return consumer.pending

    def compare(self, a: str | None, b: str | None) -> int:
        return _number(a) - _number(b)

    async def close(self) -> None:
        await self._stream.connection.close()

    def _subject(self, partition: str) -> str:
        if partition not in self._stream.partitions:
            raise FeedError(
                f"'{partition}' is no partition of {self.identity}: it has {len(self._stream.partitions)}, numbered from 0"
            )
        return self._stream.events(partition)

    @asynccontextmanager
    async def _consuming(self, subject: str, **start: Any) -> AsyncIterator[Consumer]:
        try:
            async with consuming(self._stream, subject, **start) as consumer:
                yield consumer
        except NatsError as error:
            raise _as_feed_error(error) from error


class _Place:
    """Where a reader is, and what it knows of the stream around it.

    behind: the last event that was read, 0 for none. clear: no event of ours that was not read lies at or before it, so that
    retention may have come there; seen: the end of the stream before the present pull.
    """

    def __init__(self, behind: int) -> None:
        self.behind = self.clear = behind
        self._seen = 0

    def resume(self, extent: Extent, subject: str) -> None:
        """Before a consumer is made. Raises PositionLost."""
        if self.behind > extent.last:
            raise PositionLost(
                f"{subject}: the stream ends at {extent.last}, before the position {self.behind}: it was made again or"
                " restored. Reset the lease: `--to earliest` reads all events that are there now, `--to latest` skips them"
            )
        self.check(extent, subject)
        self._seen = extent.last

    def check(self, extent: Extent, subject: str) -> None:
        """Raises PositionLost."""
        if self.clear and extent.first > self.clear + 1:
            raise PositionLost(
                f"{subject}: retention has taken messages behind the position {self.clear}, which may have been events that"
                f" were not read; the stream begins at {extent.first} now. To go on there, set the lease's position to"
                f" '{extent.first - 1}'"
            )

    def is_next(self, sequence: int) -> bool:
        """Whether no message lies between, neither ours nor another's."""
        return sequence == self.clear + 1

    def read(self, sequence: int) -> None:
        self.behind = self.clear = sequence

    def waited(self, extent: Extent) -> bool:
        """A pull has ended without events. Whether the position moved, since retention has passed it."""
        self.clear = max(self.clear, self._seen)
        self._seen = extent.last
        if self.behind and self.behind < extent.first - 1 and self.behind < self.clear:
            self.behind = self.clear
            return True
        return False


def _position(sequence: int) -> str | None:
    return str(sequence) if sequence else None


def _number(position: str | None) -> int:
    """Raises PositionLost."""
    if position is None:
        return 0
    if not (position.isascii() and position.isdecimal() and len(position) <= POSITION_DIGITS_MAX):
        raise PositionLost(
            f"{position[:100]!r} is no position of a stream: set the lease's position to a sequence number"
        )
    return int(position)


async def _translated(call: Awaitable[T]) -> T:
    try:
        return await call
    except NatsError as error:
        raise _as_feed_error(error) from error


def _as_feed_error(error: NatsError) -> FeedError:
    if isinstance(error, Refused) and error.number == NO_STREAM:
        return FeedUnavailable(f"{error}: a sink makes it, or you do")
    if isinstance(error, Refused) and 400 <= error.status < 500:
        return FeedError(str(error))
    return FeedUnavailable(str(error))
