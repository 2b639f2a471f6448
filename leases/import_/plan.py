"""Leases to import, and what each would change here. Pure.

    candidates = cosmos_import or export_format     what the input holds, document by document
    changes = planned(candidates, seen, rules)          created, moved, unchanged, or refused with the reason

Each change is one compare-and-swap, so a plan may be carried out partly and planned again: changes that were made are then
`unchanged`. An existing lease is moved by a reset (a new generation), or its sink would continue from its old position.
Nothing moves back unless forced, and nothing changes while its owner is alive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from leasehold.leases.document import encode_lease
from leasehold.leases.errors import Incomparable, InvalidDocument
from leasehold.leases.lease import Child, Lease
from leasehold.leases.tenure import VersionedLease

Kind = Literal["created", "moved", "unchanged", "refused"]

Compare = Callable[[str | None, str | None], int]
"""The feed's order of positions. Raises Incomparable."""

Overlapping = Callable[[Lease, Collection[Lease]], Collection[str]]
"""(a lease, others) -> the partitions of those that overlap it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A lease in the input."""

    document: str
    partition: str
    lease: Lease | None = None
    owner: str | None = None
    written_us: int | None = None
    packed: str | None = None
    parts: tuple[Child, ...] = ()
    restores: bool = False
    refused: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedChange:
    """What a candidate would do."""

    kind: Kind
    partition: str
    document: str = ""
    why: str = ""
    seen: VersionedLease | None = None
    wanted: Lease | None = None

    @property
    def start(self) -> str | None:
        """The position that the lease has."""
        return self.seen.lease.continuation if self.seen else None

    @property
    def to(self) -> str | None:
        return self.wanted.continuation if self.wanted else None

    @property
    def generation(self) -> int | None:
        return self.wanted.generation if self.wanted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The limits of an import."""

    compare: Compare
    overlapping: Overlapping = lambda lease, others: ()
    owners: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    writers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    standings: Mapping[str, tuple[int, str | None]] = field(default_factory=lambda: MappingProxyType({}))
    force: bool = False


class _LeftOut(Exception):
    """A candidate that is left out, and why."""


def planned(candidates: Iterable[Candidate], seen: Mapping[str, VersionedLease], rules: Rules) -> list[PlannedChange]:
    """The changes, in the order to carry them out. seen: all leases of the pipeline, by partition."""
    spread = [part for candidate in candidates for part in _spread(candidate, seen)]
    counts = Counter(each.partition for each in spread)
    plan = _Plan(seen, [each.lease for each in spread if each.lease is not None], rules)
    changes = [plan.change(each, counts[each.partition]) for each in spread]
    return sorted(changes, key=_open_first)


def _open_first(change: PlannedChange) -> tuple[bool, str]:
    """Closed leases last: a host that sees one creates its children where it ended, and the input may have later positions."""
    return change.wanted is not None and change.wanted.closed, change.partition


def _spread(candidate: Candidate, seen: Mapping[str, VersionedLease]) -> list[Candidate]:
    """One for each part, if the whole has no lease here that could be closed in favor of them."""
    if not candidate.parts or candidate.lease is None or candidate.partition in seen:
        return [candidate]
    return [
        replace(
            candidate,
            partition=part.partition,
            parts=(),
            packed=None,
            lease=replace(candidate.lease, partition=part.partition, continuation=part.continuation, scope=part.scope),
        )
        for part in candidate.parts
    ]


class _Plan:
    def __init__(self, seen: Mapping[str, VersionedLease], brought: Collection[Lease], rules: Rules) -> None:
        self._seen = seen
        self._rules = rules
        self._open = [lease for lease in [*(one.lease for one in seen.values()), *brought] if not lease.closed]
        self._due = {
            child.partition: one.lease.partition
            for one in seen.values()
            for child in one.lease.children
            if child.partition not in seen
        }

    def change(self, candidate: Candidate, count: int) -> PlannedChange:
        seen = self._seen.get(candidate.partition)
        try:
            if count > 1:
                raise _LeftOut(f"{count} documents describe this lease: keep only the one with the correct position")
            change = self._changed(candidate, seen)
            if change.wanted is not None:
                encode_lease(change.wanted)
        except (_LeftOut, InvalidDocument) as error:
            change = PlannedChange(kind="refused", partition=candidate.partition, why=str(error), seen=seen)
        return replace(change, document=candidate.document)

    def _changed(self, candidate: Candidate, seen: VersionedLease | None) -> PlannedChange:
        lease = candidate.lease
        if lease is None:
            raise _LeftOut(candidate.refused)
        if writer := self._rules.writers.get(candidate.document):
            raise _LeftOut(f"'{writer}' is processing document '{candidate.document}': stop it, and export again")
        self._check(candidate, lease)
        return self._created(candidate, lease) if seen is None else self._over(candidate, lease, seen)

    def _check(self, candidate: Candidate, lease: Lease) -> None:
        places = [part.continuation for part in candidate.parts] or [lease.continuation]
        for place in [*places, *(child.continuation for child in lease.children)]:
            try:
                self._rules.compare(place, place)
            except Incomparable as error:
                raise _LeftOut(f"document '{candidate.document}': {error}") from None

    def _created(self, candidate: Candidate, lease: Lease) -> PlannedChange:
        if parent := self._due.get(lease.partition):
            raise _LeftOut(
                f"lease '{parent}' lists it as a child: wait until a host creates its lease, then import again"
            )
        others = [other for other in self._open if other.partition != lease.partition]
        if not lease.closed and (names := self._rules.overlapping(lease, others)):
            raise _LeftOut(
                f"it covers what {_names(names)} covers: remove finished leases from the input (after a split, the parent)"
            )
        lease, notes = self._beside_the_sink(candidate, lease)
        if candidate.owner is not None:
            notes.append(f"was {candidate.owner}'s")
        if lease.continuation is None and not lease.closed:
            notes.append("has no continuation: begins at the feed's beginning")
        return PlannedChange(kind="created", partition=lease.partition, why="; ".join(notes), wanted=lease)

    def _over(self, candidate: Candidate, lease: Lease, seen: VersionedLease) -> PlannedChange:
        here = seen.lease
        if here.closed:
            return self._over_closed(candidate, lease, seen)
        if lease.closed and not lease.children:
            raise _LeftOut(
                "it is closed in the input and open here: close it here (`leasehold leases close`), or leave it out"
            )
        if lease.closed:
            raise _LeftOut("it has ended in the input and is open here: a host closes it when it reaches its end")
        if candidate.packed is not None and here.continuation == candidate.packed:
            wanted, notes = self._unpacked(candidate, lease, here)
        elif candidate.parts:
            raise _LeftOut(
                f"document '{candidate.document}' holds {len(candidate.parts)} positions for it: import it where it has no lease"
            )
        else:
            way = self._way(lease.continuation, here.continuation)
            if way is None:
                return PlannedChange(kind="unchanged", partition=lease.partition, seen=seen)
            wanted, notes = self._reset(here, lease.continuation), way
        if owner := self._rules.owners.get(lease.partition):
            raise _LeftOut(
                f"'{owner}' owns it and is alive: stop it and wait for its release, or until the lease expires"
            )
        notes.append(f"a reset: generation {here.generation} -> {wanted.generation}, whatever position the sink holds")
        if here.owner is not None:
            notes.append(f"was {here.owner}'s")
        return PlannedChange(kind="moved", partition=lease.partition, why="; ".join(notes), seen=seen, wanted=wanted)

    def _beside_the_sink(self, candidate: Candidate, lease: Lease) -> tuple[Lease, list[str]]:
        """A sink continues from its own position for the lease's generation, whatever position the lease has."""
        generation, position = self._rules.standings.get(lease.partition, (-1, None))
        if lease.closed or lease.generation > generation or (candidate.restores and lease.generation == generation):
            return lease, []
        way = self._way(lease.continuation, position, "the sink")
        if way is None:
            return replace(lease, generation=generation), []
        note = f"a reset: generation {generation} -> {generation + 1}, as the sink holds a position"
        return replace(lease, generation=generation + 1), [*way, note]

    def _reset(self, here: Lease, continuation: str | None) -> Lease:
        """The lease at another position. Raises _LeftOut if that moves back from the sink's position, unless forced."""
        generation, position = self._rules.standings.get(here.partition, (-1, None))
        if generation == here.generation:
            self._way(continuation, position, "the sink")
        return replace(here.reset(continuation), generation=max(generation, here.generation) + 1)

    def _unpacked(self, candidate: Candidate, lease: Lease, here: Lease) -> tuple[Lease, list[str]]:
        """Change the very document that the candidate was read from: the same position, in the server's form."""
        if not candidate.parts:
            return self._reset(here, lease.continuation), ["Java's continuation, unpacked"]
        first = candidate.parts[0].continuation
        ended = self._reset(here, first).ended(first, candidate.parts)
        return ended, [f"Java's continuation for {len(candidate.parts)} parts: closed, a host makes a lease for each"]

    def _over_closed(self, candidate: Candidate, lease: Lease, seen: VersionedLease) -> PlannedChange:
        if not seen.lease.children and not lease.children and not candidate.parts:
            why = (
                "is closed here"
                if lease.closed
                else "is closed here, and stays closed: `leasehold leases reset` opens it"
            )
            return PlannedChange(kind="unchanged", partition=lease.partition, seen=seen, why=why)
        wanted = candidate.parts or lease.children
        if {child.partition for child in wanted} == {child.partition for child in seen.lease.children}:
            return PlannedChange(kind="unchanged", partition=lease.partition, seen=seen, why="has ended")
        raise _LeftOut(f"it has ended here, and {_names(c.partition for c in seen.lease.children)} continue from it")

    def _way(self, to: str | None, here: str | None, who: str = "the lease") -> list[str] | None:
        """Remarks about a move from the position of `who`; None if it does not move. Raises _LeftOut if it moves back."""
        try:
            order = self._rules.compare(to, here)
        except Incomparable as error:
            if not self._rules.force:
                raise _LeftOut(
                    f"the feed does not know whether it moves back ({error}): look at both positions, then --force"
                ) from None
            return ["forced, as the feed does not know whether it moves back"]
        if order < 0 and not self._rules.force:
            place = "the feed's beginning" if here is None else here
            raise _LeftOut(
                f"it would move back ({who} is at {place}), and the events between would be repeated:"
                " if you want that, use --force"
            )
        return None if order == 0 else ["moves back, as forced"] if order < 0 else []


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(names)) or "nothing"
