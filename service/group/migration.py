"""What `leasehold leases export`, `import` and `reset` do: read, plan, and write what was planned.

`leasehold.leases.import_.plan` plans imports.

Every write is a compare-and-swap. An interrupted import loses nothing. The same command completes it, and reports finished
changes as unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import get_args

from leasehold.common.clock import Clock
from leasehold.common.standing import Standing
from leasehold.leases.bootstrap import Bootstrap, Info, decode_info, info_id
from leasehold.leases.document import decode_lease, lease_id
from leasehold.leases.dotnet import FULL_FIDELITY, INCREMENTAL
from leasehold.leases.errors import (
    Incomparable,
    InvalidDocument,
    StoreAmbiguous,
    StoreConflict,
    StoreError,
    StoreMissing,
    StoreUnavailable,
)
from leasehold.leases.host_record import HOSTS_PREFIX, found_host, host_id
from leasehold.leases.import_.checkpoint_blobs import host_blob
from leasehold.leases.import_.export_format import ExportedPipeline, lines_of
from leasehold.leases.import_.plan import Candidate, Compare, Kind, PlannedChange, Rules, planned
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease, LeaseKey
from leasehold.leases.store import LeaseStore
from leasehold.leases.tenure import VersionedLease
from leasehold.leases.timing import LASTS_S_MAX
from leasehold.pipeline.errors import FeedError, PipelineError
from leasehold.pipeline.feed import ChangeFeed, FeedPartition, Start
from leasehold.service.group.import_sources import (
    Holder,
    Import,
    find_alive,
    read_held,
    read_source,
    recent,
)
from leasehold.service.pipeline import PipelineParts
from leasehold.service.texts import counted

Say = Callable[[str], None]
STARTS: Mapping[str, Start] = {"earliest": "earliest", "latest": "latest"}
KINDS = ("lease", "document")
MODES = {"latest": INCREMENTAL, "all_versions": FULL_FIDELITY}
"""A Cosmos feed's `mode` -> what lease documents call it."""
TRIES = 3
COUNTED_S = 10.0
"""How long the feed may take to count the events that a reset repeats or skips."""
AGAIN = "run the command again: finished changes are reported as unchanged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """done: partitions whose change was written. problems: what could not be written."""

    changes: tuple[PlannedChange, ...]
    done: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()

    def count(self, kind: Kind) -> int:
        return sum(change.kind == kind for change in self.changes)

    @property
    def counts(self) -> dict[str, int]:
        return {kind: self.count(kind) for kind in get_args(Kind)}


async def export_leases(keeper: Keeper, pipelines: Iterable[PipelineParts]) -> tuple[list[str], list[str]]:
    """The lines, and why leases are missing from them. Raises StoreUnavailable, InvalidDocument."""
    groups, problems = [], []
    for pipeline in pipelines:
        scan = await keeper.scan([pipeline.name])
        problems += [str(error) for error in scan.unreadable.values()]
        leases = tuple(sorted(scan.leases, key=lambda lease: lease.partition))
        groups.append(
            ExportedPipeline(pipeline=pipeline.name, info=await _read_info(keeper.store, pipeline), leases=leases)
        )
    return lines_of(groups), problems


async def export_host_blobs(
    keeper: Keeper, pipeline: PipelineParts, folder: str
) -> tuple[list[Mapping[str, object]], list[str]]:
    """The blobs of an EventProcessorHost, and why leases are missing from them. Raises StoreUnavailable."""
    scan = await keeper.scan([pipeline.name])
    blobs: list[Mapping[str, object]] = []
    problems = [str(error) for error in scan.unreadable.values()]
    for lease in sorted((each for each in scan.leases if not each.closed), key=lambda lease: lease.partition):
        try:
            blobs.append(host_blob(lease, folder))
        except InvalidDocument as error:
            problems.append(str(error))
    return blobs, problems


async def _read_info(store: LeaseStore, pipeline: PipelineParts) -> Info:
    try:
        stored = await store.read(info_id(pipeline.name))
    except StoreMissing:
        return Info(identity=pipeline.identity)
    return decode_info(stored.id, stored.body)


async def reset(
    keeper: Keeper, pipeline: PipelineParts, partition: str, to: Start | str, *, now_ms: int
) -> tuple[Lease | None, Lease]:
    """Move a lease, and return it before and after. If its document is unreadable or missing, create it; before is None then.

    to: where to start, or a continuation. now_ms: wall clock, milliseconds since 1970. Raises LeasesError, PipelineError.
    """
    scan = await keeper.scan([pipeline.name])
    try:
        stored = await keeper.store.read(lease_id(pipeline.name, partition))
    except StoreMissing:
        return None, await _create(keeper, pipeline, partition, to, now_ms, scan)
    try:
        lease = decode_lease(stored.id, stored.body)
    except InvalidDocument:
        wanted = await _read_new_lease(pipeline, await _part_of(pipeline, partition, []), partition, to, now_ms)
        await keeper.rewrite(VersionedLease(wanted, stored.etag), wanted)
        return None, wanted
    if (
        broken := scan.unreadable.get(LeaseKey(pipeline.name, partition))
    ) is not None:  # there are two documents; this is one of them
        raise broken
    return lease, (await move(keeper, pipeline, VersionedLease(lease, stored.etag), to)).lease


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """What a reset is going to do. before: None if the document is unreadable or gone.

    to: the lease's new position. events: how many are delivered again if positive, skipped if negative; None: unknown.
    """

    partition: str
    pipeline: PipelineParts
    before: Lease | None
    to: str | None
    events: int | None = None

    @property
    def lines(self) -> list[str]:
        """For a person who has to confirm."""
        name, sink = self.pipeline.name, self.pipeline.sink.identity
        start = "an unknown position" if self.before is None else _position_text(self.before.continuation)
        notes = [
            f"lease '{self.partition}' of pipeline '{name}' would move from {start} to {_position_text(self.to)}: {self._what}"
        ]
        if self.events is None or self.events > 0:
            notes.append(f"sink '{sink}' applies redelivered events a second time: sums count them twice")
        if self.before is not None and self.before.closed:
            notes.append("the lease is closed: the reset opens it")
        if self.before is not None and self.before.owner is not None:
            notes.append(
                f"host '{self.before.owner}' owns it: pause the pipeline first (POST /api/pipelines/{name}/pause), and resume it"
                " afterwards"
            )
        return notes

    @property
    def _what(self) -> str:
        if self.events is None:
            return "how many events are delivered again or skipped is unknown"
        if self.events == 0:
            return "no event is delivered again, none is skipped"
        count = counted(abs(self.events), "event is", "events are")
        return f"{count} delivered again" if self.events > 0 else f"{count} skipped"


async def plan_reset(keeper: Keeper, pipeline: PipelineParts, partition: str, to: Start | str) -> ResetPlan:
    """Plan a reset, and write nothing. Raises LeasesError, PipelineError."""
    try:
        lease = (await keeper.read(pipeline.name, partition)).lease
    except StoreMissing:
        await _free_part(keeper, pipeline, partition, await keeper.scan([pipeline.name]))
        lease = None
    except InvalidDocument:
        lease = None
    if lease is not None:
        _check_open(lease)
    place = await _check_place(pipeline.feed, partition, to)
    if lease is None:
        return ResetPlan(pipeline=pipeline, partition=partition, before=None, to=place)
    events = await _events_between(pipeline.feed, partition, place, lease.continuation)
    return ResetPlan(pipeline=pipeline, partition=partition, before=lease, to=place, events=events)


async def _events_between(feed: ChangeFeed, partition: str, to: str | None, here: str | None) -> int | None:
    """How many events are after `to` and not after `here`; None if the feed cannot count (its file is gone, or it is away)."""
    try:
        async with asyncio.timeout(COUNTED_S):
            return await feed.lag(partition, to) - await feed.lag(partition, here)
    except (PipelineError, TimeoutError):
        return None


def _check_open(lease: Lease) -> None:
    """Raises StoreConflict if the lease has ended."""
    if lease.children:
        names = ", ".join(f"'{child.partition}'" for child in lease.children)
        raise StoreConflict(
            f"lease '{lease.partition}' of pipeline '{lease.pipeline}' has ended: reset what continues it, {names}"
        )


def _position_text(continuation: str | None) -> str:
    return "the feed's beginning" if continuation is None else f"'{continuation}'"


async def move(keeper: Keeper, pipeline: PipelineParts, seen: VersionedLease, to: Start | str) -> VersionedLease:
    """Move a lease to a new generation. Raises LeasesError (StoreConflict if it changed after `seen`), PipelineError."""
    lease = seen.lease
    _check_open(lease)
    place = await _check_place(pipeline.feed, lease.partition, to)
    held = await pipeline.sink.standing(pipeline.name, lease.partition)
    newest = max(lease.generation, held.generation if held else 0)
    return await keeper.rewrite(seen, replace(lease.reset(place), generation=newest + 1))


def mode_of(feed: ChangeFeed) -> str | None:
    return MODES.get(str(getattr(feed, "mode", None)))


def start_in(text: str) -> Start | str:
    """The start that an operator's text means: a time, if it is one with an offset from UTC; the feed interprets any other."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return text
    return time if time.tzinfo is not None else text


