"""Creates the leases that are missing, and audits the container.

There is no lock: every step creates if absent, so two hosts may do it at once and a crash between any two steps is mended by
whoever comes next. The pipeline's `info` document says which feed and sink the leases belong to, and whether the first round
was completed; partitions that appear after it start at their beginning, since nothing of them may be skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from leases.document import Fields, to_json
from leases.errors import GroupMismatch, StoreConflict, StoreMissing
from leases.keeper import Keeper, Scan
from leases.lease import Lease
from leases.store import LeaseStore

VERSION = 1
IDENTITY_BYTES_MAX = 4096

StartOf = Callable[[str], Awaitable[str | None]]
"""partition -> the position at which it begins."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a pipeline's leases stand for. feed and sink may not change under them; a transform may (rolling deploys)."""

    feed: str
    sink: str
    transform: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """The pipeline's bootstrap document. `complete`: the first round of leases has been created."""

    identity: Identity
    complete: bool = False
    unknown: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))


class Partition(NamedTuple):
    """A partition of the feed, the ones it came from by split or merge, and which part of the source it is."""

    name: str
    parents: tuple[str, ...] = ()
    scope: str | None = None


Uncovered = Callable[[Partition, Collection[str]], Sequence[Partition]]
"""(a partition, scopes) -> what of it lies in none of the scopes: itself where nothing does, nothing where all does."""


def whole(partition: Partition, scopes: Collection[str]) -> Sequence[Partition]:
    """Of a feed whose partitions are told apart by their names alone."""
    return [partition]


@dataclass(frozen=True, slots=True)
class Audit:
    """created: partitions that got a lease now. orphaned: leases whose partition the feed does not have.

    outlived: closed leases that nothing needs any more.
    """

    created: tuple[str, ...] = ()
    orphaned: tuple[str, ...] = ()
    outlived: tuple[str, ...] = ()


def info_id(pipeline: str) -> str:
    return f"{pipeline}/info"


def encode_info(info: Info) -> str:
    body: dict[str, object] = {
        **info.unknown,
        "version": VERSION,
        "feed": info.identity.feed,
        "sink": info.identity.sink,
        "transform": info.identity.transform,
        "complete": info.complete,
    }
    return to_json(body)


def decode_info(id: str, body: str) -> Info:
    """Raises InvalidDocument."""
    fields = Fields.parse(id, body)
    fields.version(VERSION)
    return Info(
        identity=Identity(*(fields.text(name, IDENTITY_BYTES_MAX) for name in ("feed", "sink", "transform"))),
        complete=fields.boolean("complete"),
        unknown=fields.unknown(frozenset(("version", "feed", "sink", "transform", "complete"))),
    )


class Bootstrap:
    """Makes the leases of one pipeline agree with the partitions of its feed."""

    def __init__(self, keeper: Keeper, pipeline: str, identity: Identity) -> None:
        self._keeper = keeper
        self._store: LeaseStore = keeper.store
        self._pipeline = pipeline
        self._identity = identity
        self._is_complete = False

    async def opened(self) -> bool:
        """Make sure of the `info` document; whether the transform differs from the one recorded, which is now replaced.

        Raises GroupMismatch, InvalidDocument, StoreConflict (lost a race: call again), StoreUnavailable, StoreAmbiguous.
        """
        document = info_id(self._pipeline)
        wanted = Info(identity=self._identity)
        try:
            stored = await self._store.read(document)
        except StoreMissing:
            await self._store.create(document, encode_info(wanted))
            return False
        found = decode_info(stored.id, stored.body)
        self._check(found.identity)
        self._is_complete = found.complete
        if found.identity == self._identity:
            return False
        await self._store.replace(stored.id, encode_info(replace(found, identity=self._identity)), stored.etag)
        return True

    async def recorded(self) -> Info | None:
        """What stands there, left as it is. Raises GroupMismatch, InvalidDocument, StoreUnavailable."""
        try:
            stored = await self._store.read(info_id(self._pipeline))
        except StoreMissing:
            return None
        found = decode_info(stored.id, stored.body)
        self._check(found.identity)
        return found

    async def completed(self) -> None:
        """The first round of leases is there, by whatever way it came. Raises as `opened` does."""
        await self.opened()
        await self._complete()

    async def reconciled(
        self, partitions: Sequence[Partition], scan: Scan, start_of: StartOf, uncovered: Uncovered = whole
    ) -> Audit:
        """Create what is missing. Idempotent; cheap where nothing is. Raises as `opened` does, and what `start_of` raises."""
        if not self._is_complete:
            await self.opened()  # another host may have completed the first round since; what came later begins earlier
        leases = {lease.partition: lease for lease in scan.leases if lease.pipeline == self._pipeline}
        unreadable = {partition for pipeline, partition in scan.unreadable if pipeline == self._pipeline}
        due = children_due(partitions, leases, unreadable)
        created = []
        for lease in [*due, *births(self._pipeline, partitions, leases, uncovered, unreadable)]:
            if not self._is_complete and not lease.parents:
                lease = replace(lease, continuation=await start_of(lease.partition))
            if await self._keeper.create(lease):
                created.append(lease.partition)
        if not self._is_complete:
            await self._complete()
        return Audit(tuple(created), orphans(partitions, leases, uncovered), outlived(partitions, leases))

    async def _complete(self) -> None:
        stored = await self._store.read(info_id(self._pipeline))
        found = decode_info(stored.id, stored.body)
        if not found.complete:
            try:
                await self._store.replace(stored.id, encode_info(replace(found, complete=True)), stored.etag)
            except StoreConflict:
                return  # another host was quicker; the next round sees it
        self._is_complete = True

    def _check(self, recorded: Identity) -> None:
        for what in ("feed", "sink"):
            theirs, ours = getattr(recorded, what), getattr(self._identity, what)
            if theirs != ours:
                raise GroupMismatch(
                    f"the leases of pipeline '{self._pipeline}' belong to {what} {theirs!r}, and the configuration says"
                    f" {ours!r}: give the pipeline another name, or change the {what} back"
                )


