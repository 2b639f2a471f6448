"""How a manifest stays short: 64 entries are folded into one file, and 64 of those into one again. Pure.

What a fold holds follows from its name, so whoever folds makes the same file. A name goes away only where a longer fold covers
it, and readers take the longest fold there is: what a writer that was stalled for long puts where names went away is seen by
nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.connectors.files.sink.layout import Listing

FAN = 64
"""Entries in a fold, and folds in a long one: a manifest is at most some 256 files, and one more for every 4,096 entries."""
LONG = FAN * FAN


@dataclass(frozen=True, slots=True)
class Step:
    """A range of versions: one entry where first == last, else a fold."""

    first: int
    last: int

    @property
    def is_entry(self) -> bool:
        return self.first == self.last

    @property
    def parts(self) -> list[Step]:
        """What a fold is made of."""
        size = (self.last - self.first + 1) // FAN
        return [Step(first, first + size - 1) for first in range(self.first, self.last + 1, size)]


def steps(listing: Listing, start: int = 0) -> Iterator[Step]:
    """The files to read, in order, from version `start` to the first that is nowhere."""
    version = start
    while True:
        if version in listing.folds:
            step = Step(version, listing.folds[version])
        elif version in listing.entries:
            step = Step(version, version)
        else:
            return
        yield step
        version = step.last + 1


def is_past(version: int, listing: Listing) -> bool:
    """Whether an entry of this version is read by nobody, since a fold covers it."""
    return any(first <= version <= last for first, last in listing.folds.items())


def due(listing: Listing) -> list[Step]:
    """Folds to make, in this order."""
    head = listing.head or 0
    have = {*listing.folds.items(), *listing.shadowed}
    longs = {first for first, last in have if last - first + 1 == LONG}
    short = [
        Step(first, first + FAN - 1)
        for first in _complete(head, FAN)
        if (first, first + FAN - 1) not in have and first // LONG * LONG not in longs
    ]
    long = [Step(first, first + LONG - 1) for first in _complete(head, LONG) if first not in longs]
    return [*short, *long]


def is_due(version: int) -> bool:
    """Whether an entry of this version completes what can be folded."""
    return version % FAN == FAN - 1


def superseded(listing: Listing) -> list[Step]:
    """What may go. The last complete range of each length stays, for those who read right now."""
    head = listing.head or 0
    entries = [Step(each, each) for each in sorted(listing.entries) if each < _kept_from(head, FAN)]
    shorts = [
        Step(first, last) for first, last in (*listing.folds.items(), *listing.shadowed) if last - first + 1 == FAN
    ]
    longs = {first for first, last in listing.folds.items() if last - first + 1 == LONG}
    return [
        *(each for each in entries if is_past(each.first, listing)),
        *(each for each in shorts if each.first < _kept_from(head, LONG) and each.first // LONG * LONG in longs),
    ]


def _complete(head: int, size: int) -> range:
    """The first versions of all ranges of this size that are whole."""
    return range(0, (head + 1) // size * size, size)


def _kept_from(head: int, size: int) -> int:
    return (head + 1) // size * size - size
