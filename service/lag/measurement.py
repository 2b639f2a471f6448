"""How far the group is behind its feeds, and whether it has anything left to do.

Both come from the lease documents and the feeds alone, so any process can find out, even one without workers. A feed that cannot
answer for one partition is reported with its error; the others still answer.

    lag = await measure_lag(leases, feeds)               events behind, by partition and in total
    lag = last_known.complete(lag)                       with the last known lag of a feed that is silent now
    look = await read_backlog(leases, feeds, failures)   one look at the backlog of the whole group
    last = await wait_until_idle(view.read_backlog, clock=clock, report=show)
                                                         for `run --until-idle`: last.failed, .held -> exit 1

Waiting until idle takes two looks in a row that find nothing to do and nothing moved. So the order in which pipelines feed each
other does not matter: what an upstream had delivered by the first look, its downstream had to finish by the second.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Generic, Literal, TypeVar, cast

from leasehold.common.clock import Clock
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.lineage import scopes_of
from leasehold.pipeline.errors import FeedError, FeedNotFound, FeedUnavailable
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, KnownLag

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
Ask = Callable[[Lease], Awaitable["PartitionLag"]]
FindWait = Callable[[ChangeFeed, Lease], Awaitable[float | None]]
Verdict = Literal["busy", "idle", "failed"]
Ends = tuple[str | None, str | None]
"""A lease's position, and the end of its partition when that was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagTimeouts:
    """How long feeds may take. call_s: one call; total_s: all calls together; at_once: how many run at a time."""

    call_s: float = 3.0
    total_s: float = 4.0
    at_once: int = 16


LAG_TIMEOUTS = LagTimeouts()
NONE: Mapping[LeaseKey, str] = MappingProxyType({})
NO_ANSWERS: Mapping[LeaseKey, PartitionLag] = MappingProxyType({})
NO_LISTINGS: Mapping[str, Sequence[FeedPartition]] = MappingProxyType({})
NO_LEASE = "it has no lease (yet): a host creates one, or reports why not"
UNLISTED = ""
"""Stands for the partitions of a feed that cannot list them."""
KEPT_S = 60.0
"""For how long the last known lag of a partition counts while its feed does not answer."""
UNKNOWN_SHARE_MAX = 0.1
"""If more of a pipeline's partitions are unknown, its lag is. Up to this share each counts as the average of the others."""
REPORT_S = 10.0
"""How often `wait_until_idle` reports what is left to do."""


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
    _remind(feeds, leases)
    still_open = {lease.key: lease for lease in leases if not lease.closed}
    listed = await _list(feeds, listings, patience)
    answers = await ask_all(
        {
            key: _lag_of(feeds[lease.pipeline], lease, find_wait, read_clock)
            for key, lease in still_open.items()
            if key not in known
        },
        patience=patience,
    )
    missing = {key: waiting.get(key, NO_LEASE) for key in _missing(listed.found, feeds, leases)}
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """One look at how far the whole group has come."""

    ends: Mapping[LeaseKey, Ends]
    """The ends of every open lease whose feed answered."""
    behind: frozenset[LeaseKey]
    """Leases that have not reached the end."""
    missing: frozenset[LeaseKey]
    """Partitions of a feed without a lease yet."""
    failed: Mapping[LeaseKey, str]
    """Why a partition stands still that no host works on now; those are neither behind nor unknown. Also what a feed passes over,
    and under UNLISTED why all of a pipeline waits for a person."""
    unknown: tuple[str, ...]
    """What could not be found out."""
    held: Mapping[LeaseKey, str] = field(default_factory=dict)
    """Why the last event of a partition is held back: it is unfinished, so the partition is not behind either."""

    @property
    def is_done(self) -> bool:
        """Whether no work is left."""
        return not (self.behind or self.missing or self.unknown)


def verdict(before: Backlog | None, now: Backlog) -> Verdict:
    """What two looks in a row show. failed: idle, except for partitions that only a person can repair."""
    if before is None or not (before.is_done and now.is_done):
        return "busy"
    if (before.ends, before.failed.keys(), before.held) != (now.ends, now.failed.keys(), now.held):
        return "busy"
    return "failed" if now.failed or now.held else "idle"