async def _create(
    keeper: Keeper, pipeline: PipelineParts, partition: str, to: Start | str, now_ms: int, scan: Scan
) -> Lease:
    """Create the lease of a partition whose lease was deleted. Raises as `_free_part`."""
    part = await _free_part(keeper, pipeline, partition, scan)
    wanted = await _read_new_lease(pipeline, part, partition, to, now_ms)
    await Bootstrap(keeper, pipeline.name, pipeline.identity).use()
    if not await keeper.create(wanted):
        raise StoreConflict(f"lease '{partition}' of pipeline '{pipeline.name}' has just been created: {AGAIN}")
    return wanted


async def _free_part(keeper: Keeper, pipeline: PipelineParts, partition: str, scan: Scan) -> FeedPartition:
    """Raises StoreMissing if the feed has no such partition, or other leases hold it."""
    if await Bootstrap(keeper, pipeline.name, pipeline.identity).read_recorded() is None:
        raise StoreMissing(f"no leases of pipeline '{pipeline.name}' yet: no host has run it")
    part = await _part_of(pipeline, partition, scan.leases)
    if part is None:
        raise StoreMissing(
            f"pipeline '{pipeline.name}' has no lease '{partition}', nor does its feed have such a partition that no other lease"
            " holds: `leasehold leases list` shows the leases that it has"
        )
    return part


