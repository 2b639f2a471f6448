"""What a sink refuses for ever, narrowed down to single events: a refused batch is retried in halves. Pure.

Each refusal ends the run of its partition, and the next run begins where the sink stands. Up to the end of the refused batch, it
cuts smaller batches; what is accepted is finished. So log2(n) runs find the event among n.

If the refused rows have a `sequence`, the sink names events by it. If the output is the events themselves, nothing is left to
search. A transform may have given that name to a column of its own, or to max(sequence) over many events. So a name is a hint:
the host sends that event alone, and still halves the rest. The next run confirms a right name, and a wrong one costs it two cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import OutputRefused, Poison

ATTEMPTS = 2
"""How often an event has to be refused by default before it is to blame, the last time alone."""
Compare = Callable[[str | None, str | None], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch's output on its way. only: the sequence of its only event, or None.

    most: during a search, the most events that it should have; otherwise None.
    """

    to: str
    events: int
    only: int | None
    most: int | None


class _RefusedEvent(NamedTuple):
    """to: the position up to which it may be repeated. Its sequence does not show that, because a replay delivers in any order.

    is_sure: whether the last refusal was surely of this event. Otherwise it was only named.
    """

    poison: Poison
    to: str
    is_sure: bool


class Refusals:
    """Refusals in one partition, from run to run. attempts: how often an event must be refused, the last time alone."""

    def __init__(self, attempts: int, compare: Compare) -> None:
        self._attempts = attempts
        self._compare = compare
        self._refused: dict[int, _RefusedEvent] = {}
        self._until: str | None = None
        self._events_max = 1

    @property
    def dead(self) -> Mapping[int, Poison]:
        """By sequence, the events that were refused often enough, the last time alone. Their places are not known here."""
        return {sequence: each.poison for sequence, each in self._refused.items() if self._is_dead(each)}

    def has_suspects(self, start: str | None) -> bool:
        """Whether events after `start` were refused or named, or are searched for. Only the host decides what becomes of them."""
        return self._is_searching(start) or any(self._compare(start, each.to) < 0 for each in self._refused.values())

    def most(self, batch: Batch) -> int | None:
        """The most events that a batch with this one's start may have; None: no limit."""
        cuts = [self._events_max] if self._is_searching(batch.start) else []
        alone = {sequence for sequence, each in self._refused.items() if not self._is_dead(each)}
        place = next((place for place, each in enumerate(batch.sequences) if each in alone), None) if alone else None
        if place is not None:
            cuts.append(max(1, place))
        return min(cuts, default=None)

    def narrow(self, error: OutputRefused, sent: Sequence[Sent], *, is_sure: bool) -> bool:
        """Note a refusal. Returns whether another run can narrow it down. sent: the outputs that may have been refused, in order.

        is_sure: whether a row's `sequence` is surely that of its event.
        """
        if not sent:
            return False
        to = sent[-1].to
        dead = self.dead
        if error.sequences and is_sure:
            for sequence in error.sequences:
                self._count(sequence, str(error), to)
            return not dead.keys() >= set(error.sequences)
        one = sent[0] if len(sent) == 1 else None
        if one is not None and one.only is not None:
            if one.only in dead:
                return False  # the sink refused its letter, or something else that is not output
            self._count(one.only, str(error), to)
        elif one is not None and one.most is not None and one.events > one.most:
            return False  # the feed cannot be cut there
        else:
            named = Poison(index=0, reason=str(error), attempts=1)
            self._refused = {sequence: _RefusedEvent(named, to, False) for sequence in error.sequences} | self._refused
        self._until, self._events_max = to, max(1, sum(each.events for each in sent) // 2)
        return True

    def forget_before(self, start: str | None) -> None:
        """Forget refusals of events before that position: none of them is repeated."""
        self._refused = {
            sequence: each for sequence, each in self._refused.items() if self._compare(start, each.to) < 0
        }

    def _is_searching(self, start: str | None) -> bool:
        """Whether batches that begin there are cut."""
        return self._until is not None and self._compare(start, self._until) < 0

    def _is_dead(self, refused: _RefusedEvent) -> bool:
        return refused.is_sure and refused.poison.attempts >= self._attempts

    def _count(self, sequence: int, reason: str, to: str) -> None:
        before = self._refused[sequence].poison.attempts if sequence in self._refused else 0
        self._refused[sequence] = _RefusedEvent(Poison(index=0, reason=reason, attempts=before + 1), to, True)
