"""Operators' actions on leases and pipelines, for the REST API and the command line.

Each reads, calls a pure function, and writes by one compare-and-swap; after a conflict it starts over. Owners
notice at their next write or scan. A reset is `leasehold.service.group.migration.reset`.

    listed = await list_partitions(pipeline)
    closed = await close_lease(keeper, pipeline, "words-1.jsonl", listed)       describe(closed, ...) is a line for people
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from leasehold.leases.errors import StoreConflict
from leasehold.leases.keeper import Keeper
from leasehold.leases.lease import Lease
from leasehold.leases.lineage import Partition, orphans, scopes_of
from leasehold.leases.membership import DEAD_AFTER
from leasehold.leases.pause_orders import Control, order
from leasehold.leases.store import Hint
from leasehold.leases.tenure import VersionedLease, name_of
from leasehold.leases.timing import Timing
from leasehold.pipeline.errors import FeedUnavailable, PipelineError
from leasehold.pipeline.feed import ChangeFeed, FeedPartition
from leasehold.service.errors import NotNow
from leasehold.service.group.status import HostStatus
from leasehold.service.pipeline import PipelineParts
from leasehold.service.texts import counted

CONFLICTS_MAX = 8


@dataclass(frozen=True, slots=True)
class LeaseTransition:
    """A lease before and after, with its ETags. Both are the same if nothing had to be done."""

    before: VersionedLease
    after: VersionedLease

    @property
    def is_change(self) -> bool:
        return self.before is not self.after


async def release_lease(keeper: Keeper, pipeline: str, partition: str) -> LeaseTransition:
    """Take a lease from its owner, and keep its position. Raises NotNow, StoreError, InvalidDocument."""

    async def revoke(lease: Lease) -> Lease:
        return _revoked(_opened(lease))

    return await _change(keeper, pipeline, partition, revoke)


async def hand_over_lease(
    keeper: Keeper, pipeline: str, partition: str, to: str, hosts: Mapping[str, HostStatus]
) -> LeaseTransition:
    """Request a lease for a host: the owner finishes its batch, and releases the lease to that host.

    hosts: all known hosts. Raises NotNow, StoreError, InvalidDocument.
    """
    _check_taker(pipeline, to, hosts)

    async def promise(lease: Lease) -> Lease:
        return _promised(_opened(lease), to)

    return await _change(keeper, pipeline, partition, promise)


async def pause_pipeline(keeper: Keeper, pipeline: str, *, by: str, at: str) -> tuple[Control, bool]:
    """Pause a pipeline. Returns the order that now applies, and whether it is new. Raises StoreError."""
    return await _order(keeper, Control(pipeline=pipeline, paused=True, by=by, at=at))


async def resume_pipeline(keeper: Keeper, pipeline: str, *, by: str, at: str) -> tuple[Control, bool]:
    """As `pause_pipeline`."""
    return await _order(keeper, Control(pipeline=pipeline, paused=False, by=by, at=at))


async def _order(keeper: Keeper, control: Control) -> tuple[Control, bool]:
    """All hosts read the order at their next listing."""
    with keeper.ringing(Hint(None, control.pipeline)):
        return await order(keeper.store, control)


async def _change(
    keeper: Keeper, pipeline: str, partition: str, plan: Callable[[Lease], Awaitable[Lease]]
) -> LeaseTransition:
    """A busy owner writes all the time: after a conflict the change is planned again, if it is still valid."""
    for attempt in range(CONFLICTS_MAX):
        seen = await keeper.read(pipeline, partition)
        after = await plan(seen.lease)
        if after == seen.lease:
            return LeaseTransition(seen, seen)
        try:
            return LeaseTransition(seen, await keeper.rewrite(seen, after))
        except StoreConflict:
            if attempt == CONFLICTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _opened(lease: Lease) -> Lease:
    if lease.closed and not lease.children:
        raise NotNow(
            f"lease '{lease.partition}' of pipeline '{lease.pipeline}' is closed, by an operator: a reset opens it again"
        )
    if lease.closed:
        names = ", ".join(f"'{child.partition}'" for child in lease.children)
        raise NotNow(
            f"lease '{lease.partition}' of pipeline '{lease.pipeline}' has ended, and {names} continue from it"
        )
    return lease


def _revoked(lease: Lease) -> Lease:
    return lease if lease.owner is None else lease.revoked()


def _promised(lease: Lease, to: str) -> Lease:
    return lease if to in (lease.owner, lease.handoff_to) else lease.handoff_requested(to)


def _check_taker(pipeline: str, to: str, hosts: Mapping[str, HostStatus]) -> None:
    """Raises NotNow if the host would never take the lease."""
    if (host := hosts.get(to)) is None:
        raise NotNow(f"there is no host '{to}'; there are: {', '.join(sorted(hosts)) or 'none'}")
    if host.is_live is False:
        raise NotNow(f"host '{to}' has shown no heartbeat for a lease duration: name one that is alive")
    if host.is_draining:
        raise NotNow(f"host '{to}' is draining: it releases its leases, and takes none")
    if pipeline not in host.pipelines:
        raise NotNow(f"host '{to}' does not run pipeline '{pipeline}': name one that does")


# Closing the leases of partitions that are done, such as processed files (docs/protocol.md, Closing by an operator).
#
# Only a person knows that a file is complete. So only an operator closes a lease, and not while events are left. A reset opens
# the lease again.


CALL_S = 10.0
"""How long feed and sink may take to report how many events are left."""
SKIP = "to close it all the same, skip them: --skip-rest (by REST `skip_rest`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of a partition after `position`. events: None if unknown. why: the reason, if there is one."""

    position: str | None
    is_listed: bool
    events: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLease:
    """A lease before and after. rest: None if it was closed already."""

    change: LeaseTransition
    rest: Rest | None = None


