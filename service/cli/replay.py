"""`leasehold dead-letters replay`: a pipeline's dead letters through its transform and into its sink, each once; or discard them.

It runs as a host of its own, over one pipeline that is the given one but for its name and its feed, until no letter is left that
was there when it began.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from structlog.typing import FilteringBoundLogger as Log

from pipeline.dead_letters import DeadLetters, LetterBox
from pipeline.dead_letters.replay import ReplayFeed
from pipeline.limits import REPLAY
from service.cli.run import run
from service.config.settings import PipelineSettings, Settings
from service.group.lag import Backlog
from service.pipeline import Pipeline
from service.processor import Processor
from service.wiring.build import pipeline_of, store_of
from service.wiring.spark import engine_of


async def run_replay(
    settings: Settings,
    pipeline: PipelineSettings,
    partition: str | None,
    *,
    host: str,
    log: Log,
    discarded_to: Mapping[str, str | None] | None = None,
) -> tuple[int, int, Backlog | None]:
    """How many letters were sent through, how many of them are dead again, and what is left; as `service.cli.run.run`.

    discarded_to: as of `ReplayFeed`.
    """
    made = pipeline_of(pipeline, engine_of(settings.spark), settings.leases.timing)
    await made.feed.close()
    one = replay_of(made, partition, discarded_to)
    processor = Processor(
        [one],
        store_of(settings, [one]),
        host=host,
        timing=settings.leases.timing,
        buffer_bytes_max=settings.host.buffer_bytes_max,
        stop_timeout_s=settings.host.stop_timeout_s,
        log=log,
    )
    last = await run(processor, settings.api.model_copy(update={"enabled": False}), until_idle=True, log=log)
    return processor.tally.events[one.name], processor.tally.dead_letters[one.name], last


def replay_of(
    pipeline: Pipeline, partition: str | None, discarded_to: Mapping[str, str | None] | None = None
) -> Pipeline:
    """No guard: these events are dead already, and may well be so again."""
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
