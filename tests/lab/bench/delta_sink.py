"""The sink `files` (format delta) beside bare `write_deltalake` of the same tables, a commit for each table.

The bare side keeps no position and syncs nothing to the disk. Both run in this process, in turns, each into an empty directory.
A second part has many partitions write at once, and measures how long a batch takes from the sink's call until another reader
of the table sees its rows. Prints, and writes build/bench/delta-sink.json. Exit code 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
from async_sink import Trusted, claim
from deltalake import DeltaTable, write_deltalake
from postgres_sink import batch
from results import Figure, finish, say

from leasehold.pipeline.connectors.files.delta import DeltaSink, location_of
from leasehold.pipeline.connectors.files.sink import Directory
from leasehold.pipeline.sink import Output

OURS, BARE = "leasehold", "write_deltalake"
PARTITIONS = 16
ROWS = 1_000
"""Of a batch, where many partitions write at once."""
POLL_S = 0.02


def sink_in(path: Path) -> DeltaSink:
    return DeltaSink(Directory(path), location_of(path), compression="snappy")  # as deltalake does by default


def output(table: pa.Table, number: int) -> Output:
    return Output(table=table, start=str(number) if number else None, to=str(number + 1), events=table.num_rows)


async def write_ours(path: Path, tables: Sequence[pa.Table]) -> None:
    sink = sink_in(path)
    await sink.prepare()
    writer = await sink.open(claim())
    for number, table in zip(count(), tables, strict=False):
        await writer.write(output(table, number), Trusted())
    await sink.close()


def write_bare(path: Path, tables: Sequence[pa.Table]) -> None:
    write_deltalake(str(path), tables[0])
    opened = DeltaTable(str(path))
    for table in tables[1:]:
        write_deltalake(opened, table, mode="append")


def measured(path: Path, side: str, tables: Sequence[pa.Table]) -> tuple[float, float]:
    """Rows a second, and microseconds of CPU a row."""
    rows = sum(table.num_rows for table in tables)
    cpu_before, began = time.process_time(), time.monotonic()
    if side == OURS:
        asyncio.run(write_ours(path, tables))
    else:
        write_bare(path, tables)
    took_s, used_s = time.monotonic() - began, time.process_time() - cpu_before
    found = DeltaTable(str(path)).to_pyarrow_dataset().count_rows()
    if found != rows:
        raise RuntimeError(f"{side} wrote {found} rows of {rows}")
    return rows / took_s, 1_000_000 * used_s / rows


def repetitions(directory: Path, tables: Sequence[pa.Table], times: int) -> Iterator[tuple[str, tuple[float, float]]]:
    for number in range(times):
        for side in (OURS, BARE):
            path = directory / f"{number}-{side}"
            found = measured(path, side, tables)
            shutil.rmtree(path)
            say(f"{number + 1}. {side:16}{found[0]:>12,.0f} rows/s{found[1]:>8.2f} us of CPU a row")
            yield side, found


class Observer:
    """Another reader of the table, which notes when it first sees so many rows."""

    def __init__(self, path: Path) -> None:
        self._table = DeltaTable(str(path))
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seen: list[tuple[float, int]] = []
        self._thread.start()

    def _watch(self) -> None:
        while not self._ends.wait(POLL_S):
            self._table.update_incremental()
            self.seen.append((time.monotonic(), self._table.count()))

    def close(self) -> None:
        self._ends.set()
        self._thread.join()


async def saturate(path: Path, for_s: float) -> list[float]:
    """When each batch was given to the sink, in the order in which the commits were made."""
    sink = sink_in(path)
    await sink.prepare()
    table = batch(0).slice(0, ROWS)
    writers = [await sink.open(replace(claim(), partition=str(number))) for number in range(PARTITIONS)]
    done: list[tuple[float, float]] = []
    end = time.monotonic() + for_s

    async def write(writer: object) -> None:
        for number in count():
            if (given := time.monotonic()) > end:
                return
            await writer.write(output(table, number), Trusted())  # type: ignore[attr-defined]  # any writer
            done.append((time.monotonic(), given))

    await asyncio.gather(*(write(writer) for writer in writers))
    await sink.close()
    return [given for _, given in sorted(done)]


def visible_after_s(path: Path, for_s: float) -> float:
    """The mean, over all batches."""
    table = batch(0).slice(0, 1)
    write_deltalake(str(path), table)
    observer = Observer(path)
    given = asyncio.run(saturate(path, for_s))
    time.sleep(5 * POLL_S)
    observer.close()
    waits = []
    seen = iter(observer.seen)
    at, rows = next(seen)
    for number, begin in enumerate(given, start=1):
        while rows < number * ROWS + 1:
            at, rows = next(seen)
        waits.append(at - begin)
    version = DeltaTable(str(path)).version()
    say(f"{PARTITIONS} partitions: {len(given) / for_s:.0f} batches/s in {version / for_s:.0f} commits/s")
    return statistics.mean(waits)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=20, help="of 50,000 rows (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="of each side (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="that many partitions write (%(default)s)")
    settings = parser.parse_args()
    tables = [batch(number) for number in range(settings.batches)]
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    found = list(repetitions(directory, tables, settings.repetitions))
    wait_s = visible_after_s(directory / "many", settings.seconds)
    shutil.rmtree(directory, ignore_errors=True)
    rates, costs = (
        {side: statistics.median(each[n] for name, each in found if name == side) for side in (OURS, BARE)}
        for n in (0, 1)
    )
    figures = [
        Figure(
            name="Delta sink, append",
            unit="rows/s",
            ours=rates[OURS],
            others={BARE: rates[BARE]},
            beside=BARE,
            cpu_us=costs,
            bound=0.8,
        ),
        Figure(
            name=f"Delta sink, {PARTITIONS} partitions, mean until visible",
            unit="s",
            ours=wait_s,
            bound=1.0,
            is_most=True,
        ),
    ]
    return finish("delta-sink", figures, settings=vars(settings), repetitions=found)


if __name__ == "__main__":
    sys.exit(main())