async def list_partitions(pipeline: PipelineParts) -> list[Partition]:
    """The partitions of the pipeline's feed. Raises FeedError."""
    try:
        async with asyncio.timeout(CALL_S):
            return [Partition(*partition) for partition in await pipeline.feed.partitions()]
    except TimeoutError:
        raise FeedUnavailable(f"the feed of pipeline '{pipeline.name}' did not answer within {CALL_S:g} s") from None


async def close_lease(
    keeper: Keeper,
    pipeline: PipelineParts,
    partition: str,
    listed: Sequence[Partition],
    *,
    skip_rest: bool = False,
    forget: bool = False,
) -> ClosedLease:
    """Close the lease at its present position. If it is closed already, change at most its tombstone.

    listed: the feed's partitions now. forget: leave no tombstone. Raises NotNow, StoreError, InvalidDocument.
    """
    rest: Rest | None = None

    async def close(lease: Lease) -> Lease:
        nonlocal rest
        after, rest = await _plan_close(pipeline, lease, listed, skip_rest=skip_rest, forget=forget)
        return after

    change = await _change(keeper, pipeline.name, partition, close)
    return ClosedLease(change=change, rest=rest)


async def _plan_close(
    pipeline: PipelineParts, lease: Lease, listed: Sequence[Partition], *, skip_rest: bool, forget: bool
) -> tuple[Lease, Rest | None]:
    """The lease to write, and what is left of its partition. Raises NotNow."""
    if lease.children:
        names = ", ".join(f"'{child.partition}'" for child in lease.children)
        raise NotNow(f"{name_of(lease)} has ended, and {names} continue it: there is nothing to close")
    if lease.closed and not forget:
        return lease, None
    passed_over = pipeline.feed.passed_over
    if passed_over and not skip_rest and lease.partition not in {each.name for each in listed}:
        entry, reason = next(iter(passed_over.items()))
        raise NotNow(
            f"{name_of(lease)} stays as it is: its partition may be hidden, because the feed passes over '{entry}' ({reason})."
            f" Correct that, or, {SKIP}"
        )
    if lease.closed:
        return replace(lease, tombstone=False), None
    rest = await _measure_rest(pipeline, lease, is_listed=not gone([lease], pipeline.feed, listed))
    finishes = pipeline.feed.partitions_finish
    if why := refusal(lease, rest, finishes=finishes, skip_rest=skip_rest):
        raise NotNow(why)
    return lease.finished(rest.position, tombstone=finishes and not forget), rest


