"""Our side without a transform, so without Spark: PostgreSQL parses the bodies itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ours import quieted, run_jobs
from sides import Job
from workload import SETUP

from leases.stores.sqlite import SqliteStore
from pipeline.connectors.log import LogFeed
from pipeline.connectors.postgres import PostgresSink
from service.pipeline import Pipeline
from service.processor import Processor

MERGE = """
    INSERT INTO balances (account, balance, events)
    SELECT event->>'account', sum((event->>'value')::numeric), count(*)
    FROM (SELECT convert_from(body, 'UTF8')::json AS event FROM batch) AS parsed GROUP BY 1 ORDER BY 1
    ON CONFLICT (account) DO UPDATE SET balance = balances.balance + excluded.balance, events = balances.events + excluded.events
"""


def processor_of(job: Job) -> Processor:
    pipeline = Pipeline(name="balances", feed=LogFeed(job.source), sink=PostgresSink(job.dsn, setup=SETUP, merge=MERGE))
    return Processor([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


if __name__ == "__main__":
    quieted()
    asyncio.run(run_jobs(processor_of))
