"""The namespace: its hubs, who receives from them, its clock, its keys, and what has been counted."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from leasehold_emulators.eventhubs.faults import Faults
from leasehold_emulators.eventhubs.partition import Partition
from leasehold_emulators.eventhubs.producers import Asked, Attached, Refusal, attached
from leasehold_emulators.eventhubs.receivers import admitted, displaced
from leasehold_emulators.eventhubs.tokens import Keys
from leasehold_emulators.journal import Journal

DEFAULT_GROUP = "$Default"
MESSAGE_BYTES_MAX = 1 << 20
NOT_FOUND = "amqp:not-found"


class Detached(Protocol):
    """A link, as the namespace sees it."""

    epoch: int | None

    def detach(self, refusal: Refusal) -> None: ...


@dataclass(slots=True, kw_only=True)
class Hub:
    """events_max: how many a partition keeps; None for all."""

    name: str
    created_ms: int
    groups: set[str]
    events_max: int | None = None
    partitions: list[Partition] = field(default_factory=list)
    turn: int = 0
    receivers: dict[tuple[str, str], list[Detached]] = field(default_factory=dict)
    journal: Journal = field(default_factory=Journal)

    def grow(self, count: int) -> None:
        """Add partitions up to this count: a hub never loses one."""
        present = len(self.partitions)
        self.partitions += [
            Partition(hub=self.name, id=str(i), events_max=self.events_max, journal=self.journal)
            for i in range(present, count)
        ]
        if present:
            self.journal.add(self.name.lower(), "grow", {"partitions": count})

    def routed(self, key: str | None) -> Partition:
        """A key goes to one partition until the number of partitions changes. Without a key, partitions take turns."""
        if key is not None:
            return self.partitions[zlib.crc32(key.encode()) % len(self.partitions)]
        self.turn += 1
        return self.partitions[self.turn % len(self.partitions)]

    def has_group(self, group: str) -> bool:
        return group.lower() in {name.lower() for name in self.groups}

    def receive(self, group: str, partition: str, link: Detached) -> Refusal | None:
        """Admit the link, and detach those that it displaces. Returns why it is refused, if it is."""
        present = self.receivers.setdefault((group.lower(), partition), [])
        outcome = admitted([other.epoch for other in present], link.epoch)
        if isinstance(outcome, Refusal):
            return outcome
        for other in [present[i] for i in outcome]:
            present.remove(other)
            other.detach(displaced(other.epoch, link.epoch))
        present.append(link)
        return None

    def leave(self, group: str, partition: str, link: Detached) -> None:
        present = self.receivers.get((group.lower(), partition), [])
        if link in present:
            present.remove(link)


@dataclass(slots=True, kw_only=True)
class Namespace:
    """now_ms: its clock. counts: (what, hub, partition, detail) -> how many.

    old_events, old_s: how many events and seconds `$management` lags. reads_per_s_max: how many answers it gives in any second.
    refuses_beyond: whether a receiver that starts past the end is refused. The rest is as in `producers.attached`.
    """

    keys: Keys
    now_ms: Callable[[], int]
    message_bytes_max: int = MESSAGE_BYTES_MAX
    hubs: dict[str, Hub] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    counts: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    replies_known: bool = True
    nothing: int = 0
    refuses_beyond: bool = True
    null_raises: bool = False
    old_events: int = 0
    old_s: float = 0.0
    reads_per_s_max: float = math.inf
    reads_ms: deque[int] = field(default_factory=deque)
    journal: Journal = field(default_factory=Journal)
    producer_ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def make_hub(
        self, name: str, partitions: int, groups: set[str] | None = None, events_max: int | None = None
    ) -> Hub:
        """Make an empty hub, which replaces a hub of that name if there is one."""
        if before := self.hubs.get(name.lower()):
            for owner in (name.lower(), *(partition.owner for partition in before.partitions)):
                self.journal.forget(owner)
        hub = Hub(
            name=name,
            created_ms=self.now_ms(),
            groups={DEFAULT_GROUP, *(groups or ())},
            events_max=events_max,
            journal=self.journal,
        )
        hub.grow(partitions)
        self.hubs[name.lower()] = hub
        fields = {"name": name, "partitions": partitions, "groups": sorted(hub.groups), "events_max": events_max}
        self.journal.add(name.lower(), "hub", {**fields, "created_ms": hub.created_ms})
        return hub

    def hub(self, name: str) -> Hub | None:
        return self.hubs.get(name.lower())

    def partition(self, hub: str, partition: str) -> Partition | None:
        found = self.hub(hub)
        if (
            found is None
            or not partition.isascii()
            or not partition.isdigit()
            or int(partition) >= len(found.partitions)
        ):
            return None
        return found.partitions[int(partition)]

    def attach_producer(self, partition: Partition, asked: Asked) -> Attached | Refusal:
        known = None if asked.id is None else partition.producers.get(asked.id)
        fresh_id = next(self.producer_ids) if asked.id is None else asked.id
        outcome = attached(
            known,
            asked,
            fresh_id,
            replies_known=self.replies_known,
            nothing=self.nothing,
            null_raises=self.null_raises,
        )
        if isinstance(outcome, Attached):
            if asked.id is None:
                self.journal.put("", "issued", {"last": fresh_id})
            partition.keep(outcome.producer)
            self.journal.commit()
        return outcome

    def admits_read(self, hub: str, partition: str) -> bool:
        """Whether `$management` answers: not if it has answered too often in the last second. Counts the request."""
        now_ms = self.now_ms()
        while self.reads_ms and self.reads_ms[0] <= now_ms - 1000:
            self.reads_ms.popleft()
        is_admitted = len(self.reads_ms) < self.reads_per_s_max
        if is_admitted:
            self.reads_ms.append(now_ms)
        self.count("reads" if is_admitted else "reads.throttled", hub, partition)
        return is_admitted

    def count(self, what: str, hub: str, partition: str, detail: str = "", by: int = 1) -> None:
        self.counts[what, hub, partition, detail] += by


def not_found(what: str) -> Refusal:
    return Refusal(condition=NOT_FOUND, description=f"The messaging entity '{what}' could not be found.")