def gone(leases: Iterable[Lease], feed: ChangeFeed, listed: Sequence[Partition]) -> list[str]:
    """The open leases whose partition the feed no longer lists."""
    still_open = {lease.partition: lease for lease in leases if not lease.closed}
    feed.remember(scopes_of(still_open.values()))

    def rest_of(partition: Partition, scopes: Collection[str]) -> list[Partition]:
        return [Partition(*part) for part in feed.uncovered(FeedPartition(*partition), scopes)]

    return list(orphans(listed, still_open, rest_of))


def forgettable(leases: Iterable[Lease], listed: Sequence[Partition]) -> list[str]:
    """The tombstones whose partition the feed no longer lists."""
    names = {partition.name for partition in listed}
    return sorted(lease.partition for lease in leases if lease.tombstone and lease.partition not in names)


def refusal(lease: Lease, rest: Rest, *, finishes: bool, skip_rest: bool) -> str | None:
    """Why a lease stays open. finishes: whether partitions of its feed can end without the feed reporting it."""
    if not rest.is_listed:
        return None
    if not finishes:
        return (
            f"partition '{lease.partition}' of pipeline '{lease.pipeline}' still exists and may get events at any time:"
            f" its lease stays open. To stop the work, pause the pipeline: POST /api/pipelines/{lease.pipeline}/pause"
        )
    if skip_rest or rest.events == 0:
        return None
    why = f" ({rest.why})" if rest.why else ""
    if rest.events is None:
        return f"{name_of(lease)} stays open: how many events are left is unknown{why}; {SKIP}"
    return f"{name_of(lease)} stays open: {_events(rest.events)} left{why}. Wait until the lag is 0, or, {SKIP}"


def cleared_after_s(timing: Timing) -> float:
    """Hosts delete a partition's lease, unless it is a tombstone, this long after the partition has gone."""
    return DEAD_AFTER * timing.patience_s


def describe(closed: ClosedLease, *, cleared_after_s: float) -> str:
    """What a close changed, in one line."""
    before, lease, rest = closed.change.before.lease, closed.change.after.lease, closed.rest
    at = "the feed's beginning" if lease.continuation is None else f"'{lease.continuation}'"
    line = (
        f"{name_of(lease)} was closed already, at {at}"
        if rest is None
        else f"{name_of(lease)} closed at {at}: {_left(rest)}"
    )
    if before.owner is not None:
        line += f"; '{before.owner}' loses it at its next write"
    if closed.change.is_change and not lease.tombstone:
        line += f"; hosts delete its document {cleared_after_s:g} s after the partition has gone"
    return line


def _left(rest: Rest) -> str:
    if not rest.is_listed:
        return "the feed no longer lists it, so how many events were left is unknown"
    if rest.events == 0:
        return "0 events left; it may be archived"
    return "an unknown number of events is skipped" if rest.events is None else f"{_events(rest.events)} skipped"


async def _measure_rest(pipeline: PipelineParts, lease: Lease, *, is_listed: bool) -> Rest:
    rest = Rest(position=lease.continuation, is_listed=is_listed)
    if not is_listed:
        return rest
    try:
        async with asyncio.timeout(CALL_S):
            return await _count_rest(pipeline, lease, rest)
    except PipelineError as error:
        return replace(rest, why=str(error))
    except TimeoutError:
        return replace(rest, why=f"no answer within {CALL_S:g} s")


async def _count_rest(pipeline: PipelineParts, lease: Lease, rest: Rest) -> Rest:
    """Count from the sink's position if it holds one, because the lease's may lag. Raises PipelineError."""
    feed, partition = pipeline.feed, lease.partition
    events = await feed.lag(partition, rest.position)
    held = await pipeline.sink.standing(pipeline.name, partition) if events else None
    if held and held.generation == lease.generation and feed.compare(held.position, rest.position) > 0:
        rest = replace(rest, position=held.position)
        events = await feed.lag(partition, rest.position)
    why = await feed.find_held_back(partition, rest.position) if events == 1 else None
    return replace(rest, events=events, why=why or "")


def _events(count: int) -> str:
    return counted(count, "event is", "events are")
