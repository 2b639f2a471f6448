"""Which leases the partitions of a feed call for, and which lead nowhere: children of ended ones, births, orphans. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import NamedTuple

from leases.lease import Lease


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
    """The children that have had a lease, as far as their closed parents remember."""
    return frozenset(child.partition for lease in leases.values() for child in lease.children if child.begun)


def followed(leases: Mapping[str, Lease], others: Collection[str] = ()) -> list[Lease]:
    """The closed leases that do not remember yet which of their children have leases, as they will. others: that have one too."""
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


def finished(partitions: Sequence[Partition], leases: Mapping[str, Lease]) -> tuple[str, ...]:
    """The partitions that the feed lists and nobody reads, since an operator closed their leases."""
    names = (partition.name for partition in partitions)
    return tuple(name for name in names if name in leases and leases[name].closed and not leases[name].children)


def outlived(partitions: Sequence[Partition], leases: Mapping[str, Lease]) -> tuple[str, ...]:
    """The closed leases that nothing needs any more: the feed has forgotten the partition, and every child has its lease.

    A tombstone stays: what comes back under its name is not to be read again.

    One that another lease names as its child is needed as long as that one is there, which would have it created anew.
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


def _is_found(scope: str | None, partitions: Sequence[Partition], uncovered: Uncovered) -> bool:
    return scope is not None and any(list(uncovered(each, [scope])) != [each] for each in partitions)


def _is_at_work(name: str, listed: Container[str], leases: Mapping[str, Lease]) -> bool:
    """Whether a parent still has events to deliver: its lease is open, or it has none yet and will get one."""
    return not leases[name].closed if name in leases else name in listed
