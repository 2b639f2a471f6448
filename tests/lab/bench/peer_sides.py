"""What a Python user may write instead, as sides: log -> parse JSON -> sum for each account -> PostgreSQL, at least once at best.

    python peer_sides.py duckdb|polars|python

All read the log with our reader, in pages of Arrow, and write with `Balances`: COPY and the merge that all sides have, in a
transaction. These three get a thread and a connection for each partition, so that the log, parsing and PostgreSQL overlap.
bytewax is in `peer_bytewax.py`. Micro-batches have at most as many events as ours.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from threading import Event

import psycopg
import pyarrow as pa
from sides import Job, commands
from workload import BATCH_EVENTS, MERGE, SETUP

from leasehold.pipeline.connectors.log.store import Log, PartitionLog
from leasehold.pipeline.connectors.postgres.copy import load
from leasehold.pipeline.connectors.postgres.sql import BATCH, loaded, staged

POLL_S = 0.01
BATCH_BYTES = 32 << 20

Sum = Callable[[pa.Table], pa.Table]
"""From bodies of JSON to account, value and events."""


class Reader:
    """One partition from its beginning: a micro-batch at a time, or None if there is no event yet."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._first = 0

    def read(self) -> pa.Table | None:
        _, blocks = self._log.read(self._first, events_max=BATCH_EVENTS, bytes_max=BATCH_BYTES)
        if not blocks:
            return None
        bodies = pa.concat_tables([block.events.select(["body"]) for block in blocks])
        self._first += bodies.num_rows
        return bodies


class Balances:
    """A connection that merges sums, a transaction for each micro-batch."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn)
        self._is_staged = False

    def merge(self, sums: pa.Table) -> None:
        rows = load(sums)
        with self._connection.transaction(), self._connection.cursor() as cursor:
            if not self._is_staged:
                cursor.execute(staged(BATCH, rows.columns))
                self._is_staged = True
            with cursor.copy(loaded(rows.columns, BATCH)) as copy:
                copy.write(rows.csv)
            cursor.execute(MERGE)

    def close(self) -> None:
        self._connection.close()


def summed_by_duckdb() -> Sum:
    import duckdb

    database = duckdb.connect()
    query = """
        SELECT event.account AS account, sum(event.value) AS value, count(*) AS events
        FROM (SELECT from_json(decode(body), '{"account": "VARCHAR", "value": "DECIMAL(20,2)"}') AS event FROM bodies)
        GROUP BY ALL
    """

    def summed(bodies: pa.Table) -> pa.Table:
        with database.cursor() as cursor:  # of the calling thread
            return cursor.register("bodies", bodies).sql(query).to_arrow_table()

    return summed


def summed_by_polars() -> Sum:
    import polars as pl

    event = pl.Struct({"account": pl.String, "value": pl.Decimal(20, 2)})

    def summed(bodies: pa.Table) -> pa.Table:
        frame = pl.from_arrow(bodies)
        assert isinstance(frame, pl.DataFrame)
        events = frame.select(pl.col("body").cast(pl.String).str.json_decode(event).struct.unnest())
        return events.group_by("account").agg(pl.col("value").sum(), pl.len().alias("events")).to_arrow()

    return summed


def summed_by_python() -> Sum:
    return lambda bodies: as_table(totals(bodies["body"].to_pylist()))


def totals(bodies: list[bytes]) -> dict[str, tuple[Decimal, int]]:
    values: defaultdict[str, Decimal] = defaultdict(Decimal)
    counts: defaultdict[str, int] = defaultdict(int)
    for body in bodies:
        event = json.loads(body, parse_float=Decimal)
        account = event["account"]
        values[account] += event["value"]
        counts[account] += 1
    return {account: (value, counts[account]) for account, value in values.items()}


def as_table(sums: dict[str, tuple[Decimal, int]]) -> pa.Table:
    values, counts = zip(*sums.values(), strict=True)
    return pa.table(
        {"account": list(sums), "value": pa.array(values, pa.decimal128(38, 2)), "events": pa.array(counts, pa.int64())}
    )


def run_threads(job: Job, summed: Sum, stopping: Event) -> None:
    """Until `stopping` is set."""

    def work(partition: PartitionLog) -> None:
        reader, balances = Reader(partition), Balances(job.dsn)
        while not stopping.is_set():
            if (bodies := reader.read()) is None:
                stopping.wait(POLL_S)
            else:
                balances.merge(summed(bodies))
        balances.close()

    log = Log(job.source)
    partitions = [log.partition(name) for name in log.partitions()]
    with ThreadPoolExecutor(len(partitions)) as threads:
        list(threads.map(work, partitions))
    log.close()


SUMS: dict[str, Callable[[], Sum]] = {
    "duckdb": summed_by_duckdb,
    "polars": summed_by_polars,
    "python": summed_by_python,
}


def serve(run: Callable[[Job, Event], None]) -> None:
    """Runs the jobs that come, each until the event is set."""
    stopping = Event()
    with ThreadPoolExecutor(1) as thread:
        running = None
        for job in commands():
            if isinstance(job, Job):
                stopping.clear()
                with psycopg.connect(job.dsn) as connection:
                    connection.execute(SETUP.encode())
                running = thread.submit(run, job, stopping)
            elif running is not None:
                stopping.set()
                running.result()


def main(peer: str) -> None:
    summed = SUMS[peer]()
    serve(lambda job, stopping: run_threads(job, summed, stopping))


if __name__ == "__main__":
    main(sys.argv[1])
