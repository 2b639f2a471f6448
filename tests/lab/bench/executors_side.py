"""Our side with a Spark that arguments name: `spark` as in settings, JSON. The way of a job says who reads: host or executors.

A way that begins with `rows` delivers each event as a row of Parquet files, into the directory that the job has for a DSN.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ours import SCHEMA, run, run_jobs, transform_of
from sides import Job
from workload import MERGE, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.files.sink import Directory, FilesOutputSink
from leasehold.pipeline.connectors.log import LogChangeFeed
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.limits import RangeLimits
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

ROWS = "SELECT partition, account, value FROM events"


class Unreached(Directory):
    """Executors cannot stage in it, so their output comes through the host."""

    def for_executors(self, mark: str) -> None:
        return None


def rows_of(job: Job, engine: SparkEngine) -> ProcessorCore:
    place = Unreached(job.dsn) if job.way == "rows collected" else Directory(job.dsn)
    pipeline = PipelineParts(
        name="rows",
        feed=LogChangeFeed(job.source),
        transform=SparkTransform(engine, "rows", sql=ROWS, schema=SCHEMA),
        sink=FilesOutputSink(place),
        ranges=None if job.way == "rows by host" else RangeLimits(),
    )
    return ProcessorCore([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


def processor_of(job: Job, engine: SparkEngine) -> ProcessorCore:
    """The way may name from how many events on executors read."""
    if job.way.startswith("rows"):
        return rows_of(job, engine)
    reader, _, from_events = job.way.partition(":")
    limits = RangeLimits.beginning_at(int(from_events)) if from_events else RangeLimits()
    pipeline = PipelineParts(
        name="balances",
        feed=LogChangeFeed(job.source),
        transform=transform_of(engine),
        sink=PostgresOutputSink(job.dsn, setup=SETUP, merge=MERGE),
        ranges=limits if reader == "executors" else None,
    )
    return ProcessorCore([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


async def served(engine: SparkEngine) -> None:
    session = SparkTransform(
        engine, "session", sql="SELECT * FROM events"
    )  # held, so that Spark outlives the processors
    await session.prepare()
    await run_jobs(lambda job: processor_of(job, engine))
    await session.close()


if __name__ == "__main__":
    run(served(SparkEngine(**json.loads(sys.argv[1]))))
