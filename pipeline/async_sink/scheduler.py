"""Schedulers decide which work is due, and know up to where all of it is done. Pure; `now` is the time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection
from typing import Generic, TypeVar

R_co = TypeVar("R_co", covariant=True)


class Scheduler(ABC, Generic[R_co]):
    """R_co: a unit of work. is_hurried: what was taken is due without waiting for more."""

    def __init__(self, position: str | None) -> None:
        self.is_hurried = False
        self._prefix = AckPrefix(position)

    @property
    def position(self) -> str | None:
        """The end of the contiguous acknowledged prefix."""
        return self._prefix.position

    @property
    def acknowledged(self) -> int:
        return self._prefix.acknowledged

    @property
    def unsettled(self) -> int:
        return self._prefix.unsettled

    @property
    def is_settled(self) -> bool:
        return not self._prefix.unsettled

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another row may be taken."""

    def close(self, to: str) -> None:
        """All of a batch has been taken."""
        self._prefix.close(to)

    @abstractmethod
    def due_in_s(self, now: float) -> float | None:
        """Seconds until something is due; None if only an outcome or a row can make something due."""

    @abstractmethod
    def next(self, now: float) -> R_co:
        """What is due. It counts as begun."""


class AckPrefix:
    """The entries before the first that is not acknowledged. Their end is the only position that a checkpoint may have.

    Entries are numbered as they are taken, and belong to batches. Each batch ends at a position.

    acknowledged: how many entries are acknowledged, in the prefix and after it.
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
        """How many entries are after the prefix: waiting, on their way, or acknowledged after a gap."""
        return self._taken - self._first

    def take(self) -> int:
        """The next entry's number."""
        self._taken += 1
        return self._taken - 1

    def close(self, to: str) -> None:
        """All entries of a batch have been taken; it ends at `to`."""
        self._ends.append((self._taken, to))
        self._move()

    def acknowledge(self, numbers: Collection[int]) -> None:
        """An answer has acknowledged the entries with these numbers."""
        self.acknowledged += len(numbers)
        self._beyond.update(numbers)
        while self._first in self._beyond:
            self._beyond.remove(self._first)
            self._first += 1
        self._move()

    def _move(self) -> None:
        while self._ends and self._ends[0][0] <= self._first:
            self.position = self._ends.popleft()[1]
