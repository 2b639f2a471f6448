"""An event hub as a feed: its partitions, one receiver for each open partition, positions by sequence number and offset.

A receiver has the epoch of the lease for which it reads. The service displaces receivers with lower epochs, so a host that wakes
from a pause reads nothing more. After a break (a lost connection, throttling, an expired token), the feed attaches again after
what was delivered.

Executors read without an epoch, in a consumer group of their own. In the host's group this cannot work: the service admits either
one receiver with an epoch or up to five without, and the host attaches its own while executors still read. With the lease's
epoch, they would displace the host and each other. They need none because they only read: the owner of the lease commits.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from leasehold.common.clock import Patience, Pauses
from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount, account_of, is_consumer_group
from leasehold.pipeline.connectors.eventhubs.amqp.connection import GROUP, Hub
from leasehold.pipeline.connectors.eventhubs.amqp.management import Management, PartitionExtent
from leasehold.pipeline.connectors.eventhubs.amqp.values import Malformed
from leasehold.pipeline.connectors.eventhubs.feed.open_reader import OpenReader
from leasehold.pipeline.connectors.eventhubs.feed.receiver import (
    Received,
    ReceiverLimits,
    ReceiverSource,
    receive,
    try_attach,
)
from leasehold.pipeline.connectors.eventhubs.position import (
    EventPosition,
    compared,
    position_of,
    selector,
    time_selector,
)
from leasehold.pipeline.connectors.eventhubs.refusal import PositionRefused
from leasehold.pipeline.endpoint import Endpoint
from leasehold.pipeline.errors import FeedError, FeedUnavailable, Fenced, MalformedRecord, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, KnownLag, Start, reset_of_a_new_source
from leasehold.pipeline.ranges import EventRange, RangeReader, iterate, secret_in

T = TypeVar("T")
DECODING_THREADS = 2
AT_ONCE_S = 0.25
"""How long the next event may take before the feed checks whether there can be one."""
RANGES_MAX = 5
"""How many receivers without an epoch the service admits to a partition, in each consumer group."""
SILENCE_S = 60.0
"""How long executors wait for the next event of a range."""
_PARTITION = re.compile(r"[0-9]{1,6}", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class EventHubsChangeFeed(ChangeFeed):
    """start_positions: where single partitions without a lease begin, by name.

    executors_group: the consumer group that Spark's executors read in; None if they do not read. executors_env: the environment
    variable that holds their connection string; an identity needs none.
    """

    def __init__(
        self,
        account: EventHubAccount,
        *,
        consumer_group: str = GROUP,
        start_positions: Mapping[str, str] = MappingProxyType({}),
        limits: ReceiverLimits | None = None,
        pauses: Pauses | None = None,
        credential: Any = None,
        executors_group: str | None = None,
        executors_env: str | None = None,
    ) -> None:
        if not is_consumer_group(consumer_group):
            raise ValueError("`consumer_group` must be the name of one, like $Default")
        self._executors_group, self._executors_env = executors_group, executors_env
        self._hub = Hub(account, credential=credential)
        self._group = consumer_group
        self._limits = limits or ReceiverLimits()
        self._start_positions = dict(start_positions)
        self._pauses = pauses or Pauses()
        self._management = Management(self._hub, timeout_s=self._limits.timeout_s)
        self._readers: dict[str, OpenReader] = {}
        self._threads = ThreadPoolExecutor(DECODING_THREADS, thread_name_prefix="eventhubs-feed")

    @property
    def identity(self) -> str:
        """It has no consumer group, because positions are the same in each."""
        return f"eventhubs:{self._hub.name}"

    @property
    def endpoint(self) -> Endpoint:
        return replace(self._hub.account.endpoint, group=self._group)

    async def partitions(self) -> list[FeedPartition]:
        return [FeedPartition(name) for name in await self._management.list_partitions()]

    async def probe(self) -> None:
        """Check that the consumer group exists and can be read in. A refusal because of a reader with an epoch proves both."""
        first = (await self._management.list_partitions())[0]
        with suppress(Fenced, FeedUnavailable):
            await try_attach(self._hub, first, self._group, self._limits.timeout_s)

    async def start_of(self, partition: str, start: Start) -> str | None:
        extent = await self._extent(partition)
        if partition in self._start_positions:
            return str(position_of(self._start_positions[partition]))
        if start == "latest":
            return _end(extent)
        if start == "earliest":
            return None if extent.first == 0 else str(EventPosition(extent.first - 1))
        assert isinstance(start, datetime)
        return await self._at(partition, _milliseconds(start), extent)

    def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        """Read without an epoch, to look. The service refuses this if a receiver with an epoch reads in this consumer group."""
        return self._read_on(partition, continuation, None)

    def open_as(self, epoch: int, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        return self._read_on(partition, continuation, epoch)

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        """At most RANGES_MAX ranges, so each may have more than `range_events`. Events after the end reported last are left out.

        The position at that end has an offset, which checkpoint blobs need. Earlier positions have only sequence numbers.
        """
        position = position_of(continuation)
        if position.sequence is None:
            return []  # the first event that the host reads shows the number
        try:
            extent = await self._extent(partition)
        except FeedUnavailable:
            return []
        first = position.sequence + 1
        end = min(extent.last + 1, first + events_max)
        if extent.is_empty or not extent.first <= first < end:
            return []  # `open` waits, or raises PositionLost
        edges = [*range(first, end, max(range_events, math.ceil((end - first) / RANGES_MAX))), end]
        ends = [str(EventPosition(edge - 1, extent.offset if edge > extent.last else None)) for edge in edges[1:]]
        starts = [continuation, *ends[:-1]]
        counts = [b - a for a, b in pairwise(edges)]
        return [EventRange(*each) for each in zip(starts, ends, counts, strict=True)]

    def range_reader(self) -> RangeReader | None:
        account = self._hub.account
        if self._executors_group is None or (account.connection_string is not None and self._executors_env is None):
            return None
        return EventHubsRanges(
            account=replace(account, connection_string=None),
            variable=None if account.connection_string is None else self._executors_env,
            group=self._executors_group,
            limits=self._limits,
        )

    async def latest(self, partition: str) -> str | None:
        return _end(await self._extent(partition))

    async def lag(self, partition: str, continuation: str | None) -> int:
        """Events that retention has deleted do not count. Exact if the hub is not compacted."""
        position = position_of(continuation)
        extent = await self._extent(partition)
        if position.sequence is None:  # unknown, except at the end itself
            return 0 if position.offset == extent.offset else max(1, extent.last - extent.first + 1)
        if position.sequence > extent.last:
            raise self._beyond(partition, position, extent)
        return extent.last - max(position.sequence, extent.first - 1)

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        """The service reports the time of a partition's last event. An earlier event is received to find its time."""
        position = position_of(continuation)
        extent = await self._extent(partition)
        if extent.is_empty or (position.sequence is not None and position.sequence >= extent.last):
            return None
        if position.sequence is not None and max(position.sequence + 1, extent.first) == extent.last:
            return _EPOCH + timedelta(milliseconds=extent.time_ms)
        is_forgotten = position.sequence is not None and position.sequence + 1 < extent.first
        arrived = await self._receive_one(
            partition, selector(EventPosition(extent.first - 1) if is_forgotten else position)
        )
        if not arrived.pages:
            return None  # the message cannot be read as an event
        (first_us, *_) = arrived.pages[0].events["enqueued_time"].chunk(0).slice(0, 1).view(pa.int64()).to_pylist()
        return _EPOCH + timedelta(microseconds=first_us)

    def known_lag(self, partition: str, continuation: str | None) -> KnownLag | None:
        """The service reports the partition's end with each event. An attached reader there knows that it still is the end."""
        reader, position = self._readers.get(partition), position_of(continuation)
        known = None if reader is None else reader.known_end(self._pauses.monotonic())
        if known is None or position.sequence is None or position.sequence > known[0]:
            return None
        return KnownLag(known[0] - position.sequence, known[1])

    def compare(self, a: str | None, b: str | None) -> int:
        return compared(position_of(a), position_of(b))

    async def close(self) -> None:
        await self._management.close()
        await self._hub.close()
        self._threads.shutdown(wait=False)

    async def _read_on(self, partition: str, continuation: str | None, epoch: int | None) -> AsyncGenerator[Page, None]:
        """Read, and attach again after each break, until patience is used up."""
        self._check(partition)
        delivered, patience = position_of(continuation), Patience(self._pauses)
        reader = self._readers[partition] = OpenReader(delivered.sequence)
        try:
            async with aclosing(self._attach_and_read(partition, delivered, epoch, reader, patience)) as pages:
                async for page in pages:
                    yield page
        finally:
            if self._readers.get(partition) is reader:
                del self._readers[partition]

    async def _attach_and_read(
        self, partition: str, delivered: EventPosition, epoch: int | None, reader: OpenReader, patience: Patience
    ) -> AsyncGenerator[Page, None]:
        while True:
            began = self._pauses.monotonic()
            try:
                place = ReceiverSource(
                    partition=partition,
                    group=self._group,
                    selector=selector(delivered),
                    epoch=epoch,
                    reports_end=True,
                )
                arriving = receive(self._hub, place, self._limits, self._run_on_thread, attached=reader.wait)
                async with aclosing(arriving) as arrivals:
                    arrived = await self._first(partition, delivered, arrivals)
                    while True:
                        patience.served()
                        reader.is_waiting = False
                        reader.note(arrived.end, self._pauses.monotonic())
                        await self._check_order(partition, delivered, arrived.first)
                        while arrived.pages:  # keep no page while this loop or its reader waits
                            delivered = position_of(arrived.pages[0].to)
                            reader.delivered = delivered.sequence
                            yield arrived.pages.pop(0)
                        if arrived.malformed:
                            raise self._malformed(partition, delivered, arrived.malformed)
                        reader.wait()
                        arrived = await anext(arrivals)
            except FeedUnavailable as error:
                reader.is_waiting = False
                if self._pauses.monotonic() - began > self._pauses.longest_s:
                    patience.served()  # it was attached all the while, even if nothing arrived
                await patience.pause(error)
            except PositionRefused as refused:
                raise await self._explain(partition, delivered, refused) from None
            except Fenced as fenced:
                if epoch is None:
                    raise FeedError(f"{fenced}, so it cannot be read without an epoch: use another group") from fenced
                raise

    async def _first(
        self, partition: str, delivered: EventPosition, arrivals: AsyncGenerator[Received, None]
    ) -> Received:
        """The first events. If they do not arrive at once, it checks meanwhile whether any can. Raises PositionLost if not."""
        first = asyncio.ensure_future(anext(arrivals))
        checked = asyncio.ensure_future(self._check_soon(partition, delivered))
        try:
            await asyncio.wait({first, checked}, return_when=asyncio.FIRST_COMPLETED)
            if not first.done():
                await checked
            return await first
        finally:
            first.cancel()
            checked.cancel()
            await asyncio.gather(first, checked, return_exceptions=True)

    async def _check_soon(self, partition: str, delivered: EventPosition) -> None:
        await asyncio.sleep(AT_ONCE_S)
        await self._check_retention(partition, delivered)

    async def _at(self, partition: str, time_ms: int, extent: PartitionExtent) -> str | None:
        """The position after the last event before that time, which the first event since then shows."""
        if extent.is_new or time_ms > extent.time_ms:
            return _end(extent)
        if time_ms <= 0:
            return await self.start_of(partition, "earliest")
        arrived = await self._receive_one(partition, time_selector(time_ms))
        if arrived.first is None:
            raise MalformedRecord(
                f"{self._named(partition)}: the first event since then cannot be read: {arrived.malformed}; begin at another time"
            )
        return str(EventPosition(arrived.first - 1)) if arrived.first else None

    async def _receive_one(self, partition: str, selected: str) -> Received:
        """The first event, or a few, that the selector lets through. It reads without an epoch. Raises FeedUnavailable."""
        place = ReceiverSource(partition=partition, group=self._group, selector=selected)
        arrivals = receive(self._hub, place, replace(self._limits, prefetch=1), self._run_on_thread)
        try:
            async with asyncio.timeout(self._limits.timeout_s), aclosing(arrivals):
                return await anext(arrivals)
        except TimeoutError:
            raise FeedUnavailable(f"{self._named(partition)}: no event arrived to show where to begin") from None
        except Fenced as fenced:
            raise FeedUnavailable(f"{fenced}: no other receiver can search by time while it reads") from fenced

    async def _extent(self, partition: str) -> PartitionExtent:
        self._check(partition)
        began = self._pauses.monotonic()
        extent = await self._management.read_extent(partition)
        if partition in self._readers:
            self._readers[partition].note(extent.last, began)
        return extent

    async def _check_retention(self, partition: str, position: EventPosition) -> None:
        """Raises PositionLost if the next events are gone, or if the partition ends before the position, and still does later."""
        patience = Patience(self._pauses)
        while position.sequence is not None:
            extent = await self._extent(partition)
            if position.sequence + 1 < extent.first:
                raise self._forgotten(partition, position, extent)
            if position.sequence <= extent.last:
                return
            lost = self._beyond(partition, position, extent)
            try:  # the service's report on a partition may be older than what was already read
                await patience.pause(FeedUnavailable(str(lost)))
            except FeedUnavailable:
                raise lost from None

    async def _explain(self, partition: str, position: EventPosition, refused: PositionRefused) -> PositionLost:
        """The error: what to do if the partition ends before the position, else the refusal."""
        try:
            extent = await self._extent(partition)
        except FeedUnavailable:
            return refused
        is_beyond = position.sequence is not None and position.sequence > extent.last
        return self._beyond(partition, position, extent) if is_beyond else refused

    async def _check_order(self, partition: str, delivered: EventPosition, first: int | None) -> None:
        """If the numbers have a gap, retention may have passed the position. Raises PositionLost."""
        if first is None or delivered.sequence is None or first == delivered.sequence + 1:
            return
        if first <= delivered.sequence:
            raise PositionLost(
                f"{self._named(partition)}: after the position '{delivered}' the service has the event {first}: offset and"
                " sequence number are not of one event; set the lease to a position in which they are"
            )
        await self._check_retention(partition, delivered)

    def _malformed(self, partition: str, delivered: EventPosition, why: Malformed) -> MalformedRecord:
        after = (
            ""
            if delivered.sequence is None
            else f"; to continue without it, set the lease to '{delivered.sequence + 1}'"
        )
        return MalformedRecord(
            f"{self._named(partition)}: the event after the position '{delivered}' cannot be read: {why}{after}"
        )

    def _forgotten(self, partition: str, position: EventPosition, extent: PartitionExtent) -> PositionLost:
        first = (position.sequence or 0) + 1
        return PositionLost(
            f"{self._named(partition)}: retention has deleted the events {first} to {extent.first - 1} before they were read;"
            f" the first available is {extent.first}. To continue without them, set the lease's position to '{extent.first - 1}'"
        )

    def _beyond(self, partition: str, position: EventPosition, extent: PartitionExtent) -> PositionLost:
        return PositionLost(
            f"{self._named(partition)} ends at {extent.last}, before the position '{position}': the hub was deleted and made"
            f" again, or replaced by another. {reset_of_a_new_source(partition)}"
        )

    def _check(self, partition: str) -> None:
        if not _PARTITION.fullmatch(partition):
            raise FeedError(f"{self._named(partition)}: no hub has such a partition: partitions are numbered from 0")

    def _named(self, partition: str) -> str:
        return f"event hub {self._hub.name}, partition '{partition}'"

    async def _run_on_thread(self, call: Callable[[], T]) -> T:
        """Decode on a thread, because decoding takes time, and renewals must not wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)


def _end(extent: PartitionExtent) -> str | None:
    return None if extent.is_new else str(EventPosition(extent.last, extent.offset))


def _milliseconds(time: datetime) -> int:
    return math.ceil((time - _EPOCH) / timedelta(milliseconds=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventHubsRanges(RangeReader):
    """Reads ranges on a connection of its own, and verifies that their sequence numbers have no gap.

    account: without its connection string, which the executors have in the environment variable `variable`; None for an identity.
    group: the executors' consumer group. silence_s: how long the next event may take.
    """

    account: EventHubAccount
    variable: str | None
    group: str
    limits: ReceiverLimits
    silence_s: float = SILENCE_S

    readers_max = RANGES_MAX

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield from iterate(self._read(partition, planned))

    async def _read(self, partition: str, planned: EventRange) -> AsyncGenerator[pa.Table, None]:
        last, end = position_of(planned.start).sequence, position_of(planned.to).sequence
        if last is None or end is None:
            raise FeedError(f"a range of an event hub needs sequence numbers: {planned}")
        feed = self._feed(end - last)
        try:
            async with aclosing(feed.open(partition, planned.start)) as pages:
                while last < end:
                    events = (await self._next(partition, last, end, pages)).events
                    sequences = events["sequence"].to_numpy()
                    count = int(np.searchsorted(sequences, end, side="right"))
                    if not count or not np.array_equal(sequences[:count], np.arange(last + 1, last + 1 + count)):
                        raise FeedUnavailable(
                            f"{self._named(partition)} lacks events after {last}, perhaps because the hub is compacted: the"
                            " host reads these"
                        )
                    last += count
                    yield events.slice(0, count)
        finally:
            await feed.close()

    async def _next(self, partition: str, last: int, end: int, pages: AsyncGenerator[Page, None]) -> Page:
        try:
            async with asyncio.timeout(self.silence_s):
                return await anext(pages)
        except TimeoutError:
            raise FeedUnavailable(
                f"{self._named(partition)}: no event after {last} arrived in {self.silence_s:g} s, and the range ends at {end}"
            ) from None

    def _feed(self, events: int) -> EventHubsChangeFeed:
        """Raises FeedError."""
        limits = self.limits
        return EventHubsChangeFeed(
            self._own_account(),
            consumer_group=self.group,
            limits=replace(limits, prefetch=min(limits.prefetch, events)),
        )

    def _own_account(self) -> EventHubAccount:
        """The account with the connection string of this process, which must be for the same hub."""
        known = self.account
        if self.variable is None:
            return known
        try:
            found = account_of(
                connection_string=secret_in(self.variable),
                event_hub=known.hub,
                transport=known.transport,
                ca_file=known.ca_file,
            )
        except ValueError as error:
            raise FeedError(f"the environment variable {self.variable} of Spark's executors: {error}") from None
        if found.name.lower() != known.name.lower():
            raise FeedError(
                f"the environment variable {self.variable} of Spark's executors is for event hub {found.name}, and the feed reads"
                f" {known.name}: set it to a connection string of that hub"
            )
        return found

    def _named(self, partition: str) -> str:
        return f"event hub {self.account.name}, partition '{partition}'"
