"""A change feed: ordered events in partitions, read from a continuation.

Test each feed with `leasehold.pipeline.contract.ChangeFeedContract`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Collection, Mapping
from datetime import UTC, datetime, timedelta
from shlex import quote
from types import MappingProxyType
from typing import Literal, NamedTuple

from leasehold.pipeline.endpoint import Endpoint, endpoint_of
from leasehold.pipeline.errors import FeedError, PipelineError, PositionLost
from leasehold.pipeline.event import Page
from leasehold.pipeline.ranges import EventRange, RangeReader

INTERFACE = 1
"""Version of the feed interface: raised when an existing class would no longer work (docs/plugins.md)."""

Start = Literal["earliest", "latest"] | datetime
"""Where partitions that exist at the first run begin; later ones are read whole. A datetime (aware): at the first event that was
enqueued at or after it."""
_EPOCH, _TIME_MS_MAX = datetime(1970, 1, 1, tzinfo=UTC), 253_402_300_799_000


class FeedPartition(NamedTuple):
    """A partition that the feed has now.

    parents: the partitions that were split or merged into it. scope: which part of the source it is, if its name alone does not
    identify it for ever (see `ChangeFeed.remember`); kept with its lease.
    """

    name: str
    parents: tuple[str, ...] = ()
    scope: str | None = None


class PartitionEnded(PipelineError):
    """Raised by the pages of a partition that was split or merged, once its last event has been yielded.

    children: (partition, continuation) of each partition that takes over. scopes: by name, of the children that have one.
    """

    def __init__(
        self,
        partition: str,
        children: tuple[tuple[str, str | None], ...],
        *,
        scopes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(
            f"partition '{partition}' has ended; its successors: {', '.join(name for name, _ in children)}"
        )
        self.children = children
        self.scopes = scopes


class KnownLag(NamedTuple):
    """events: how many follow a position. age_s: how old that number is; 0 if no event can have arrived since.

    waited_s: how long the first of these events had waited by then; None if that is unknown. Feeds leave it out; hosts add it.
    """

    events: int
    age_s: float
    waited_s: float | None = None


class ChangeFeed(ABC):
    """Positions (continuations) are opaque texts, ordered by `compare` alone. None is the feed's beginning.

    A feed defines the abstract methods, and the others if its source offers more.
    """

    partitions_finish: bool = False
    """Whether partitions end without a signal, as files do. An operator may close the lease of such a partition while the feed
    still lists it."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """What is read, without secrets: two settings with one identity see the same events under the same positions."""

    @abstractmethod
    async def partitions(self) -> list[FeedPartition]:
        """The partitions that exist now, in name order. The list may change. Raises FeedUnavailable."""

    @abstractmethod
    async def start_of(self, partition: str, start: Start) -> str | None:
        """The position at which a partition without a lease begins. Raises FeedUnavailable."""

    @abstractmethod
    def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        """Pages after `continuation`, without end: after the last event it waits for more, without holding a thread.

        Closing the generator releases everything. A page stays within the feed's page limits in events and bytes, so a
        reader's memory is bounded; an event larger than the limit has a page of its own.
        Raises FeedUnavailable, PositionLost, MalformedRecord, PartitionEnded; what precedes the error has been yielded.
        """

    @abstractmethod
    async def latest(self, partition: str) -> str | None:
        """The position after the last event that can be read now; None if there was never one."""

    @abstractmethod
    async def lag(self, partition: str, continuation: str | None) -> int:
        """How many events follow `continuation`: exact if the feed knows, else its best estimate, and 0 only if there are none.

        What the feed holds back (see `find_held_back`) counts as one event.
        """

    @abstractmethod
    def compare(self, a: str | None, b: str | None) -> int:
        """Negative, zero or positive if `a` is before, at or after `b`. Pure."""

    @abstractmethod
    async def close(self) -> None: ...

    @property
    def endpoint(self) -> Endpoint:
        """The source, for telemetry."""
        return endpoint_of(self.identity, "messaging")

    @property
    def no_partitions(self) -> str:
        """Why there are no partitions, if there are none."""
        return f"the feed {self.identity} has no partitions yet"

    async def find_held_back(self, partition: str, continuation: str | None) -> str | None:
        """Why an unfinished record at the end of the partition is not yielded yet: place, reason and remedy.

        None if there is no such record, or if so much precedes it that the feed does not search for it. Raises as `lag` does.
        """
        return None

    async def find_enqueued_time(self, partition: str, continuation: str | None) -> datetime | None:
        """When the source took the first event after `continuation` (aware): the `enqueued_time` that `open` would yield.

        None if no event follows, or if finding out would take much reading. Called only if `lag` is above 0, and not again
        while the position stays the same. Raises as `lag` does.
        """
        return None

    @property
    def passed_over(self) -> Mapping[str, str]:
        """What the last call of `partitions` found and cannot use, by name, with the reason. Only a person can help."""
        return {}

    def known_lag(self, partition: str, continuation: str | None) -> KnownLag | None:
        """For a source that allows few requests: the lag as the partition's open reader knows it. Sends no request.

        None if the reader does not know it, or if none is open. If a feed defines this, the hosts of a group call its `lag`,
        `latest` and `partitions` at a common pace, and share what their readers know (leasehold.service.lag.metered).
        """
        return None

    @property
    def is_metered(self) -> bool:
        return type(self).known_lag is not ChangeFeed.known_lag

    def open_as(self, epoch: int, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        """As `open`, for a source that ranks readers: a later owner's reader displaces an earlier one's.

        Also raises Fenced, if a reader with a higher epoch is there or arrives later.
        """
        return self.open(partition, continuation)

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        """Consecutive ranges of what follows `continuation` and can be read now, for `range_reader`: of about `range_events`
        events each, and about `events_max` together.

        Empty if nothing follows, or if the feed does not know; `open` then shows why. It may be empty if less than one range
        follows. Raises FeedUnavailable.
        """
        return []

    def range_reader(self) -> RangeReader | None:
        """The reader for executors; None if they cannot read this feed with its present settings."""
        return None

    async def probe(self) -> None:
        """For `leasehold check --probe`: check that the feed can be read, as far as that shows in advance. Raises FeedError."""

    def remember(self, scopes: Mapping[str, str]) -> None:
        """Take the scopes of leases, by partition, before any other call about those partitions.

        For a source whose partitions change while each lease keeps its scope.
        """

    def uncovered(self, partition: FeedPartition, scopes: Collection[str]) -> list[FeedPartition]:
        """The rest of a partition outside the scopes: all of it, parts of it, or nothing. Pure."""
        return [partition]


def check_forward(feed: ChangeFeed, partition: str, start: str | None, to: str, *, events: int) -> None:
    """Raise FeedError unless `to` is after `start`; without events the two may be the same position. Pure.

    A sink that checks its position by equality would store such events twice. A start that the feed cannot compare passes: an
    event hub's offset alone, for example, which only an operator or an import writes.
    """
    try:
        order = feed.compare(start, to)
    except PositionLost:
        feed.compare(to, to)  # raises if `to` is not a position
        return
    if order > 0 or (order == 0 and events):
        raise FeedError(
            f"feed '{feed.identity}', partition '{partition}': {events} events read from {start!r} end at {to!r}, which is not"
            " after it; none of them was delivered, and the partition is read again. If this error persists, the source was"
            " set back (for example, restored from a backup), or the feed's positions are wrong: set the lease to a position,"
            " or correct the feed"
        )


def reset_of_a_new_source(partition: str) -> str:
    """Advice if a partition ends before its lease's position, or begins after it. Its present events were never read, unless
    the source was restored from an older copy.
    """
    command = f"leasehold leases reset FILE PIPELINE {quote(partition)}"
    read = f"To read all events that the feed still has: `{command} --to earliest --yes`"
    return f"{read}. To skip all of them: `{command} --to latest --yes`"


def milliseconds_of(start: datetime) -> int:
    """Milliseconds since 1970, rounded up, within the bounds of brokers. Pure."""
    return min(max(-(-(start - _EPOCH) // timedelta(milliseconds=1)), 0), _TIME_MS_MAX)
