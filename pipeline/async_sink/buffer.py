"""Entries that wait to be sent, in the order in which they arrived, whatever failed in between. Pure.

Entries are numbered as they arrive, and the lowest number is sent first: failed entries return to the front, in their order.
Entries with the same order key are a queue (`line` in the code). One request of a queue is in flight at a time, so no failure can
swap entries. A request that failed may still be carried out late. Its entries are sent again at once, and those after them wait
until the late request has had its time: otherwise an earlier version could replace a later one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from operator import attrgetter, itemgetter

from leasehold.pipeline.async_sink.request_entry import Entry

_Held = tuple[int, float, Entry]
"""An entry's number, since when it has waited, and the entry. Numbers differ, so entries are never compared."""
_Source = deque[_Held] | list[_Held]
"""The first item is the next one: in the order of arrival, or as a heap."""


@dataclass(slots=True)
class _KeyQueue:
    """waiting: a heap. bytes: of what waits. sent: how many entries are on their way; while there are any, the others wait.

    late_until: requests that failed may be carried out until then. late_last: the number of the last entry that all of them had.
    rests: no entry may be sent before late_until.
    """

    waiting: list[_Held] = field(default_factory=list)
    bytes: int = 0
    sent: int = 0
    late_until: float | None = None
    late_last: float = inf
    rests: bool = False

    @property
    def may_send(self) -> bool:
        """Whether the first waiting entry was in all late requests itself, or there is no late request."""
        return bool(self.waiting) and (self.late_until is None or self.waiting[0][0] <= self.late_last)