async def _part_of(pipeline: PipelineParts, partition: str, leases: Collection[Lease]) -> FeedPartition | None:
    """The part with that name that the feed has, and that no open lease holds."""
    still_open = [lease for lease in leases if not lease.closed]
    held, names = [lease.scope for lease in still_open if lease.scope is not None], {x.partition for x in still_open}
    listed = await pipeline.feed.partitions()
    free = [part for each in listed if not names & {*each.parents} for part in pipeline.feed.uncovered(each, held)]
    return next((part for part in free if part.name == partition), None)


async def _read_new_lease(
    pipeline: PipelineParts, part: FeedPartition | None, partition: str, to: Start | str, now_ms: int
) -> Lease:
    """A lease that has only the operator's position. Its epoch is higher than any count of owners."""
    place = await _check_place(pipeline.feed, partition, to)
    held = await pipeline.sink.standing(pipeline.name, partition)
    return Lease(
        pipeline=pipeline.name,
        partition=partition,
        scope=part.scope if part else None,
        continuation=place,
        epoch=now_ms,
        generation=(held.generation if held else 0) + 1,
    )


async def _check_place(feed: ChangeFeed, partition: str, to: Start | str) -> str | None:
    """Raises PipelineError, Incomparable."""
    place = await _find_position(feed, partition, to)
    try:
        _compare_of(feed)(place, place)
    except Incomparable as error:
        raise Incomparable(
            f"{str(to)[:100]!r} is neither `earliest`, `latest`, a time with its offset from UTC, nor a position of this feed"
            f" ({error})"
        ) from error
    return place


