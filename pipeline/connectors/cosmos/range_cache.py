"""Where a feed's partitions are read now: the container's ranges as they were last listed, and what earlier ones were."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from pipeline.connectors.cosmos.ranges import (
    PhysicalRange,
    Place,
    Span,
    Successor,
    is_name,
    place_of,
    span_of,
    successors,
    unknown,
)
from pipeline.errors import FeedUnavailable


class Whereabouts:
    """Lists the ranges where it has to. Its methods raise FeedError for what the container never had."""

    def __init__(self, ranges: Callable[[], Awaitable[list[PhysicalRange]]]) -> None:
        self._ranges = ranges
        self._live: list[PhysicalRange] = []
        self._scopes: dict[str, Span] = {}

    async def list_ranges(self) -> list[PhysicalRange]:
        self._live = await self._ranges()
        self._scopes |= {each.id: each.span for each in self._live}
        return self._live

    def remember(self, scopes: Mapping[str, str]) -> None:
        """What cannot be read is as good as unknown: it is one lease's affair, and told where that one is read."""
        self._scopes |= {name: span for name, scope in scopes.items() if (span := span_of(scope)) is not None}

    def forget(self, place: Place) -> None:
        """It is gone: the next look lists the ranges anew."""
        self._live = [each for each in self._live if each.id != place.range_id]

    async def heirs(self, partition: str) -> list[Successor]:
        """Who has what the partition was: itself alone as long as it is there."""
        here = Successor(partition, span_of(partition) or self._scopes.get(partition) or Span("", "FF"))
        if place_of(partition, self._live) is not None:
            return [here]
        live = await self.list_ranges()
        if place_of(partition, live) is not None:
            return [here]
        if not is_name(partition):
            raise unknown(partition, live)
        return successors(partition, self._scopes.get(partition), live)

    async def places(self, partition: str) -> list[Place]:
        """Its own, or its successors'."""
        found = [place_of(heir.name, self._live) for heir in await self.heirs(partition)]
        return [place for place in found if place is not None]

    async def place(self, partition: str) -> Place:
        """Raises FeedUnavailable where it was split."""
        places = await self.places(partition)
        if len(places) != 1:
            raise FeedUnavailable(f"partition '{partition}' was split: its children take over")
        return places[0]
