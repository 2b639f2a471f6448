"""The position of a reader in a stream: `SEQUENCE@CREATED`, with the sequence of the last message that it has passed.

A stream that was deleted and created again has the same name, but another time of creation.
"""

from __future__ import annotations

from typing import NamedTuple

from leasehold.pipeline.connectors.numbered_position import PositionForm, written

_FORM = PositionForm(
    r"\d{1,20}",
    of="a stream",
    several="streams",
    example="the sequence of the last message that was processed, like '41'",
)


class StreamPosition(NamedTuple):
    """last: 0 at the beginning. created: in microseconds since 1970; None if a person wrote the position."""

    last: int
    created: int | None = None

    def __str__(self) -> str:
        return written(*self)


def position_of(text: str | None) -> StreamPosition:
    """Raises PositionLost."""
    last, created = (0, None) if text is None else _FORM.parsed(text)
    return StreamPosition(last, None if created is None else int(created))


def compared(a: StreamPosition, b: StreamPosition) -> int:
    """Raises PositionLost for positions of two streams."""
    return _FORM.compared(a, b)
