"""Positions of a broker: a number, and the id that tells its source from another one of the same name: `NUMBER@SOURCE`. Pure."""

from __future__ import annotations

import re

from leasehold.pipeline.errors import PositionLost


class PositionForm:
    """source: a pattern. of: such as "a Kafka topic". example: a position to set instead of a text that is not one."""

    def __init__(self, source: str, *, of: str, several: str, example: str) -> None:
        self._text = re.compile(rf"(\d{{1,18}})(?:@({source}))?", re.ASCII)
        self._of = of
        self._several = several
        self._example = example

    def parsed(self, text: str) -> tuple[int, str | None]:
        """The number and the source, which people may leave out. Raises PositionLost."""
        if (found := self._text.fullmatch(text)) is None:
            raise PositionLost(
                f"{text[:100]!r} is not a position of {self._of}: set the lease's position to {self._example}"
            )
        return int(found[1]), found[2]

    def compared(self, a: tuple[int, object], b: tuple[int, object]) -> int:
        """Below, at or above 0, as a is before, at or after b. Raises PositionLost for positions of two sources."""
        if None not in (a[1], b[1]) and a[1] != b[1]:
            raise PositionLost(
                f"'{a}' and '{b}' are positions of two {self._several}: one was deleted, and created again"
            )
        return a[0] - b[0]


def written(number: int, source: object) -> str:
    return str(number) if source is None else f"{number}@{source}"
