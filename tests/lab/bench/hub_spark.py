"""Our side of the latency: a processor from an event hub through Spark to PostgreSQL, all settings as they are by default."""

from __future__ import annotations

from pathlib import Path

from ours import SCHEMA, SQL, served
from sides import Job
from workload import MERGE, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.eventhubs import EventHubsFeed, account_of
from leasehold.pipeline.connectors.postgres import PostgresSink
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import Pipeline
from leasehold.service.processor import Processor


def processor_of(job: Job, engine: SparkEngine) -> Processor:
    pipeline = Pipeline(
        name="balances",
        feed=EventHubsFeed(account_of(connection_string=job.source)),
        transform=SparkTransform(engine, "balances", sql=SQL, schema=SCHEMA),
        sink=PostgresSink(job.dsn, setup=SETUP, merge=MERGE),
    )
    return Processor([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


if __name__ == "__main__":
    served(processor_of)