def children_due(
    partitions: Sequence[Partition], leases: Mapping[str, Lease], unreadable: Collection[str] = ()
) -> list[Lease]:
    """The leases that closed parents call for. A child of several parents (a merge) waits until all of them are closed."""
    parents = {partition.name: partition.parents for partition in partitions}
    known = {*parents, *unreadable}
    scopes = {partition.name: partition.scope for partition in partitions}
    due: dict[str, Lease] = {}
    for parent in sorted((lease for lease in leases.values() if lease.children), key=lambda lease: lease.partition):
        for child in parent.children:
            family = parents.get(child.partition) or (parent.partition,)
            if child.partition not in leases and not any(_is_at_work(name, known, leases) for name in family):
                due.setdefault(
                    child.partition,
                    Lease(
                        pipeline=parent.pipeline,
                        partition=child.partition,
                        scope=child.scope or scopes.get(child.partition),
                        continuation=child.continuation,
                        parents=family,
                    ),
                )
    return list(due.values())


def births(
    pipeline: str,
    partitions: Sequence[Partition],
    leases: Mapping[str, Lease],
    uncovered: Uncovered = whole,
    unreadable: Collection[str] = (),
) -> list[Lease]:
    """The leases of partitions that have none, unless a parent has yet to be read and will name its children itself.

    One whose parent's lease is unreadable waits until that is mended: nobody knows where the parent ended.

    Where leases of other names hold a part of a partition's scope (one range was merged from several, and each of their leases
    goes on with its part), only the rest of it is born.
    """
    listed = {*(partition.name for partition in partitions), *unreadable}
    children = [child for lease in leases.values() for child in lease.children]
    taken = {*leases, *unreadable, *(child.partition for child in children)}
    scopes = {lease.scope for lease in leases.values() if not lease.closed}
    scopes |= {child.scope for child in children if child.partition not in leases}
    held = {scope for scope in scopes if scope is not None}
    return [
        Lease(pipeline=pipeline, partition=part.name, scope=part.scope)
        for partition in partitions
        if partition.name not in taken and not any(_is_at_work(parent, listed, leases) for parent in partition.parents)
        for part in uncovered(partition, held)
        if part.name not in taken
    ]


def orphans(
    partitions: Sequence[Partition], leases: Mapping[str, Lease], uncovered: Uncovered = whole
) -> tuple[str, ...]:
    """The open leases of what the feed does not have: no such partition, none that came from it, none with a part of it."""
    known = {name for partition in partitions for name in (partition.name, *partition.parents)}
    lost = (lease for name, lease in leases.items() if name not in known and not lease.closed)
    return tuple(sorted(lease.partition for lease in lost if not _is_found(lease.scope, partitions, uncovered)))


def outlived(partitions: Sequence[Partition], leases: Mapping[str, Lease]) -> tuple[str, ...]:
    """The closed leases that nothing needs any more: the feed has forgotten the partition, and every child has its lease.

    One that another lease names as its child is needed as long as that one is there, which would have it created anew.
    """
    needed = {partition.name for partition in partitions}
    needed |= {child.partition for lease in leases.values() for child in lease.children}
    return tuple(
        sorted(
            name
            for name, lease in leases.items()
            if name not in needed and lease.closed and all(child.partition in leases for child in lease.children)
        )
    )


def _is_found(scope: str | None, partitions: Sequence[Partition], uncovered: Uncovered) -> bool:
    return scope is not None and any(list(uncovered(each, [scope])) != [each] for each in partitions)


def _is_at_work(name: str, listed: Container[str], leases: Mapping[str, Lease]) -> bool:
    """Whether a parent still has events to deliver: its lease is open, or it has none yet and will get one."""
    return not leases[name].closed if name in leases else name in listed
