"""Where a simulated world's events come from, and the transform that they go through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from lab.simulation.process import current, incarnation
from lab.simulation.weather import Request, Source, answered, host_of

from leasehold.pipeline.batch import Batch
from leasehold.pipeline.connectors import memory
from leasehold.pipeline.errors import EngineUnavailable, FeedUnavailable
from leasehold.pipeline.event import EVENT_SCHEMA, Page
from leasehold.pipeline.feed import FeedPartition, PartitionEnded
from leasehold.pipeline.limits import RETURNED_BYTES_MAX
from leasehold.pipeline.ranges import EventRange, RangedBatch, RangeReader
from leasehold.pipeline.staging import Ranged, Stager
from leasehold.pipeline.transform import Transform

if TYPE_CHECKING:
    from lab.simulation.world import World

T = TypeVar("T")
EVENT_BYTES = 64
YIELDED = ["sequence", "body"]
"""What is left of an event's columns: whoever looks at all of them takes his time."""
_ANY = memory._Event(0, memory.EPOCH, None, None)


class NumberedFeed(Source):
    """Besides splitting, and merging into a partition of its own, it merges as Cosmos DB does: what is listed then is one
    partition, and each of the old ones goes on as its part of it, which is not listed, by its own numbers.
    """

    def __init__(self, partitions: Iterable[str]) -> None:
        super().__init__(partitions)
        self._parts: dict[str, tuple[str, int]] = {}
        self._merged: list[FeedPartition] = []
        self._forgotten: set[str] = set()
        self._listed: list[FeedPartition] | None = None
        self.replica: Callable[[int], tuple[int, int] | None] = lambda read: None
        """From where to where a replica that lags answers, by what was read before; None for one that does not."""

    def split(self, partition: str, children: Sequence[str]) -> None:
        super().split(partition, children)
        self._listed = None

    def merge_in_parts(self, partitions: Sequence[str]) -> None:
        for name in partitions:
            log, part = self._log(name), memory._Log()
            part.events, part.parents = list(log.events), [name]
            self._logs[part_of(name)] = part
            self._parts[part_of(name)] = name, log.end
            log.children = ((part_of(name), memory._position(log.end)),)
            log.notify()
        self._listed = None
        self._merged.append(FeedPartition("&".join(partitions), tuple(partitions), ",".join(partitions)))

    def start(self, partition: str) -> int:
        """With which event a partition begins that came from another one."""
        return self._parts.get(partition, ("", 0))[1]

    async def partitions(self) -> list[FeedPartition]:
        return await self._request(self._list)

    async def open(self, partition: str, continuation: str | None) -> AsyncGenerator[Page, None]:
        """As a feed would that believes whatever replica answers: what one repeats is read again."""
        log, index = self._log(partition), self._index(partition, continuation)
        while True:
            changed = log.changed
            page = await self._request(partial(self._answer, partition, index))
            if page is None:
                await changed.wait()
            else:
                index = int(page.to)
                yield page

    async def plan_ranges(
        self, partition: str, continuation: str | None, events_max: int, range_events: int
    ) -> list[EventRange]:
        index = self._index(partition, continuation)
        return await self._request(partial(self._ranges, partition, index, events_max, range_events))

    def range_reader(self) -> RangeReader:
        from lab.simulation.executors import NumberedReader

        return NumberedReader()

    def _ranges(self, partition: str, index: int, events_max: int, range_events: int) -> list[EventRange]:
        """A replica that lags knows of fewer."""
        lagging = self.replica(index)
        end = min(self._log(partition).end if lagging is None else lagging[1], index + events_max)
        starts = range(index, end, range_events)
        ends = [*starts[1:], end]
        return [EventRange(memory._position(a), str(b), b - a) for a, b in zip(starts, ends, strict=False)]

    def _answer(self, partition: str, index: int) -> Page | None:
        lagging = self.replica(index)
        if lagging is None or lagging[0] < self.start(partition):
            return self._page(partition, index)
        first, to = lagging
        table = _events(partition, first // 1000).slice(first % 1000, to - first)
        return _Page(table, str(first + table.num_rows), lambda n: str(first + n))

    def _list(self) -> list[FeedPartition]:
        """Made once for all hosts, until it changes."""
        if self._listed is None:
            unlisted = self._parts.keys() | self._forgotten
            logs = sorted(self._logs.items())
            listed = [FeedPartition(name, tuple(log.parents)) for name, log in logs if name not in unlisted]
            self._listed = listed + self._merged
        return self._listed

    def forget(self, partitions: Iterable[str]) -> None:
        """Ended ones, which are not listed from now on."""
        self._forgotten.update(partitions)
        self._listed = None

    def remember(self, scopes: Mapping[str, str]) -> None:
        """One object for all hosts knows it anyway."""

    def uncovered(self, partition: FeedPartition, scopes: Collection[str]) -> list[FeedPartition]:
        left = [name for name in (partition.scope or partition.name).split(",") if name not in scopes]
        if partition in self._merged:
            return [FeedPartition(part_of(name), (), name) for name in left]
        return [partition] if left else []

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
        if index >= end and log.children is not None and log.children[0][0] in self._parts:
            raise PartitionEnded(partition, log.children, scopes={part_of(partition): partition})
        if index >= end:
            return super()._page(partition, index)
        table = _events(partition, index // 1000).slice(index % 1000, end - index)
        if table.num_rows < end - index:
            end = index + table.num_rows
        return _Page(table, str(end), lambda n: str(index + n))


class PartOfFeed(NumberedFeed):
    """One pipeline's partitions of a feed that several read."""

    def __init__(self, whole: NumberedFeed, is_part: Callable[[str], bool]) -> None:
        self.__dict__.update(whole.__dict__)  # what it holds changes in place, but for what is listed
        self._whole = whole
        self._is_part = is_part

    def _list(self) -> list[FeedPartition]:
        return [partition for partition in self._whole._list() if self._is_part(partition.name)]


class _Page(Page):
    """Every event takes as much room as any other: Arrow takes its time to count."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes", EVENT_BYTES * self.events.num_rows)


def part_of(partition: str) -> str:
    """The name under which it goes on within the one that it was merged into."""
    return f"{partition}~"


def numbered_events(partition: str, start: int, to: int) -> pa.Table:
    """The events behind `start` up to `to`."""
    tables = [EVENT_SCHEMA.empty_table()]
    while start < to:
        thousand, place = divmod(start, 1000)
        tables.append(_events(partition, thousand).slice(place, to - start))
        start = 1000 * (thousand + 1)
    return pa.concat_tables(tables)


@lru_cache(maxsize=1000)
def _events(partition: str, thousand: int) -> pa.Table:
    """Numbered events, made once."""
    columns = {**_columns(thousand), "partition": pa.array([partition]).take(_ZEROS)}
    return pa.table([columns[field.name] for field in EVENT_SCHEMA], EVENT_SCHEMA)


@lru_cache(maxsize=1000)
def _columns(thousand: int) -> Mapping[str, pa.Array]:
    """What events of all partitions have in common."""
    numbers = range(1000 * thousand, 1000 * thousand + 1000)
    texts = [str(n) for n in numbers]
    columns = {
        "sequence": list(numbers),
        "offset": texts,
        "enqueued_time": [memory.EPOCH] * 1000,
        "body": [text.encode() for text in texts],
    }
    return {field.name: pa.array(columns.get(field.name, [None] * 1000), field.type) for field in EVENT_SCHEMA}


_ZEROS = pa.array([0] * 1000, pa.int32())


class WeatheredTransform(Transform):
    """Takes its time, now and then fails, and may filter. Implements leasehold.pipeline.transform.Transform."""

    description = "simulated"

    def __init__(self, world: World) -> None:
        from lab.simulation.executors import Executors

        self._world = world
        self._executors = Executors(world)
        self.reads_ranges = world.setup.ranges is not None

    async def prepare(self) -> None:
        """Nothing to start."""

    async def apply(self, batch: Batch) -> pa.Table:
        world = self._world
        rng = world.skies.rng
        world.onlooker.batched(batch.partition, batch.start, batch.to, batch.events)
        if not world.skies.is_calm:
            if host_of(current()) in world.skies.hanging and rng.random() < 0.5:
                world.tell(incarnation(), f"the transform of {batch.partition} hangs")
                await asyncio.sleep(1e9)
            await asyncio.sleep(world.setup.transform_s * rng.random() * 2)
            if rng.random() < world.setup.ill / 2:
                world.tell(incarnation(), f"the engine fails on {batch.partition}")
                raise EngineUnavailable("the engine died")
        table = (batch.pages[0].events if len(batch.pages) == 1 else batch.table).select(YIELDED)
        if not world.setup.filters:
            return table
        passed = [world.passes(number) for number in range(int(batch.start or 0), int(batch.to))]
        return table if all(passed) else table.filter(passed)

    @property
    def columns(self) -> pa.Schema:
        return EVENT_SCHEMA.empty_table().select(YIELDED).schema

    async def apply_ranges(
        self, batch: RangedBatch, reader: RangeReader, stager: Stager | None, bytes_max: int = RETURNED_BYTES_MAX
    ) -> Ranged:
        world = self._world
        world.onlooker.ranged(batch.partition, batch.start, batch.to, batch.events)
        if host_of(current()) in world.skies.hanging and not world.skies.is_calm and world.skies.rng.random() < 0.5:
            world.tell(incarnation(), f"the job of {batch.partition} hangs")
            await asyncio.sleep(1e9)
        return await self._executors.run(batch, reader, stager)

    async def close(self) -> None:
        """Nothing to let go of."""
