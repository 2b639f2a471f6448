"""Limits on how many events may become dead letters: at most a share of the last events of a partition. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _SeenBatch:
    """A batch. first: its first event's sequence. dead: the places of those that could not be processed."""

    first: int
    events: int
    dead: tuple[int, ...]


class RateGuard:
    """Stops a pipeline that cannot process its events, so that it does not drain its feed into the dead letters. Pure.

    Among any `events` consecutive events of a partition, at most the share `share_max` may be dead. Events that this process has
    not seen count as good. A batch that is repeated after a failure counts once.
    """

    def __init__(self, *, events: int, share_max: float) -> None:
        self.events = events
        self.most = int(events * share_max)
        self._seen: deque[_SeenBatch] = deque()
        self._held = 0

    def one_too_many(self, first: int, dead: Sequence[int]) -> int | None:
        """The place in a batch of the dead event that is one too many, if there is one. dead: their places, ascending.

        first: the sequence of the batch's first event. What was recorded from there on no longer counts: it is repeated.
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

    def record(self, first: int, events: int, dead: Sequence[int]) -> None:
        """Count a batch that passes."""
        self._seen.append(_SeenBatch(first, events, tuple(dead)))
        self._held += events
        while self._held - self._seen[0].events >= self.events:
            self._held -= self._seen.popleft().events

    def pass_over(self, events: int) -> None:
        """This many consecutive events were good."""
        if events >= self.events:
            self._seen.clear()
            self._held = 0

    def _before(self) -> list[int]:
        """The places of the dead before the next batch: negative, ascending."""
        places: list[int] = []
        start = -self._held
        for seen in self._seen:
            places += [start + place for place in seen.dead]
            start += seen.events
        return places


class ParkGuard:
    """The same for events that a sink parks, in the order in which it acknowledges them. Pure.

    A retry acknowledges events after the position again. Its count starts at the position, so these events push nothing out of
    the last `events`, and no retry parks more. An event counts once, however often it is parked.
    """

    def __init__(self, *, events: int, share_max: float) -> None:
        self.events = events
        self.most = int(events * share_max)
        self.settled = 0
        """Events up to the position, over all claims."""
        self._parked: dict[int, int] = {}
        """By sequence: how many events were acknowledged before it was parked."""
        self._unwritten: set[int] = set()
        """Sequences of parked events whose letters may be missing."""

    def begin(self, buried: Collection[int]) -> None:
        """A claim begins. buried: the sequences of events after its position whose letters are kept."""
        for sequence in self._unwritten.difference(buried):
            self._parked.pop(sequence, None)
        self._unwritten.clear()

    def admit(self, sequences: Collection[int], acknowledged: int) -> bool:
        """Whether these events may be parked. If so, they count. acknowledged: how many events were, over all claims."""
        self._parked = {each: at for each, at in self._parked.items() if at > self.settled - self.events}
        recent = {each for each, at in self._parked.items() if at > acknowledged - self.events}
        if len(recent.union(sequences)) > self.most:
            return False
        self._parked.update(dict.fromkeys(sequences, acknowledged))
        self._unwritten.update(sequences)
        return True

    def confirm(self, sequences: Collection[int]) -> None:
        """The letters of these events are written."""
        self._unwritten.difference_update(sequences)


def too_many(most: int, events: int) -> str:
    """The text of an error when the limit is exceeded."""
    return (
        f"more than {most} of the last {events} events could not be processed, and no more may become dead"
        " letters: correct the transform, the schema or the feed and restart the hosts, or raise"
        " dead_letters.share_max"
    )
