"""Executors that read, transform and stage ranges, beside all hosts: what they have begun continues when its host is gone.

A task is tried again if its executor is lost. The lost one may still stage its output, at any time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import Context
from typing import TYPE_CHECKING

import pyarrow as pa
from lab.simulation.flow import YIELDED, numbered_events
from lab.simulation.process import incarnation

from leasehold.pipeline.errors import EngineUnavailable, FeedError, RangeRefused, SinkError, SinkRejected
from leasehold.pipeline.ranges import EventRange, RangedBatch, RangeReader
from leasehold.pipeline.staging import NotStaged, Ranged, StagedPart, Stager, described, put_together

if TYPE_CHECKING:
    from lab.simulation.world import World

ATTEMPTS = 4
REFUSED_EVERY = 97
"""Executors can never process one in so many events."""


class NumberedReader(RangeReader):
    """Implements leasehold.pipeline.ranges.RangeReader over numbered events."""

    def read_range(self, partition: str, planned: EventRange) -> Iterator[pa.Table]:
        yield numbered_events(partition, int(planned.start or 0), int(planned.to))


class Executors:
    def __init__(self, world: World) -> None:
        self._world = world
        self._attempts = 0

    async def run(self, batch: RangedBatch, reader: RangeReader, stager: Stager | None) -> Ranged:
        """One job: its tasks side by side, each tried a few times. Raises RangeRefused, EngineUnavailable."""
        world, rng = self._world, self._world.skies.rng
        world.onlooker.counts["jobs of executors"] += 1
        stages = stager is not None and rng.random() < 0.7
        tasks = [self._task(batch.partition, each, reader, stager if stages else None) for each in batch.ranges]
        found = await asyncio.gather(*tasks)
        try:
            return put_together(
                found, numbered_events(batch.partition, 0, 0).select(YIELDED).schema, stager, self._unique
            )
        except (NotStaged, SinkRejected) as error:
            raise RangeRefused(str(error)) from error

    async def _task(
        self, partition: str, each: EventRange, reader: RangeReader, stager: Stager | None
    ) -> pa.Table | StagedPart:
        world, rng = self._world, self._world.skies.rng
        for _ in range(ATTEMPTS):
            attempt = asyncio.get_running_loop().create_task(
                self._attempt(partition, each, reader, stager), context=Context()
            )
            attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
            is_lost = not world.skies.is_calm and rng.random() < world.setup.ill * 4
            await asyncio.wait({attempt}, timeout=world.setup.transform_s * rng.random() if is_lost else None)
            if is_lost:
                world.onlooker.counts["executors lost"] += 1
                world.tell(incarnation(), f"an executor is lost with {partition} from {each.start}")
                continue
            try:
                return attempt.result()
            except (FeedError, SinkError):
                continue
        if rng.random() < 0.5:
            raise EngineUnavailable("no executor is left")
        raise RangeRefused("a task failed too often")

    async def _attempt(
        self, partition: str, each: EventRange, reader: RangeReader, stager: Stager | None
    ) -> pa.Table | StagedPart:
        """In no host's process."""
        world, rng = self._world, self._world.skies.rng
        if not world.skies.is_calm:
            await asyncio.sleep(world.setup.transform_s * rng.random() * 2)
        table = pa.concat_tables(reader.read_range(partition, each)).select(YIELDED)
        numbers = table["sequence"].to_pylist()
        if any(number % REFUSED_EVERY == REFUSED_EVERY - 1 for number in numbers):
            raise RangeRefused("an event is only for hosts")
        table = table.filter(pa.array([world.passes(number) for number in numbers], pa.bool_()))
        if stager is None or not table.num_rows or rng.random() < 0.2:
            return table
        return described(stager.stage(table, self._unique()), table)

    def _unique(self) -> str:
        self._attempts += 1
        return f"{self._attempts:032x}"
