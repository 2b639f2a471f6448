"""Which part of a container a partition is, where it is read, and which partitions take over when it was split or merged. Pure.

A partition is a physical range, named by the range's id ("0"), or a section of the effective partition keys, named by its
bounds ("05C1-7F", from inclusive, to exclusive). These are the lease tokens of the .NET processor, versions 0 and 1. An id leads
nowhere once the range was split or merged; bounds are served by whichever range holds them now, so only a cut between them ends
such a partition (docs/decisions/0007-a-merged-range-keeps-its-leases.md).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from leasehold.pipeline.errors import FeedError, FeedUnavailable, PositionLost
from leasehold.pipeline.feed import FeedPartition

# Continuations are the server's ETags, `"<lsn>"` with their quotes; there is also one between any two LSNs of a page. Pure.
#
# An LSN is a transaction: its documents are delivered together or not at all, so a position is never inside one.


_ETAG = re.compile(r'"([0-9]{1,18})"', re.ASCII)
BEGINNING = 0
"""The LSN of None: no document has it."""


def lsn_of(position: str | None) -> int:
    """The last LSN that was read. Raises PositionLost."""
    if position is None:
        return BEGINNING
    match = _ETAG.fullmatch(position)
    if match is None and position.startswith("ey"):  # base64 of a JSON object
        raise PositionLost(
            f"{position[:24] + '...'!r} is a continuation that Java's change feed processor packed: stop its hosts, then unpack"
            " all of them by `leasehold leases import FILE --pipeline NAME --from java`"
        )
    if match is None:
        raise PositionLost(
            f"{position[:100]!r} is not a continuation of a Cosmos DB container's change feed, which looks like"
            """ '"1234"': set a new one for the lease"""
        )
    return int(match[1])


def position_behind(lsn: int) -> str:
    return f'"{lsn}"'


def furthest(a: str | None, b: str) -> str:
    """The later one: a replica that lags answers with an earlier position than the requested one."""
    return a if a is not None and lsn_of(a) > lsn_of(b) else b


def session_lsn(token: str) -> int | None:
    """How far a range had come when it answered: `range:version#globalLSN#...`, or `range:LSN`. None if it cannot be read."""
    parts = token.rpartition(":")[2].split("#")
    text = parts[0] if len(parts) == 1 else parts[1]
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def estimated(session: int | None, first_unread: int) -> int:
    """Transactions behind, as the .NET estimator counts them; at least one, since one was seen."""
    return max(1, (first_unread if session is None else session) - first_unread + 1)


_BOUNDS = re.compile(r"([0-9A-Fa-f]{0,256})-([0-9A-Fa-f]{1,256})")
_ID = re.compile(r"[0-9A-Za-z_]{1,64}")


def order(bound: str) -> str:
    """What orders bounds of any length, as the SDKs compare them: "1F" is "1F00", and "" is "00"."""
    return bound.rstrip("0")


class KeyRange(NamedTuple):
    """From `min`, inclusive, to `max`, exclusive: upper-case hexadecimal, ordered by `order`. Everything is "" to "FF".

    Compare with `covers` and `is_same`: two texts may name the same bound.
    """

    min: str
    max: str

    def __str__(self) -> str:
        return f"{self.min}-{self.max}"

    def covers(self, other: KeyRange) -> bool:
        return order(self.min) <= order(other.min) and order(other.max) <= order(self.max)

    def is_same(self, other: KeyRange) -> bool:
        return self.covers(other) and other.covers(self)

    def common(self, other: KeyRange) -> KeyRange | None:
        """The common part, or None. If both have the same bound, it has this range's text."""
        low, high = max(self.min, other.min, key=order), min(self.max, other.max, key=order)
        return KeyRange(low, high) if order(low) < order(high) else None


@dataclass(frozen=True, slots=True)
class PhysicalRange:
    """A range that exists now. parents: all that it came from, the newest last."""

    id: str
    span: KeyRange
    parents: tuple[str, ...] = ()


class RangeSection(NamedTuple):
    """The range from which a partition is read, and the section of it; None for the whole range."""

    range_id: str
    span: KeyRange | None = None


