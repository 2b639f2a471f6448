"""The one Spark of this process, as the settings have it. It may start before anything else of the process is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.spark.engine import SparkEngine
from service.config.settings import PipelineSettings, Settings, SparkSettings


def engine_of(settings: SparkSettings) -> SparkEngine:
    return SparkEngine(
        master=settings.master, remote=settings.remote, driver_memory=settings.driver_memory, conf=settings.conf
    )


@contextmanager
def starting_engine(settings: Settings) -> Iterator[SparkEngine]:
    """Start Spark in the background at once if a transform needs it, while the caller imports more. Stop it in the end, unless
    that was done."""
    engine = engine_of(settings.spark)
    if any(map(needs_spark, settings.pipelines)):
        engine.begin()
    try:
        yield engine
    finally:
        engine.stop()


def needs_spark(settings: PipelineSettings) -> bool:
    """Without SQL, function and schema the events go to the sink as they are."""
    return not (settings.sql is None and settings.function is None and settings.event_schema is None)
