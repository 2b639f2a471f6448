"""Our side with a Spark that arguments name: `spark` as in settings, JSON. The way of a job says who reads: host or executors."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ours import run, run_jobs, transform_of
from sides import Job
from workload import MERGE, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogFeed
from leasehold.pipeline.connectors.postgres import PostgresSink
from leasehold.pipeline.limits import RangeLimits
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import Pipeline
from leasehold.service.processor import Processor


def processor_of(job: Job, engine: SparkEngine) -> Processor:
    """The way may name from how many events on executors read."""
    reader, _, from_events = job.way.partition(":")
    limits = RangeLimits.beginning_at(int(from_events)) if from_events else RangeLimits()
    pipeline = Pipeline(
        name="balances",
        feed=LogFeed(job.source),
        transform=transform_of(engine),
        sink=PostgresSink(job.dsn, setup=SETUP, merge=MERGE),
        ranges=limits if reader == "executors" else None,
    )
    return Processor([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


async def served(engine: SparkEngine) -> None:
    session = SparkTransform(
        engine, "session", sql="SELECT * FROM events"
    )  # held, so that Spark outlives the processors
    await session.prepare()
    await run_jobs(lambda job: processor_of(job, engine))
    await session.close()


if __name__ == "__main__":
    run(served(SparkEngine(**json.loads(sys.argv[1]))))
