"""Our side of the latency: a processor from an event hub through Spark to PostgreSQL, all settings as they are by default."""

from __future__ import annotations

from pathlib import Path

from ours import SCHEMA, SQL, served
from sides import Job
from workload import MERGE, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.eventhubs.account import account_of
from leasehold.pipeline.connectors.eventhubs.feed.feed import EventHubsChangeFeed
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore


def processor_of(job: Job, engine: SparkEngine) -> ProcessorCore:
    pipeline = PipelineParts(
        name="balances",
        feed=EventHubsChangeFeed(account_of(connection_string=job.source)),
        transform=SparkTransform(engine, "balances", sql=SQL, schema=SCHEMA),
        sink=PostgresOutputSink(job.dsn, setup=SETUP, merge=MERGE),
    )
    return ProcessorCore([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


if __name__ == "__main__":
    served(processor_of)
