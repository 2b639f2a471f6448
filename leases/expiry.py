"""When this host last saw each owner's tick move, and therefore which leases have expired. Pure.

A lease is expired if (owner, incarnation, epoch, tick) has not changed for the lease duration, measured on this host's
own clock. Clocks of two machines are never compared.

Time in which this host could not read the container does not count. After such an outage, one full renew interval of
successful reads must pass: the owners had the same outage and could not renew either. Without this rule, an outage of a
third of the lease duration moved most leases although no host was dead (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Generic, NamedTuple, Protocol, TypeVar

K = TypeVar("K", bound=Hashable)
Mark = tuple[object, ...]
"""What an owner changes to show that it is alive: (owner, incarnation, epoch, tick) of a lease, (incarnation, tick) of
a host.
"""


class Intervals(Protocol):
    """What a watch must know of those that it watches, in seconds. `leasehold.leases.timing` has them for leases and sessions."""

    @property
    def duration_s(self) -> float:
        """A mark that has not moved for so long has expired."""
        ...

    @property
    def grace_s(self) -> float:
        """How long marks must be read again after an outage before any expires: their owners had the same outage."""
        ...

    @property
    def read_gap_max_s(self) -> float:
        """If two scans are further apart, nothing was read between them."""
        ...

    def scan_max_s(self, listings: int) -> float:
        """A scan that took longer was suspended."""
        ...


class Sighting(NamedTuple):
    """A mark, and since when this host has seen it unchanged (Clock seconds, excluding unread time)."""

    mark: Mark
    since: float


@dataclass(frozen=True, slots=True)
class Watch(Generic[K]):
    """Everything this host has seen so far."""

    sightings: Mapping[K, Sighting] = field(default_factory=lambda: MappingProxyType({}))
    read_at: float | None = None

    def scanned(
        self,
        marks: Mapping[K, Mark],
        started: float,
        ended: float,
        timing: Intervals,
        listings: int = 1,
        unread_s: float = 0.0,
    ) -> Watch[K]:
        """The state after a successful scan from `started` to `ended`; the machine may have slept in the middle of it.

        listings: how many listings had to be read one after another. unread_s: time since the last scan that does not
        count either.
        """
        if not marks:
            return Watch(read_at=ended)
        gap, took = 0.0 if self.read_at is None else started - self.read_at, ended - started
        unread = max(gap * (gap > timing.read_gap_max_s), unread_s) + took * (took > timing.scan_max_s(listings))
        seen = self._without(unread, ended + timing.grace_s - timing.duration_s, ended) if unread else self.sightings
        return Watch(
            {
                key: before if (before := seen.get(key)) is not None and before.mark == mark else Sighting(mark, ended)
                for key, mark in marks.items()
            },
            ended,
        )

    def _without(self, unread: float, not_before: float, not_after: float) -> Mapping[K, Sighting]:
        """What was seen so far, excluding the time in which nothing could be read."""
        return {
            key: Sighting(seen.mark, min(max(seen.since + unread, not_before), not_after))
            for key, seen in self.sightings.items()
        }

    def expired(self, now: float, timing: Intervals) -> frozenset[K]:
        """`now`: when the last scan started, because nothing is known about later changes."""
        return self.still_for(timing.duration_s, now)

    def still_for(self, seconds: float, now: float) -> frozenset[K]:
        """What has not changed for at least this long."""
        return frozenset([key for key, seen in self.sightings.items() if now - seen.since >= seconds])

    def next_expiry(self, now: float, timing: Intervals) -> float:
        """When the next one that has not expired would expire (Clock seconds); infinity if there is none."""
        waiting = [seen.since for seen in self.sightings.values() if now - seen.since < timing.duration_s]
        return min(waiting, default=inf) + timing.duration_s
