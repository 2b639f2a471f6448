"""Create missing leases, and audit the container.

There is no lock. Every step creates only what is absent, so two hosts may do it at once, and the next host completes
what a crash between two steps left undone. The pipeline's `info` document records which feed and sink the leases belong
to, and whether the first round was completed. Partitions that appear after the first round start at their beginning,
because none of their events may be skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from leasehold.leases.balance import creation_order
from leasehold.leases.document import NAME_BYTES_MAX, Fields, lease_prefix, to_json
from leasehold.leases.errors import GroupMismatch, InvalidDocument, LeasesError, StoreConflict, StoreMissing, Undecided
from leasehold.leases.keeper import Keeper, Scan
from leasehold.leases.lease import Lease
from leasehold.leases.lineage import (
    Partition,
    Uncovered,
    begun,
    births,
    children_due,
    finished,
    followed,
    orphans,
    outlived,
    whole,
)
from leasehold.leases.membership import DEAD_AFTER
from leasehold.leases.recovery import (
    Memory,
    StandingOf,
    ancestors,
    is_lost,
    put_back,
    recover,
    recover_child,
    restored,
    waiting,
)
from leasehold.leases.side_by_side import run_side_by_side
from leasehold.leases.store import LeaseStore

VERSION = 1
IDENTITY_BYTES_MAX = 4096
PENDING_MAX = 100
PENDING_BYTES_MAX = 16 * 1024
"""More partitions without a known start, or longer names, keep the first round open: the document has no room for them."""
INFO_LOOKED_AT_S = 600.0
"""How often a host checks that the `info` document still exists."""

CREATED_MAX = 16
"""How many leases a host creates before it checks which ones other hosts have created; more if many exist already."""

StartOf = Callable[[str], Awaitable[str | None]]
"""partition -> the position at which it begins."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The feed and sink that a pipeline's leases belong to. These must not change; the transform may (rolling deploys)."""

    feed: str
    sink: str
    transform: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """The pipeline's bootstrap document. `complete`: the first round of leases has been created, except for `pending`.

    pending: partitions of the first round whose start is not known yet. Other partitions without a lease are new.
    unused: no lease has been created yet, so the name may pass to another feed or sink. The first lease is created after a
    compare-and-swap that clears this mark. pipeline: the name, if it is stored: some containers find the document by the
    ids of the leases, whatever the pipeline is called.
    """

    identity: Identity
    complete: bool = False
    pending: tuple[str, ...] = ()
    unused: bool = False
    pipeline: str | None = None
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class RoundFindings:
    """What one round of reconciliation did and found."""

    created: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()
    outlived: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    waiting: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    undecided: Mapping[str, Undecided] = field(default_factory=lambda: MappingProxyType({}))
    due: int = 0
    left: int = 0


def info_id(pipeline: str) -> str:
    return f"{pipeline}/info"


_FIELDS = frozenset(("version", "feed", "sink", "transform", "complete", "pending", "unused", "pipeline"))


def encode_info(info: Info) -> str:
    body: dict[str, object] = {
        **info.unknown,
        **({} if info.pipeline is None else {"pipeline": info.pipeline}),
        "version": VERSION,
        "feed": info.identity.feed,
        "sink": info.identity.sink,
        "transform": info.identity.transform,
        "complete": info.complete,
        **({"pending": list(info.pending)} if info.pending else {}),
        **({"unused": True} if info.unused else {}),
    }
    return to_json(body)


def decode_info(id: str, body: str) -> Info:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    return Info(
        identity=Identity(*(fields.text(name, IDENTITY_BYTES_MAX) for name in ("feed", "sink", "transform"))),
        complete=fields.boolean("complete"),
        pending=fields.texts("pending", NAME_BYTES_MAX, PENDING_MAX) if fields.has("pending") else (),
        unused=fields.has("unused") and fields.boolean("unused"),
        pipeline=fields.text("pipeline", NAME_BYTES_MAX) if fields.has("pipeline") else None,
        unknown=fields.unknown(_FIELDS),
    )


