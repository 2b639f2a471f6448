"""Our side of the latency: a processor from an event hub through Spark to PostgreSQL, all settings as they are by default."""

from __future__ import annotations

from pathlib import Path

from ours import SCHEMA, SQL, served
from sides import Job
from workload import MERGE, SETUP

from leases.stores.sqlite import SqliteStore
from pipeline.connectors.eventhubs import EventHubsFeed, account_of
from pipeline.connectors.postgres import PostgresSink
from pipeline.spark.engine import SparkEngine
from pipeline.spark.transform import SparkTransform
from service.pipeline import Pipeline
from service.processor import Processor


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