async def _find_position(feed: ChangeFeed, partition: str, to: Start | str) -> str | None:
    if isinstance(to, datetime):
        return await feed.start_of(partition, to)
    start = STARTS.get(to)
    return to if start is None else await feed.start_of(partition, start)


async def plan_import(keeper: Keeper, order: Import, *, clock: Clock, say: Say) -> Report:
    """What the import would do. If an owner may be alive, waits for as long as that owner may be silent.

    Raises GroupMismatch, InvalidDocument, StoreUnavailable, NothingToImport.
    """
    say = _once(say)
    await Bootstrap(keeper, order.pipeline.name, order.pipeline.identity).read_recorded()
    changes = await _plan_changes(keeper, order, {}, {}, say)
    leases = {change.partition for change in changes if change.seen and change.wanted and change.seen.lease.owner}
    documents = {change.document for change in changes if change.wanted} & (await read_held(order, keeper.store)).keys()
    if leases or documents:
        watched = len(leases) or len(documents)
        owned = counted(watched, "lease has a live owner", "leases have live owners")
        if held := (await _read_held(keeper, order, leases, documents)).values():
            for_s = max(each.lasts_s or order.watch_s for each in held)
            say(f"watching for up to {for_s:g} s whether {owned}")
        found = await find_alive(
            lambda: _read_held(keeper, order, leases, documents),
            clock=clock,
            timing=keeper.timing,
            lasts_s=order.watch_s,
        )
        owners, writers = ({name: owner for (what, name), owner in found.items() if what == kind} for kind in KINDS)
        changes = await _plan_changes(keeper, order, owners, writers, say)
    return Report(changes=tuple(changes))


def _once(say: Say) -> Say:
    """Report repeated findings once: everything is read again after the watch."""
    said: set[str] = set()

    def say_new(text: str) -> None:
        if text not in said:
            said.add(text)
            say(text)

    return say_new


async def _plan_changes(
    keeper: Keeper, order: Import, owners: Mapping[str, str], writers: Mapping[str, str], say: Say
) -> list[PlannedChange]:
    feed, found = order.pipeline.feed, await read_source(order, keeper.store)
    rules = Rules(
        compare=_compare_of(feed),
        overlapping=lambda lease, others: _overlapping(feed, lease, others),
        owners=owners,
        writers={**recent(order, found, order.watch_s), **found.busy, **writers},
        standings=await _read_standings(order.pipeline, found.candidates),
        force=order.force,
    )
    scan = await _scan(keeper, order)
    for note in found.notes:
        say(note)
    for error in scan.unreadable.values():
        say(f"a lease here cannot be read, and stays as it is: {error}")
    return planned(found.candidates, {partition: seen for (_, partition), seen in scan.seen.items()}, rules)


async def _read_standings(pipeline: PipelineParts, candidates: Iterable[Candidate]) -> dict[str, Standing]:
    names = {name for each in candidates for name in (each.partition, *(part.partition for part in each.parts))}
    found = {name: await pipeline.sink.standing(pipeline.name, name) for name in sorted(names)}
    return {name: one for name, one in found.items() if one is not None}


