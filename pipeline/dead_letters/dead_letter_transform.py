"""A transform over the events of a batch that can be processed, with the rest kept apart as dead.

Without a policy the first event that cannot be processed stops the partition. With one it is left out, and goes into the
output beside the others' results, so a sink takes both or neither.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import NamedTuple

import pyarrow as pa

from pipeline.batch import Batch
from pipeline.dead_letters.record import dead_events
from pipeline.errors import FailsTogether, MalformedRecord, OutputRefused, Poison, PoisonEvent, TooMuchPoison
from pipeline.transform import Transform

# What a sink refuses for ever, narrowed down to single events: a refused batch is retried in halves. Pure.
#
# Each refusal ends the run of its partition, and the next one begins where the sink stands. It cuts batches smaller than the one
# that was refused, up to where that ended; what is accepted is finished. So log2(n) runs find the event among n. If the sink
# names the rows that it refuses, and these bear their events' sequences, no search is needed.


Compare = Callable[[str | None, str | None], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A batch's output on its way. only: the sequence of its event, where it has one alone. most: how many it was to have."""

    to: str
    events: int
    only: int | None
    most: int | None


class _Refused(NamedTuple):
    """to: the position up to which it may be repeated. Its sequence does not show that: a replay has any order."""

    poison: Poison
    to: str


class Refusals:
    """Refusals in one partition, from run to run. attempts: how often an event must be refused, the last time alone."""

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

    def narrow(self, error: OutputRefused, sent: Sequence[Sent]) -> bool:
        """Whether another run can narrow it down. sent: the rows that may have been refused, in order."""
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

    def forget_before(self, start: str | None) -> None:
        """Nothing before that position is repeated."""
        self._refused = {
            sequence: each for sequence, each in self._refused.items() if self._compare(start, each.to) < 0
        }

    def _count(self, sequence: int, reason: str, to: str) -> None:
        before = self._refused[sequence].poison.attempts if sequence in self._refused else 0
        self._refused[sequence] = _Refused(Poison(index=0, reason=reason, attempts=before + 1), to)


SEQUENCE = "sequence"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """A pipeline's policy.

    - `share_max`, `share_events`: more dead than this share of so many consecutive events of a partition stop it.
    """

    now: Callable[[], datetime]
    """The wall clock, aware."""
    attempts: int = 2
    """How often an event's output must have been refused by the sink."""
    share_max: float = 0.1
    share_events: int = 1000
    stops_at_misfits: bool = False
    """Whether a body that does not fit the schema stops the partition all the same."""
    guards: dict[str, RateGuard] = field(default_factory=dict)
    """By partition; a retry must not start over."""

    def guard_of(self, partition: str) -> RateGuard:
        return self.guards.setdefault(partition, RateGuard(events=self.share_events, share_max=self.share_max))


class Sifted(NamedTuple):
    """table: the transform's output. dead: DEAD_SCHEMA, of those events that have no dead letter yet; None for none."""

    table: pa.Table
    dead: pa.Table | None


