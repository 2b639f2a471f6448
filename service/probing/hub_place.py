"""A place for questions to an event hub: one partition of a hub that nothing else uses, and producers and receivers there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count

from leasehold.common.clock import Clock
from leasehold.pipeline.connectors.eventhubs.account import EventHubAccount
from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.eventhubs.feed.receiver import (
    Received,
    Receiver,
    ReceiverLimits,
    ReceiverSource,
    Threaded,
    open_receiver,
)
from leasehold.pipeline.connectors.eventhubs.position import BEGINNING, LATEST, EventPosition, selector
from leasehold.pipeline.connectors.eventhubs.sink.sender import SenderLink
from leasehold.pipeline.producer import AttachRequest, OutgoingEvent, ProducerPosition, PublishError

LIMITS = ReceiverLimits(prefetch=500, page_events=5000, page_bytes=1024 * 1024)
ANSWER_S_MAX = 20.0
POLL_S = 0.2


class Sender:
    """A producer's link, and its position."""

    def __init__(self, place: HubPlace, link: SenderLink, position: ProducerPosition) -> None:
        self.position = position
        self._place = place
        self._link = link

    async def send(self, events: int = 1, *, after: ProducerPosition | None = None) -> list[bytes]:
        """Publish new events, and return their bodies. after: if not the next numbers. Raises PublishError, TimeoutError."""
        bodies = self._place.new_bodies(events)
        await self.send_bodies(bodies, after or self.position)
        if after is None:
            self.position = self.position.after(events)
        return bodies

    async def send_bodies(self, bodies: Sequence[bytes], after: ProducerPosition) -> None:
        """Raises PublishError, TimeoutError."""
        payloads = [self._place.broker.prepared(OutgoingEvent(body=body)).payload for body in bodies]
        names = ", ".join(body.decode() for body in bodies)
        text = f"{self._place.named(after.group)} sends {names} after number {after.number} at level {after.level}"
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._link.send(payloads, after, None, lambda: None)
        except (PublishError, TimeoutError) as error:
            self._place.note(f"{text} -> {shown_refusal(error)}")
            raise
        self._place.note(f"{text} -> accepted")


class HubPlace:
    """One partition. group: a random id below those that are used, which notes call G1, G2 and so on."""

    def __init__(
        self,
        account: EventHubAccount,
        partition: str,
        consumer_group: str,
        *,
        group: int,
        clock: Clock,
        threaded: Threaded,
    ) -> None:
        self.notes: list[str] = []
        self.clock = clock
        self.partition = partition
        self.broker = EventHubsBroker(account, timeout_s=ANSWER_S_MAX)
        self.oldest: tuple[ProducerPosition, float] | None = None
        """The producer that published first, and when."""
        self._consumer_group = consumer_group
        self._group = group
        self._threaded = threaded
        self._groups, self._bodies = count(1), count(1)
        self._links: list[SenderLink] = []
        self._began = 0

    async def open(self) -> None:
        """Publish a first event: reading begins there. Raises PublishError, FeedError, TimeoutError."""
        async with asyncio.timeout(2 * ANSWER_S_MAX), self.receiving(LATEST) as receiver:
            sender = await self.attach(self.new_group(), 1, None)
            (body,) = await sender.send()
            while body not in (found := bodies_in(await receiver.take_next())):
                pass
        self._began = found[body]
        self.oldest = sender.position, self.clock.monotonic()
        await self.settle()

    async def settle(self) -> None:
        links, self._links = self._links, []
        for link in links:
            await link.close()

    async def close(self) -> None:
        await self.settle()
        await self.broker.close()

    def note(self, text: str) -> None:
        self.notes.append(text)

    def named(self, group: int) -> str:
        return f"G{group - self._group}"

    def new_group(self) -> int:
        return self._group + next(self._groups)

    def new_bodies(self, events: int) -> list[bytes]:
        return [b"leasehold-probe-%d-%d" % (self._group, next(self._bodies)) for _ in range(events)]

    @property
    def beginning(self) -> str:
        """A selector that lets the first event of this probe through, and what follows."""
        return selector(BEGINNING if self._began == 0 else EventPosition(self._began - 1))

    def receiving(self, selected: str, epoch: int | None = None) -> AbstractAsyncContextManager[Receiver]:
        source = ReceiverSource(
            partition=self.partition, group=self._consumer_group, selector=selected, epoch=epoch, reports_end=True
        )
        return open_receiver(self.broker.links, source, LIMITS, self._threaded)

    async def attach(self, group: int, level: int | None, number: int | None) -> Sender:
        """Raises PublishError, TimeoutError."""
        asked = AttachRequest(group=group, level=level, number=number)
        text = f"{self.named(group)} attaches at level {shown_number(level)} with number {shown_number(number)}"
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                link = await self.broker.attach(self.partition, asked, idempotent=True)
        except (PublishError, TimeoutError) as error:
            self.note(f"{text} -> {shown_refusal(error)}")
            raise
        self._links.append(link)
        assert link.numbers is not None, "an idempotent link has numbers"
        self.note(f"{text} -> level {link.numbers.level}, number {link.numbers.number}")
        return Sender(self, link, link.numbers)

    async def read(self) -> dict[bytes, list[int]]:
        """The bodies since the beginning of this probe, each with its sequences. Raises FeedError."""
        found: dict[bytes, list[int]] = {}
        async with self.receiving(self.beginning) as receiver:
            end, last = None, -1
            while end is None or last < end:
                received = await receiver.take_next()
                end = received.end if end is None else end
                for page in received.pages:
                    for sequence, body in zip(
                        page.events["sequence"].to_pylist(), page.events["body"].to_pylist(), strict=True
                    ):
                        found.setdefault(body, []).append(sequence)
                        last = sequence
        self.note(f"a receiver reads {sum(map(len, found.values()))} events, up to sequence {last}")
        return found


def bodies_in(received: Received) -> dict[bytes, int]:
    tables = [page.events for page in received.pages]
    return {body: n for t in tables for body, n in zip(t["body"].to_pylist(), t["sequence"].to_pylist(), strict=True)}


def shown_number(value: int | None) -> str:
    return "null" if value is None else str(value)


def shown_refusal(error: PublishError | TimeoutError) -> str:
    if isinstance(error, PublishError):
        return f"refused ({error.reason}): {error}"
    return f"no answer within {ANSWER_S_MAX:g} s"
