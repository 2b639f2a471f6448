"""A producer's information about a hub, its partitions, and its own state in them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishingProperties:
    """The producer's own state in a partition. The last three are None if publishing is not idempotent.

    last_published_number: 0 or -1, as the broker answers, before the first event.
    """

    partition: str
    is_idempotent: bool
    producer_group: int | None
    owner_level: int | None
    last_published_number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubProperties:
    """created_on: None if the broker does not keep it."""

    name: str
    created_on: datetime | None = None
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionProperties:
    """first, last: sequence of the oldest and the newest event that the broker has, `last` being -1 before the first event.

    They count the events of all publishers, and are not a producer's numbers.
    last_offset, last_enqueued_time: of the newest event. None before the first event, and if the broker does not keep them.
    """

    partition: str
    first: int
    last: int
    is_empty: bool
    last_offset: str | None = None
    last_enqueued_time: datetime | None = None
