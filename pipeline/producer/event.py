"""Events and batches of them, before and after they are published: free, numbered while they are sent, kept or dropped then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pipeline.producer.errors import AlreadyPublished, BatchLocked
from pipeline.producer.numbers import number_after

if TYPE_CHECKING:
    from uuid import UUID

Simple: TypeAlias = "str | bytes | bool | int | float | datetime | UUID | None"
"""What a property may be. A broker may take less."""


@dataclass(slots=True, kw_only=True)
class Event:
    """What is published. number: the sequence number it was published under, None before that and after a failure."""

    body: bytes
    properties: Mapping[str, Simple] = field(default_factory=dict)
    number: int | None = field(default=None, init=False)
    is_under_way: bool = field(default=False, init=False, repr=False, compare=False)
    """In a set that is being sent, which will number it."""


class Prepared(NamedTuple):
    """An event as its broker takes it. size: what it adds to a batch, in bytes, were its number the longest."""

    payload: Any
    size: int


class EventBatch:
    """Events of one partition that are published as one, all or none.

    partition, key: where they go. bytes_max: the broker's limit, or a lower one. It is made by `create_batch`.
    """

    def __init__(
        self,
        *,
        partition: str | None,
        key: str | None,
        bytes_max: int,
        envelope_bytes: int,
        prepare: Callable[[Event], Prepared],
    ) -> None:
        self.partition = partition
        self.key = key
        self.bytes_max = bytes_max
        self.size_bytes = envelope_bytes
        self.starting_sequence_number: int | None = None
        """The number of the first event once it is published; the others follow it, one by one."""
        self._prepare = prepare
        self._prepared: list[Prepared] = []
        self._is_locked = False
        self._is_published = False

    def __len__(self) -> int:
        return len(self._prepared)

    @property
    def is_published(self) -> bool:
        return self._is_published

    def try_add(self, event: Event) -> bool:
        """Whether it fits: measured with the largest sequence number, since it has none yet. Raises BatchLocked, ValueError."""
        if self._is_locked:
            raise BatchLocked("the batch is being published, or was: make a new one for further events")
        prepared = self._prepare(event)
        if self.size_bytes + prepared.size > self.bytes_max:
            return False
        self._prepared.append(prepared)
        self.size_bytes += prepared.size
        return True

    # For the producer

    @property
    def payloads(self) -> list[object]:
        return [prepared.payload for prepared in self._prepared]

    def begin(self) -> None:
        """Lock it. Raises AlreadyPublished."""
        if self._is_published:
            raise AlreadyPublished("the batch was published before: make a new one of what is to be published again")
        if self._is_locked:
            raise BatchLocked("the batch is being published by another producer: make a batch for each")
        self._is_locked = True

    def keep(self, first: int | None) -> None:
        """first: None where the broker does not number."""
        self._is_published, self.starting_sequence_number = True, first

    def drop(self) -> None:
        """It failed: as if it had never been sent."""
        self._is_locked = False


class EventSet:
    """A set of events, as one batch. is_numbered: its events get numbers, so that each is in one send at a time, and once."""

    key: str | None

    def __init__(
        self, events: Sequence[Event], key: str | None, prepare: Callable[[Event], Prepared], *, is_numbered: bool
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
                    f"an event of the set was published before, under number {event.number}: make a new event of what is to be"
                    " published again"
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
        """Its events bear no numbers yet."""
        self._mark(is_so=False)

    def _mark(self, *, is_so: bool) -> None:
        if self._is_numbered:
            for event in self._events:
                event.is_under_way = is_so
