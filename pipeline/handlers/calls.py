"""Which call of a handler is due, and what its outcome means. Pure; `now` is the time.

Events of one key form a queue: one call of a queue runs at a time, and a failed call is repeated before all that follow it. Each
event without a key is a queue of its own. A failed call with several events is repeated event by event, so that only the event
that fails is to blame. If that fails too often, its key is parked: for some time its events become dead letters without a call,
because they would otherwise overtake the one that failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from leasehold.common.clock import Backoff
from leasehold.pipeline.async_sink.buffer import EntryBuffer
from leasehold.pipeline.async_sink.request_entry import Entry
from leasehold.pipeline.async_sink.scheduler import Scheduler
from leasehold.pipeline.limits import ParallelLimits

BACKOFF_S_MAX = 30.0
KEYED, UNKEYED = "=", "#"
"""How the names of queues begin."""
LETTERS_MAX = 100
"""Events of a parked key that become dead letters in one step."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the handler. entries: of one key, in their order. is_parked: they become dead letters instead."""

    entries: tuple[Entry, ...]
    is_parked: bool

    @property
    def first(self) -> Entry:
        return self.entries[0]

    @property
    def has_key(self) -> bool:
        return str(self.first.order).startswith(KEYED)


class CallScheduler(Scheduler[Call]):
    """is_hurried: without effect, because no call waits for more events."""

    def __init__(self, limits: ParallelLimits, position: str | None) -> None:
        super().__init__(position)
        self.in_flight = 0
        self._limits = limits
        self._backoff = Backoff(first_s=limits.backoff_s, max_s=max(limits.backoff_s, BACKOFF_S_MAX))
        self._buffer = EntryBuffer(shares_requests=True)
        self._open: dict[int, int] = {}
        """The bytes of each event that is not acknowledged, by its number."""
        self._bytes = 0
        self._failures: Counter[int] = Counter()
        """By the number of the first event of a call: how often the call failed."""
        self._pauses: Counter[int] = Counter()
        """By the same number: how often the call failed, or the handler was not available."""
        self._repeats: Counter[int] = Counter()
        """By the number of an event: how many calls with it have failed and had to be repeated."""
        self._alone: dict[str | None, int] = {}
        """Queues whose events up to this number the handler gets one by one."""
        self._parked: dict[str | None, float] = {}

    @property
    def has_room(self) -> bool:
        """Whether another event may be taken."""
        return self.unsettled < self._limits.window and self._bytes < self._limits.window_bytes

    def parked_keys(self, now: float) -> int:
        self._parked = {order: until for order, until in self._parked.items() if until > now}
        return len(self._parked)

    def take(self, value: Any, bytes: int, key: str | None, sequence: int | None, now: float) -> None:
        """key: None for an event that waits for no other."""
        number = self._prefix.take()
        order = f"{UNKEYED}{number}" if key is None else KEYED + key
        entry = Entry(number=number, key=key or "", value=value, bytes=bytes, order=order, sequence=sequence)
        self._open[number] = bytes
        self._bytes += bytes
        self._buffer.add(entry, now)

    def due_in_s(self, now: float) -> float | None:
        """Seconds until a call is due; None if only an outcome or an event can make one due."""
        self._buffer.rouse(now)
        if self.in_flight >= self._limits.max:
            return None
        if self._buffer.ready:
            return 0.0
        rest = self._buffer.rests_until
        return None if rest is None else rest - now

    def next(self, now: float) -> Call:
        """The call that is due. It counts as begun."""
        first = self._buffer.first
        assert first is not None, "a call is due"
        is_parked = self._parked.get(first.order, -inf) > now
        if is_parked:
            most = LETTERS_MAX
        elif first.number <= self._alone.get(first.order, -1):
            most = 1
        else:
            most = self._limits.events_max or 1
            self._alone.pop(first.order, None)
        self.in_flight += 1
        return Call(self._buffer.cut(most, self._limits.window_bytes, of_one_line=True), is_parked)

    def is_open(self, entry: Entry) -> bool:
        """Whether the entry is not acknowledged yet."""
        return entry.number in self._open

    def acknowledge(self, entries: Iterable[Entry]) -> None:
        """These entries are processed. Their call may still run for the others."""
        numbers = [entry.number for entry in entries if entry.number in self._open]
        for number in numbers:
            self._bytes -= self._open.pop(number)
        self._prefix.acknowledge(numbers)

    def finish(self, call: Call, now: float) -> None:
        """The handler has returned. The next call of this key may begin."""
        if not self._limits.manual_ack:
            self.acknowledge(call.entries)
        self._end(call, now)

    def park(self, call: Call, now: float) -> None:
        """All events of a call are dead letters."""
        self.acknowledge(call.entries)
        if not call.is_parked and call.has_key:
            self.parked_keys(now)  # forgets keys whose time is over
            self._parked[call.first.order] = now + self._limits.park_s
        self._end(call, now)

    def fail(self, call: Call, now: float, *, jitter: float, at_least_s: float = 0.0, counts: bool = True) -> bool:
        """After a pause, the handler is called again with what is not acknowledged. False if that has failed too often: `park`
        the call, or give up.

        counts: whether the events may be to blame. jitter: 0 to 1.
        """
        left = [entry for entry in call.entries if entry.number in self._open]
        if not left:
            self._end(call, now)
            return True
        first = left[0].number
        if counts and len(call.entries) == 1:
            self._failures[first] += 1
            if self._failures[first] >= self._limits.attempts:
                return False
        self._pauses[first] += 1
        self._repeats.update(entry.number for entry in left)
        if counts and len(left) > 1:
            self._alone[call.first.order] = left[-1].number
        pause_s = self._backoff.pause_s(self._pauses[first], jitter, at_least_s)
        self._put_back(call, left, now, pause_s)
        return True

    def put_off(self, call: Call, now: float) -> None:
        """The call was not made, and is due again."""
        self._put_back(call, [entry for entry in call.entries if entry.number in self._open], now, 0.0)

    def unpark(self, call: Call, now: float) -> None:
        """The call's events cannot become dead letters without a call: the handler is called for its key again."""
        self._parked.pop(call.first.order, None)
        self.put_off(call, now)

    def failures(self, call: Call) -> int:
        """How often the first event of the call has failed."""
        return self._failures[call.first.number]

    def attempt(self, call: Call) -> int:
        """Which call with its first event this is, from 1 on."""
        return self._repeats[call.first.number] + 1

    def _put_back(self, call: Call, left: Sequence[Entry], now: float, pause_s: float) -> None:
        self.in_flight -= 1
        self._buffer.put_back(left, rests_until=now + pause_s)
        waiting = {entry.number for entry in left}
        for entry in call.entries:
            if entry.number not in waiting:
                self._forget(entry)
                self._buffer.acknowledged(entry, now)
        self._buffer.rouse(now)

    def _forget(self, entry: Entry) -> None:
        self._failures.pop(entry.number, None)
        self._pauses.pop(entry.number, None)
        self._repeats.pop(entry.number, None)

    def _end(self, call: Call, now: float) -> None:
        self.in_flight -= 1
        for entry in call.entries:
            self._forget(entry)
            self._buffer.acknowledged(entry, now)
        order, last = call.first.order, call.entries[-1].number
        if self._alone.get(order, inf) <= last:
            del self._alone[order]
