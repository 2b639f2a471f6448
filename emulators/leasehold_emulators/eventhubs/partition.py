"""One partition: a log of encoded events, each with its number, offset and time, and what its idempotent producers have done."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

from leasehold_emulators.eventhubs.messages import Event, Numbered, placed
from leasehold_emulators.eventhubs.producers import Known, Producer, Refusal, following, published
from leasehold_emulators.eventhubs.selector import Position
from leasehold_emulators.journal import Journal


class Run(NamedTuple):
    """A batch of an idempotent producer: its place, and what its first event carries."""

    start: int
    end: int
    first: Numbered


@dataclass(slots=True, kw_only=True)
class Partition:
    """first: the number of the oldest event still kept. end: the number of the next one; numbers begin with 0."""

    hub: str
    id: str
    messages: list[bytes] = field(default_factory=list)
    offsets: array[int] = field(default_factory=lambda: array("q"))
    times_ms: array[int] = field(default_factory=lambda: array("q"))
    first: int = 0
    size_bytes: int = 0
    last_offset: int = -1
    last_time_ms: int = 0
    events_max: int | None = None
    producers: dict[int, Producer] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)
    repeated: int = 0
    watchers: set[Callable[[], None]] = field(default_factory=set)
    journal: Journal = field(default_factory=Journal)

    @property
    def owner(self) -> str:
        """The partition's name in the journal."""
        return f"{self.hub.lower()}/{self.id}"

    @property
    def end(self) -> int:
        return self.first + len(self.messages)

    def append(self, events: Sequence[Event], now_ms: int) -> None:
        """Append all events or none, with one time, which never goes back. Receivers get them once the journal has them."""
        now_ms = max(now_ms, self.last_time_ms)
        first, begun = self.end, self.size_bytes
        number, offset = first, begun
        for event in events:
            message = placed(event, number, offset, now_ms)
            self.messages.append(message)
            self.offsets.append(offset)
            self.last_offset = offset
            number += 1
            offset += len(message)
        self.times_ms.extend([now_ms] * len(events))
        self.size_bytes, self.last_time_ms = offset, now_ms
        if self.journal.is_kept:
            new = self.messages[first - self.first :]
            fields = {"first": first, "offset": begun, "time": now_ms, "sizes": [len(each) for each in new]}
            self.journal.add(self.owner, "events", fields, b"".join(new), self.end)
        if self.events_max is not None:
            self.trim(self.end - self.events_max)
        self.journal.commit()
        for wake in tuple(self.watchers):
            wake()

    def publish(self, events: Sequence[Event], producer_id: int, now_ms: int) -> Refusal | None:
        """Store a batch of an idempotent producer, unless it repeats a recent one. Returns why it is refused, if it is."""
        numbers = [event.numbered for event in events]
        known = self.producers.get(producer_id) or Producer(id=producer_id, level=-1, last=0)  # was forgotten meanwhile
        outcome = published(known, numbers)
        if isinstance(outcome, Refusal):
            return outcome
        if isinstance(outcome, Known):
            self.repeated += 1
            return None
        self.keep(outcome.after)
        if first := numbers[0]:
            run = Run(self.end, self.end + len(numbers), first)
            self.runs.append(run)
            self.journal.add(self.owner, "run", run._asdict(), until=run.end)
        self.append(events, now_ms)
        return None

    def forget_producers(self) -> int:
        """Forget all producers, as if they had never published. Returns how many there were."""
        forgotten = len(self.producers)
        for producer_id in self.producers:
            self.journal.forget(self.owner, f"producer/{producer_id}")
        self.producers.clear()
        return forgotten

    def keep(self, producer: Producer) -> None:
        self.producers[producer.id] = producer
        if self.journal.is_kept:
            self.journal.put(self.owner, f"producer/{producer.id}", asdict(producer))

    def trim(self, first: int) -> None:
        """Delete the events before `first`, as retention does."""
        count = max(0, min(first, self.end) - self.first)
        if not count:
            return
        del self.messages[:count], self.offsets[:count], self.times_ms[:count]
        self.first += count
        del self.runs[: bisect_right(self.runs, self.first, key=lambda run: run.end)]
        if self.journal.is_kept:
            for kind in ("events", "run"):
                self.journal.forget(self.owner, kind, self.first)
            end = {"size": self.size_bytes, "last_offset": self.last_offset, "last_time": self.last_time_ms}
            self.journal.put(self.owner, "trim", {"first": self.first, **end})

    def end_before(self, events: int, time_ms: int) -> int:
        """The end as it was `events` events ago, or as it was at `time_ms` if that is less."""
        return max(0, min(self.end - events, self.first + bisect_right(self.times_ms, time_ms)))

    def place_of(self, number: int) -> tuple[int, int]:
        """Offset and time of an event, or of the partition's last one if that event was deleted."""
        at = number - self.first
        return (
            (self.offsets[at], self.times_ms[at])
            if at >= 0
            else (self.last_offset if self.end else -1, self.last_time_ms)
        )

    def numbered(self, number: int) -> Numbered | None:
        """What the event with that number carried, if its producer was an idempotent one."""
        at = bisect_right(self.runs, number, key=lambda run: run.start) - 1
        if at < 0 or number >= self.runs[at].end:
            return None
        run = self.runs[at]
        begun = run.first.number
        return run.first if begun is None else run.first._replace(number=following(begun, number - run.start))

    def beyond(self, position: Position) -> str | None:
        """The service's answer to a position past the newest event; None for any other position."""
        what = {"number": "sequence number", "offset": "offset"}.get(position.by)
        last = self.end - 1 if position.by == "number" else self.last_offset if self.end else -1
        if what is None or position.value <= max(last, -1):
            return None
        return f"The supplied {what} '{position.value}' is invalid. The last {what} in the system is '{last}'"

    def number_at(self, position: Position) -> int:
        """The number of the first event that a receiver at this position gets."""
        if position.by == "latest":
            return self.end
        within = bisect_left if position.is_inclusive else bisect_right
        if position.by == "offset":
            return self.first + within(self.offsets, position.value)
        if position.by == "time":
            return self.first + within(self.times_ms, position.value)
        return max(self.first, position.value + (not position.is_inclusive))
