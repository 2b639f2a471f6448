"""The position of a reader in a topic's partition: `OFFSET@TOPIC_ID`, with the next offset to read.

A topic that was deleted and created again has the same name and another id, so that its offsets are not taken for the old ones.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from leasehold.pipeline.errors import PositionLost

_TEXT = re.compile(r"(\d{1,18})(?:@([A-Za-z0-9+/_=-]{1,64}))?", re.ASCII)


class Position(NamedTuple):
    """topic: its id; None if a person wrote the position, or if the brokers give no ids."""

    next: int
    topic: str | None = None

    def __str__(self) -> str:
        return str(self.next) if self.topic is None else f"{self.next}@{self.topic}"


BEGINNING = Position(0)


def position_of(text: str | None) -> Position:
    """Raises PositionLost."""
    if text is None:
        return BEGINNING
    found = _TEXT.fullmatch(text)
    if found is None:
        raise PositionLost(
            f"{text[:100]!r} is not a position of a Kafka topic: set the lease's position to the next offset, like '41'"
        )
    return Position(int(found[1]), found[2])


def compared(a: Position, b: Position) -> int:
    """Raises PositionLost for positions of two topics."""
    if None not in (a.topic, b.topic) and a.topic != b.topic:
        raise PositionLost(f"'{a}' and '{b}' are positions of two topics: one was deleted, and created again")
    return a.next - b.next
