"""Looking through the end of a partition for what a lease has published there."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from pipeline.connectors.eventhubs.hub import Hub
from pipeline.connectors.eventhubs.position import BEGINNING, Position, selector
from pipeline.connectors.eventhubs.receiver import Limits, Place, received
from pipeline.errors import FeedUnavailable
from pipeline.event import Page
from pipeline.markers import Search

LIMITS = Limits(prefetch=2000, page_events=5000, page_bytes=4 * 1024 * 1024, timeout_s=20.0)


async def searched(
    hub: Hub, partition: str, consumer_group: str, search: Search, *, behind: int, end: int, timeout_s: float
) -> None:
    """Let `search` see the events behind the sequence `behind`, up to `end`. timeout_s: without any. Raises FeedError, Fenced."""
    while behind < end:
        position = BEGINNING if behind < 0 else Position(behind)
        place = Place(partition=partition, group=consumer_group, selector=selector(position))
        behind = await _received(hub, place, search, behind, end, timeout_s)


async def _received(hub: Hub, place: Place, search: Search, behind: int, end: int, timeout_s: float) -> int:
    """Up to where it came: `end`, or an event that cannot be read. That is none of ours, and is passed."""
    async with aclosing(received(hub, place, LIMITS, asyncio.to_thread)) as arriving:
        while behind < end:
            try:
                async with asyncio.timeout(timeout_s):
                    arrived = await anext(arriving)
            except TimeoutError as error:
                where = f"{hub.name}, partition '{place.partition}'"
                raise FeedUnavailable(f"{where}: its end did not come within {timeout_s:g} s") from error
            for page in arrived.pages:
                behind = max(behind, _seen(page, search))
            if arrived.malformed:
                return behind + 1
    return behind


def _seen(page: Page, search: Search) -> int:
    """The last event's sequence."""
    for properties in page.events["properties"].to_pylist():
        search.see(dict(properties or ()))
    return int(page.events["sequence"][-1].as_py()) if page.events.num_rows else -1
