"""The position of a reader in a topic's partition: `OFFSET@TOPIC_ID`, with the next offset to read.

A topic that was deleted and created again has the same name but another id, so its offsets are not taken for the old ones.
"""

from __future__ import annotations

from typing import NamedTuple

from leasehold.pipeline.connectors.numbered_position import PositionForm, written

_FORM = PositionForm(
    "[A-Za-z0-9+/_=-]{1,64}", of="a Kafka topic", several="topics", example="the next offset, like '41'"
)


class Position(NamedTuple):
    """topic: its id; None if a person wrote the position, or if the brokers give no ids."""

    next: int
    topic: str | None = None

    def __str__(self) -> str:
        return written(*self)


BEGINNING = Position(0)


def position_of(text: str | None) -> Position:
    """Raises PositionLost."""
    return BEGINNING if text is None else Position(*_FORM.parsed(text))


def compared(a: Position, b: Position) -> int:
    """Raises PositionLost for positions of two topics."""
    return _FORM.compared(a, b)
