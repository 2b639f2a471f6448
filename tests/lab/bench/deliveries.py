"""A pipeline, from a log to balances in PostgreSQL, that delivers exactly or at least once: the sides of `exactly_once.py`.

    python deliveries.py spark|plain

A job's `way` chooses the delivery. Feed, transform, merge and settings are the same, and so is how often the lease is written.
Only the sinks differ. Both have one process, so that Java has compiled the same for both.
With `spark`, Spark parses the events and sums them for each account. With `plain`, the merge does both.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import psycopg
from ours import run, run_jobs, run_with_spark, transform_of
from sides import Job
from workload import MERGE, SETUP

from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.pipeline.connectors.log import LogChangeFeed
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.connectors.postgres.copy import load
from leasehold.pipeline.connectors.postgres.sql import (
    BATCH,
    BEGIN,
    COMMIT,
    Column,
    filled,
    loaded,
    one_message,
    staged,
    users,
)
from leasehold.pipeline.sink import Claim, CloseReason, Output, Permit, Sink, SinkWriter
from leasehold.pipeline.transform import NoTransform, Transform
from leasehold.service.pipeline import PipelineParts
from leasehold.service.processor import ProcessorCore

EXACTLY_ONCE, AT_LEAST_ONCE = "exactly-once", "at-least-once"
SPARK, PLAIN = "spark", "plain"
MERGE_EVENTS = """
    INSERT INTO balances (account, balance, events)
    SELECT body ->> 'account', sum((body ->> 'value')::numeric), count(*)
    FROM (SELECT convert_from(body, 'UTF8')::json AS body FROM batch) AS parsed
    GROUP BY 1 ORDER BY 1
    ON CONFLICT (account) DO UPDATE SET balance = balances.balance + excluded.balance, events = balances.events + excluded.events
"""
KEPT_EVERY_S = 5.0
"""How often the lease is written, on both sides. By default, a sink without a position would have it written after each batch."""


class MergingSink(Sink):
    """At least once, as one would write it for speed: merge and COMMIT are one message, which holds the rows if they are few.

    No position, no guard, no fence: an owner that lost its lease can still commit, and a crash repeats what the lease lacks.
    """

    holds_position = False

    def __init__(self, dsn: str, *, setup: str, merge: str) -> None:
        self._dsn = dsn
        self._setup = setup
        self._merge = merge

    @property
    def identity(self) -> str:
        return "balances at least once"

    def claimed(self, state: str) -> str:
        return state

    async def prepare(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._dsn) as connection:
            await connection.execute(self._setup.encode())

    async def open(self, claim: Claim) -> MergingWriter:
        return MergingWriter(await psycopg.AsyncConnection.connect(self._dsn, autocommit=True), self._merge, claim)

    async def close(self) -> None:
        """Each writer closes its connection."""


class MergingWriter(SinkWriter):
    position: str | None = None
    state: str = ""

    def __init__(self, connection: psycopg.AsyncConnection, merge: str, claim: Claim) -> None:
        self._connection = connection
        self._decide = one_message(users(merge), COMMIT)
        self._columns: tuple[Column, ...] | None = None
        self.position = claim.continuation
        self.state = claim.state

    async def write(self, output: Output, permit: Permit) -> None:
        batch = await asyncio.to_thread(load, output.table)
        if batch.columns != self._columns:
            await self._connection.execute(staged(BATCH, batch.columns))
            self._columns = batch.columns
        if batch.few is not None:
            permit.check()
            await self._connection.execute(one_message(BEGIN, filled(BATCH, batch.columns, batch.few), self._decide))
            self.position = output.to
            return
        await self._connection.execute("BEGIN")
        async with self._connection.cursor().copy(loaded(batch.columns, BATCH)) as copy:
            await copy.write(batch.csv)
        permit.check()
        await self._connection.execute(self._decide)
        self.position = output.to

    async def end(self, permit: Permit) -> None:
        """Nothing is held."""

    async def close(self, reason: CloseReason) -> None:
        await self._connection.close()


SINKS = {EXACTLY_ONCE: PostgresOutputSink, AT_LEAST_ONCE: MergingSink}


def processor_of(job: Job, transform: Transform, merge: str) -> ProcessorCore:
    pipeline = PipelineParts(
        name="balances",
        feed=LogChangeFeed(job.source),
        transform=transform,
        sink=SINKS.get(job.way, PostgresOutputSink)(job.dsn, setup=SETUP, merge=merge),
        checkpoint_s=KEPT_EVERY_S,
        unkept_s=KEPT_EVERY_S,
    )
    return ProcessorCore([pipeline], SqliteStore(Path(job.state) / "leases.db"), host="bench")


def main(kind: str) -> None:
    if kind == SPARK:
        run(run_with_spark(lambda job, engine: processor_of(job, transform_of(engine), MERGE)))
    else:
        run(run_jobs(lambda job: processor_of(job, NoTransform(), MERGE_EVENTS)))


if __name__ == "__main__":
    main(sys.argv[1])
