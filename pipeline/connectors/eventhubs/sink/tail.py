"""Reads the end of a hub's partition, to find what a lease has published there.

A claim has to see everything that was stored before its fence. `$management` may answer with an older end; a receiver cannot:
with every event the service reports the partition's end at that moment. So a receiver begins one event early, and reads up to
the first end that it knows. Only a receiver that stays silent, because the partition is empty, needs `$management`, whose
answer counts once the receiver has been silent for longer than the answer may be old.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf

from leasehold.pipeline.connectors.eventhubs.broker import EventHubsBroker
from leasehold.pipeline.connectors.eventhubs.feed.receiver import (
    Received,
    Receiver,
    ReceiverLimits,
    ReceiverSource,
    open_receiver,
)
from leasehold.pipeline.connectors.eventhubs.position import BEGINNING, EventPosition, selector
from leasehold.pipeline.connectors.eventhubs.refusal import PositionRefused
from leasehold.pipeline.errors import FeedError, FeedUnavailable, Fenced, SinkRejected
from leasehold.pipeline.event import Page
from leasehold.pipeline.markers import Search

LIMITS = ReceiverLimits(prefetch=2000, page_events=5000)
QUIET_S = 10.0
"""If an attached receiver gets nothing for this long and `$management` agrees, the partition is empty. Answers of `$management`
are assumed to be no older than this: docs/guarantees.md lists it among what is assumed."""
READERS_MAX = 2
"""Readers of one partition at a time. The service allows five in a consumer group, for all hosts together."""
LOOK_TIMEOUT_S = 2.0
UNSEEN_S = 60.0
"""How long a partition that did not show its end in time is left alone. Each look that waits in vain delays a batch."""


@dataclass(slots=True)
class TailReading:
    """`search` has seen the events after `began`, up to `behind`. A reading can be interrupted and continued."""

    search: Search
    began: int
    behind: int

    def covers(self, behind: int) -> bool:
        """Whether this reading can be continued to search everything after that sequence."""
        return self.began <= behind <= self.behind


class Tails:
    """The ends of a hub's partitions, read in one consumer group. timeout_s: how long to wait for an event."""

    def __init__(
        self, broker: EventHubsBroker, consumer_group: str, *, timeout_s: float, quiet_s: float = QUIET_S
    ) -> None:
        self.broker = broker
        self.consumer_group = consumer_group
        self.timeout_s = timeout_s
        self.quiet_s = quiet_s
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(READERS_MAX))
        self._looks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._ends: dict[str, tuple[float, int]] = {}
        """For each partition: the time of the last look for its end, and the last end that was seen."""

    async def read(
        self,
        target: str,
        reading: TailReading,
        *,
        is_binding: bool = False,
        report_progress: Callable[[], None] = lambda: None,
    ) -> int:
        """Read up to the partition's end as of the call, or a later one. Returns the sequence of its last event, -1 for none.

        is_binding: whether retention must not have deleted the first event after `reading.behind`.
        Raises FeedError, FeedUnavailable, Fenced, PublishError, SinkRejected.
        """
        async with self._turn(target):
            began = time.monotonic()
            end = await _TailSearch(self, target, reading, report_progress, is_binding=is_binding).read_to_end()
        if end >= self._ends.get(target, (-inf, -1))[1]:
            self._ends[target] = began, end  # as old as the first answer may be
        return end

    async def look(self, target: str, behind: int, *, age_max_s: float) -> int:
        """The partition's end, at most `age_max_s` old if it can be seen, else older and so perhaps lower. -1 if none was seen.

        The event at `behind`, or the next one, shows the end without a request to $management. The leases of a host share it.
        """
        async with self._looks[target]:
            looked_at, seen = self._ends.get(target, (-inf, -1))
            now = time.monotonic()
            if now < looked_at + age_max_s:
                return seen
            try:
                async with asyncio.timeout(LOOK_TIMEOUT_S), self._turn(target):
                    seen = await self._see_end(target, behind)
            except TimeoutError:
                now += UNSEEN_S
            except (FeedError, Fenced):
                pass  # this costs no time: the partition may show its end before the next batch
            self._ends[target] = now, seen
            return seen

    async def _see_end(self, target: str, behind: int) -> int:
        place = ReceiverSource(
            partition=target,
            group=self.consumer_group,
            selector=selector(BEGINNING if behind < 1 else EventPosition(behind - 1)),
            reports_end=True,
        )
        async with open_receiver(self.broker.links, place, replace(LIMITS, prefetch=1), asyncio.to_thread) as receiver:
            end = (await receiver.take_next()).end
        return -1 if end is None else end

    @asynccontextmanager
    async def _turn(self, target: str) -> AsyncIterator[None]:
        turn = self._turns[target]
        try:
            async with asyncio.timeout(self.timeout_s):
                await turn.acquire()
        except TimeoutError as error:
            raise FeedUnavailable(f"{self.named(target)}: other claims are still reading its end") from error
        try:
            yield
        finally:
            turn.release()

    def named(self, target: str) -> str:
        return f"{self.broker.name}, partition '{target}'"