class EntryBuffer:
    """entries, bytes: what waits to be sent. ready, ready_bytes: what of that waits for no answer, and could be in a request.

    shares_requests: whether a request may hold several entries of a queue; otherwise it holds at most one.
    """

    def __init__(self, *, shares_requests: bool = False) -> None:
        self.entries = self.bytes = self.ready = self.ready_bytes = 0
        self._shares_requests = shares_requests
        self._fresh: deque[_Held] = deque()
        """Entries without an order key, and the first ones of new queues: newly added, and so in order."""
        self._again: list[_Held] = []
        """Entries that failed, and the first ones of queues that have waited: a heap."""
        self._lines: dict[str, _KeyQueue] = {}
        self._resting: list[tuple[float, str]] = []
        """Until when each resting queue rests: a heap."""
        self._sent: dict[int, _Held] = {}

    @property
    def oldest_since(self) -> float | None:
        """Since when the first ready entry has waited."""
        found = self._first_of([])
        return found[0][1] if found else None

    def add(self, entry: Entry, now: float) -> None:
        held = (entry.number, now, entry)
        self._count(entry)
        if entry.order is None:
            self._fresh.append(held)
            self._count_ready(1, entry.bytes)
            return
        line = self._lines.get(entry.order)
        if line is None:
            line = self._lines[entry.order] = _KeyQueue()
            self._fresh.append(held)
        is_ready = not line.sent and not line.rests and (self._shares_requests or not line.waiting)
        _wait(line, held)
        if is_ready:
            self._count_ready(1, entry.bytes)

    @property
    def first(self) -> Entry | None:
        """The entry that `cut` takes first."""
        found = self._first_of([])
        return found[0][2] if found else None

    def cut(self, entries_max: int, bytes_max: int, *, of_one_line: bool = False) -> tuple[Entry, ...]:
        """The first ready entries, as many as fit. They count as sent. of_one_line: only those of the first one's queue."""
        taken: list[Entry] = []
        followers: list[_Held] = []  # a heap: the next entry of each queue with entries in the request
        size = 0
        while len(taken) < entries_max and (
            source := followers if taken and of_one_line else self._first_of(followers)
        ):
            held = source[0]
            entry = held[2]
            if taken and size + entry.bytes > bytes_max:
                break
            if isinstance(source, deque):
                source.popleft()
            else:
                heappop(source)
            self._leave(entry, followers)
            self._sent[entry.number] = held
            taken.append(entry)
            size += entry.bytes
        self.entries -= len(taken)
        self.bytes -= size
        return tuple(taken)

    @property
    def rests_until(self) -> float | None:
        """When the next resting queue continues. None: no queue rests."""
        return self._resting[0][0] if self._resting else None

    def put_back(
        self, failed: Sequence[Entry], *, late_until: float | None = None, rests_until: float | None = None
    ) -> None:
        """Put entries back to the front, each in its place. Raises KeyError if one is not on its way, or has another order key.

        late_until: the failed request may be carried out until then. None: it certainly is not. rests_until: nothing of their
        queues is sent before then.
        """
        last = {entry.order: entry.number for entry in sorted(failed, key=attrgetter("number"))}
        for entry in failed:
            number, since, sent = self._sent.pop(entry.number)
            if entry.order != sent.order:
                self._sent[number] = (number, since, sent)
                raise KeyError(number)
            self._count(entry)
            held = (number, since, entry)
            if entry.order is None:
                heappush(self._again, held)
                self._count_ready(1, entry.bytes)
            else:
                line = self._lines[entry.order]
                if late_until is not None:
                    line.late_until = max(late_until, line.late_until or late_until)
                    line.late_last = min(last[entry.order], line.late_last)
                if rests_until is not None:
                    line.late_until, line.late_last = max(rests_until, line.late_until or rests_until), -1
                _wait(line, held)
                self._land(entry.order, -inf)

    def acknowledged(self, entry: Entry, now: float) -> None:
        """The entry is delivered. The next ones of its queue may follow, at once or after a late request has had its time."""
        order = self._sent.pop(entry.number)[2].order
        if order is not None:
            self._land(order, now)

    def rouse(self, now: float) -> None:
        """Continue queues whose late requests or pauses are over."""
        while self._resting and self._resting[0][0] <= now:
            order = heappop(self._resting)[1]
            self._lines[order].rests = False
            self._resume_line(order, now)

    def _first_of(self, followers: list[_Held]) -> _Source | None:
        """The source with the lowest number, among ready entries and those that may follow in the same request."""
        sources: Iterable[_Source] = filter(None, (self._fresh, self._again, followers))
        return min(sources, key=itemgetter(0), default=None)

    def _leave(self, entry: Entry, followers: list[_Held]) -> None:
        """The entry is no longer ready, nor is its queue while the entry is on its way."""
        if entry.order is None:
            self._count_ready(-1, -entry.bytes)
            return
        line = self._lines[entry.order]
        if not line.sent:
            self._count_line(line, -1)
        heappop(line.waiting)
        line.bytes -= entry.bytes
        line.sent += 1
        if self._shares_requests and line.may_send:
            heappush(followers, line.waiting[0])

    def _land(self, order: str, now: float) -> None:
        line = self._lines[order]
        line.sent -= 1
        if not line.sent:
            self._resume_line(order, now)

    def _resume_line(self, order: str, now: float) -> None:
        """Nothing of the queue is in flight: its first entry may be sent, or the queue rests, or it has ended."""
        line = self._lines[order]
        if line.late_until is not None and line.late_until <= now:
            line.late_until, line.late_last = None, inf
        if line.may_send:
            heappush(self._again, line.waiting[0])
            self._count_line(line, 1)
        elif line.late_until is not None:
            line.rests = True
            heappush(self._resting, (line.late_until, order))
        else:
            del self._lines[order]

    def _count(self, entry: Entry) -> None:
        self.entries += 1
        self.bytes += entry.bytes

    def _count_line(self, line: _KeyQueue, sign: int) -> None:
        if self._shares_requests:
            self._count_ready(sign * len(line.waiting), sign * line.bytes)
        else:
            self._count_ready(sign, sign * line.waiting[0][2].bytes)

    def _count_ready(self, entries: int, size: int) -> None:
        self.ready += entries
        self.ready_bytes += size


def _wait(line: _KeyQueue, held: _Held) -> None:
    heappush(line.waiting, held)
    line.bytes += held[2].bytes
