"""The position of a reader in a partition of a topic: `LEDGER:ENTRY`, or `LEDGER:ENTRY:INDEX` within a batch. Pure.

It is the place of the last event that was read. A cluster gives each ledger's number only once, so the ledgers of a topic that
was deleted and created again are not taken for the old ones.
"""

from __future__ import annotations

import re
from math import inf
from typing import NamedTuple

from leasehold.pipeline.errors import FeedError, PositionLost

_TEXT = re.compile(r"(\d{1,18}):(-1|\d{1,18})(?::(\d{1,9}))?", re.ASCII)
ENTRY_BITS, INDEX_BITS = 22, 11
"""How many bits of an event's sequence are for its entry and for its index. The other 30 bits are for its ledger."""
INDEX_MAX = (1 << INDEX_BITS) - 1


class MessagePlace(NamedTuple):
    """within: the place in a batch; -1: the entry as a whole. entry: -1 is before the ledger's first entry."""

    ledger: int
    entry: int
    within: int = -1

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}" + (f":{self.within}" if self.within >= 0 else "")

    @property
    def order(self) -> tuple[float, ...]:
        """Sorts places as they are read: an entry as a whole comes after all of its events."""
        return self.ledger, self.entry, inf if self.within < 0 else self.within

    @property
    def sequence(self) -> int:
        """Grows from event to event. Raises FeedError."""
        index = max(self.within, 0)
        if self.ledger >> (63 - ENTRY_BITS - INDEX_BITS) or self.entry >> ENTRY_BITS or index > INDEX_MAX:
            raise FeedError(
                f"the event at {self} cannot be numbered: ledgers must be below 2^30, entries below 2^{ENTRY_BITS}, and batches"
                f" must have at most {INDEX_MAX + 1} events: lower `batchingMaxMessages` of the producers"
            )
        return (self.ledger << ENTRY_BITS | self.entry) << INDEX_BITS | index

    @property
    def before(self) -> MessagePlace:
        """A position after which this event is the first."""
        if self.within > 0:
            return self._replace(within=self.within - 1)
        return MessagePlace(self.ledger, self.entry - 1)


def place_of(text: str | None) -> MessagePlace | None:
    """None stands for the beginning. Raises PositionLost."""
    if text is None:
        return None
    if (found := _TEXT.fullmatch(text)) is None:
        raise PositionLost(
            f"{text[:100]!r} is not a position of a Pulsar topic: set the lease's position to the ledger and entry of the last"
            " message that was processed, like '17:41'"
        )
    return MessagePlace(int(found[1]), int(found[2]), -1 if found[3] is None else int(found[3]))


def compared(a: MessagePlace | None, b: MessagePlace | None) -> int:
    first, second = (() if place is None else place.order for place in (a, b))
    return (first > second) - (first < second)
