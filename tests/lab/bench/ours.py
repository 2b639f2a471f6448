"""Our side: a processor with leases in SQLite, all settings as they are by default."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import structlog
from sides import Job, commands
from workload import MERGE, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogFeed
from leasehold.pipeline.connectors.postgres import PostgresSink
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import Pipeline
from leasehold.service.processor import Processor

SCHEMA = "account STRING NOT NULL, value DECIMAL(20,2) NOT NULL"
SQL = "SELECT partition, account, sum(value) AS value, count(*) AS events FROM events GROUP BY partition, account"


def transform_of(engine: SparkEngine) -> SparkTransform:
    return SparkTransform(engine, "balances", sql=SQL, schema=SCHEMA)


def processor_of(job: Job, engine: SparkEngine) -> Processor:
    pipeline = Pipeline(
        name="balances",
        feed=LogFeed(job.source),
        transform=transform_of(engine),
        sink=PostgresSink(job.dsn, setup=SETUP, merge=MERGE),
    )
    return Processor([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


def served(processor_of: Callable[[Job, SparkEngine], Processor]) -> None:
    """Runs the jobs that come, each by a processor of its own, on one Spark."""
    run(run_with_spark(processor_of))


def run(jobs: Coroutine[Any, Any, None]) -> None:
    """Logs warnings only."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    asyncio.run(jobs)


async def run_with_spark(processor_of: Callable[[Job, SparkEngine], Processor]) -> None:
    engine = SparkEngine(master="local[2]")
    session = SparkTransform(
        engine, "session", sql="SELECT * FROM events"
    )  # held, so that Spark outlives the processors
    await session.prepare()
    await run_jobs(lambda job: processor_of(job, engine))
    await session.close()


async def run_jobs(processor_of: Callable[[Job], Processor]) -> None:
    stop: Callable[[], Awaitable[None]] | None = None
    todo = commands()
    while (command := await asyncio.to_thread(next, todo, StopIteration)) is not StopIteration:
        if isinstance(command, Job):
            processor = processor_of(command)
            await processor.start()
            stop = processor.stop
        elif stop is not None:
            await stop()
            stop = None
    if stop is not None:
        await stop()


if __name__ == "__main__":
    served(processor_of)
