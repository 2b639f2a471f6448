"""Which leases a feed's partitions need, and which match none of them: children of ended leases, births, orphans. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from leasehold.leases.lease import Lease


class Partition(NamedTuple):
    """A partition of the feed, the ones it came from by split or merge, and its part of the source."""

    name: str
    parents: tuple[str, ...] = ()
    scope: str | None = None


Uncovered = Callable[[Partition, Collection[str]], Sequence[Partition]]
"""(a partition, scopes) -> the rest of it that the scopes do not cover: itself if they cover nothing, empty if they
cover all.
"""


def whole(partition: Partition, scopes: Collection[str]) -> Sequence[Partition]:
    """For a feed whose partitions are distinguished by name alone."""
    return [partition]


def children_due(
    partitions: Sequence[Partition], leases: Mapping[str, Lease], unreadable: Collection[str] = ()
) -> list[Lease]:
    """The leases that closed parents require. A child of several parents (a merge) waits until all of them are closed."""
    parents = {partition.name: partition.parents for partition in partitions}
    known = {*parents, *unreadable}
    scopes = {partition.name: partition.scope for partition in partitions}
    due: dict[str, Lease] = {}
    for parent in sorted((lease for lease in leases.values() if lease.children), key=lambda lease: lease.partition):
        for child in parent.children:
            family = parents.get(child.partition) or (parent.partition,)
            if child.partition in leases or child.partition in unreadable:
                continue
            if not any(_is_at_work(name, known, leases) for name in family):
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


def begun(leases: Mapping[str, Lease]) -> frozenset[str]:
    """The children that have had a lease, according to their closed parents."""
    return frozenset(child.partition for lease in leases.values() for child in lease.children if child.begun)


def followed(leases: Mapping[str, Lease], others: Collection[str] = ()) -> list[Lease]:
    """Updated versions of closed leases that have not yet recorded which of their children have leases.

    others: further partitions that have leases.
    """
    begun = {*leases, *others}
    forgetful = (lease for lease in leases.values() if any(not child.begun for child in lease.children))
    return [after for before in forgetful if (after := before.followed_by(begun)) != before]


def births(
    pipeline: str,
    partitions: Sequence[Partition],
    leases: Mapping[str, Lease],
    uncovered: Uncovered = whole,
    unreadable: Collection[str] = (),
) -> list[Lease]:
    """The leases of partitions that have none, unless a parent is still being read and will name its children itself.

    A partition whose parent's lease is unreadable waits until that is repaired, because the parent's end is unknown. If
    leases with other names cover part of a partition's scope, only the rest gets new leases. This happens after a merge
    of ranges, when each old lease continues with its part.
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
    """Open leases that match nothing in the feed: neither the partition, nor one that came from it, nor one that shares
    its scope.
    """
    known = {name for partition in partitions for name in (partition.name, *partition.parents)}
    lost = (lease for name, lease in leases.items() if name not in known and not lease.closed)
    return tuple(sorted(lease.partition for lease in lost if not _is_found(lease.scope, partitions, uncovered)))


def finished(partitions: Sequence[Partition], leases: Mapping[str, Lease]) -> tuple[str, ...]:
    """The partitions that the feed lists but no host reads, because an operator closed their leases."""
    names = (partition.name for partition in partitions)
    return tuple(name for name in names if name in leases and leases[name].closed and not leases[name].children)


def outlived(partitions: Sequence[Partition], leases: Mapping[str, Lease]) -> tuple[str, ...]:
    """Closed leases that are no longer needed: the feed no longer lists the partition, and every child has its lease.

    A tombstone stays, so that a partition that reappears under its name is not read again. A lease that another one
    names as its child stays as long as that one exists; otherwise the child would be created again.
    """
    needed = {partition.name for partition in partitions}
    needed |= {child.partition for lease in leases.values() for child in lease.children}
    return tuple(
        sorted(
            name
            for name, lease in leases.items()
            if name not in needed
            and lease.closed
            and not lease.tombstone
            and all(child.partition in leases for child in lease.children)
        )
    )


def scopes_of(leases: Iterable[Lease]) -> dict[str, str]:
    """By partition, the scopes of the leases that have one."""
    return {lease.partition: lease.scope for lease in leases if lease.scope is not None}


def _is_found(scope: str | None, partitions: Sequence[Partition], uncovered: Uncovered) -> bool:
    return scope is not None and any(list(uncovered(each, [scope])) != [each] for each in partitions)


def _is_at_work(name: str, listed: Container[str], leases: Mapping[str, Lease]) -> bool:
    """Whether a parent still has events to deliver: its lease is open, or it has none yet and will get one."""
    return not leases[name].closed if name in leases else name in listed