async def _scan(keeper: Keeper, order: Import) -> Scan:
    try:
        return await keeper.scan([order.pipeline.name])
    except StoreMissing:  # no container yet
        return Scan({}, 0.0, 0.0)


async def _read_held(
    keeper: Keeper, order: Import, leases: Collection[str], documents: Collection[str]
) -> dict[tuple[str, str], Holder]:
    """(one of KINDS, name) -> its owner. leases: of the group. documents: of the source."""
    marks: dict[tuple[str, str], Holder] = {}
    held = [lease for lease in (await _scan(keeper, order)).leases if lease.partition in leases] if leases else []
    hosts = {stored.id: stored for stored in (await keeper.store.list(HOSTS_PREFIX) if held else [])}
    for lease in held:
        if lease.owner is None:
            continue
        stored = hosts.get(host_id(lease.owner))
        record = found_host(stored.id, stored.body) if stored else None
        lasts_s = LASTS_S_MAX if record is None else record.lasts_s
        mark = lease.incarnation, lease.epoch
        marks["lease", lease.partition] = Holder(lease.owner, mark, stored.etag if stored else None, lasts_s)
    written = await read_held(order, keeper.store) if documents else {}
    return marks | {("document", name): one for name, one in written.items() if name in documents}


async def execute(keeper: Keeper, order: Import, report: Report) -> Report:
    """Write the changes; none if one was refused. Raises LeasesError only before the first write."""
    if report.count("refused"):
        return report
    bootstrap = Bootstrap(keeper, order.pipeline.name, order.pipeline.identity)
    await _open(bootstrap)
    done, problems = await _write_all(keeper, report.changes)
    if not problems and (await read_source(order, keeper.store)).is_complete:
        await bootstrap.complete()
    return replace(report, done=frozenset(done), problems=tuple(problems))


async def _open(bootstrap: Bootstrap) -> None:
    for _ in range(TRIES - 1):
        try:
            await bootstrap.use()
            return
        except StoreConflict:  # a host was quicker
            continue
    await bootstrap.use()


async def _write_all(keeper: Keeper, changes: Iterable[PlannedChange]) -> tuple[list[str], list[str]]:
    done: list[str] = []
    problems: list[str] = []
    for change in changes:
        if change.wanted is None:
            continue
        try:
            await _write(keeper, change, change.wanted)
            done.append(change.partition)
        except StoreUnavailable as error:
            problems.append(f"lease '{change.partition}' and those after it were not written ({error}): {AGAIN}")
            break
        except StoreError as error:
            problems.append(f"lease '{change.partition}' was not written ({error}): {AGAIN}")
    return done, problems


async def _write(keeper: Keeper, change: PlannedChange, wanted: Lease) -> None:
    """Raises StoreError."""
    try:
        if change.seen is not None:
            await keeper.rewrite(change.seen, wanted)
        elif not await keeper.create(wanted):
            raise StoreConflict("another process has created it meanwhile")
    except StoreAmbiguous:
        now = (await keeper.read(*wanted.key)).lease
        if (now.generation, now.continuation, now.closed) != (wanted.generation, wanted.continuation, wanted.closed):
            raise StoreConflict("its answer was lost, and the document has other contents now") from None


def _compare_of(feed: ChangeFeed) -> Compare:
    def compare(a: str | None, b: str | None) -> int:
        try:
            return feed.compare(a, b)
        except (FeedError, ValueError) as error:
            raise Incomparable(str(error)) from error

    return compare


def _overlapping(feed: ChangeFeed, lease: Lease, others: Collection[Lease]) -> list[str]:
    """The partitions of the others whose scopes overlap the lease's."""
    if lease.scope is None:
        return []
    own = FeedPartition(lease.partition, (), lease.scope)
    scopes = {other.partition: other.scope for other in others if other.scope is not None}
    if feed.uncovered(own, scopes.values()) == [own]:
        return []
    return [name for name, scope in scopes.items() if feed.uncovered(own, [scope]) != [own]]