class Bootstrap:
    """Makes the leases of one pipeline match the partitions of its feed."""

    def __init__(self, keeper: Keeper, pipeline: str, identity: Identity) -> None:
        self._keeper = keeper
        self._store: LeaseStore = keeper.store
        self._pipeline = pipeline
        self._identity = identity
        self._is_complete = False
        self._pending: frozenset[str] = frozenset()
        self._is_unused = False
        self._memory = Memory()
        self._info_seen_at = 0.0
        self._audit = RoundFindings()
        self._due_since: Mapping[str, float] = {}
        self._rested_on: tuple[object, ...] = ()

    async def open(self) -> bool:
        """Create or check the `info` document. Returns whether the recorded transform differed; it is then replaced.

        Raises GroupMismatch, InvalidDocument, StoreConflict (lost two races: call again), StoreUnavailable,
        StoreAmbiguous.
        """
        try:
            return await self._open()
        except StoreConflict:  # another host was quicker
            return await self._open()

    async def _open(self, *, unused: bool = True) -> bool:
        """unused: whether the document is still marked `unused` afterwards, if it was so far."""
        document = info_id(self._pipeline)
        try:
            stored = await self._store.read(document)
        except StoreMissing:
            wanted = self._info(unused=unused)
            await self._store.create(document, encode_info(wanted))
            self._is_unused = unused
            return False
        found = decode_info(stored.id, stored.body)
        wanted = replace(found, identity=self._identity, unused=found.unused and unused)
        if problem := self._mismatch(found):
            if not await self._is_free(found):
                raise GroupMismatch(problem)
            wanted = replace(self._info(unused=unused), unknown=found.unknown)
        if found != wanted:
            await self._store.replace(stored.id, encode_info(wanted), stored.etag)
        self._is_complete, self._is_unused = wanted.complete, wanted.unused
        self._pending = frozenset(wanted.pending)
        return found.identity.transform != wanted.identity.transform and not problem

    async def use(self) -> None:
        """Record that leases exist, before the first of them is created. Raises as `open` does."""
        try:
            await self._open(unused=False)
        except StoreConflict:  # another host was quicker
            await self._open(unused=False)

    async def read_recorded(self) -> Info | None:
        """The stored document; None if no host has run the pipeline, or its name is free for another feed or sink.

        Raises GroupMismatch, InvalidDocument, StoreUnavailable.
        """
        try:
            stored = await self._store.read(info_id(self._pipeline))
        except StoreMissing:
            return None
        found = decode_info(stored.id, stored.body)
        if problem := self._mismatch(found):
            if not await self._is_free(found):
                raise GroupMismatch(problem)
            return None
        return found

    async def _is_free(self, found: Info) -> bool:
        """Whether another feed or sink may take the name. An existing lease prevents that, whatever the document contains."""
        return found.unused and not await self._store.list(lease_prefix(self._pipeline))

    async def complete(self) -> None:
        """Record that the first round of leases exists, however it was created. Raises as `open` does."""
        await self.open()
        await self._complete()

    async def reconcile(
        self,
        partitions: Sequence[tuple[str, tuple[str, ...], str | None]],
        scan: Scan,
        start_of: StartOf,
        uncovered: Uncovered = whole,
        standing_of: StandingOf | None = None,
        hosts: Collection[str] = (),
    ) -> RoundFindings:
        """Create missing leases. Idempotent, and cheap if none are missing. Raises as `open` does, and what the
        callbacks raise.

        A callback that raises Undecided delays only its own partition.

        - partitions: each as the fields of a `Partition`, which are compared with those of the last call.
        - standing_of: None if the sink holds no positions or does not report them.
        - hosts: the hosts that may also create leases of this pipeline.
        """
        notes = await self._keep_info(scan)
        leases = scan.by_pipeline.get(self._pipeline, {})
        unreadable = {partition for pipeline, partition in scan.unreadable if pipeline == self._pipeline}
        found = (tuple(partitions), scan.lineage.get(self._pipeline), unreadable)
        if found != self._rested_on:
            leases = dict(leases)  # the audit adds the leases that it puts back
            self._audit = await self._audit_leases(
                [Partition(*each) for each in partitions],
                leases,
                unreadable,
                scan,
                start_of,
                uncovered,
                standing_of,
                hosts,
            )
            self._rested_on = () if self._audit.due else found
        undecided = self._audit.undecided.keys()
        if not (self._is_complete or self._audit.left) and _has_room_for(undecided):
            await self._complete(undecided)
            self._info_seen_at = scan.started
        elif self._is_complete and self._pending:
            await self._settle({name for name, *_ in partitions} - leases.keys() - unreadable - {*self._audit.created})
        self._memory = self._memory.refreshed(leases, unreadable, scan.listed_at)
        return replace(self._audit, notes=(*notes, *self._audit.notes)) if notes else self._audit

    async def _audit_leases(
        self,
        partitions: Sequence[Partition],
        leases: dict[str, Lease],
        unreadable: Collection[str],
        scan: Scan,
        start_of: StartOf,
        uncovered: Uncovered,
        standing_of: StandingOf | None,
        hosts: Collection[str],
    ) -> RoundFindings:
        created, notes = list[str](), list[str]()
        deleted = self._deleted(partitions, leases, unreadable, scan, uncovered)
        for lease in deleted:
            leases[lease.partition] = lease
            if await self._keeper.create(lease):
                created.append(lease.partition)
                notes.append(put_back(lease))
                self._info_seen_at = -inf  # all documents may have been deleted with this one
        stuck = waiting(partitions, leases, unreadable)
        born = [
            *children_due(partitions, leases, unreadable),
            *births(self._pipeline, partitions, leases, uncovered, unreadable),
        ]
        parents_of = {partition.name: partition.parents for partition in partitions}
        undecided: dict[str, Undecided] = {}
        room = max(CREATED_MAX, len(leases) // 4)

        async def make(lease: Lease) -> bool:
            """Whether the lease exists now."""
            nonlocal room
            if room <= 0:
                return False
            family = ancestors(lease, partitions, leases, uncovered)
            try:
                placed, why = await self._find_start(lease, family, leases, start_of, standing_of)
            except Undecided as error:
                undecided[lease.partition] = error
                return False
            if placed is None:
                stuck[lease.partition] = why
                return False
            parents = lease.parents or parents_of.get(lease.partition, ())
            if room <= 0 or await self._find_open(parents):
                return False
            room -= 1
            if await self._keeper.create(placed):
                created.append(placed.partition)
                notes.extend([f"partition '{lease.partition}': {why}"] if why else [])
            return True

        turn = self._turn(born, hosts, scan)
        if self._is_unused and (turn or leases):
            await self.use()
        made = sum(await run_side_by_side(turn, make, doing="creating a lease of"))
        forgetful = followed(leases, {*created, *unreadable})
        await self._remember(forgetful, scan)
        return RoundFindings(
            created=tuple(sorted(created)),
            orphaned=orphans(partitions, leases, uncovered),
            outlived=outlived(partitions, leases),
            finished=finished(partitions, leases),
            notes=tuple(notes),
            waiting=stuck,
            undecided=undecided,
            due=len(deleted) + len(born) + len(forgetful),
            left=len(born) - made - len([lease for lease in born if lease.partition in {*stuck, *undecided}]),
        )

    async def _find_open(self, parents: Sequence[str]) -> str | None:
        """A parent that is not closed now: since the scan, an operator may have reset it, or a host may have put it back.

        Raises StoreUnavailable.
        """
        for parent in parents:
            with suppress(StoreMissing):
                try:
                    lease = (await self._keeper.read(self._pipeline, parent)).lease
                except InvalidDocument:
                    return parent
                if not lease.closed:
                    return parent
        return None

    def _turn(self, born: Sequence[Lease], hosts: Collection[str], scan: Scan) -> Sequence[Lease]:
        """The leases that this host creates now.

        Hosts that start together divide the first round. If one of them does not finish its share for a while, the next
        host creates the rest.
        """
        self._due_since = {each.partition: self._due_since.get(each.partition, scan.started) for each in born}
        if self._is_complete:
            return born
        grace_s = 2 * self._keeper.timing.handoff_poll_s
        by_name = {lease.partition: lease for lease in born}
        return [
            by_name[name]
            for rank, name in creation_order(by_name, self._keeper.host, hosts)
            if scan.started - self._due_since[name] >= rank * grace_s
        ]

    async def _find_start(
        self,
        lease: Lease,
        family: Sequence[str],
        leases: Mapping[str, Lease],
        start_of: StartOf,
        standing_of: StandingOf | None,
    ) -> tuple[Lease | None, str]:
        """The lease with its start, or None if the start is unknown; and a message, if the lease existed before."""
        if lease.parents:  # it begins where they ended
            return await recover_child(lease, standing_of) if lease.partition in begun(leases) else (lease, "")
        if not self._is_complete or lease.partition in self._pending:
            return replace(lease, continuation=await start_of(lease.partition)), ""
        if is_lost(lease, family, leases):
            return await recover(lease, family, standing_of)
        return lease, ""

    async def _remember(self, leases: Collection[Lease], scan: Scan) -> None:
        """Record in closed parents that the children have leases, so that a child's lease that is deleted later does
        not look new.

        Writes that fail are repeated in the next round.
        """
        for lease in leases:
            if (seen := scan.seen.get(lease.key)) is not None:
                with suppress(LeasesError):
                    await self._keeper.rewrite(seen, lease)

    def _deleted(
        self,
        partitions: Sequence[Partition],
        leases: Mapping[str, Lease],
        unreadable: Collection[str],
        scan: Scan,
        uncovered: Uncovered,
    ) -> list[Lease]:
        """Leases that were deleted since the last scan, seen recently enough that they cannot have been cleared away as
        dead.
        """
        within_s = DEAD_AFTER * self._keeper.timing.patience_s / 2
        gone = self._memory.gone(leases, unreadable, scan.started, within_s)
        return restored(gone, partitions, leases, uncovered) if gone else []

    async def _keep_info(self, scan: Scan) -> list[str]:
        """Notice that another host completed the first round; after that, recreate the document if it was deleted."""
        if not self._is_complete:
            await self.open()
            self._info_seen_at = scan.started
        elif scan.started - self._info_seen_at >= INFO_LOOKED_AT_S:
            self._info_seen_at = scan.started
            document = info_id(self._pipeline)
            try:
                await self._store.read(document)
            except StoreMissing:
                with suppress(StoreConflict):  # another host was quicker
                    await self._store.create(document, encode_info(self._info(complete=True, pending=self._pending)))
                return [f"document '{document}' was deleted, and is restored unchanged"]
        return []

    async def _complete(self, pending: Collection[str] = ()) -> None:
        """pending: partitions of the first round that still have no lease."""
        stored = await self._store.read(info_id(self._pipeline))
        found = decode_info(stored.id, stored.body)
        if not found.complete:
            found = replace(found, complete=True, pending=tuple(sorted(pending)))
            try:
                await self._store.replace(stored.id, encode_info(found), stored.etag)
            except StoreConflict:
                return  # another host was quicker; the next round sees it
        self._is_complete, self._pending = True, frozenset(found.pending)

    async def _settle(self, without_lease: Collection[str]) -> None:
        """Remove from `pending` the partitions that have leases now, or that no longer exist."""
        left = self._pending.intersection(without_lease)
        if left == self._pending:
            return
        stored = await self._store.read(info_id(self._pipeline))
        found = decode_info(stored.id, stored.body)
        pending = tuple(name for name in found.pending if name in left)
        if pending != found.pending:
            with suppress(StoreConflict):  # another host was quicker
                await self._store.replace(stored.id, encode_info(replace(found, pending=pending)), stored.etag)
        self._pending = left

    def _info(self, *, complete: bool = False, pending: Collection[str] = (), unused: bool = False) -> Info:
        return Info(
            identity=self._identity,
            complete=complete,
            pending=tuple(sorted(pending)),
            unused=unused,
            pipeline=self._pipeline,
        )

    def _mismatch(self, recorded: Info) -> str | None:
        """Why these leases are not this pipeline's. A sink knows positions by the pipeline's name: a new name would lose them."""
        if recorded.pipeline not in (None, self._pipeline):
            return (
                f"the leases of pipeline '{self._pipeline}' belong to a pipeline called '{recorded.pipeline}': give it that name"
                " again, or a `processor_name` of its own and import leases from there (docs/migration.md, Under another prefix)"
            )
        for what in ("feed", "sink"):
            theirs, ours = getattr(recorded.identity, what), getattr(self._identity, what)
            if theirs != ours:
                return (
                    f"the leases of pipeline '{self._pipeline}' belong to {what} {theirs!r}, but the configuration has"
                    f" {ours!r}: give the pipeline another name, or change the {what} back"
                )
        return None


def _has_room_for(pending: Collection[str]) -> bool:
    return len(pending) <= PENDING_MAX and sum(len(name.encode()) for name in pending) <= PENDING_BYTES_MAX
