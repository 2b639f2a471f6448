"""Since when this host has seen things unchanged, and therefore what has expired. Pure.

All times are of this host's own clock: the clocks of two machines are never compared. Time in which this host could not
read the lease store, or could not write to it, does not count. After such an outage, nothing expires during a grace of
successful reads, because the others had the same outage (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)
Mark = tuple[object, ...]
"""Values that change whenever their owner acts."""


class Intervals(NamedTuple):
    """gap_max_s: if two reads are further apart, there was an outage (or a stopped process) between them.

    took_max_s: a process was suspended during a read that took longer. grace_s: how long nothing expires after an outage.
    """

    gap_max_s: float
    took_max_s: float
    grace_s: float


class Sighting(NamedTuple):
    """A mark, and since when this host has seen it unchanged (Clock seconds, excluding time that does not count)."""

    mark: Mark
    since: float


@dataclass(frozen=True, slots=True)
class Watch(Generic[K]):
    """Everything that this host has seen so far. judges_from: before this time, nothing expires."""

    sightings: Mapping[K, Sighting] = field(default_factory=lambda: MappingProxyType({}))
    read_at: float | None = None
    judges_from: float = -inf

    def scanned(
        self, marks: Mapping[K, Mark], started: float, ended: float, intervals: Intervals, unread_s: float = 0.0
    ) -> Watch[K]:
        """The state after a successful read from `started` to `ended`; the machine may have slept in the middle of it.

        unread_s: time since the last read that does not count.
        """
        gap, took = 0.0 if self.read_at is None else started - self.read_at, ended - started
        unread = max(gap * (gap > intervals.gap_max_s), unread_s) + took * (took > intervals.took_max_s)
        kept = {
            key: Sighting(mark, min(seen.since + unread, ended))
            if (seen := self.sightings.get(key)) is not None and seen.mark == mark
            else Sighting(mark, ended)
            for key, mark in marks.items()
        }
        return Watch(kept, ended, ended + intervals.grace_s if unread and self.sightings else self.judges_from)

    def still_for(self, seconds: float | Callable[[K], float], now: float) -> frozenset[K]:
        """What had not changed for at least this long when the last read began, at `now`."""
        if now < self.judges_from:
            return frozenset()
        lasts = seconds if callable(seconds) else lambda key: seconds
        return frozenset(key for key, seen in self.sightings.items() if now >= seen.since + lasts(key))
