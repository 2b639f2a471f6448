"""Deleted leases: what is still known about their positions. Pure, apart from calls to the sink.

The position of a deleted document may be known in two places. Every host saw it in its last scan (`Memory`) and can
restore that state. And a sink that stores positions knows how far the partition got, or the one it was split from. If
neither knows, the partition waits for an operator, like one whose lease is unreadable.

A missing lease is recognized by its scope or its parents. After the first round, some lease covers every part of a
source, so an uncovered part must have had one. A closed parent that still exists records which of its children had
leases. If a feed distinguishes partitions by name alone, a partition without a lease may also be new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from leasehold.common.standing import Standing
from leasehold.leases.lease import Lease
from leasehold.leases.lineage import Partition, Uncovered, orphans


@dataclass(frozen=True, slots=True)
class Memory:
    """The leases of one pipeline as this host last saw them; an unreadable one, as it was before."""

    leases: Mapping[str, Lease] = field(default_factory=lambda: MappingProxyType({}))
    at: float = -inf

    def refreshed(self, leases: Mapping[str, Lease], unreadable: Collection[str], at: float) -> Memory:
        kept = {name: self.leases[name] for name in unreadable if name in self.leases}
        return Memory({**kept, **leases} if kept else leases, at)

    def gone(self, leases: Mapping[str, Lease], unreadable: Collection[str], at: float, within_s: float) -> list[Lease]:
        """The remembered leases that have vanished. Empty after more than `within_s`: by then a lease may have ended and
        been removed.
        """
        if at - self.at > within_s:
            return []
        return [lease for name, lease in self.leases.items() if name not in leases and name not in unreadable]


def restored(
    gone: Collection[Lease], partitions: Sequence[Partition], leases: Mapping[str, Lease], uncovered: Uncovered
) -> list[Lease]:
    """The deleted leases to recreate: those that are still needed and whose part no other lease covers."""
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
        return False  # it has ended, and its children continue it
    own = Partition(lease.partition, (), lease.scope)
    held = [other.scope for other in leases.values() if other.scope is not None and not other.closed]
    return lease.scope is None or list(uncovered(own, held)) == [own]


def ancestors(
    lease: Lease, partitions: Sequence[Partition], leases: Mapping[str, Lease], uncovered: Uncovered
) -> tuple[str, ...]:
    """For a new lease: the partitions that it came from or belonged to, except those that covered another part."""
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
    """Whether a lease that is due after the first round existed before. If a parent still had a lease, that would name it."""
    return bool(lease.scope is not None or family) and not any(name in leases for name in family)


def of_one(standings: Collection[Standing]) -> Standing | None:
    """What the sink holds for a family, if its partitions agree on one position; None otherwise, as after a merge."""
    found = {standing.position: standing for standing in standings}
    return next(iter(found.values())) if len(found) == 1 else None


def waiting(
    partitions: Sequence[Partition], leases: Mapping[str, Lease], unreadable: Collection[str]
) -> dict[str, str]:
    """The partitions that have no lease because the end of a parent is unreadable, and why."""
    stuck = {
        each.name: sorted(set(each.parents) & set(unreadable))
        for each in partitions
        if each.name not in leases and each.name not in unreadable
    }
    return {
        name: f"it came from {names_of(parents)}, whose lease is unreadable: it begins where that ended, once that is repaired"
        for name, parents in stuck.items()
        if parents
    }


def unknown(lease: Lease, family: Sequence[str]) -> str:
    """The message for a lost lease whose position is unknown."""
    of = f" (or that of {names_of(family)}, which it came from)" if family else ""
    return f"its lease{of} was deleted, and its position is unknown: give it one, by {to_reset(lease)}"


def to_reset(lease: Lease) -> str:
    return f"`leasehold leases reset FILE {lease.pipeline} {lease.partition} --to ... --yes`"


def names_of(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


# Recover the start position of a deleted lease from its sink or its parents, and describe the outcome.


StandingOf = Callable[[str], Awaitable[Standing | None]]
"""partition -> the position that the sink reports; None if it holds none."""


async def recover(lease: Lease, family: Sequence[str], standing_of: StandingOf | None) -> tuple[Lease | None, str]:
    """A lost lease at the position that its sink reports for it or for its ancestors, and a message. None instead of the
    lease if its position is unknown.
    """
    if standing_of is None and not family:  # docs/decisions/0006: nothing of it is skipped, however it lost its lease
        return (
            lease,
            "it had no lease (was it deleted?), and its position is unknown: it begins at the feed's beginning",
        )
    if standing_of is None:
        return None, unknown(lease, family)
    if (own := await _standing_of(lease, standing_of)) is not None:
        return _stands(lease, own)
    known = [one for name in family if (one := await standing_of(name)) is not None]
    if not known:
        return lease, "its lease was deleted, and its sink holds no position for it: it begins at the feed's beginning"
    if (one := of_one(known)) is None:
        return None, unknown(lease, family)
    placed = replace(lease, continuation=one.position, parents=tuple(family))
    return (
        placed,
        f"the leases of its ancestors were deleted: it continues at the sink's position for one of them ({one.position})",
    )


async def recover_child(lease: Lease, standing_of: StandingOf | None) -> tuple[Lease, str]:
    """A lost lease whose parents still exist: at the position that its sink reports, or else where they ended."""
    own = None if standing_of is None else await _standing_of(lease, standing_of)
    if own is not None:
        return _stands(lease, own)
    who = "its position is unknown" if standing_of is None else "its sink holds no position for it"
    where = f"where {names_of(lease.parents)} ended ({_position_name(lease)})"
    return (
        lease,
        f"its lease was deleted, and {who}: it begins once more {where}; to begin elsewhere, {to_reset(lease)}",
    )


def put_back(lease: Lease) -> str:
    """The message for a lease that this host has seen."""
    where = f"where this host saw it last ({_position_name(lease)})"
    what = f"the lease of partition '{lease.partition}' was deleted"
    return f"{what}: it is put back {where}; to begin elsewhere, {to_reset(lease)}"


async def _standing_of(lease: Lease, standing_of: StandingOf) -> Standing | None:
    """What the sink holds for the lease. None also if a host has had the lease but delivered nothing; but in a later
    generation, no position is an operator's order to start from the beginning.
    """
    own = await standing_of(lease.partition)
    return None if own is not None and own.position is None and own.generation == lease.generation else own


def _stands(lease: Lease, own: Standing) -> tuple[Lease, str]:
    placed = replace(lease, continuation=own.position, generation=own.generation)
    return placed, f"its lease was deleted: it continues at its sink's position ({own.position})"


def _position_name(lease: Lease) -> str:
    return "the feed's beginning" if lease.continuation is None else lease.continuation
