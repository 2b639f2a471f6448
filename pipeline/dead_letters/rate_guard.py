"""The rate guard: a pipeline that cannot process its events is to stop, and not to drain its feed into the dead letters. Pure.

It counts by partition, in the order of the events. A batch that comes again, after a failure, counts once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Seen:
    """A batch. first: its first event's sequence. dead: the places of those that could not be processed."""

    first: int
    events: int
    dead: tuple[int, ...]


class RateGuard:
    """Of any `events` consecutive events at most `share_max` may be dead. What came before this process counts as good."""

    def __init__(self, *, events: int, share_max: float) -> None:
        self.events = events
        self.most = int(events * share_max)
        self._seen: deque[_Seen] = deque()
        self._held = 0

    def one_too_many(self, first: int, dead: Sequence[int]) -> int | None:
        """The place in a batch of the dead event that is one too many, where there is one. dead: their places, ascending.

        first: the sequence of the batch's first event. What was seen from there on comes again.
        """
        while self._seen and self._seen[-1].first >= first:
            self._held -= self._seen.pop().events
        recent = deque(self._before())
        for place in dead:
            recent.append(place)
            while recent[0] <= place - self.events:
                recent.popleft()
            if len(recent) > self.most:
                return place
        return None

    def saw(self, first: int, events: int, dead: Sequence[int]) -> None:
        """A batch that passes."""
        self._seen.append(_Seen(first, events, tuple(dead)))
        self._held += events
        while self._held - self._seen[0].events >= self.events:
            self._held -= self._seen.popleft().events

    def _before(self) -> list[int]:
        """The places of the dead before the next batch: negative, ascending."""
        places: list[int] = []
        start = -self._held
        for seen in self._seen:
            places += [start + place for place in seen.dead]
            start += seen.events
        return places
