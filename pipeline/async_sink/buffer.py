"""Entries that wait to be sent, in the order in which they came, whatever failed in between. Pure.

Entries are numbered as they come, and the lowest number goes first: what failed is at the front again, in its order. Of entries
with the same order key one at a time is ready or sent; the others wait behind it, so that no failure can swap them. After a
request that may still be carried out although it failed, they also wait until it has had its time: else an earlier version could
replace a later one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from pipeline.async_sink.entry import Entry

_Held = tuple[int, float, Entry]
"""Its number, since when it waits, and the entry. Numbers differ, so that entries are never compared."""


class EntryBuffer:
    """entries, bytes: what waits to be sent. ready, ready_bytes: what of it waits for nothing before it."""

    def __init__(self) -> None:
        self.entries = self.bytes = self.ready_bytes = 0
        self._fresh: deque[_Held] = deque()
        self._again: list[_Held] = []
        self._lines: dict[str, deque[_Held]] = {}
        self._late: dict[str, float] = {}
        self._resting: list[tuple[float, str]] = []
        self._sent: dict[int, _Held] = {}

    @property
    def ready(self) -> int:
        return len(self._fresh) + len(self._again)

    @property
    def oldest_since(self) -> float | None:
        """Of what is ready, since when the first one waits."""
        return self._first[1] if self.ready else None

    def add(self, entry: Entry, now: float) -> None:
        held = (entry.number, now, entry)
        self.entries += 1
        self.bytes += entry.bytes
        if entry.order is not None and entry.order in self._lines:
            self._lines[entry.order].append(held)
            return
        if entry.order is not None:
            self._lines[entry.order] = deque()
        self._fresh.append(held)
        self.ready_bytes += entry.bytes

    def cut(self, entries_max: int, bytes_max: int) -> tuple[Entry, ...]:
        """The first ones that are ready, as many as fit. They count as sent."""
        taken: list[Entry] = []
        size = 0
        while self.ready and len(taken) < entries_max:
            held = self._first
            entry = held[2]
            if taken and size + entry.bytes > bytes_max:
                break
            self._take_first()
            self._sent[entry.number] = held
            taken.append(entry)
            size += entry.bytes
        self.entries -= len(taken)
        self.bytes -= size
        self.ready_bytes -= size
        return tuple(taken)

    @property
    def rests_until(self) -> float | None:
        """When the next line goes on that waits for a late request. None: no line waits for one."""
        return self._resting[0][0] if self._resting else None

    def put_back(self, failed: Sequence[Entry], *, late_until: float | None = None) -> None:
        """To the front, each in its place. Raises KeyError where one is not on its way (or came back before).

        late_until: the failed request may be carried out until then. None: it surely is not.
        """
        for entry in failed:
            number, since, sent = self._sent.pop(entry.number)
            if entry.order != sent.order:
                self._sent[number] = (number, since, sent)
                raise KeyError(number)
            self.entries += 1
            self.bytes += entry.bytes
            if late_until is not None and entry.order is not None:
                self._late[entry.order] = late_until
            self._make_ready((number, since, entry))

    def acknowledged(self, entry: Entry, now: float) -> None:
        """It is where it belongs. The next one of its line may follow, at once or after a late request has had its time."""
        order = self._sent.pop(entry.number)[2].order
        if order is None:
            return
        late_until = self._late.pop(order, now)
        if late_until > now:
            heappush(self._resting, (late_until, order))
        else:
            self._follow(order)

    def rouse(self, now: float) -> None:
        """Lines go on whose late requests have had their time."""
        while self._resting and self._resting[0][0] <= now:
            self._follow(heappop(self._resting)[1])

    def _follow(self, order: str) -> None:
        line = self._lines[order]
        if line:
            self._make_ready(line.popleft())
        else:
            del self._lines[order]

    @property
    def _is_fresh(self) -> bool:
        """Whether the first that is ready has just come. Those are in their order; what failed, or has waited in a line, belongs
        among them."""
        return not self._again or bool(self._fresh and self._fresh[0] < self._again[0])

    @property
    def _first(self) -> _Held:
        return self._fresh[0] if self._is_fresh else self._again[0]

    def _take_first(self) -> None:
        if self._is_fresh:
            self._fresh.popleft()
        else:
            heappop(self._again)

    def _make_ready(self, held: _Held) -> None:
        heappush(self._again, held)
        self.ready_bytes += held[2].bytes