class _TailSearch:
    """at: the last sequence that the receiver has passed. end: None until it is known."""

    def __init__(
        self, tails: Tails, target: str, reading: TailReading, report_progress: Callable[[], None], *, is_binding: bool
    ) -> None:
        self._tails = tails
        self._target = target
        self._reading = reading
        self._report_progress = report_progress
        self._is_binding = is_binding
        self._at = reading.behind - 1
        self._end: int | None = None
        self._has_received = False

    async def read_to_end(self) -> int:
        while (end := self._end) is None or self._reading.behind < end:
            try:
                await self._read_link()
            except PositionRefused as refused:
                extent = await self._tails.broker.read_extent(self._target)
                self._check_end(extent.last)
                raise FeedUnavailable(str(refused)) from refused
        return end

    @property
    def _is_done(self) -> bool:
        return self._end is not None and self._reading.behind >= self._end

    async def _read_link(self) -> None:
        """Read up to the end, or past an unreadable event, which no sink of Leasehold has published."""
        place = ReceiverSource(
            partition=self._target,
            group=self._tails.consumer_group,
            selector=selector(BEGINNING if self._at < 0 else EventPosition(self._at)),
            reports_end=self._end is None,
        )
        async with open_receiver(self._tails.broker.links, place, LIMITS, asyncio.to_thread) as receiver:
            attached_at = time.monotonic()
            async for arrived in self._arrivals(receiver):
                if arrived is None:
                    await self._judge_silence(time.monotonic() - attached_at)
                elif self._take(arrived):
                    return

    async def _arrivals(self, receiver: Receiver) -> AsyncIterator[Received | None]:
        """What arrives; None if nothing arrived for a while."""
        following: asyncio.Future[Received] | None = None
        try:
            while not self._is_done:
                following = following or asyncio.ensure_future(receiver.take_next())
                quiet_s = self._tails.quiet_s if self._end is None else self._tails.timeout_s
                if (await asyncio.wait({following}, timeout=quiet_s))[0]:
                    arrived, following = following.result(), None
                    yield arrived
                else:
                    yield None
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def _take(self, arrived: Received) -> bool:
        """Search what arrived. Returns whether the next event cannot be read."""
        self._end = arrived.end if self._end is None else self._end
        if arrived.first is not None and not self._has_received and arrived.first > self._reading.behind + 1:
            self._refuse_gap(arrived.first)
        self._has_received = True
        for page in arrived.pages:
            self._see(page)
        if arrived.malformed:
            self._at += 1
            self._reading.behind = max(self._reading.behind, self._at)
        self._report_progress()
        return arrived.malformed is not None

    def _see(self, page: Page) -> None:
        for sequence, properties in zip(
            page.events["sequence"].to_pylist(), page.events["properties"].to_pylist(), strict=True
        ):
            self._at = sequence
            if sequence > self._reading.behind:
                self._reading.search.see(dict(properties or ()))
                self._reading.behind = sequence

    async def _judge_silence(self, waited_s: float) -> None:
        """Nothing arrives. If the end is unknown, request it; the answer counts only if it agrees with the silence."""
        where, behind = self._tails.named(self._target), self._reading.behind
        if self._end is not None:
            raise FeedUnavailable(f"{where}: could not read to its end within {self._tails.timeout_s:g} s")
        extent = await self._tails.broker.read_extent(self._target)
        if extent.is_empty and extent.last > behind:
            self._refuse_gap(extent.last + 1)
        if (extent.is_empty and extent.last >= behind) or (self._has_received and extent.last <= behind):
            self._end = self._reading.behind = max(extent.last, behind)
        elif waited_s >= self._tails.timeout_s:
            self._check_end(extent.last)
            raise FeedUnavailable(
                f"{where}: nothing came within {self._tails.timeout_s:g} s, and it ends at {extent.last}"
            )

    def _check_end(self, last: int) -> None:
        """Raises SinkRejected if the partition ends before what this lease has seen of it."""
        if self._is_binding and last < self._reading.behind:
            raise SinkRejected(
                f"{self._tails.named(self._target)} ends at {last}, and this lease has seen it end at {self._reading.behind}: the"
                " hub was deleted and made again, and output is lost. To deliver all its events again: `leasehold leases reset"
                " FILE PIPELINE PARTITION --to earliest --yes`"
            )

    def _refuse_gap(self, first: int) -> None:
        """first: the sequence of the oldest event that is left."""
        if self._is_binding:
            raise SinkRejected(
                f"{self._tails.named(self._target)} begins at {first} by now, and what this lease published after"
                f" {self._reading.behind} is deleted: its progress is unknown. Look at what arrived, then reset the"
                " lease"
            )
