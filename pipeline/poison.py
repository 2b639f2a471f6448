"""Finding the events that a transform fails on: which range to try next, and how to name what was found. Pure.

The batch has failed as a whole, and is halved. Where the left half works, the right one has to fail, and is halved without being
tried; where it fails, the right one may hold more poison, and is tried too. A lone poison event among n >= 2 costs at most
2 * log2(n) tries, and one more job makes the output of all the others. An event is blamed only once it has failed on its own.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import pyarrow as pa

from pipeline.errors import Poison

NOTHING = range(0)
"""Tried before the first event is blamed, where nothing has worked yet: a transform that fails on it is wrong itself."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Events to try. again: how often just these have been tried before, and have failed."""

    range: range
    again: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """poison: by place. together: the smallest range that was seen to fail, though each half of it works, where there was one.

    fails_always: it fails without any events too, for the reason given.
    """

    poison: tuple[Poison, ...]
    together: range | None
    fails_always: str | None


Steps = Generator[Trial, str | None, None]


def search(events: int, reason: str, *, attempts: int = 2, most: int = 1) -> Generator[Trial, str | None, Found]:
    """Yields what to try of a batch of `events` events that has just failed for `reason`; is sent why that failed, or None.

    attempts: how often an event must have failed, alone or with others, before it is blamed. most: how much poison to look for.
    """
    search = _Search(attempts, most)
    yield from search.within(range(events), 1, reason)
    return Found(tuple(search.poison), search.together, search.fails_always)


class _Search:
    def __init__(self, attempts: int, most: int) -> None:
        self.poison: list[Poison] = []
        self.together: range | None = None
        self.fails_always: str | None = None
        self._attempts = attempts
        self._most = most
        self._has_worked = False

    @property
    def is_done(self) -> bool:
        return len(self.poison) >= self._most or self.fails_always is not None

    def within(self, failing: range, failures: int, reason: str | None) -> Steps:
        """failures: how many jobs with these events have failed. reason: why these alone have; None where they were not tried."""
        if len(failing) == 1:
            yield from self._alone(failing, failures, reason)
            return
        found = len(self.poison)
        yield from self._halved(failing, failures)
        if reason is not None and len(self.poison) == found and not self.is_done and self.together is None:
            self.together = failing

    def _halved(self, failing: range, failures: int) -> Steps:
        middle = halfway(failing)
        left, right = range(failing.start, middle), range(middle, failing.stop)
        of_left = yield from self._tried(Trial(left))
        if of_left is None:
            yield from self.within(right, failures, None)
            return
        of_right = yield from self._tried(Trial(right))
        yield from self.within(left, failures + 1, of_left)
        if of_right is not None and not self.is_done:
            yield from self.within(right, failures + 1, of_right)

    def _alone(self, one: range, failures: int, reason: str | None) -> Steps:
        again = 0 if reason is None else 1
        while reason is None or failures < self._attempts:
            reason = yield from self._tried(Trial(one, again))
            if reason is None:
                return
            failures, again = failures + 1, again + 1
        if not self._has_worked:
            self.fails_always = yield from self._tried(Trial(NOTHING))
        if self.fails_always is None:
            self.poison.append(Poison(index=one.start, reason=reason, attempts=failures))

    def _tried(self, trial: Trial) -> Generator[Trial, str | None, str | None]:
        reason = yield trial
        self._has_worked = self._has_worked or reason is None
        return reason


def halfway(events: range) -> int:
    """Where a range is cut: the right half is the larger one."""
    return (events.start + events.stop) // 2


def place_of(events: pa.Table) -> str:
    """Where people find these events: partition, sequence and, where the feed says so, the record of the source."""
    first, last = events.slice(0, 1).to_pylist()[0], events.slice(events.num_rows - 1).to_pylist()[0]
    partition = f"partition '{first['partition']}'"
    if events.num_rows == 1:
        return f"{partition}, sequence {first['sequence']}{_source(first['properties'])}"
    return (
        f"{partition}, sequences {first['sequence']}{_source(first['properties'])} to {last['sequence']}"
        f"{_source(last['properties'])}, {events.num_rows} events that fail only together"
    )


def _source(properties: list[tuple[str, str]] | None) -> str:
    said = dict(properties or ())
    return f" (file {said['file']}, line {said['line']})" if {"file", "line"} <= said.keys() else ""