class DeadLetterTransform:
    """The dead letters of one partition. buried: the sequences of events whose dead letters are kept already.

    moved: called each time poison was found, because a batch with much poison takes long. refusals: of the sink.
    """

    def __init__(
        self,
        transform: Transform,
        policy: DeadLetters | None,
        partition: str,
        buried: Collection[int],
        moved: Callable[[], None] = lambda: None,
        refusals: Refusals | None = None,
    ) -> None:
        self._transform = transform
        self._policy = policy
        self._partition = partition
        self._buried = frozenset(buried)
        self._moved = moved
        self._refusals = refusals
        self._refused: Mapping[int, Poison] | None = None
        self._known: dict[int, Poison] = {}
        """By sequence, recent findings: a batch may be repeated, cut into parts."""

    async def sift(self, batch: Batch) -> Sifted:
        """Raises what `Transform.apply` does; PoisonEvent only where the partition has to stop."""
        if self._policy is None:
            _refuse_malformed(batch)
            return Sifted(await self._transform.apply(batch), None)
        first = _first_of(batch)
        if first is None:
            return Sifted(await self._transform.apply(batch), None)
        self._known = {sequence: poison for sequence, poison in self._known.items() if sequence >= first}
        dead, gone = self._known_dead(batch, first)
        guard = self._policy.guard_of(self._partition)
        table = await self._apply(batch, dead, gone, lambda: self._refuse(batch, guard, first, dead))
        self._refuse(batch, guard, first, dead)
        guard.record(first, batch.events, sorted(dead))
        return Sifted(table, self._table_of(batch, dead))

    def pass_over(self, events: int) -> None:
        """So many events were processed elsewhere, and all were good."""
        if self._policy is not None:
            self._policy.guard_of(self._partition).pass_over(events)

    def _known_dead(self, batch: Batch, first: int) -> tuple[dict[int, Poison], list[int]]:
        """By place, the events that are dead whatever the transform does; and the places of those that are buried."""
        if self._refused is None:
            self._refused = self._refused_from(batch.start)
        known = {**self._known, **self._refused}
        malformed = _malformed(batch)
        if not (known or malformed or self._buried):
            return {}, []
        dead, gone = {}, []
        for place, sequence in enumerate(_sequences(batch)):
            if sequence in self._buried:
                gone.append(place)
            elif sequence in known:
                dead[place] = replace(known[sequence], index=place)
            elif place in malformed:
                dead[place] = Poison(index=place, reason=malformed[place], is_misfit=True)
        return dead, gone

    def _refused_from(self, start: str | None) -> Mapping[int, Poison]:
        """Before the first batch of all: later ones are sifted before earlier ones are delivered, or refused."""
        if self._refusals is None:
            return {}
        self._refusals.forget_before(start)
        return self._refusals.dead

    async def _apply(
        self, batch: Batch, dead: dict[int, Poison], gone: Sequence[int], check: Callable[[], None]
    ) -> pa.Table:
        """The output of those that can be processed; `dead` is added to, and `check` called each time."""
        while True:
            out = sorted({*dead, *gone})
            try:
                return await self._transform.apply(batch.without(out) if out else batch)
            except FailsTogether as error:
                raise _placed(error, out) from error
            except PoisonEvent as error:
                self._moved()
                self._remember(batch, {_place(each.index, out): each for each in error.found}, dead)
                check()
                if error.output is not None:
                    return error.output

    def _remember(self, batch: Batch, found: Mapping[int, Poison], dead: dict[int, Poison]) -> None:
        sequences = _sequences(batch)
        for place, poison in found.items():
            dead[place] = self._known[sequences[place]] = replace(poison, index=place)

    def _refuse(self, batch: Batch, guard: RateGuard, first: int, dead: Mapping[int, Poison]) -> None:
        """Raises PoisonEvent where the policy ends."""
        assert self._policy is not None
        misfit = min((place for place in dead if dead[place].is_misfit), default=None)
        if misfit is not None and self._policy.stops_at_misfits:
            raise self._stop(PoisonEvent, batch, dead[misfit], "correct the event or the schema")
        place = guard.one_too_many(first, sorted(dead))
        if place is not None:
            raise self._stop(TooMuchPoison, batch, dead[place], self._too_many(guard))

    def _too_many(self, guard: RateGuard) -> str:
        return (
            f"more than {guard.most} of the last {guard.events} events could not be processed, and no more may become dead"
            " letters: correct the transform, the schema or the feed and restart the hosts, or raise"
            " dead_letters.share_max"
        )

    def _stop(self, kind: type[PoisonEvent], batch: Batch, poison: Poison, what: str) -> PoisonEvent:
        sequence = _sequences(batch)[poison.index]
        return kind(
            f"partition '{self._partition}', sequence {sequence}: {poison.reason}: {what}, and processing continues from there",
            before=poison.index,
            sequence=sequence,
            found=[poison],
        )

    def _table_of(self, batch: Batch, dead: Mapping[int, Poison]) -> pa.Table | None:
        assert self._policy is not None
        if not dead:
            return None
        return dead_events(batch.table, [dead[place] for place in sorted(dead)], self._policy.now())


def _malformed(batch: Batch) -> dict[int, str]:
    """By place, the records that cannot become events, and why."""
    found, start = {}, 0
    for page in batch.pages:
        if page.malformed is not None and page.events.num_rows:
            found[start] = page.malformed
        start += page.events.num_rows
    return found


def _refuse_malformed(batch: Batch) -> None:
    """Raises MalformedRecord if no store keeps it."""
    for reason in _malformed(batch).values():
        raise MalformedRecord(reason)


def _first_of(batch: Batch) -> int | None:
    for page in batch.pages:
        if page.events.num_rows:
            return int(page.events.column(SEQUENCE)[0].as_py())
    return None


def _sequences(batch: Batch) -> list[int]:
    return [each for page in batch.pages for each in page.events.column(SEQUENCE).to_pylist()]


def _place(index: int, out: Sequence[int]) -> int:
    """In the whole batch, of the event at `index` of a batch without those at `out` (ascending)."""
    for each in out:
        if each > index:
            break
        index += 1
    return index


def _placed(error: FailsTogether, out: Sequence[int]) -> FailsTogether:
    return FailsTogether(
        str(error),
        before=_place(error.before, out),
        sequence=error.sequence,
        events=error.events,
        cut=_place(error.cut, out),
    )


@dataclass(frozen=True, slots=True)
class _SeenBatch:
    """A batch. first: its first event's sequence. dead: the places of those that could not be processed."""

    first: int
    events: int
    dead: tuple[int, ...]


class RateGuard:
    """Stops a pipeline that cannot process its events, so that it does not drain its feed into the dead letters. Pure.

    Among any `events` consecutive events of a partition, at most `share_max` may be dead. What came before this process counts as
    good. A batch that is repeated after a failure counts once.
    """

    def __init__(self, *, events: int, share_max: float) -> None:
        self.events = events
        self.most = int(events * share_max)
        self._seen: deque[_SeenBatch] = deque()
        self._held = 0

    def one_too_many(self, first: int, dead: Sequence[int]) -> int | None:
        """The place in a batch of the dead event that is one too many, where there is one. dead: their places, ascending.

        first: the sequence of the batch's first event. Events seen from there on are repeated.
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
        """A batch that passes."""
        self._seen.append(_SeenBatch(first, events, tuple(dead)))
        self._held += events
        while self._held - self._seen[0].events >= self.events:
            self._held -= self._seen.popleft().events

    def pass_over(self, events: int) -> None:
        """So many consecutive events were good."""
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
