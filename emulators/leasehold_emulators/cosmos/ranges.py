"""Partition key ranges: how the space of effective partition keys is divided, and how a range splits or two merge."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold_emulators.cosmos.epk import BITS, BOTTOM, TOP


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From min, inclusive, to max, exclusive, in upper-case hexadecimal of any length: "1F" equals "1F00"."""

    min: str = BOTTOM
    max: str = TOP

    def holds(self, epk: str) -> bool:
        return order(self.min) <= order(epk) < order(self.max)

    def overlaps(self, other: Span) -> bool:
        return order(self.min) < order(other.max) and order(other.min) < order(self.max)

    def covers(self, other: Span) -> bool:
        return order(self.min) <= order(other.min) and order(other.max) <= order(self.max)


def order(bound: str) -> str:
    return bound.rstrip("0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """id: never reused. parents: all its ancestors, the oldest first. since: the number of the split or merge that made it."""

    id: str
    span: Span
    parents: tuple[str, ...] = ()
    since: int = 0


def evenly(count: int) -> list[Range]:
    step = (1 << BITS) // count  # rounded first, as the service does: 5 ranges end at ...C, ...8, ...4, ...0
    bounds = [BOTTOM, *(bound(i * step) for i in range(1, count)), TOP]
    return [Range(id=str(i), span=Span(min=bounds[i], max=bounds[i + 1])) for i in range(count)]


def bound(number: int) -> str:
    return f"{number:032X}"


def number(bound: str) -> int:
    return 1 << BITS if bound == TOP else int(bound.ljust(32, "0")[:32] or "0", 16)


def middle(span: Span) -> str:
    return bound((number(span.min) + number(span.max)) // 2)


def halves(parent: Range, at: str, ids: tuple[str, str], since: int) -> tuple[Range, Range]:
    """Raises ValueError if `at` is not inside."""
    if not order(parent.span.min) < order(at) < order(parent.span.max):
        raise ValueError(f"at: {at!r} is not inside range {parent.id} ({parent.span.min!r} to {parent.span.max!r})")
    parents = (*parent.parents, parent.id)
    spans = Span(min=parent.span.min, max=at), Span(min=at, max=parent.span.max)
    return (
        Range(id=ids[0], span=spans[0], parents=parents, since=since),
        Range(id=ids[1], span=spans[1], parents=parents, since=since),
    )


def union(left: Range, right: Range, id: str, since: int) -> Range:
    """Raises ValueError unless `right` begins where `left` ends."""
    if order(left.span.max) != order(right.span.min):
        raise ValueError(f"left, right: ranges {left.id} and {right.id} are not neighbors")
    parents = dict.fromkeys((*left.parents, *right.parents, left.id, right.id))
    return Range(id=id, span=Span(min=left.span.min, max=right.span.max), parents=tuple(parents), since=since)
