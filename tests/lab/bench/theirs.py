"""Spark Structured Streaming's side: the same Spark, and foreachBatch with the usual bookkeeping.

The settings are the same, except that Java compiles as it does by default: with our thresholds this side is slower.

A micro-batch's number is kept in the database and moves in the transaction that merges its output, so that a batch which is run
again after a failure does not count twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
from log_source import LogSource
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from sides import Job, commands
from workload import BATCH_EVENTS, MERGE, PARTITIONS

from leasehold.pipeline.connectors.postgres.copy import Load, load

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    "spark.log.level": "ERROR",
    "spark.buffer.pageSize": "1m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.ui.explainMode": "simple",
    "spark.local.dir": "/dev/shm",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.numRecentProgressUpdates": "1",
}
SUMS = """
    SELECT event.account, sum(event.value) AS value, count(*) AS events
    FROM (SELECT from_json(CAST(body AS STRING), 'account STRING, value DECIMAL(20,2)') AS event FROM {events})
    GROUP BY event.account
"""
PROGRESS = "CREATE TABLE IF NOT EXISTS progress (query text PRIMARY KEY, batch bigint NOT NULL)"
BEGUN = "INSERT INTO progress VALUES ('balances', -1) ON CONFLICT DO NOTHING"
MOVED = "UPDATE progress SET batch = %s WHERE query = 'balances' AND batch < %s"


class Balances:
    """What foreachBatch calls. One connection, one staging table, for the life of the query."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._is_staged = False
        self._connection.execute(PROGRESS)
        self._connection.execute(BEGUN)

    def __call__(self, events: DataFrame, batch: int) -> None:
        sums = events.sparkSession.sql(SUMS, events=events).toArrow()
        rows = load(sums)
        self._stage(rows)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.execute(MOVED, (batch, batch))
            if cursor.rowcount == 0:
                return  # it counted before a failure
            with cursor.copy(b"COPY batch FROM STDIN (FORMAT csv)") as copy:
                copy.write(rows.csv)
            cursor.execute(MERGE)

    def close(self) -> None:
        self._connection.close()

    def _stage(self, rows: Load) -> None:
        if not self._is_staged:
            columns = sql.SQL(", ").join(sql.SQL("{} " + c.type).format(sql.Identifier(c.name)) for c in rows.columns)
            self._connection.execute(sql.SQL("CREATE TEMP TABLE batch ({}) ON COMMIT DELETE ROWS").format(columns))
            self._is_staged = True


def started(job: Job, stream: DataFrame, balances: Balances) -> StreamingQuery:
    checkpoint = (Path(job.state) / "checkpoint").as_uri()
    return stream.writeStream.option("checkpointLocation", checkpoint).foreachBatch(balances).start()


def from_log(job: Job, session: SparkSession) -> DataFrame:
    session.dataSource.register(LogSource)
    stream = session.readStream.format("log").option("path", job.source)
    return stream.option("rows_max", BATCH_EVENTS * PARTITIONS).load()


def serve(read: Callable[[Job, SparkSession], DataFrame], **conf: str) -> None:
    """Runs the jobs that come. read: their streams, with a column `body`. conf: more settings, with underscores for dots."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    more = {name.replace("_", "."): value for name, value in conf.items()}
    session = SparkSession.builder.config(map=CONF | more).getOrCreate()
    session.range(1000).groupBy("id").count().toArrow()
    query: StreamingQuery | None = None
    balances: Balances | None = None
    for job in commands():
        if isinstance(job, Job):
            balances = Balances(job.dsn)
            query = started(job, read(job, session), balances)
        elif query is not None and balances is not None:
            query.stop()
            balances.close()
    session.stop()


if __name__ == "__main__":
    serve(from_log)
