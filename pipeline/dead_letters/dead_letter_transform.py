"""A transform over those events of a batch that can be processed; the others are kept apart as dead.

Without a policy, the first event that cannot be processed stops the partition. With one, the event is left out, and is passed
on as dead with the others' output, so that a sink takes both or neither.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.dead_letters.guards import ParkGuard, RateGuard, too_many
from leasehold.pipeline.dead_letters.record import dead_events
from leasehold.pipeline.dead_letters.refusals import ATTEMPTS
from leasehold.pipeline.errors import FailsTogether, MalformedRecord, Poison, PoisonEvent, TooMuchPoison
from leasehold.pipeline.transform import Transform


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    """A pipeline's policy.

    - `share_max`, `share_events`: a partition stops if more than this share of this many consecutive events are dead.
    """

    now: Callable[[], datetime]
    """The wall clock, aware."""
    attempts: int = ATTEMPTS
    """How often the sink must have refused an event's output before the event is dead."""
    share_max: float = 0.1
    share_events: int = 1000
    stops_at_misfits: bool = False
    """Whether a body that does not fit the schema stops the partition all the same."""
    guards: dict[str, RateGuard] = field(default_factory=dict)
    """By partition. They outlive a retry, which must not start the count over."""
    park_guards: dict[str, ParkGuard] = field(default_factory=dict)
    """The same for events that the sink parks."""

    def guard_of(self, partition: str) -> RateGuard:
        return self.guards.setdefault(partition, RateGuard(events=self.share_events, share_max=self.share_max))

    def park_guard_of(self, partition: str) -> ParkGuard:
        return self.park_guards.setdefault(partition, ParkGuard(events=self.share_events, share_max=self.share_max))


class Sifted(NamedTuple):
    """table: the transform's output. dead: DEAD_SCHEMA, of those events that have no dead letter yet; None for none.

    left_out: the places of the batch's events that the output was not made from: dead ones, also those of earlier runs.
    """

    table: pa.Table
    dead: pa.Table | None
    left_out: Sequence[int] = ()


class DeadLetterTransform:
    """The dead letters of one partition. buried: the sequences of events whose dead letters are kept already.

    moved: called each time poison was found, because a batch with much poison takes a long time. refused: by sequence, what
    the sink has refused for ever.
    """

    def __init__(
        self,
        transform: Transform,
        policy: DeadLetters | None,
        partition: str,
        buried: Collection[int],
        moved: Callable[[], None] = lambda: None,
        refused: Mapping[int, Poison] = MappingProxyType({}),
    ) -> None:
        self._transform = transform
        self._policy = policy
        self._partition = partition
        self._buried = frozenset(buried)
        self._moved = moved
        self._refused = refused
        self._known: dict[int, Poison] = {}
        """By sequence, recent findings: a batch may be repeated, cut into parts."""

    async def sift(self, batch: Batch) -> Sifted:
        """Raises what `Transform.apply` does, but PoisonEvent only if the partition has to stop."""
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
        return Sifted(table, self._table_of(batch, dead), sorted({*dead, *gone}))

    def pass_over(self, events: int) -> None:
        """This many events were processed elsewhere, and all were good."""
        if self._policy is not None:
            self._policy.guard_of(self._partition).pass_over(events)

    def _known_dead(self, batch: Batch, first: int) -> tuple[dict[int, Poison], list[int]]:
        """By place, the events that are dead whatever the transform does; and the places of those that are buried."""
        known = {**self._known, **self._refused}
        malformed = _malformed(batch)
        if not (known or malformed or self._buried):
            return {}, []
        dead, gone = {}, []
        for place, sequence in enumerate(batch.sequences):
            if sequence in self._buried:
                gone.append(place)
            elif sequence in known:
                dead[place] = replace(known[sequence], index=place)
            elif place in malformed:
                dead[place] = Poison(index=place, reason=malformed[place], is_misfit=True)
        return dead, gone

    async def _apply(
        self, batch: Batch, dead: dict[int, Poison], gone: Sequence[int], check: Callable[[], None]
    ) -> pa.Table:
        """The output of the events that can be processed. Others are added to `dead`, and `check` is called each time."""
        while True:
            out = sorted({*dead, *gone})
            try:
                return await self._transform.apply(batch.without(out) if out else batch)
            except FailsTogether as error:
                raise _placed(error, out) from error
            except PoisonEvent as error:
                self._moved()
                self._remember(batch, {_index_in_batch(each.index, out): each for each in error.found}, dead)
                check()
                if error.output is not None:
                    return error.output

    def _remember(self, batch: Batch, found: Mapping[int, Poison], dead: dict[int, Poison]) -> None:
        sequences = batch.sequences
        for place, poison in found.items():
            dead[place] = self._known[sequences[place]] = replace(poison, index=place)

    def _refuse(self, batch: Batch, guard: RateGuard, first: int, dead: Mapping[int, Poison]) -> None:
        """Raises PoisonEvent if the policy permits no further dead letter."""
        assert self._policy is not None
        misfit = min((place for place in dead if dead[place].is_misfit), default=None)
        if misfit is not None and self._policy.stops_at_misfits:
            raise self._stop(PoisonEvent, batch, dead[misfit], "correct the event or the schema")
        place = guard.one_too_many(first, sorted(dead))
        if place is not None:
            raise self._stop(TooMuchPoison, batch, dead[place], too_many(guard.most, guard.events))

    def _stop(self, kind: type[PoisonEvent], batch: Batch, poison: Poison, what: str) -> PoisonEvent:
        sequence = batch.sequences[poison.index]
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
    """Raises MalformedRecord for the first malformed record."""
    for reason in _malformed(batch).values():
        raise MalformedRecord(reason)


def _first_of(batch: Batch) -> int | None:
    for page in batch.pages:
        if page.events.num_rows:
            return int(page.events.column("sequence")[0].as_py())
    return None


def _index_in_batch(index: int, out: Sequence[int]) -> int:
    """The index in the whole batch of the event at `index` in the batch without those at `out` (ascending)."""
    for each in out:
        if each > index:
            break
        index += 1
    return index


def _placed(error: FailsTogether, out: Sequence[int]) -> FailsTogether:
    return FailsTogether(
        str(error),
        before=_index_in_batch(error.before, out),
        sequence=error.sequence,
        events=error.events,
        cut=_index_in_batch(error.cut, out),
    )
