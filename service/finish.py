"""Close the leases of partitions that are done, as files are that were processed (docs/protocol.md, Closing by an operator).

    listed = await list_partitions(pipeline)
    closed = await close_lease(keeper, pipeline, "words-1.jsonl", listed)       told(closed, ...) says what it did

Only a person knows that nothing follows in a file. So a close is an operator's, and it is refused as long as events are left. A
reset opens the lease again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from leases.errors import StoreConflict
from leases.family import Partition, orphans
from leases.keeper import Keeper
from leases.lease import Lease
from leases.membership import DEAD_AFTER
from leases.timing import Timing
from pipeline.errors import FeedUnavailable, PipelineError
from pipeline.feed import ChangeFeed, FeedPartition, held_back, partitions_finish, remember, uncovered
from pipeline.sink import standing
from service.actions import CONFLICTS_MAX, Change
from service.errors import NotNow
from service.pipeline import Pipeline
from service.plurals import counted

CALL_S = 10.0
"""How long feed and sink may take to say how many events are left."""
SKIP = "to close it all the same, skip them: --skip-rest (by REST `skip_rest`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """What is left of a partition behind `position`. events: None if that is unknown. why: what else is known about it."""

    position: str | None
    is_listed: bool
    events: int | None = None
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Close:
    """A lease before and after. rest: None if it was closed already."""

    change: Change
    rest: Rest | None = None


async def list_partitions(pipeline: Pipeline) -> list[Partition]:
    """Raises FeedError."""
    try:
        async with asyncio.timeout(CALL_S):
            return [Partition(*partition) for partition in await pipeline.feed.partitions()]
    except TimeoutError:
        raise FeedUnavailable(f"the feed of pipeline '{pipeline.name}' did not answer within {CALL_S:g} s") from None


async def close_lease(
    keeper: Keeper,
    pipeline: Pipeline,
    partition: str,
    listed: Sequence[Partition],
    *,
    skip_rest: bool = False,
    forget: bool = False,
) -> Close:
    """Close it where it stands; a close of what is closed already changes at most its tombstone.

    listed: what the feed has now. forget: leave no tombstone. Raises NotNow, StoreError, InvalidDocument.
    """
    for attempt in range(CONFLICTS_MAX):
        seen = await keeper.read(pipeline.name, partition)
        after, rest = await _closed(pipeline, seen.lease, listed, skip_rest=skip_rest, forget=forget)
        if after == seen.lease:
            return Close(change=Change(seen, seen), rest=rest)
        try:
            return Close(change=Change(seen, await keeper.rewrite(seen, after)), rest=rest)
        except StoreConflict:  # an owner at work writes all the time; what is left is counted again
            if attempt == CONFLICTS_MAX - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _closed(
    pipeline: Pipeline, lease: Lease, listed: Sequence[Partition], *, skip_rest: bool, forget: bool
) -> tuple[Lease, Rest | None]:
    """As it is to be. Raises NotNow."""
    if lease.children:
        names = ", ".join(f"'{child.partition}'" for child in lease.children)
        raise NotNow(f"{_name(lease)} has ended, and {names} go on from it: there is nothing to close")
    if lease.closed:
        return replace(lease, tombstone=lease.tombstone and not forget), None
    rest = await _rest(pipeline, lease, is_listed=not gone([lease], pipeline.feed, listed))
    finishes = partitions_finish(pipeline.feed)
    if why := refusal(lease, rest, finishes=finishes, skip_rest=skip_rest):
        raise NotNow(why)
    return lease.finished(rest.position, tombstone=finishes and not forget), rest


def gone(leases: Iterable[Lease], feed: ChangeFeed, listed: Sequence[Partition]) -> list[str]:
    """The open leases whose partition the feed does not have any more."""
    still_open = {lease.partition: lease for lease in leases if not lease.closed}
    remember(feed, {name: lease.scope for name, lease in still_open.items()})

    def rest_of(partition: Partition, scopes: Collection[str]) -> list[Partition]:
        return [Partition(*part) for part in uncovered(feed, FeedPartition(*partition), scopes)]

    return list(orphans(listed, still_open, rest_of))


def forgettable(leases: Iterable[Lease], listed: Sequence[Partition]) -> list[str]:
    """The tombstones whose partition the feed does not have any more."""
    names = {partition.name for partition in listed}
    return sorted(lease.partition for lease in leases if lease.tombstone and lease.partition not in names)


def refusal(lease: Lease, rest: Rest, *, finishes: bool, skip_rest: bool) -> str | None:
    """Why a lease stays open. finishes: whether partitions of its feed come to an end without a word."""
    if not rest.is_listed:
        return None
    if not finishes:
        return (
            f"partition '{lease.partition}' of pipeline '{lease.pipeline}' still exists, and events may come to it at any time:"
            f" its lease stays open. To stop the work, pause the pipeline: POST /api/pipelines/{lease.pipeline}/pause"
        )
    if skip_rest or rest.events == 0:
        return None
    why = f" ({rest.why})" if rest.why else ""
    if rest.events is None:
        return f"{_name(lease)} stays open: how many events are left is unknown{why}; {SKIP}"
    return f"{_name(lease)} stays open: {_events(rest.events)} left{why}. Wait until the lag is 0, or, {SKIP}"


def cleared_after_s(timing: Timing) -> float:
    """How long the feed has not listed a partition when hosts delete its document, unless that is a tombstone."""
    return DEAD_AFTER * timing.duration_s


def told(closed: Close, *, cleared_after_s: float) -> str:
    """What a close did, in one line."""
    before, lease, rest = closed.change.before.lease, closed.change.after.lease, closed.rest
    at = "the feed's beginning" if lease.continuation is None else f"'{lease.continuation}'"
    said = (
        f"{_name(lease)} was closed already, at {at}"
        if rest is None
        else f"{_name(lease)} closed at {at}: {_left(rest)}"
    )
    if before.owner is not None:
        said += f"; '{before.owner}' loses it at its next write"
    if closed.change.is_change and not lease.tombstone:
        said += f"; hosts delete its document {cleared_after_s:g} s after the partition has gone"
    return said


def _left(rest: Rest) -> str:
    if not rest.is_listed:
        return "the feed does not list it any more, so how many events were left is unknown"
    if rest.events == 0:
        return "0 events left; it may be archived"
    return "an unknown number of events is skipped" if rest.events is None else f"{_events(rest.events)} skipped"


async def _rest(pipeline: Pipeline, lease: Lease, *, is_listed: bool) -> Rest:
    rest = Rest(position=lease.continuation, is_listed=is_listed)
    if not is_listed:
        return rest
    try:
        async with asyncio.timeout(CALL_S):
            return await _counted(pipeline, lease, rest)
    except PipelineError as error:
        return replace(rest, why=str(error))
    except TimeoutError:
        return replace(rest, why=f"no answer within {CALL_S:g} s")


async def _counted(pipeline: Pipeline, lease: Lease, rest: Rest) -> Rest:
    """Behind the sink's position if it holds one, since the lease's may lag. Raises PipelineError."""
    feed, partition = pipeline.feed, lease.partition
    events = await feed.lag(partition, rest.position)
    held = await standing(pipeline.sink, pipeline.name, partition) if events else None
    if held and held.generation == lease.generation and feed.compare(held.position, rest.position) > 0:
        rest = replace(rest, position=held.position)
        events = await feed.lag(partition, rest.position)
    why = await held_back(feed, partition, rest.position) if events == 1 else None
    return replace(rest, events=events, why=why or "")


def _events(count: int) -> str:
    return counted(count, "event is", "events are")


def _name(lease: Lease) -> str:
    return f"lease '{lease.partition}' of pipeline '{lease.pipeline}'"
