"""Positions that are a broker's number and what tells its source from another of the same name: `NUMBER@SOURCE`. Pure."""

from __future__ import annotations

import re

from leasehold.pipeline.errors import PositionLost


class PositionForm:
    """source: a pattern. of: "a Kafka topic". example: the remedy for a text that is none."""

    def __init__(self, source: str, *, of: str, several: str, example: str) -> None:
        self._text = re.compile(rf"(\d{{1,18}})(?:@({source}))?", re.ASCII)
        self._of = of
        self._several = several
        self._example = example

    def parsed(self, text: str) -> tuple[int, str | None]:
        """Raises PositionLost. A person may leave out the source."""
        if (found := self._text.fullmatch(text)) is None:
            raise PositionLost(
                f"{text[:100]!r} is not a position of {self._of}: set the lease's position to {self._example}"
            )
        return int(found[1]), found[2]

    def compared(self, a: tuple[int, object], b: tuple[int, object]) -> int:
        """Raises PositionLost for positions of two sources."""
        if None not in (a[1], b[1]) and a[1] != b[1]:
            raise PositionLost(
                f"'{a}' and '{b}' are positions of two {self._several}: one was deleted, and created again"
            )
        return a[0] - b[0]


def written(number: int, source: object) -> str:
    return str(number) if source is None else f"{number}@{source}"