async def read_backlog(
    leases: Collection[Lease],
    feeds: Mapping[str, ChangeFeed],
    failures: Mapping[LeaseKey, str],
    *,
    waiting: Mapping[LeaseKey, str] = NONE,
    stuck: Mapping[LeaseKey, str] = NONE,
    listings: Mapping[str, Sequence[FeedPartition]] = NO_LISTINGS,
    ask: Ask | None = None,
    patience: LagTimeouts = LAG_TIMEOUTS,
) -> Backlog:
    """leases: read right before, never from a cache, or two looks could see one state. failures: as any host reports them.

    waiting: partitions that get no lease for now. The feed need not list them: they may have been split since.
    stuck: leases that cannot be read, and partitions that get none, until a person helps; under UNLISTED all of a pipeline's.

    listings: of pipelines whose feeds are not read for theirs.
    ask: how to ask metered feeds. That is done only once nothing else is left to do, and one partition after another.
    """
    _remind(feeds, leases)
    still_open = {lease.key: lease for lease in leases if not lease.closed}
    failed = {key: why for key, why in failures.items() if key in still_open and still_open[key].owner is None}
    listed = await _list(feeds, listings, patience)
    rare = {key: lease for key, lease in still_open.items() if ask and feeds[lease.pipeline].is_metered}
    ends = await _ask_noting(
        {key: _ends_of(feeds[lease.pipeline], lease) for key, lease in still_open.items() if key not in rare},
        patience,
    )
    ends.found.update((key, end) for key, lease in rare.items() if (end := _known_end(feeds[lease.pipeline], lease)))
    passed_over = {
        LeaseKey(name, entry): why for name, feed in feeds.items() for entry, why in feed.passed_over.items()
    }
    unlistable = {LeaseKey(name, UNLISTED): why for name, why in listed.lasting.items()}
    still_stuck = {key: why for key, why in stuck.items() if key not in still_open}
    failed = {**passed_over, **ends.lasting, **failed, **still_stuck, **unlistable}
    blocked = {key.pipeline for key in failed if key.partition == UNLISTED}
    missing = _missing(listed.found, feeds, leases) | (waiting.keys() - {lease.key for lease in leases})
    missing = {key for key in missing - failed.keys() if key.pipeline not in blocked}
    errors = {name: why for name, why in listed.errors.items() if name not in blocked}
    unlisted = [f"pipeline '{name}': its partitions are unknown ({why})" for name, why in errors.items()]
    look = _look(ends, failed, missing, unlisted)
    if ask is None or not look.is_done:
        return look
    for key, lease in rare.items():
        answer = await ask(lease)
        if answer.events is None:
            ends.errors[key] = answer.error or "no answer"
        else:
            ends.found[key] = _End((lease.continuation, None), is_behind=answer.events > 0, held=None)
        if key not in failed and answer.events != 0:
            break
    return _look(ends, failed, missing, unlisted)


def _look(
    ends: _Answers[LeaseKey, _End],
    failed: Mapping[LeaseKey, str],
    missing: Collection[LeaseKey],
    unlisted: Iterable[str],
) -> Backlog:
    unanswered = (
        f"pipeline '{key.pipeline}', partition '{key.partition}': {why}"
        for key, why in ends.errors.items()
        if key not in failed
    )
    return Backlog(
        ends={key: end.ends for key, end in ends.found.items()},
        behind=frozenset(key for key, end in ends.found.items() if end.is_behind) - failed.keys(),
        held={key: end.held for key, end in ends.found.items() if end.held is not None and key not in failed},
        missing=frozenset(missing),
        failed=failed,
        unknown=(*unlisted, *unanswered),
    )


async def wait_until_idle(
    look: Callable[[], Awaitable[Backlog]],
    *,
    clock: Clock,
    report: Callable[[Backlog], None] = lambda look: None,
    pause_s: float = 0.5,
) -> Backlog:
    """The look that found nothing more to do. Only a person can help the partitions in its `failed` and `held`.

    report: called every REPORT_S seconds with what is left to do.
    """
    before, last_report = None, clock.monotonic()
    while verdict(before, now := await look()) == "busy":
        if clock.monotonic() - last_report >= REPORT_S:
            report(now)
            last_report = clock.monotonic()
        before = now
        await clock.sleep(pause_s)
    return now


def _remind(feeds: Mapping[str, ChangeFeed], leases: Collection[Lease]) -> None:
    for name, feed in feeds.items():
        feed.remember(scopes_of(lease for lease in leases if lease.pipeline == name))


def _missing(
    listed: Mapping[str, Sequence[FeedPartition]], feeds: Mapping[str, ChangeFeed], leases: Collection[Lease]
) -> set[LeaseKey]:
    """The leases that partitions lack. listed: by pipeline."""
    missing = set()
    for pipeline, partitions in listed.items():
        ours = [lease for lease in leases if lease.pipeline == pipeline]
        known = {lease.partition for lease in ours}
        held = {lease.scope for lease in ours if lease.scope is not None and not lease.closed}
        parts = (
            part for each in partitions if each.name not in known for part in feeds[pipeline].uncovered(each, held)
        )
        missing |= {LeaseKey(pipeline, part.name) for part in parts if part.name not in known}
    return missing


