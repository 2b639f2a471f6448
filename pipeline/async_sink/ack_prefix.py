"""Up to where everything is acknowledged, without a gap: the only position that a checkpoint may have. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection


class Prefix:
    """Entries are numbered as they are taken, and belong to batches, of which each ends at a position.

    acknowledged: how many entries are, wherever they stand.
    """

    def __init__(self, position: str | None) -> None:
        self.position = position
        self.acknowledged = 0
        self._taken = 0
        self._first = 0
        self._beyond: set[int] = set()
        self._ends: deque[tuple[int, str]] = deque()

    @property
    def unsettled(self) -> int:
        """Entries behind the prefix: waiting, on their way, or acknowledged behind a gap."""
        return self._taken - self._first

    @property
    def is_settled(self) -> bool:
        return not self.unsettled

    def take(self) -> int:
        """The next entry's number."""
        self._taken += 1
        return self._taken - 1

    def close(self, to: str) -> None:
        """All entries of a batch have been taken; it ends at `to`."""
        self._ends.append((self._taken, to))
        self._move()

    def acknowledge(self, numbers: Collection[int]) -> None:
        """Of one answer."""
        self.acknowledged += len(numbers)
        self._beyond.update(numbers)
        while self._first in self._beyond:
            self._beyond.remove(self._first)
            self._first += 1
        self._move()

    def _move(self) -> None:
        while self._ends and self._ends[0][0] <= self._first:
            self.position = self._ends.popleft()[1]
