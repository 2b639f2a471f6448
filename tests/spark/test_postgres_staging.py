"""Spark's executors stage output in PostgreSQL: in a process of its own, since Spark's environment is that of its start."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from patience import PATIENCE_S
from plugins_bank import EXECUTORS_ENV
from plugins_pg import Postgres

HOST = """
import asyncio, os, sys
import pyarrow as pa
from leasehold.pipeline.connectors.log import LogChangeFeed, LogOutputSink
from leasehold.pipeline.connectors.postgres import PostgresOutputSink
from leasehold.pipeline.errors import RangeRefused
from leasehold.pipeline.ranges import RangedBatch
from leasehold.pipeline.sink import Claim, Output
from leasehold.pipeline.spark.engine import SparkEngine
from leasehold.pipeline.spark.transform import SparkTransform

EVENTS, RANGE = 3100, 1500
VARIABLE = sys.argv[3]

class Open:
    def check(self): ...
    async def wait_until_granted(self): ...

def claim(state=""):
    return Claim(pipeline="p", partition="a", owner="o", epoch=1, generation=0, continuation=None, state=state,
        compare=lambda a, b: 0)

async def main(log, dsn, has_variable):
    source = LogOutputSink(log)
    await source.prepare()
    writer = await source.open(claim(source.claimed("")))
    bodies = pa.table({"body": [f"{n:04} " + "x" * 1000 for n in range(EVENTS)]})
    await writer.write(Output(table=bodies, start=None, to="1", events=EVENTS), Open())
    await source.close()
    feed = LogChangeFeed(log)
    sink = PostgresOutputSink(
        dsn, setup="CREATE TABLE lines (id serial, partition text, sequence bigint, body text)", table="lines",
        executors_env=VARIABLE)
    value = os.environ[VARIABLE]
    if not has_variable:
        del os.environ[VARIABLE]
    engine = SparkEngine(driver_memory="512m")
    sql = "SELECT partition, sequence, string(body) AS body FROM events"
    transform = SparkTransform(engine, "p", sql=sql)
    await transform.prepare()
    os.environ[VARIABLE] = value
    await sink.prepare()
    writer = await sink.open(claim())
    ranges = await feed.plan_ranges("a", None, EVENTS, RANGE)
    batch = RangedBatch("a", 1, tuple(ranges), 0.0)
    columns = transform.columns
    try:
        stager = await writer.make_stager(batch.start, columns)
        table, staged = await transform.apply_ranges(batch, feed.range_reader(), stager)
        print(len(staged), sum(part.rows for part in staged), table.num_rows)
        await writer.write(Output(table=table, start=batch.start, to=batch.to, events=EVENTS, staged=staged), Open())
    except RangeRefused as error:
        print(error)
    finally:
        await transform.close()
        await sink.close()
        await feed.close()
        engine.stop()

asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[4] == "set"))
"""


async def run_host(tmp_path: Path, postgres: Postgres, variable: str) -> str:
    host = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOST, str(tmp_path / "log"), postgres.dsn, EXECUTORS_ENV, variable),
        env={**os.environ, EXECUTORS_ENV: postgres.dsn},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            found, _ = await host.communicate()
    finally:
        if host.returncode is None:
            host.kill()
    assert host.returncode == 0
    return found.decode()


async def test_what_tasks_stage_and_what_they_hand_back_is_committed_in_order(
    tmp_path: Path, postgres: Postgres
) -> None:
    """Two of three tasks have so much output that they stage it; the host stages that of the third."""
    assert (await run_host(tmp_path, postgres, "set")).split() == ["3", "3100", "0"]
    assert postgres.fetch("SELECT count(*), count(DISTINCT sequence) FROM lines") == [(3100, 3100)]
    assert postgres.fetch("SELECT count(*) FROM lines WHERE left(body, 4)::int <> id - 1") == [(0,)]
    assert postgres.fetch("SELECT position IS NOT NULL FROM leasehold_positions") == [(True,)]
    assert postgres.fetch("SELECT relname FROM pg_class WHERE relname ~ '^leasehold_staged'") == []


async def test_executors_without_the_variable_leave_the_batch_to_the_host_and_name_it(
    tmp_path: Path, postgres: Postgres
) -> None:
    found = await run_host(tmp_path, postgres, "unset")
    assert f"the environment variable {EXECUTORS_ENV}, which `executors_env` names, is not set" in found
    assert postgres.fetch("SELECT count(*) FROM lines") == [(0,)]