def _lag_of(
    feed: ChangeFeed, lease: Lease, find_wait: FindWait | None, read_clock: Callable[[], float]
) -> Callable[[], Awaitable[tuple[int, float | None, float]]]:
    """Events, how long the first of them has waited, and when that was known."""

    async def ask() -> tuple[int, float | None, float]:
        events = await feed.lag(lease.partition, lease.continuation)
        waited_s = await find_wait(feed, lease) if events and find_wait is not None else None
        return events, waited_s, read_clock()

    return ask


@dataclass(frozen=True, slots=True)
class _End:
    ends: Ends
    is_behind: bool
    held: str | None


def _ends_of(feed: ChangeFeed, lease: Lease) -> Callable[[], Awaitable[_End]]:
    async def ask() -> _End:
        latest = await feed.latest(lease.partition)
        # Not `compare`: retention may have emptied what lies between, and a malformed record is after the latest position.
        lag = await feed.lag(lease.partition, lease.continuation)
        held = await feed.find_held_back(lease.partition, lease.continuation) if lag == 1 else None
        return _End((lease.continuation, latest), is_behind=lag > (held is not None), held=held)

    return ask


def known_lag_of(feed: ChangeFeed, lease: Lease) -> KnownLag | None:
    """The lag that the reader of a metered feed knows. Never raises: after a failure the feed is read."""
    try:
        return feed.known_lag(lease.partition, lease.continuation)
    except Exception:
        return None


def _known_end(feed: ChangeFeed, lease: Lease) -> _End | None:
    """Events that a reader has seen after the lease's position exist. Only the feed knows that there are none."""
    known = known_lag_of(feed, lease)
    return _End((lease.continuation, None), is_behind=True, held=None) if known and known.events else None


@dataclass(frozen=True, slots=True)
class _Answers(Generic[K, T]):
    found: dict[K, T]
    errors: dict[K, str]
    lasting: dict[K, str] = field(default_factory=dict)
    """Those of the errors that only a person can help."""


async def _list(
    feeds: Mapping[str, ChangeFeed], listings: Mapping[str, Sequence[FeedPartition]], patience: LagTimeouts
) -> _Answers[str, Sequence[FeedPartition]]:
    calls: dict[str, Callable[[], Awaitable[Sequence[FeedPartition]]]] = {
        name: feeds[name].partitions for name in feeds if name not in listings
    }
    answers = await _ask_noting(calls, patience)
    answers.found.update(listings)
    return answers


async def _ask_noting(calls: Mapping[K, Callable[[], Awaitable[T]]], patience: LagTimeouts) -> _Answers[K, T]:
    """As `ask_all`, and which errors do not end by themselves."""
    lasting: dict[K, str] = {}

    async def ask(key: K) -> T:
        try:
            return await calls[key]()
        except FeedError as error:
            if isinstance(error, FeedNotFound) or not isinstance(error, FeedUnavailable):
                lasting[key] = str(error)
            raise

    answers = await ask_all({key: partial(ask, key) for key in calls}, patience=patience)
    return replace(answers, lasting=lasting)


async def await_answer(call: Callable[[], Awaitable[T]], call_s: float) -> tuple[T | None, str | None]:
    """A feed's answer, or why there is none. Never raises."""
    try:
        async with asyncio.timeout(call_s):
            return await call(), None
    except TimeoutError:
        return None, f"no answer within {call_s:g} s"
    except FeedError as error:
        return None, str(error)
    except Exception as error:  # one faulty connector must not silence the others
        return None, f"unexpected {type(error).__name__}: {error}"


async def ask_all(calls: Mapping[K, Callable[[], Awaitable[T]]], *, patience: LagTimeouts) -> _Answers[K, T]:
    """Every call's answer or error; never raises."""
    answers: _Answers[K, T] = _Answers({}, dict.fromkeys(calls, f"no answer within {patience.total_s:g} s"))
    gate = asyncio.Semaphore(patience.at_once)

    async def ask(key: K, call: Callable[[], Awaitable[T]]) -> None:
        async with gate:
            answer, error = await await_answer(call, patience.call_s)
            if error is not None:
                answers.errors[key] = error
            else:
                answers.found[key] = cast(T, answer)
                del answers.errors[key]

    with suppress(TimeoutError):  # a partition without an answer by then keeps the error from above
        async with asyncio.timeout(patience.total_s), asyncio.TaskGroup() as group:
            for key, call in calls.items():
                group.create_task(ask(key, call))
    return answers
