"""Whether the whole group has anything left to do.

    look = await read_backlog(leases, feeds, failures)   one look at the backlog of the whole group
    last = await wait_until_idle(view.read_backlog, clock=clock, report=show)
                                                         for `run --until-idle`: last.failed, .held -> exit 1

Waiting until idle takes two looks in a row that find nothing to do and nothing moved. So the order in which pipelines feed each
other does not matter: what one had delivered by the first look, the next one had to finish by the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from leasehold.common.clock import Clock
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.pipeline.feed import ChangeFeed, FeedPartition
from leasehold.service.lag.asking import (
    LAG_TIMEOUTS,
    NO_LISTINGS,
    Answers,
    LagTimeouts,
    ask_noting,
    find_missing,
    known_lag_of,
    list_partitions,
    remind,
)
from leasehold.service.lag.measurement import NONE, UNLISTED, PartitionLag

Ask = Callable[[Lease], Awaitable["PartitionLag"]]
Verdict = Literal["busy", "idle", "failed"]
Ends = tuple[str | None, str | None]
"""A lease's position, and the end of its partition when that was read."""
REPORT_S = 10.0
"""How often `wait_until_idle` reports what is left to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """One look at how far the whole group has come."""

    ends: Mapping[LeaseKey, Ends]
    """For every open lease whose feed answered."""
    behind: frozenset[LeaseKey]
    """Leases that have not reached the end."""
    missing: frozenset[LeaseKey]
    """Partitions of a feed without a lease yet."""
    failed: Mapping[LeaseKey, str]
    """Why partitions that no host works on now stand still; they are neither behind nor unknown. Also what a feed passes over,
    and under UNLISTED why a whole pipeline waits for a person."""
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
    """leases: just read, never from a cache, or two looks could see the same state. failures: as any host reports them.

    waiting: partitions that get no lease for now. The feed need not list them: they may have been split meanwhile.
    stuck: leases that cannot be read, and partitions that get none, until a person helps; UNLISTED: all of a pipeline.

    listings: partitions by pipeline, for pipelines whose feeds need not list them.
    ask: how to ask metered feeds. That is done only once nothing else is left to do, and one partition after another.
    """
    remind(feeds, leases)
    still_open = {lease.key: lease for lease in leases if not lease.closed}
    failed = {key: why for key, why in failures.items() if key in still_open and still_open[key].owner is None}
    listed = await list_partitions(feeds, listings, patience)
    rare = {key: lease for key, lease in still_open.items() if ask and feeds[lease.pipeline].is_metered}
    ends = await ask_noting(
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
    missing = find_missing(listed.found, feeds, leases) | (waiting.keys() - {lease.key for lease in leases})
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
    ends: Answers[LeaseKey, _End],
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


@dataclass(frozen=True, slots=True)
class _End:
    ends: Ends
    is_behind: bool
    held: str | None


def _ends_of(feed: ChangeFeed, lease: Lease) -> Callable[[], Awaitable[_End]]:
    async def ask() -> _End:
        latest = await feed.latest(lease.partition)
        # Not `compare`: retention may have deleted the events between, and a malformed record is after the latest position.
        lag = await feed.lag(lease.partition, lease.continuation)
        held = await feed.find_held_back(lease.partition, lease.continuation) if lag == 1 else None
        return _End((lease.continuation, latest), is_behind=lag > (held is not None), held=held)

    return ask


def _known_end(feed: ChangeFeed, lease: Lease) -> _End | None:
    """If a reader has seen events after the lease's position, they exist. Only the feed knows that there are none."""
    known = known_lag_of(feed, lease)
    return _End((lease.continuation, None), is_behind=True, held=None) if known and known.events else None
