"""How far the group is behind its feeds.

That comes from the lease documents and the feeds alone, so any process can find out, even one without workers. A feed that cannot
answer for one partition is reported with its error; the others still answer.

    lag = await measure_lag(leases, feeds)               events behind, by partition and in total
    lag = last_known.complete(lag)                       with the last known lag of a feed that is silent now
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from leasehold.common.clock import Clock
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.feed import ChangeFeed, FeedPartition
from leasehold.service.lag.asking import (
    LAG_TIMEOUTS,
    NO_LISTINGS,
    LagTimeouts,
    ask_all,
    find_missing,
    list_partitions,
    remind,
)

FindWait = Callable[[ChangeFeed, Lease], Awaitable[float | None]]
NONE: Mapping[LeaseKey, str] = MappingProxyType({})
NO_ANSWERS: Mapping[LeaseKey, PartitionLag] = MappingProxyType({})
NO_LEASE = "it has no lease (yet): a host creates one, or reports why not"
UNLISTED = ""
"""Stands for the partitions of a feed that cannot list them."""
KEPT_S = 60.0
"""For how long the last known lag of a partition counts while its feed does not answer."""
UNKNOWN_SHARE_MAX = 0.1
"""If more of a pipeline's partitions are unknown, its lag is. Up to this share each counts as the average of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """events: how many the feed holds behind the lease's position; None if unknown. error: why the feed did not answer.

    age_s: how old `events` is; 0 if the feed has just answered.
    """

    pipeline: str
    partition: str
    events: int | None
    error: str | None = None
    age_s: float = 0.0
    seconds: float | None = None
    """For how long the oldest event has waited that is not delivered; 0 if there is none, None if that is unknown."""
    waited_s: float | None = None
    """For how long the first event that is not delivered had waited when `events` was measured; None if unknown."""
    position: str | None = None
    """The lease's, by which it was measured."""
    early_s: float = 0.0
    """How long before the end of the whole measurement the feed had answered: others take seconds."""

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.pipeline, self.partition)


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of all open leases and of partitions without a readable one, in the order of pipeline and partition."""

    partitions: tuple[PartitionLag, ...]

    @property
    def events(self) -> int:
        """Events behind. Each unknown partition counts as the average of its pipeline's others, and at least 1; only if
        `is_known`."""
        return sum(_estimated(of) if _is_known(of) else _known_events(of) for of in self._by_pipeline())

    @property
    def seconds(self) -> float | None:
        """For how long the oldest event of all has waited; None if too many partitions are unknown, or if all others are at 0."""
        ages = [_oldest(of) for of in self._by_pipeline()]
        return None if None in ages else max((age for age in ages if age is not None), default=0.0)

    @property
    def oldest(self) -> float | None:
        """As `seconds`, by those that are known; None if none is."""
        return max((one.seconds for one in self.partitions if one.seconds is not None), default=None)

    @property
    def unknown_seconds(self) -> int:
        """How many partitions have an unknown age."""
        return sum(one.seconds is None for one in self.partitions)

    @property
    def unknown(self) -> int:
        """How many partitions are unknown."""
        return sum(partition.events is None for partition in self.partitions)

    @property
    def errors(self) -> dict[LeaseKey, str]:
        """Why feeds did not answer for partitions."""
        return {partition.key: partition.error for partition in self.partitions if partition.error is not None}

    @property
    def is_known(self) -> bool:
        """False if too many partitions of a pipeline are unknown. `events` counts only the others then: it may be far too low."""
        return all(map(_is_known, self._by_pipeline()))

    def of(self, pipeline: str) -> Lag:
        return Lag(tuple(partition for partition in self.partitions if partition.pipeline == pipeline))

    def _by_pipeline(self) -> list[tuple[PartitionLag, ...]]:
        return [self.of(name).partitions for name in sorted({partition.pipeline for partition in self.partitions})]


class LastKnown:
    """The last known lag of each partition, for as long as it counts."""

    def __init__(self, clock: Clock, pipelines: Iterable[str]) -> None:
        self._clock = clock
        self._pipelines = tuple(pipelines)
        self._kept: dict[LeaseKey, tuple[int, float | None, float]] = {}
        """Events, how long the first of them had waited, and when they were counted, by Clock."""

    def complete(self, lag: Lag) -> Lag:
        """Keep what is known, and fill in what is not. lag: of all pipelines."""
        now = self._clock.monotonic()
        known = {
            one.key: (one.events, one.waited_s, now - one.age_s - one.early_s)
            for one in lag.partitions
            if one.events is not None
        }
        unlisted = {LeaseKey(name, UNLISTED) for name in self._pipelines}
        listed = dict.fromkeys(unlisted - lag.errors.keys(), (0, None, now))
        kept = {**self._kept, **known, **listed}
        self._kept = {key: found for key, found in kept.items() if now - found[2] <= KEPT_S}
        return Lag(tuple(self._completed(one, now) for one in lag.partitions))

    def _completed(self, one: PartitionLag, now: float) -> PartitionLag:
        if one.events is not None or one.key not in self._kept:
            return one
        events, waited_s, at = self._kept[one.key]
        return replace(one, events=events, waited_s=waited_s, age_s=now - at, early_s=0.0)


def _known_events(partitions: Collection[PartitionLag]) -> int:
    return sum(partition.events or 0 for partition in partitions)


def _unknown(partitions: Collection[PartitionLag]) -> int:
    return sum(partition.events is None for partition in partitions)


def _is_known(partitions: Collection[PartitionLag]) -> bool:
    return _unknown(partitions) <= UNKNOWN_SHARE_MAX * len(partitions)


def _oldest(partitions: Collection[PartitionLag]) -> float | None:
    """An unknown partition may be older than all others, so it is not left out if they show no age at all."""
    found = [one.seconds for one in partitions if one.seconds is not None]
    unknown = len(partitions) - len(found)
    is_known = unknown <= UNKNOWN_SHARE_MAX * len(partitions) and (not unknown or max(found, default=0.0) > 0)
    return max(found, default=0.0) if is_known else None


def _estimated(partitions: Collection[PartitionLag]) -> int:
    """As if those that are unknown had the average lag of the others, and at least one event each."""
    unknown, events = _unknown(partitions), _known_events(partitions)
    known = len(partitions) - unknown
    return events + max(unknown, math.ceil(events * unknown / known)) if known else 0


async def measure_lag(
    leases: Iterable[Lease],
    feeds: Mapping[str, ChangeFeed],
    *,
    unreadable: Mapping[LeaseKey, str] = NONE,
    waiting: Mapping[LeaseKey, str] = NONE,
    known: Mapping[LeaseKey, PartitionLag] = NO_ANSWERS,
    listings: Mapping[str, Sequence[FeedPartition]] = NO_LISTINGS,
    find_wait: FindWait | None = None,
    patience: LagTimeouts = LAG_TIMEOUTS,
    clock: Clock | None = None,
) -> Lag:
    """feeds: by pipeline, for every pipeline of the leases. unreadable: unreadable leases, with the reason.

    find_wait: finds how long the first event after a lease's position has waited; called if there is one.

    waiting: why partitions have no lease, as far as a host knows. The lag of an unknown position is unknown.
    known, listings: partitions and pipelines whose feeds are not asked. clock: for `early_s`.
    """

    def read_clock() -> float:
        return 0.0 if clock is None else clock.monotonic()

    began = read_clock()
    leases = list(leases)
    remind(feeds, leases)
    still_open = {lease.key: lease for lease in leases if not lease.closed}
    listed = await list_partitions(feeds, listings, patience)
    answers = await ask_all(
        {
            key: _lag_of(feeds[lease.pipeline], lease, find_wait, read_clock)
            for key, lease in still_open.items()
            if key not in known
        },
        patience=patience,
    )
    missing = {key: waiting.get(key, NO_LEASE) for key in find_missing(listed.found, feeds, leases)}
    unlisted = {
        LeaseKey(name, UNLISTED): f"the feed cannot list its partitions ({why})" for name, why in listed.errors.items()
    }
    leaseless = {key: why for key, why in waiting.items() if key not in {lease.key for lease in leases}}
    errors = {**unlisted, **leaseless, **missing, **unreadable, **answers.errors}
    asked, ended = {}, read_clock()
    for key in still_open.keys() | errors.keys():
        events, waited_s, at = answers.found.get(key, (None, None, ended))
        position = still_open[key].continuation if key in still_open else None
        asked[key] = PartitionLag(
            pipeline=key.pipeline,
            partition=key.partition,
            events=events,
            error=errors.get(key),
            waited_s=waited_s,
            position=position,
            early_s=ended - at,
        )
    found = {
        **asked,
        **{key: replace(known[key], early_s=ended - began) for key in still_open.keys() & known.keys()},
    }
    return Lag(tuple(found[key] for key in sorted(found)))


def _lag_of(
    feed: ChangeFeed, lease: Lease, find_wait: FindWait | None, read_clock: Callable[[], float]
) -> Callable[[], Awaitable[tuple[int, float | None, float]]]:
    """Events, how long the first of them has waited, and when that was known."""

    async def ask() -> tuple[int, float | None, float]:
        events = await feed.lag(lease.partition, lease.continuation)
        waited_s = await find_wait(feed, lease) if events and find_wait is not None else None
        return events, waited_s, read_clock()

    return ask
