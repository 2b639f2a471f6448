"""One partition, received: what comes over its link, in pages, as soon and as many as there are."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

from pipeline.connectors.eventhubs.amqp.connection import Hub
from pipeline.connectors.eventhubs.amqp.frames import Frames, Read
from pipeline.connectors.eventhubs.amqp.link import Link
from pipeline.connectors.eventhubs.amqp.values import Malformed
from pipeline.connectors.eventhubs.feed.receive_buffer import Intake
from pipeline.connectors.eventhubs.feed.table import pages_of
from pipeline.connectors.eventhubs.position import LATEST
from pipeline.connectors.eventhubs.refusal import ended, refusal
from pipeline.event import Page

SMALL_BYTES = 16 * 1024
"""What is decoded at once: going to a thread and back would take longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """prefetch: events that may be on their way. page_events, page_bytes: of one page. timeout_s: for attaching."""

    prefetch: int
    page_events: int
    page_bytes: int
    timeout_s: float


@dataclass(slots=True)
class Received:
    """Some pages. first: number of the first event in them, None where there is none. malformed: what follows is no event."""

    pages: list[Page]
    first: int | None
    malformed: Malformed | None
    end: int | None = None
    """The sequence of the partition's last event when the service sent these, if their place `reports_end`."""


Decoded = tuple[Read, list[Page]]
Threaded = Callable[[Callable[[], Decoded]], Awaitable[Decoded]]
"""Runs a call elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to receive: a partition in a consumer group, what the selector lets through, and with which rank.

    reports_end: whether the service reports the partition's end with each event.
    """

    partition: str
    group: str
    selector: str
    epoch: int | None = None
    reports_end: bool = False

    @property
    def path(self) -> str:
        return f"ConsumerGroups/{self.group}/Partitions/{self.partition}"


async def receive(
    hub: Hub, place: Place, limits: Limits, threaded: Threaded, *, attached: Callable[[], None] = lambda: None
) -> AsyncGenerator[Received, None]:
    """For as long as the link holds. attached: called once it does. Raises FeedUnavailable, FeedError, PositionLost, Fenced."""
    async with open_receiver(hub, place, limits, threaded) as receiver:
        attached()
        while True:
            yield await receiver.next()


@asynccontextmanager
async def open_receiver(hub: Hub, place: Place, limits: Limits, threaded: Threaded) -> AsyncIterator[Receiver]:
    """Attached, and closed at the end. Raises as `receive` does."""
    what = _named(hub, place)
    try:
        link = await Link.attach(
            hub,
            place.path,
            place.selector,
            epoch=place.epoch,
            credit=limits.prefetch,
            timeout_s=limits.timeout_s,
            reports_end=place.reports_end,
        )
    except Exception as error:
        raise refusal(error, what) from error
    receiver = Receiver(link, place.partition, limits, threaded, what)
    try:
        yield receiver
    finally:
        await receiver.close()


async def try_attach(hub: Hub, partition: str, group: str, timeout_s: float) -> None:
    """Attaches without a rank, and detaches. Raises as `receive` does: Fenced where somebody reads there with one."""
    place = Place(partition=partition, group=group, selector=LATEST)
    try:
        link = await Link.attach(hub, place.path, LATEST, epoch=None, credit=1, timeout_s=timeout_s)
    except Exception as error:
        raise refusal(error, _named(hub, place)) from error
    await link.close()


def _named(hub: Hub, place: Place) -> str:
    return f"event hub {hub.name}, partition '{place.partition}', consumer group '{place.group}'"


class Receiver:
    """Made by `open_receiver`."""

    def __init__(self, link: Link, partition: str, limits: Limits, threaded: Threaded, what: str) -> None:
        self._link = link
        self._partition = partition
        self._limits = limits
        self._threaded = threaded
        self._what = what
        self._intake = Intake(link, what)
        self._frames = Frames(link.channel, link.handle)
        self._ended: Exception | None = None

    async def next(self) -> Received:
        """As soon as there is something. An end has its turn behind what came with it."""
        while True:
            if self._ended is not None:
                raise ended(self._ended, self._what) from self._ended
            try:
                read, pages = await self._decode_in_turn(await self._intake.take())
                await self._settle(read)
            except Exception as error:
                raise ended(error, self._what) from error
            if pages or read.malformed:
                first = read.events[0].sequence if pages else None
                return Received(pages, first, read.malformed, self._frames.end)

    async def close(self) -> None:
        await self._intake.close()
        await self._link.close()

    async def _decode_in_turn(self, octets: bytes) -> Decoded:
        if len(octets) < SMALL_BYTES:
            return self._decode(octets)
        return await self._threaded(partial(self._decode, octets))

    def _decode(self, octets: bytes) -> Decoded:
        read = self._frames.read(octets)
        limits = self._limits
        return read, pages_of(self._partition, read.events, events_max=limits.page_events, bytes_max=limits.page_bytes)

    async def _settle(self, read: Read) -> None:
        try:
            await self._link.hand_over(read.others)
            await self._link.replenish(read.transfers, read.deliveries)
        except Exception as error:
            self._ended = error
