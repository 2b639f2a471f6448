"""Finding the events that a transform fails on: which range to try next (a pure search), and how to name what was found.

The batch has failed as a whole. Halving leads to its first poison event: if the left half works, the right one has to fail,
and is halved without being tried. All events after the first poison event are tried next. If they fail too, and after each later
poison event, parts of the rest are tried until one fails and is halved. The first part is as long as the distance from the
poison event before the last one (at first from the batch's start) to the last one, and each next part is twice as long. So a
lone poison event among n >= 2 costs at most 2 * log2(n) tries, mostly log2(n) + 2. Each of many costs not much more than log2 of
its distance to the one before. One more job makes the output of all the others. An event is blamed only once it has failed
alone.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from leasehold.common.clock import Clock, LoopClock
from leasehold.pipeline.batch import Batch
from leasehold.pipeline.errors import (
    EngineUnavailable,
    FailsTogether,
    PipelineError,
    Poison,
    PoisonEvent,
    TransformError,
)
from leasehold.pipeline.event import EVENT_SCHEMA
from leasehold.pipeline.limits import FIRST_ONE, Isolation


class JobFailed(PipelineError):
    """A job failed on these events; whether it is their fault is not known yet. It is never raised outside this package."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A slice with events that the engine refuses at once, because their bodies do not fit the schema.

    poison: by place in the slice, at least one. output: what the others became; None if they were not processed.
    """

    poison: tuple[Poison, ...]
    output: pa.Table | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Some consecutive events of a batch."""

    batch: Batch
    range: range

    @property
    def partition(self) -> str:
        return self.batch.partition

    @property
    def table(self) -> pa.Table:
        """The events, in as many chunks as pages; nothing is copied."""
        parts, start, stop = [], self.range.start, self.range.stop
        for page in self.batch.pages:
            rows = page.events.num_rows
            if start < rows and stop > 0:
                parts.append(page.events.slice(max(start, 0), stop - max(start, 0)))
            start, stop = start - rows, stop - rows
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *parts])


@dataclass(frozen=True, slots=True)
class Prepared:
    """A slice as the engine receives it.

    events: with the columns that the engine reads; None if the slice is not processed, because of its poison.
    poison: by place in the slice.
    """

    slice: Slice
    events: pa.Table | None
    poison: tuple[Poison, ...] = ()

    @property
    def bytes(self) -> int:
        """How much the engine receives."""
        return 0 if self.events is None else self.events.nbytes


class Job(Protocol):
    """Whatever runs a transform over events, off the event loop."""

    async def prepare(self, slice: Slice) -> Prepared:
        """What the engine receives of a slice."""
        ...

    async def run(self, slices: Sequence[Prepared]) -> list[pa.Table | Refused]:
        """The output of each slice; all slices are of different partitions. Cancelling it ends the work first.

        Raises JobFailed, TransformError, EngineUnavailable.
        """
        ...


NOTHING = range(0)
"""Tried before the first event is blamed, if nothing has worked yet: a transform that fails on no events is itself wrong."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Events to try. again: how often exactly these have failed before."""

    range: range
    again: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """poison: by place. together: the smallest range that failed although each half of it works; None if there is none.

    fails_always: why the transform fails even without events; None if it does not.
    """

    poison: tuple[Poison, ...]
    together: range | None
    fails_always: str | None


Steps = Generator[Trial, str | None, None]


def search(events: int, reason: str, *, attempts: int = 2, most: int = 1) -> Generator[Trial, str | None, Found]:
    """Yields what to try of a batch of `events` events that has just failed for `reason`; receives why that failed, or None.

    attempts: how often an event must have failed, alone or with others, before it is blamed. most: the most poison to find.
    """
    search = _PoisonSearch(attempts, most)
    yield from search.through(range(events), reason)
    return Found(tuple(search.poison), search.together, search.fails_always)


@dataclass(frozen=True, slots=True)
class _Failing:
    """A range that is known to fail. failures: how many jobs with all of it have failed. reason: why; None if it was not tried
    alone, and has to fail because the other half works."""

    range: range
    failures: int
    reason: str | None


