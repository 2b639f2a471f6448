"""Runs one case through its pipeline: the real parsing, transform, isolation of poison and dead-letter policy, into memory.

All cases and pipelines share one Spark. Each partition's events are one batch, if the limits of the pipeline allow it, and the
partitions run side by side, as they do in a host.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from leasehold.common.clock import BootClock
from leasehold.pipeline.connectors.memory import MemoryDestination, MemoryOutputSink
from leasehold.pipeline.dead_letters import DeadLetters
from leasehold.pipeline.errors import EngineUnavailable, PipelineError
from leasehold.pipeline.feed import ChangeFeed
from leasehold.pipeline.limits import BatchLimits, Budget
from leasehold.pipeline.pump.progress import Progress
from leasehold.pipeline.pump.run_parts import DeliveredBatch, FailingEvents, ReadAhead, Reporting, Source
from leasehold.pipeline.pump.runner import Runner
from leasehold.pipeline.sink import Claim, Permit, SinkWriter
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.transform import Transform
from leasehold.service.cases.compare import ComparedTable
from leasehold.service.cases.ends import CaseFeed, Delivered, NotingSink, events_of, number_of
from leasehold.service.cases.model import LONG_AGO, Case
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Settings
from leasehold.service.wiring.build import policy_of, transform_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """dead: by the number of the event. stopped: by partition."""

    table: ComparedTable
    dead: Mapping[int, str]
    stopped: Mapping[str, PipelineError]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPipeline:
    """A pipeline's settings, and its transform, which every case of it uses."""

    settings: Pipeline
    transform: Transform
    policy: DeadLetters | None = None

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(
            events_max=min(
                self.settings.batch_events_max, self.settings.sink.input_events_max or self.settings.batch_events_max
            ),
            bytes_max=min(
                self.settings.batch_bytes_max, self.settings.sink.input_bytes_max or self.settings.batch_bytes_max
            ),
        )

    @property
    def fresh_policy(self) -> DeadLetters | None:
        """The policy, without what an earlier case has counted."""
        return None if self.policy is None else replace(self.policy, guards={})


@dataclass(slots=True)
class Workbench:
    """One Spark for all pipelines of a configuration. A transform is prepared when its first case runs."""

    settings: Settings
    engine: SparkEngine
    _prepared: dict[str, PreparedPipeline] = field(default_factory=dict)
    _failed: dict[str, PipelineError] = field(default_factory=dict)

    async def prepare(self, name: str) -> PreparedPipeline:
        """The pipeline, prepared at most once. Raises PipelineError, each time the same one."""
        if name in self._failed:
            raise self._failed[name]
        if name not in self._prepared:
            try:
                await self._prepare(name)
            except PipelineError as error:
                self._failed[name] = error
                raise
        return self._prepared[name]

    async def _prepare(self, name: str) -> None:
        (settings,) = (each for each in self.settings.pipelines if each.name == name)
        settings.sink.import_code()
        policy = policy_of(settings, lambda: LONG_AGO)
        transform = transform_of(settings, self.engine, policy)
        self._prepared[name] = PreparedPipeline(settings=settings, transform=transform, policy=policy)
        await transform.prepare()

    async def close(self) -> None:
        for each in self._prepared.values():
            await each.transform.close()


@asynccontextmanager
async def open_workbench(settings: Settings, engine: SparkEngine) -> AsyncGenerator[Workbench, None]:
    bench = Workbench(settings, engine)
    try:
        yield bench
    finally:
        await bench.close()


async def run_case(prepared: PreparedPipeline, case: Case) -> Result:
    """Raises EngineUnavailable."""
    events = events_of(case)
    delivered = Delivered({name: table.num_rows for name, table in events.items()})
    destination = MemoryDestination()
    sink = NotingSink(MemoryOutputSink(destination), delivered, check=prepared.settings.sink.check_output)
    feed, policy = CaseFeed(events, delivered, ends=True), prepared.fresh_policy
    stopped: dict[str, PipelineError] = {}

    async def run_partition(partition: str) -> None:
        try:
            await _runner(prepared, policy, feed, await sink.open(_claim(case, partition, feed)), partition).run(
                asyncio.Event()
            )
        except EngineUnavailable:
            raise
        except PipelineError as error:
            stopped[partition] = error

    for ended in await asyncio.gather(*map(run_partition, case.partitions), return_exceptions=True):
        if ended is not None:
            raise ended
    tables = [
        commit.output.table
        for name in case.partitions
        for commit in destination.commits
        if commit.claim.partition == name
    ]
    schema = pa.schema([])
    if tables:
        schema = pa.unify_schemas([table.schema for table in tables])
    return Result(
        table=ComparedTable(schema, [row for table in tables for row in table.to_pylist()]),
        dead={number_of(case, *place): why for place, why in delivered.dead.items()},
        stopped=stopped,
    )


def _runner(
    prepared: PreparedPipeline, policy: DeadLetters | None, feed: ChangeFeed, writer: SinkWriter, partition: str
) -> Runner:
    async def ignore(batch: DeliveredBatch) -> None:
        """There is no lease to keep the position in."""

    return Runner(
        source=Source(feed, partition, 1),
        transform=prepared.transform,
        writer=writer,
        permit=GRANTED,
        read_ahead=ReadAhead(limits=prepared.limits, bytes_max=prepared.settings.buffer_bytes_max, budget=Budget()),
        clock=BootClock(),
        reporting=Reporting(progress=Progress()),
        delivered=ignore,
        failing=FailingEvents(letters=policy),
    )


class _Granted:
    def check(self) -> None:
        """There is no lease to lose."""

    async def wait_until_granted(self) -> None:
        """At once."""


GRANTED: Permit = _Granted()


def _claim(case: Case, partition: str, feed: ChangeFeed) -> Claim:
    return Claim(
        pipeline=case.name,
        partition=partition,
        owner="cases",
        epoch=1,
        generation=1,
        continuation=None,
        state="",
        compare=feed.compare,
    )
