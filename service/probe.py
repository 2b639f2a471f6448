"""`leasehold check --probe`: connect to everything that the settings name, and say of each what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from leases.document import lease_prefix
from leases.errors import StoreError
from leases.store import TimedStore
from pipeline.errors import PipelineError
from service.pipeline import Pipeline
from service.redaction import redacted
from service.settings import Settings
from service.wiring import pipelines_of, store_of

Say = Callable[[str], None]


async def probed(settings: Settings, say: Say) -> bool:
    """Whether everything answered. Raises StartFailed where something cannot even be made."""
    store = TimedStore(store_of(settings.leases), settings.leases.timing.call_timeout_s)
    pipelines = pipelines_of(settings)
    try:
        fine = await _tried(say, "leases", _listed(store, pipelines))
        for pipeline in pipelines:
            fine &= await _tried(say, f"{pipeline.name}: feed", _counted(pipeline))
            fine &= await _tried(say, f"{pipeline.name}: transform", _prepared(pipeline))
            fine &= await _tried(say, f"{pipeline.name}: sink", _sink_prepared(pipeline))
        return fine
    finally:
        closing = [part.close() for each in pipelines for part in (each.feed, each.transform, each.sink)]
        await asyncio.gather(*closing, return_exceptions=True)
        await store.close()


async def _tried(say: Say, what: str, step: Awaitable[str]) -> bool:
    try:
        say(f"{what}: {await step}")
    except (PipelineError, StoreError) as error:
        say(f"{what}: FAILED: {redacted(str(error))}")
        return False
    return True


async def _listed(store: TimedStore, pipelines: list[Pipeline]) -> str:
    count = sum([len(await store.list(lease_prefix(pipeline.name))) for pipeline in pipelines])
    return f"fine, {count} there"


async def _counted(pipeline: Pipeline) -> str:
    count = len(await pipeline.feed.partitions())
    return f"fine, {count} partitions now ({pipeline.feed.identity})"


async def _prepared(pipeline: Pipeline) -> str:
    await pipeline.transform.prepare()
    return f"fine, {pipeline.transform.description}"


async def _sink_prepared(pipeline: Pipeline) -> str:
    await pipeline.sink.prepare()
    return f"fine ({pipeline.sink.identity})"
