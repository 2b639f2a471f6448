"""Leases that somebody deleted: what is still known of where their partitions stood. Pure.

A document that is gone says nothing, and yet its position is known in two places. Every host has seen it in its last scan
(`Memory`), and puts it back as it was then. And a sink that holds positions knows how far the partition got, or the one that it
was split from. Where neither is so, nobody knows: such a partition waits for a person, as one does whose lease is unreadable.

That a lease is missing shows by its scope or its parents: after the first round every part of a source is held by some lease, so
a part that none holds had one; and a closed parent that is still there remembers which of its children had theirs. Of a feed
whose partitions are told apart by their names alone a partition may as well be new.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from leases.lease import Lease
from leases.lineage import Partition, Uncovered, orphans


class Standing(NamedTuple):
    """The newest generation that a sink holds a position of, and the position."""

    generation: int
    position: str | None


@dataclass(frozen=True, slots=True)
class Memory:
    """The leases of one pipeline as this host saw them last; one that became unreadable, as it was before. at: Clock seconds."""

    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    at: float = -inf

    def refreshed(self, leases: Mapping[str, Lease], unreadable: Collection[str], at: float) -> Memory:
        kept = {name: self.leases[name] for name in unreadable if name in self.leases}
        return Memory({**kept, **leases}, at)

    def gone(self, leases: Mapping[str, Lease], unreadable: Collection[str], at: float, within_s: float) -> list[Lease]:
        """What has vanished since. Nothing after more than `within_s`: by then a lease may have ended and been cleared away."""
        if at - self.at > within_s:
            return []
        return [lease for name, lease in self.leases.items() if name not in leases and name not in unreadable]


def restored(
    gone: Collection[Lease], partitions: Sequence[Partition], leases: Mapping[str, Lease], uncovered: Uncovered
) -> list[Lease]:
    """What to put back of the leases that are gone: those that somebody still needs, and whose part nobody else has."""
    lost = set(orphans(partitions, {lease.partition: lease for lease in gone}, uncovered))
    listed = {partition.name for partition in partitions}
    return [
        lease.put_back()
        for lease in gone
        if lease.partition not in lost and _is_needed(lease, listed, leases, uncovered)
    ]


def _is_needed(lease: Lease, listed: Container[str], leases: Mapping[str, Lease], uncovered: Uncovered) -> bool:
    if lease.closed and not lease.children:  # without it, the partition would be read from its beginning
        return lease.partition in listed
    if lease.closed:
        return any(child.partition not in leases for child in lease.children)
    if any(lease.partition in other.parents for other in leases.values()):
        return False  # it has ended, and goes on in those
    own = Partition(lease.partition, (), lease.scope)
    held = [other.scope for other in leases.values() if other.scope is not None and not other.closed]
    return lease.scope is None or list(uncovered(own, held)) == [own]


def ancestors(
    lease: Lease, partitions: Sequence[Partition], leases: Mapping[str, Lease], uncovered: Uncovered
) -> tuple[str, ...]:
    """Of a lease to be born: the partitions that it came from, or was a part of, but for those that had another part."""
    for each in partitions:
        if each.name == lease.partition:
            family = each.parents
        elif lease.scope is not None and list(uncovered(each, [lease.scope])) != [each]:
            family = (*each.parents, each.name)
        else:
            continue
        return tuple(name for name in family if not _is_apart(lease, leases.get(name), uncovered))
    return ()


def _is_apart(lease: Lease, other: Lease | None, uncovered: Uncovered) -> bool:
    if other is None or other.scope is None or lease.scope is None:
        return False
    own = Partition(lease.partition, (), lease.scope)
    return list(uncovered(own, [other.scope])) == [own]


def is_lost(lease: Lease, family: Collection[str], leases: Mapping[str, Lease]) -> bool:
    """Whether a lease to be born after the first round is one that was there. A parent's that is there would have named it."""
    return bool(lease.scope is not None or family) and not any(name in leases for name in family)


def of_one(standings: Collection[Standing]) -> Standing | None:
    """The position that the partitions of a family agree on: they may have been merged, and then each has its own."""
    found = {standing.position: standing for standing in standings}
    return next(iter(found.values())) if len(found) == 1 else None


def waiting(
    partitions: Sequence[Partition], leases: Mapping[str, Lease], unreadable: Collection[str]
) -> dict[str, str]:
    """The partitions that have no lease since nobody can read where a parent ended, and why not."""
    stuck = {
        each.name: sorted(set(each.parents) & set(unreadable))
        for each in partitions
        if each.name not in leases and each.name not in unreadable
    }
    return {
        name: f"it came from {names_of(parents)}, whose lease is unreadable: it begins where that ended, once that is mended"
        for name, parents in stuck.items()
        if parents
    }


def unknown(lease: Lease, family: Sequence[str]) -> str:
    """What to tell of a lost lease whose position nobody knows."""
    of = f" (or that of {names_of(family)}, which it came from)" if family else ""
    return f"its lease{of} was deleted, and nobody knows where it stood: it waits for a position, by {to_reset(lease)}"


def to_reset(lease: Lease) -> str:
    return f"`leasehold leases reset FILE {lease.pipeline} {lease.partition} --to ... --yes`"


def names_of(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)
