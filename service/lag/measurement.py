"""How far the group is behind its feeds.

The lag comes from the lease documents and the feeds alone, so any process can measure it, even one without workers. If a feed
cannot answer for one partition, that partition has an error, and the others still have answers.

    lag = await measure_lag(leases, feeds)               events behind, by partition and in total
    lag = filled(lag, before, elapsed_s)                 with the last known lag of a feed that is silent now
"""

from __future__ import annotations

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
"""If a larger share of a pipeline's partitions is unknown, so is its lag."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """events: how many the feed holds after the lease's position; None if unknown. error: why the feed did not answer.

    age_s: how old `events` is; 0 if the feed has just answered.
    """

    pipeline: str
    partition: str
    events: int | None
    error: str | None = None
    age_s: float = 0.0
    seconds: float | None = None
    """How long the oldest undelivered event has waited; 0 if there is none, None if that is unknown."""
    waited_s: float | None = None
    """How long the first undelivered event had waited when `events` was measured; None if unknown."""
    position: str | None = None
    """The lease's position, after which `events` were counted."""
    early_s: float = 0.0
    """How long before the end of the whole measurement the feed answered: other answers may have taken seconds."""

    @property
    def key(self) -> LeaseKey:
        return LeaseKey(self.pipeline, self.partition)


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of all open leases and of partitions without a readable one, in the order of pipeline and partition."""

    partitions: tuple[PartitionLag, ...]

    @property
    def events(self) -> int:
        """Events behind. Each unknown partition of a pipeline that `is_known` counts as one, or it would pass for an idle one."""
        return sum(
            sum(one.events or 0 for one in of) + (_unknown(of) if _is_known(of) else 0) for of in self._by_pipeline()
        )

    @property
    def seconds(self) -> float | None:
        """For how long the oldest event of all has waited; None if too many partitions are unknown, or if all others are at 0."""
        ages = [_oldest(of) for of in self._by_pipeline()]
        return None if None in ages else max((age for age in ages if age is not None), default=0.0)

    @property
    def oldest(self) -> float | None:
        """As `seconds`, but of the known partitions only; None if all are unknown."""
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


def filled(lag: Lag, before: Lag | None, elapsed_s: float) -> Lag:
    """Fill in the last known lag of partitions that are unknown now: `age_s` shows since when, and `error` why. Pure.

    before: the last lag, filled in the same way `elapsed_s` earlier.
    """
    if before is None:
        return lag
    last = {one.key: one for one in before.partitions}
    return Lag(tuple(_filled(one, last.get(one.key), elapsed_s) for one in lag.partitions))


def _filled(one: PartitionLag, last: PartitionLag | None, elapsed_s: float) -> PartitionLag:
    if one.events is not None:
        return one
    if last is None and one.partition == UNLISTED:  # the feed could list its partitions then, so none was hidden
        last = replace(one, events=0, early_s=0.0)
    if last is None or last.events is None:
        return one
    age_s = last.age_s + last.early_s + elapsed_s
    if age_s > KEPT_S:
        return one
    return replace(one, events=last.events, waited_s=last.waited_s, age_s=age_s, early_s=0.0)


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

    find_wait: finds how long the first event after a lease's position has waited; called if there is such an event.

    waiting: why partitions have no lease, as far as a host knows. The lag of an unknown position is unknown.
    known, listings: lags by partition, and partitions by pipeline, for which feeds need no query. clock: for `early_s`.
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
    """The number of events, how long the first of them has waited, and when that was known."""

    async def ask() -> tuple[int, float | None, float]:
        events = await feed.lag(lease.partition, lease.continuation)
        waited_s = await find_wait(feed, lease) if events and find_wait is not None else None
        return events, waited_s, read_clock()

    return ask