class Successor(NamedTuple):
    name: str
    span: KeyRange


def span_of(text: str) -> KeyRange | None:
    """The bounds that a name or a scope spells; None if it is anything else."""
    match = _BOUNDS.fullmatch(text)
    span = KeyRange(match[1].upper(), match[2].upper()) if match else None
    return span if span is not None and order(span.min) < order(span.max) else None


def is_name(text: str) -> bool:
    return bool(_ID.fullmatch(text)) or span_of(text) is not None


def partition_of(range: PhysicalRange) -> FeedPartition:
    return FeedPartition(range.id, range.parents, str(range.span))


def place_of(partition: str, live: Iterable[PhysicalRange]) -> RangeSection | None:
    """Where the partition is read; None if no single range holds it (any longer)."""
    mine = span_of(partition)
    if mine is None:
        return next((RangeSection(each.id) for each in live if each.id == partition), None)
    whole = next((each for each in live if each.span.covers(mine)), None)
    return RangeSection(whole.id, None if whole.span.is_same(mine) else mine) if whole else None


def successors(partition: str, scope: KeyRange | None, live: Sequence[PhysicalRange]) -> list[Successor]:
    """The partitions that take over from one that has no place: together they cover exactly what it covered.

    scope: of a range that is gone. A range within it continues under its own id; a section of one (merged with others) under the
    section's bounds. Raises FeedUnavailable while the listed ranges have gaps, FeedError if the former partition is
    unknown.
    """
    bounds = span_of(partition)
    mine = bounds or scope or _of_direct_children(partition, live)
    parts = [(each, part) for each in sorted(live, key=_min) if (part := mine.common(each.span))]
    spans = [part for _, part in parts]
    if not spans or not KeyRange(spans[0].min, spans[-1].max).is_same(mine) or not _is_gapless(spans):
        raise FeedUnavailable(f"partition '{partition}' is being split or merged: the container's ranges have gaps")
    if bounds:
        return [Successor(str(part), part) for part in spans]
    return [Successor(each.id if part.is_same(each.span) else str(part), part) for each, part in parts]


def _of_direct_children(partition: str, live: Sequence[PhysicalRange]) -> KeyRange:
    """The former bounds of an unrecorded range, if it was split and nothing else has happened since."""
    children = sorted((each for each in live if each.parents[-1:] == (partition,)), key=_min)
    if not any(partition in each.parents for each in live):
        raise unknown(partition, live)
    if len(children) < 2 or not _is_gapless([child.span for child in children]):
        raise FeedError(
            f"partition '{partition}' was split and merged with others before its lease was read, and the lease has no bounds:"
            " write the range's bounds into its FeedRange, or set up new leases"
        )
    return KeyRange(children[0].span.min, children[-1].span.max)


def unknown(partition: str, live: Iterable[PhysicalRange]) -> FeedError:
    return FeedError(
        f"the container has no partition '{partition}', and none of its ranges came from one:"
        f" it has {', '.join(sorted(each.id for each in live)) or 'none'}"
    )


def uncovered(partition: FeedPartition, scopes: Collection[str]) -> list[FeedPartition]:
    """The rest of a partition outside the scopes: itself, nothing, or its sections under their bounds."""
    whole = span_of(partition.scope or "")
    held = [part for scope in scopes if whole and (span := span_of(scope)) and (part := whole.common(span))]
    if whole is None or not held:
        return [partition]
    left: list[KeyRange] = []
    low = whole.min
    for span in sorted(held, key=lambda span: order(span.min)):
        if order(low) < order(span.min):
            left.append(KeyRange(low, span.min))
        low = max(low, span.max, key=order)
    if order(low) < order(whole.max):
        left.append(KeyRange(low, whole.max))
    return [FeedPartition(str(span), (), str(span)) for span in left]


def _is_gapless(spans: Sequence[KeyRange]) -> bool:
    return all(order(a.max) == order(b.min) for a, b in pairwise(spans))


def _min(range: PhysicalRange) -> str:
    return order(range.span.min)
