"""How long the oldest undelivered event has waited, by partition, in seconds: never negative, and never 0 if it is unknown.

The owner of a partition knows it from the events that it has read. For all other partitions, the feed reports when the first
event after the lease's position was enqueued. The answer is valid until the position changes. So hosts query it once for each
position, and only the age grows. If the lease may be behind what is delivered, that is an upper bound, and the owner reports
its own figure with each heartbeat.

Events have times of their source's clock, and ages use this host's wall clock: an age is wrong by the difference of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType

from leasehold.common.clock import Clock
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.feed import ChangeFeed, KnownLag
from leasehold.pipeline.pump.progress import WaitingEvents, microseconds
from leasehold.service.lag.measurement import Lag, PartitionLag
from leasehold.service.lag.reports import OwnerReport

FIND_S = 1.5
"""How long a feed may take to find an event's time. A measurement of lag waits no longer than that for it."""
UNREPORTED_S = 1.0
"""How soon an open reader gets the events that its feed has reported."""
NO_REPORTS: Mapping[LeaseKey, OwnerReport] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _First:
    """position: of a lease. seen: when it was first seen (Clock). enqueued_at: of the first event after it; None if unknown."""

    position: str | None
    seen: float
    enqueued_at: datetime | None = None


class FirstEvents:
    """When the first event after each lease's position was enqueued. now: wall clock, aware; None: it stays unknown."""

    def __init__(self, clock: Clock, now: Callable[[], datetime] | None) -> None:
        self._clock = clock
        self._now = now
        self._found: dict[LeaseKey, _First] = {}

    def note(self, lease: Lease) -> None:
        """Note the position of a lease that was just read."""
        if (found := self._found.get(lease.key)) is None or found.position != lease.continuation:
            self._found[lease.key] = _First(lease.continuation, self._clock.monotonic())

    def stood_s(self, lease: Lease) -> float:
        """For how long the lease has had its position, as far as that was noted."""
        found = self._of(lease)
        return 0.0 if found is None else self._clock.monotonic() - found.seen

    def is_found(self, lease: Lease) -> bool:
        """Whether a query of the feed would find nothing new."""
        found = self._of(lease)
        return self._now is None or (found is not None and found.enqueued_at is not None)

    async def find(self, feed: ChangeFeed, lease: Lease) -> float | None:
        """For how long the first event after the lease's position has waited; None if that is unknown. Never raises."""
        self.note(lease)
        if not self.is_found(lease):
            before = self._found[lease.key]
            try:
                async with asyncio.timeout(FIND_S):
                    at = await feed.find_enqueued_time(lease.partition, lease.continuation)
            except Exception:  # `lag` reports what is wrong with the feed
                at = None
            is_of_use = at is not None and at.tzinfo is not None  # the contract suite refuses a time without a zone
            self._found[lease.key] = replace(before, enqueued_at=at if is_of_use else None)
        return self.waited_s(lease)

    def waited_s(self, lease: Lease) -> float | None:
        """As `find`, but without a query: only from what is known already."""
        found = self._of(lease)
        if self._now is None or found is None or found.enqueued_at is None:
            return None
        return max(0.0, (self._now() - found.enqueued_at).total_seconds())

    def _of(self, lease: Lease) -> _First | None:
        found = self._found.get(lease.key)
        return found if found is not None and found.position == lease.continuation else None

    def keep(self, keys: Collection[LeaseKey]) -> None:
        """Forget all other leases."""
        self._found = {key: found for key, found in self._found.items() if key in keys}


def owned_wait_s(waiting: WaitingEvents, now: datetime) -> float | None:
    """The age of the oldest undelivered event that an owner has read; None if there is none, or if it is unknown."""
    return None if waiting.first_us is None else max(0, microseconds(now) - waiting.first_us) / 1e6