class _PoisonSearch:
    def __init__(self, attempts: int, most: int) -> None:
        self.poison: list[Poison] = []
        self.together: range | None = None
        self.fails_always: str | None = None
        self._attempts = attempts
        self._most = most
        self._has_worked = False

    def through(self, events: range, reason: str) -> Steps:
        """Search from left to right."""
        failing: _Failing | None = _Failing(events, 1, reason)
        begin = events.start
        while failing is not None:
            found = yield from self._first_of(failing)
            if found is None:
                return
            rest, size, begin = range(found.index + 1, events.stop), found.index + 1 - begin, found.index + 1
            is_last = len(self.poison) + 1 >= self._most
            failing = None if is_last else (yield from self._next(rest, size))
            yield from self._blame(found)
            if self.fails_always is not None:
                return

    def _first_of(self, failing: _Failing) -> Generator[Trial, str | None, Poison | None]:
        """The first poison event in a range that fails; None if its events fail only together."""
        smallest: range | None = None
        while len(failing.range) > 1:
            smallest = smallest if failing.reason is None else failing.range
            middle = halfway(failing.range)
            left, right = range(failing.range.start, middle), range(middle, failing.range.stop)
            reason = yield from self._tried(Trial(left))
            works = reason is None
            failing = _Failing(right if works else left, failing.failures + (not works), reason)
        return (yield from self._alone(failing, smallest))

    def _alone(self, one: _Failing, smallest: range | None) -> Generator[Trial, str | None, Poison | None]:
        reason, failures, again = one.reason, one.failures, 0 if one.reason is None else 1
        while reason is None or failures < self._attempts:
            reason = yield from self._tried(Trial(one.range, again))
            if reason is None:
                self.together = smallest
                return None
            failures, again = failures + 1, again + 1
        return Poison(index=one.range.start, reason=reason, attempts=failures)

    def _next(self, rest: range, size: int) -> Generator[Trial, str | None, _Failing | None]:
        """The next range that fails after a poison event; None if there is none. size: how many events to try first."""
        failures = 1
        if rest and not self.poison:  # usually there is only one
            reason = yield from self._tried(Trial(rest))
            if reason is None:
                return None
            failures, is_known = 2, True
        else:
            is_known = False
        while rest:
            if is_known and size >= len(rest):
                return _Failing(rest, failures, None)
            part = rest[:size]
            reason = yield from self._tried(Trial(part))
            if reason is not None:
                return _Failing(part, failures + 1, reason)
            rest, size = rest[size:], 2 * size
        return None

    def _blame(self, found: Poison) -> Steps:
        if not self._has_worked:
            self.fails_always = yield from self._tried(Trial(NOTHING))
        if self.fails_always is None:
            self.poison.append(found)

    def _tried(self, trial: Trial) -> Generator[Trial, str | None, str | None]:
        reason = yield trial
        self._has_worked = self._has_worked or reason is None
        return reason


def halfway(events: range) -> int:
    """The place at which a range is cut: if its length is odd, the right half is the larger one."""
    return (events.start + events.stop) // 2


def place_of(events: pa.Table) -> str:
    """The place of these events, for people: partition, sequence and, if the feed knows it, the record of the source."""
    first, last = events.slice(0, 1).to_pylist()[0], events.slice(events.num_rows - 1).to_pylist()[0]
    partition = f"partition '{first['partition']}'"
    if events.num_rows == 1:
        return f"{partition}, sequence {first['sequence']}{_source(first['properties'])}"
    return (
        f"{partition}, sequences {first['sequence']}{_source(first['properties'])} to {last['sequence']}"
        f"{_source(last['properties'])}, {events.num_rows} events that fail only together"
    )


def _source(properties: list[tuple[str, str]] | None) -> str:
    found = dict(properties or ())
    return f" (file {found['file']}, line {found['line']})" if {"file", "line"} <= found.keys() else ""


SEQUENCE = "sequence"


async def find_culprits(
    batch: Batch, failure: JobFailed, job: Job, isolation: Isolation = FIRST_ONE, clock: Clock | None = None
) -> Exception:
    """The error for a batch that has failed in a job of its own. Raises what `job.run` does, except JobFailed."""
    steps = search(batch.events, str(failure), attempts=isolation.attempts, most=isolation.most)
    trial = next(steps)
    while True:
        if pause_s := isolation.pause_s(trial.again):
            await (clock or LoopClock()).sleep(pause_s)
        reason = await _try(job, Slice(batch, trial.range))
        try:
            trial = steps.send(reason)
        except StopIteration as end:
            return _error_of(batch, end.value, str(failure))


async def _try(job: Job, events: Slice) -> str | None:
    try:
        await job.run([await job.prepare(events)])
    except JobFailed as failure:
        return str(failure)
    return None


def _error_of(batch: Batch, found: Found, reason: str) -> Exception:
    if found.fails_always is not None:
        return TransformError(f"the transform fails whatever the events are: {found.fails_always}")
    if found.poison:
        return poison_event(batch, found.poison)
    if found.together is None:
        return EngineUnavailable(
            f"a job over partition '{batch.partition}' failed once and did not fail again: {reason}"
        )
    events = Slice(batch, found.together).table
    return FailsTogether(
        f"{place_of(events)}: {reason}: give the partition smaller batches (batch_events_max)",
        before=found.together.start,
        sequence=events.column(SEQUENCE)[0].as_py(),
        events=len(found.together),
        cut=halfway(found.together),
    )


def refused_events(batch: Batch, refused: Refused) -> PoisonEvent:
    return poison_event(batch, refused.poison, refused)


def poison_event(batch: Batch, poison: Sequence[Poison], refused: Refused | None = None) -> PoisonEvent:
    first = poison[0]
    event = Slice(batch, range(first.index, first.index + 1)).table
    return PoisonEvent(
        f"{place_of(event)}: {first.reason}: correct the event or the transform, and processing continues from there",
        before=first.index,
        sequence=event.column(SEQUENCE)[0].as_py(),
        found=poison,
        output=None if refused is None else refused.output,
    )
