"""The ranges from which the partitions of a feed are read: as they were last listed, and earlier ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from leasehold.pipeline.connectors.cosmos.ranges import (
    KeyRange,
    PhysicalRange,
    RangeSection,
    Successor,
    is_name,
    place_of,
    span_of,
    successors,
    unknown,
)
from leasehold.pipeline.errors import FeedUnavailable


class Whereabouts:
    """Lists the ranges only if it has to. Its methods raise FeedError for a partition that the container never had."""

    def __init__(self, ranges: Callable[[], Awaitable[list[PhysicalRange]]]) -> None:
        self._ranges = ranges
        self._live: list[PhysicalRange] = []
        self._scopes: dict[str, KeyRange] = {}

    async def list_ranges(self) -> list[PhysicalRange]:
        self._live = await self._ranges()
        self._scopes |= {each.id: each.span for each in self._live}
        return self._live

    def remember(self, scopes: Mapping[str, str]) -> None:
        """An unreadable scope counts as unknown: its own lease reports it."""
        self._scopes |= {name: span for name, scope in scopes.items() if (span := span_of(scope)) is not None}

    def forget(self, place: RangeSection) -> None:
        """Forget a range that is gone: the next call lists the ranges again."""
        self._live = [each for each in self._live if each.id != place.range_id]

    async def find_heirs(self, partition: str) -> list[Successor]:
        """The partitions that now cover this one; itself while it exists."""
        here = Successor(partition, span_of(partition) or self._scopes.get(partition) or KeyRange("", "FF"))
        if place_of(partition, self._live) is not None:
            return [here]
        live = await self.list_ranges()
        if place_of(partition, live) is not None:
            return [here]
        if not is_name(partition):
            raise unknown(partition, live)
        return successors(partition, self._scopes.get(partition), live)

    async def list_places(self, partition: str) -> list[RangeSection]:
        """The partition's place, or those of its successors."""
        found = [place_of(heir.name, self._live) for heir in await self.find_heirs(partition)]
        return [place for place in found if place is not None]

    async def find_place(self, partition: str) -> RangeSection:
        """The partition's place. Raises FeedUnavailable if it was split."""
        places = await self.list_places(partition)
        if len(places) != 1:
            raise FeedUnavailable(f"partition '{partition}' was split: its children take over")
        return places[0]
