"""`leasehold check --probe`: connect to everything that the settings name, and report each result.

With `--service`, also ask Cosmos DB, Event Hubs and Blob Storage whether they behave as Leasehold assumes
(`leasehold.service.probing`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from leasehold.common.clock import BootClock
from leasehold.leases.bootstrap import Bootstrap
from leasehold.leases.errors import GroupMismatch, StoreError
from leasehold.leases.keeper import Keeper
from leasehold.leases.store import TimedStore
from leasehold.leases.timing import Timing
from leasehold.pipeline.errors import PipelineError
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.service.api.server import listen
from leasehold.service.config.settings import Api, Settings
from leasehold.service.errors import StartFailed
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import Problems
from leasehold.service.texts import counted, redacted
from leasehold.service.wiring.build import pipeline_of, store_of

if TYPE_CHECKING:
    from leasehold.pipeline.outside_checkpoints import OutsideCheckpoints

Say = Callable[[str], None]


async def run_probe(settings: Settings, say: Say) -> bool:
    """Whether everything answered. Raises StartFailed if the lease store cannot even be created."""
    with settings.starting_spark() as engine:  # while the rest is checked, and once for all pipelines
        return await _probe(settings, engine, say)


async def _probe(settings: Settings, engine: SparkEngine, say: Say) -> bool:
    pipelines = _made(settings, engine, say)
    store = TimedStore(store_of(settings, pipelines), settings.leases.timing.call_timeout_s)
    try:
        fine = len(pipelines) == len(settings.pipelines)
        fine &= await _try_step(say, "leases", _check_leases(store, pipelines, settings.leases.timing))
        for pipeline in pipelines:
            fine &= await _try_step(say, f"{pipeline.name}: feed", _check_feed(pipeline))
            if (outside := pipeline.outside_checkpoints) is not None:
                fine &= await _try_step(say, f"{pipeline.name}: {outside.title}s", _count_checkpoints(outside))
            has_columns = await _try_step(say, f"{pipeline.name}: transform", _prepare_transform(pipeline))
            fine &= has_columns
            fine &= await _try_step(say, f"{pipeline.name}: sink", _prepare_sink(pipeline, has_columns=has_columns))
        if settings.api.enabled:
            fine &= await _try_step(say, "api", _open_port(settings.api))
        return fine
    finally:
        parts = [
            part for each in pipelines for part in (each.feed, each.transform, each.sink, each.outside_checkpoints)
        ]
        closing = [part.close() for part in parts if part is not None]
        await asyncio.gather(*closing, return_exceptions=True)
        await store.close()


def _made(settings: Settings, engine: SparkEngine, say: Say) -> list[PipelineParts]:
    """The pipelines that can be created; reports why others cannot."""
    found = []
    for each in settings.pipelines:
        try:
            found.append(pipeline_of(each, engine, settings.leases.timing))
        except StartFailed as error:
            say(f"{each.name}: FAILED: {redacted(str(error))}")
    return found


async def _try_step(say: Say, what: str, step: Awaitable[str]) -> bool:
    try:
        say(f"{what}: {await step}")
    except (PipelineError, StoreError, StartFailed, GroupMismatch) as error:
        say(f"{what}: FAILED: {redacted(str(error))}")
        return False
    return True


async def _check_leases(store: TimedStore, pipelines: list[PipelineParts], timing: Timing) -> str:
    """Raises StartFailed or GroupMismatch if `run` would refuse these leases."""
    keeper = Keeper(store, host="check", incarnation="", clock=BootClock(), timing=timing)
    problems = Problems()
    for pipeline in pipelines:
        await problems.collect(Bootstrap(keeper, pipeline.name, pipeline.identity).read_recorded())
    problems.raise_any()
    scan = await keeper.scan([pipeline.name for pipeline in pipelines])
    count = len(scan.seen) + len(scan.unreadable)
    if scan.unreadable:
        return "\n  ".join(
            [f"warning: {count} there, {len(scan.unreadable)} unreadable", *map(str, scan.unreadable.values())]
        )
    return f"fine, {count} there"


async def _check_feed(pipeline: PipelineParts) -> str:
    count = len(await pipeline.feed.partitions())
    if not count:
        return f"warning: {pipeline.feed.no_partitions}"
    await pipeline.feed.probe()
    return f"fine, {counted(count, 'partition')} now ({pipeline.feed.identity})"


async def _count_checkpoints(outside: OutsideCheckpoints) -> str:
    return f"fine, {await outside.count()} there"


async def _prepare_transform(pipeline: PipelineParts) -> str:
    await pipeline.transform.prepare()
    return f"fine, {pipeline.transform.description}"


async def _prepare_sink(pipeline: PipelineParts, *, has_columns: bool) -> str:
    """has_columns: whether the transform's columns are known, so that the sink can check them."""
    await pipeline.sink.prepare()
    if has_columns:
        await pipeline.check_columns()
    return f"fine ({pipeline.sink.identity})"


async def _open_port(api: Api) -> str:
    """Raises StartFailed."""
    with listen(api.host, api.port) as listener:
        return f"fine, port {listener.getsockname()[1]} is free" if api.port else "fine, any free port"
