"""Events and batches of them, before and after they are published: free, then numbered while they are sent, then kept or dropped.

A broker knows a producer by its group (int64) and its owner level (int16). A higher level closes the lower ones and starts
sequence numbers of its own (int32, one per event, 0 following the largest). All three are kept per partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leasehold.pipeline.producer.errors import AlreadyPublished, BatchLocked

if TYPE_CHECKING:
    from uuid import UUID


NUMBER_MAX = 2**31 - 1
NOTHING_YET = -1
"""The last number of a producer that has published nothing: some brokers answer this, others 0."""
GROUP_MAX = 2**63 - 1
OWNER_LEVEL_MAX = 2**15 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerPosition:
    """A producer of one partition. number: of the last event published, or the one to start after, or NOTHING_YET."""

    group: int
    level: int
    number: int

    def after(self, events: int) -> ProducerPosition:
        return replace(self, number=number_after(self.number, events))

    @property
    def asked(self) -> AttachRequest:
        return AttachRequest(group=self.group, level=self.level, number=self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachRequest:
    """What a link asks for; None leaves the choice to the broker."""

    group: int | None = None
    """The producer group's id."""
    level: int | None = 0
    """The owner level; a higher one closes the lower ones."""
    number: int | None = None
    """The sequence number of the last event that was published: the first event gets the next one. NOTHING_YET leaves it to the
    broker, too."""

    def __post_init__(self) -> None:
        bounds = (("group", 0, GROUP_MAX), ("level", 0, OWNER_LEVEL_MAX), ("number", NOTHING_YET, NUMBER_MAX))
        for name, least, most in bounds:
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise ValueError(f"{name} has to be a number from {least} to {most}, or None, and is {value}")

    @property
    def is_whole(self) -> bool:
        """Whether nothing is left to the broker."""
        return None not in (self.group, self.level, self.number)


def number_after(number: int, events: int = 1) -> int:
    """The sequence number this many events later."""
    return (number + events) & NUMBER_MAX


Simple: TypeAlias = "str | bytes | bool | int | float | datetime | UUID | None"
"""What a property may be. A broker may take less."""


@dataclass(slots=True, kw_only=True)
class OutgoingEvent:
    """An event to publish. number: the sequence number that it was published under; None before that, and after a failure."""

    body: bytes
    properties: Mapping[str, Simple] = field(default_factory=dict)
    number: int | None = field(default=None, init=False)
    is_under_way: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether it is in a set that is being sent, and will be numbered."""


class PreparedEvent(NamedTuple):
    """An event as its broker takes it. size: the bytes that it adds to a batch, with the longest possible number."""

    payload: Any
    size: int


class EventBatch:
    """Events of one partition that are published together, all or none.

    partition, key: where they go. bytes_max: the broker's limit, or a lower one. It is made by `create_batch`.
    """

    def __init__(
        self,
        *,
        partition: str | None,
        key: str | None,
        bytes_max: int,
        envelope_bytes: int,
        prepare: Callable[[OutgoingEvent], PreparedEvent],
    ) -> None:
        self.partition = partition
        self.key = key
        self.bytes_max = bytes_max
        self.size_bytes = envelope_bytes
        self.starting_sequence_number: int | None = None
        """The number of the first event once it is published; the others follow it, one by one."""
        self._prepare = prepare
        self._payloads: list[Any] = []
        self._is_locked = False
        self._is_published = False

    def __len__(self) -> int:
        return len(self._payloads)

    @property
    def is_published(self) -> bool:
        return self._is_published

    def try_add(self, event: OutgoingEvent) -> bool:
        """Add the event if it fits, measured with the largest number, as it has none yet. Raises BatchLocked, ValueError."""
        if self._is_locked:
            raise BatchLocked("the batch is being published, or was: make a new one for further events")
        payload, size = self._prepare(event)
        if self.size_bytes + size > self.bytes_max:
            return False
        self._payloads.append(payload)
        self.size_bytes += size
        return True

    @property
    def payloads(self) -> list[object]:
        """A copy: more events may be added to a batch whose outcome is unknown, and it is settled without them."""
        return list(self._payloads)

    def begin(self) -> None:
        """Lock the batch. Raises AlreadyPublished, BatchLocked."""
        if self._is_published:
            raise AlreadyPublished("the batch was published before: make a new one of the events to publish again")
        if self._is_locked:
            raise BatchLocked("the batch is being published by another producer: make a batch for each")
        self._is_locked = True

    def keep(self, first: int | None) -> None:
        """The batch is published. first: its first event's number; None if the broker does not number events."""
        self._is_published, self.starting_sequence_number = True, first

    def drop(self) -> None:
        """The send failed: the batch is as if it had never been sent."""
        self._is_locked = False


class EventSet:
    """A set of events, as one batch. is_numbered: its events get numbers, so each may be in one send at a time, and only once."""

    key: str | None

    def __init__(
        self,
        events: Sequence[OutgoingEvent],
        key: str | None,
        prepare: Callable[[OutgoingEvent], PreparedEvent],
        *,
        is_numbered: bool,
    ) -> None:
        self.key = key
        self._events = tuple(events)
        self._prepare = prepare
        self._is_numbered = is_numbered
        self.payloads: list[object] = []
        self.size_bytes = 0

    def begin(self) -> None:
        """Raises AlreadyPublished, BatchLocked, ValueError."""
        for event in self._events:
            if event.number is not None:
                raise AlreadyPublished(
                    f"an event of the set was published before, under number {event.number}: make a new event to publish it"
                    " again"
                )
        prepared = [self._prepare(event) for event in self._events]
        if self._is_numbered:
            self._take()
        self.payloads = [one.payload for one in prepared]
        self.size_bytes = sum(one.size for one in prepared)

    def _take(self) -> None:
        is_once = len({id(event) for event in self._events}) == len(self._events)
        if not is_once or any(event.is_under_way for event in self._events):
            raise BatchLocked("an event of the set is in it twice, or is being published: make an event for each time")
        self._mark(is_so=True)

    def keep(self, first: int | None) -> None:
        self._mark(is_so=False)
        for place, event in enumerate(self._events):
            event.number = None if first is None else number_after(first, place)

    def drop(self) -> None:
        """The send failed: its events have no numbers yet."""
        self._mark(is_so=False)

    def _mark(self, *, is_so: bool) -> None:
        if self._is_numbered:
            for event in self._events:
                event.is_under_way = is_so
