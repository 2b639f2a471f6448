"""What a sink answers about a partition."""

from __future__ import annotations

from typing import NamedTuple


class Standing(NamedTuple):
    """The newest generation for which a sink holds a position, and that position."""

    generation: int
    position: str | None
