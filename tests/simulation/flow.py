"""Where a simulated world's events come from, and the transform that they go through."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from simulation.process import current, incarnation
from simulation.weather import Request, Source, answered, host_of

from pipeline.batch import Batch
from pipeline.connectors import memory
from pipeline.errors import EngineUnavailable, FeedUnavailable
from pipeline.event import EVENT_SCHEMA, Page

if TYPE_CHECKING:
    from simulation.world import World

T = TypeVar("T")
_ANY = memory._Event(0, memory.EPOCH, None, None)


class NumberedFeed(Source):
    def extend(self, partition: str, events: int) -> None:
        """As `append` does; what the events bear follows from their numbers."""
        log = self._log(partition)
        log.events += [_ANY] * events
        log.notify()

    async def _request(self, request: Callable[[], T]) -> T:
        asks = Request(host_of(current()), "feed")
        return await answered(self.weather, asks, request, FeedUnavailable, FeedUnavailable)

    def _page(self, partition: str, index: int) -> Page | None:
        log = self._log(partition)
        end = min(log.end, index + self._page_events_max)
        if index >= end:
            return super()._page(partition, index)
        table = _events(partition, index // 1000).slice(index % 1000, end - index)
        if table.num_rows < end - index:
            end = index + table.num_rows
        return Page(table, str(end), lambda n: str(index + n))


@lru_cache(maxsize=1000)
def _events(partition: str, thousand: int) -> pa.Table:
    """Numbered events, made once."""
    numbers = range(1000 * thousand, 1000 * thousand + 1000)
    texts = [str(n) for n in numbers]
    columns = {
        "partition": [partition] * 1000,
        "sequence": list(numbers),
        "offset": texts,
        "enqueued_time": [memory.EPOCH] * 1000,
        "body": [text.encode() for text in texts],
    }
    return pa.table(
        [pa.array(columns.get(field.name, [None] * 1000), field.type) for field in EVENT_SCHEMA], EVENT_SCHEMA
    )


class WeatheredTransform:
    """Takes its time, now and then fails, and may filter. Implements pipeline.transform.Transform."""

    description = "simulated"

    def __init__(self, world: World) -> None:
        self._world = world

    async def prepare(self) -> None:
        """Nothing to start."""

    async def apply(self, batch: Batch) -> pa.Table:
        world = self._world
        rng = world.skies.rng
        if not world.skies.is_calm:
            if host_of(current()) in world.skies.hanging and rng.random() < 0.5:
                world.tell(incarnation(), f"the transform of {batch.partition} hangs")
                await asyncio.sleep(1e9)
            await asyncio.sleep(world.setup.transform_s * rng.random() * 2)
            if rng.random() < world.setup.ill / 2:
                world.tell(incarnation(), f"the engine fails on {batch.partition}")
                raise EngineUnavailable("the engine died")
        table = batch.pages[0].events if len(batch.pages) == 1 else batch.table
        if not world.setup.filters:
            return table
        return table.filter([world.passes(number) for number in table["sequence"].to_pylist()])

    async def close(self) -> None:
        """Nothing to let go of."""
