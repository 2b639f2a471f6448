"""`leasehold dead-letters replay`: sends dead letters through their pipeline into its sink, each once; or discards them.

It runs as a host of its own, on a copy of the pipeline with another name and feed. It ends once no letter is left that existed
when it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from structlog.typing import FilteringBoundLogger as Log

from leasehold.leases.pause_orders import check_not_moved
from leasehold.leases.store import TimedStore
from leasehold.pipeline.dead_letters import DeadLetters, LetterBox
from leasehold.pipeline.dead_letters.settled import ReplayFeed
from leasehold.pipeline.limits import REPLAY
from leasehold.service.cli.run import run
from leasehold.service.config.pipeline import Pipeline
from leasehold.service.config.settings import Settings
from leasehold.service.lag.backlog import Backlog
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore
from leasehold.service.wiring.build import pipeline_of, store_of


async def check_pipeline_not_moved(settings: Settings, pipeline: Pipeline) -> None:
    """Check that no copy has moved the leases: at their new place, other letters may have been replayed since.

    A pipeline that kept no dead letters at that time was moved without a replay. Raises GroupMoved, StartFailed, StoreError.
    """
    store = TimedStore(store_of(settings, [], creates=False), settings.leases.timing.call_timeout_s)
    try:
        for name in (pipeline.name, pipeline.name + REPLAY):
            await check_not_moved(store, name)
    finally:
        await store.close()


async def run_replay(
    settings: Settings,
    pipeline: Pipeline,
    partition: str | None,
    *,
    host: str,
    log: Log,
    discarded_to: Mapping[str, str | None] | None = None,
) -> tuple[int, int, Backlog | None]:
    """How many letters were sent through, how many of them are dead again, and what is left; as `leasehold.service.cli.run.run`.

    discarded_to: as for `ReplayFeed`.
    """
    made = pipeline_of(pipeline, settings.spark.make(), settings.leases.timing)
    await made.feed.close()
    one = replay_of(made, partition, discarded_to)
    processor = ProcessorCore(
        [one],
        store_of(settings, [one]),
        host=host,
        timing=settings.leases.timing,
        buffer_bytes_max=settings.host.buffer_bytes_max,
        stop_timeout_s=settings.host.stop_timeout_s,
        log=log,
    )
    last = await run(processor, settings.api.model_copy(update={"enabled": False}), until_idle=True, log=log)
    return processor.stats.events[one.name], processor.stats.dead_letters[one.name], last


def replay_of(
    pipeline: PipelineParts, partition: str | None, discarded_to: Mapping[str, str | None] | None = None
) -> PipelineParts:
    """The pipeline's replay. It has no guard: these events failed before, and may well fail again."""
    box, letters = pipeline.box, pipeline.letters
    assert isinstance(box, LetterBox), "only a pipeline with dead letters can replay them"
    assert isinstance(letters, DeadLetters)
    return replace(
        pipeline,
        name=pipeline.name + REPLAY,
        feed=ReplayFeed(box, pipeline.name, partition=partition, discarded_to=discarded_to),
        start="earliest",
        letters=replace(letters, share_max=1.0, stops_at_misfits=False, guards={}),
    )
