"""Continuations: `<sequence number>@<offset>` of the last event that was read. Pure.

Either may stand alone, for people and for positions imported from other programs: `41`, `@4294967296`. Offsets are opaque (with
replication between regions they are not numbers), so they are not compared. The first event read from an offset alone gives both.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.pipeline.errors import PositionLost

_POSITION = re.compile(r"(?P<sequence>[0-9]{1,18})?(?:@(?P<offset>[0-9A-Za-z:._-]{1,128}))?", re.ASCII)
_BEFORE_ALL = -1


class EventPosition(NamedTuple):
    """sequence: None if only the offset is known. One of the two is always known."""

    sequence: int | None
    offset: str | None = None

    def __str__(self) -> str:
        return ("" if self.sequence is None else str(self.sequence)) + (
            "" if self.offset is None else f"@{self.offset}"
        )


BEGINNING = EventPosition(_BEFORE_ALL)
"""The position that None stands for: before event 0."""


def position_of(continuation: str | None) -> EventPosition:
    """Raises PositionLost."""
    if continuation is None:
        return BEGINNING
    found = _POSITION.fullmatch(continuation)
    if not continuation or found is None:
        raise PositionLost(
            f"{continuation[:100]!r} is not a position of an event hub. Set the lease to one, like '41@4294967296', `41` or"
            " `@4294967296`: the sequence number and the offset of the last event read, or one of the two"
        )
    sequence = found["sequence"]
    return EventPosition(None if sequence is None else int(sequence), found["offset"])


def compared(a: EventPosition, b: EventPosition) -> int:
    """Raises PositionLost if one has no sequence number, unless both have the same offset, or one is the beginning."""
    if a.sequence is not None and b.sequence is not None:
        return a.sequence - b.sequence
    if a.offset is not None and a.offset == b.offset:
        return 0
    if BEGINNING in (a, b):
        return 1 if b == BEGINNING else -1
    raise PositionLost(
        f"the positions '{a}' and '{b}' cannot be compared: an offset alone has no order; set the lease to one with the"
        " event's sequence number, like '41@4294967296'"
    )


def selector(position: EventPosition) -> str:
    """The receiver's filter for the events after a position."""
    if position == BEGINNING:
        return "amqp.annotation.x-opt-offset > '-1'"
    if position.offset is not None:
        return f"amqp.annotation.x-opt-offset > '{position.offset}'"
    return f"amqp.annotation.x-opt-sequence-number > '{position.sequence}'"


LATEST = "amqp.annotation.x-opt-offset > '@latest'"
"""Events that are enqueued from now on."""


def time_selector(time_ms: int) -> str:
    """Events that were enqueued at that time or later."""
    return f"amqp.annotation.x-opt-enqueued-time > '{time_ms - 1}'"