def aged(
    lag: Lag,
    elapsed_s: float,
    *,
    own: Callable[[PartitionLag], float | None],
    owned: Collection[LeaseKey],
    slack_s: Callable[[PartitionLag], float | None],
    reports: Mapping[LeaseKey, OwnerReport] = NO_REPORTS,
    metered: Collection[str] = (),
) -> Lag:
    """The lag as it was measured `elapsed_s` ago, with the present ages. Pure.

    - `own`: the age in a partition that this host works on. `owned`: all of these partitions.
    - `slack_s`: for a partition that another host works on, how far its lease may be behind what is delivered; None for others.
    - `reports`: what the owners of some of those report, in place of `slack_s`.
    - `metered`: the pipelines whose feed is metered.
    """

    def ages() -> Iterator[PartitionLag]:
        for one in lag.partitions:
            if one.key in owned:
                seconds = own(one)
            elif (report := reports.get(one.key)) is not None:
                seconds = reported_seconds(one, elapsed_s, report, is_metered=one.pipeline in metered)
            else:
                seconds = _seconds(one, elapsed_s, slack_s(one))
            yield replace(one, seconds=None if seconds is None else round(seconds, 3))

    return Lag(tuple(ages()))


def _seconds(one: PartitionLag, elapsed_s: float, slack_s: float | None) -> float | None:
    """The age in a partition that this host does not work on. If another host does, its oldest event may be delivered by now."""
    if one.events is None:
        return None
    if one.events == 0:
        return 0.0 if one.error is None else None
    if one.waited_s is None:
        return None
    return one.waited_s + _measured_s(one, elapsed_s) if slack_s is None else max(0.0, one.waited_s - slack_s)


def _measured_s(one: PartitionLag, elapsed_s: float) -> float:
    """For how long its number of events has been known."""
    return one.age_s + one.early_s + elapsed_s


def reported_seconds(one: PartitionLag, elapsed_s: float, report: OwnerReport, *, is_metered: bool) -> float | None:
    """The age in a partition whose owner reports. one: its lag as it was measured `elapsed_s` ago. Pure.

    The number of events in a metered feed is as old as some host's last answer, so the younger of the two counts.
    """
    measured_s = _measured_s(one, elapsed_s)
    if is_metered:
        is_younger = one.events is not None and measured_s < report.age_s
        return _seconds(one, elapsed_s, None) if report.is_overdue and is_younger else report.seconds
    if one.events is None or one.error is not None:
        return None
    if one.events == 0:
        return min(measured_s, report.seconds)  # nothing waited then, so what waits now came later
    return report.seconds if one.waited_s is None else min(one.waited_s + measured_s, report.seconds)


def wait_to_report(waiting: WaitingEvents, now: datetime, known: KnownLag | None, *, is_metered: bool) -> float | None:
    """As `own_seconds`, without a measurement: None if events that this host has not read may wait. Pure."""
    if (waited_s := owned_wait_s(waiting, now)) is not None:
        return waited_s
    if not waiting.has_begun or not waiting.is_empty or (is_metered and not _is_at_end(known)):
        return None
    return 0.0


def own_seconds(
    one: PartitionLag,
    elapsed_s: float,
    waiting: WaitingEvents,
    now: datetime,
    known: KnownLag | None,
    *,
    is_metered: bool,
) -> float | None:
    """The age in a partition that this host works on. one: its lag as it was measured `elapsed_s` ago. Pure.

    known: for a metered feed, what its reader knows about the position up to which all is delivered.
    """
    if (waited_s := owned_wait_s(waiting, now)) is not None:
        return waited_s
    if not waiting.has_begun or not waiting.is_empty:
        return _seconds(one, elapsed_s, None)
    if is_metered:
        return 0.0 if _is_at_end(known) else None
    if one.position == waiting.position and one.events:
        return _seconds(one, elapsed_s, None)
    return None if one.events is None or one.error is not None else 0.0


def _is_at_end(known: KnownLag | None) -> bool:
    return known is not None and (not known.events or known.age_s < UNREPORTED_S)
