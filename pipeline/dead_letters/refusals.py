"""What a sink refuses for ever, narrowed down to single events: a batch that was refused comes again in halves. Pure.

Each refusal ends the run of its partition, and the next one begins where the sink stands. It cuts batches smaller than the one
that was refused, up to where that ended; what is accepted is done with. So log2(n) runs find the event among n. Where the sink
says which rows it refuses, and these bear their events' sequences, nothing has to be looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.errors import OutputRefused, Poison

Compare = Callable[[str | None, str | None], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch's output on its way. only: the sequence of its event, where it has one alone. most: how many it was to have."""

    to: str
    events: int
    only: int | None
    most: int | None


class _Refused(NamedTuple):
    """to: up to where it may come again. Its sequence does not tell: in a replay they come in any order."""

    poison: Poison
    to: str


class Refusals:
    """Of one partition, from run to run. attempts: how often an event must have been refused, the last time alone."""

    def __init__(self, attempts: int, compare: Compare) -> None:
        self._attempts = attempts
        self._compare = compare
        self._refused: dict[int, _Refused] = {}
        self._until: str | None = None
        self._events_max: int | None = None

    @property
    def dead(self) -> Mapping[int, Poison]:
        """By sequence, what was refused often enough. Their places are not known here."""
        found = {sequence: each.poison for sequence, each in self._refused.items()}
        return {sequence: poison for sequence, poison in found.items() if poison.attempts >= self._attempts}

    def most(self, start: str | None) -> int | None:
        """How many events a batch that begins there may have; None for as many as it has."""
        if self._until is None or self._compare(start, self._until) >= 0:
            return None
        return self._events_max

    def narrowed(self, error: OutputRefused, sent: Sequence[Sent]) -> bool:
        """Whether another run can tell more. sent: what may have been refused, in its order."""
        if not sent:
            return False
        if error.sequences:
            for sequence in error.sequences:
                self._count(sequence, str(error), sent[-1].to)
            return True
        if len(sent) == 1 and sent[0].only is not None:
            self._count(sent[0].only, str(error), sent[0].to)
        elif len(sent) == 1 and sent[0].most is not None and sent[0].events > sent[0].most:
            return False  # the feed cannot be cut there
        events = sum(each.events for each in sent)
        self._until, self._events_max = sent[-1].to, max(1, events // 2)
        return True

    def passed(self, start: str | None) -> None:
        """Nothing before that position comes again."""
        self._refused = {
            sequence: each for sequence, each in self._refused.items() if self._compare(start, each.to) < 0
        }

    def _count(self, sequence: int, reason: str, to: str) -> None:
        before = self._refused[sequence].poison.attempts if sequence in self._refused else 0
        self._refused[sequence] = _Refused(Poison(index=0, reason=reason, attempts=before + 1), to)
