"""The position of a reader in a stream: `SEQUENCE@CREATED`, with the sequence of the last message that it has passed.

A stream that was deleted and made again has the same name, and another time at which it was created.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.pipeline.errors import PositionLost

_TEXT = re.compile(r"(\d{1,18})(?:@(\d{1,20}))?", re.ASCII)


class StreamPosition(NamedTuple):
    """last: 0 at the beginning. created: in microseconds since 1970; None if a person wrote the position."""

    last: int
    created: int | None = None

    def __str__(self) -> str:
        return str(self.last) if self.created is None else f"{self.last}@{self.created}"


def position_of(text: str | None) -> StreamPosition:
    """Raises PositionLost."""
    if text is None:
        return StreamPosition(0)
    if (found := _TEXT.fullmatch(text)) is None:
        raise PositionLost(
            f"{text[:100]!r} is not a position of a stream: set the lease's position to the sequence of the last message that"
            " was processed, like '41'"
        )
    return StreamPosition(int(found[1]), None if found[2] is None else int(found[2]))


def compared(a: StreamPosition, b: StreamPosition) -> int:
    """Raises PositionLost for positions of two streams."""
    if None not in (a.created, b.created) and a.created != b.created:
        raise PositionLost(f"'{a}' and '{b}' are positions of two streams: one was deleted, and created again")
    return a.last - b.last
