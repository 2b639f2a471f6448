"""The price of exactly once: the same pipeline into PostgreSQL, with the position in the output's transaction and without it.

The sink `postgres` moves a position under a guard in the transaction of each batch, and fences earlier owners when it opens.
The other side is a sink without all that, as one would write it for speed (`deliveries.py`). Its position is the lease's.
Both write the lease equally often. Two pipelines are measured:
- plain: without a transform. The merge parses the events and sums them.
- spark: Spark parses and sums, as in `microbatch.py`.

Prints, and writes build/bench/exactly-once.json: the rate of a backlog and its CPU time an event, and the time from just before
a single event is appended until it is seen in PostgreSQL. Each repetition is a fresh process, in which the deliveries take turns.
Figures are medians, and every drain ends with a look at all balances. Exit code 1 where a target is missed or a balance is wrong.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from deliveries import AT_LEAST_ONCE, EXACTLY_ONCE, PLAIN, SPARK
from microbatch import Bench
from observer import Database, postgres
from results import Figure, finish, say
from sides import Job, Side

DELIVERIES = (EXACTLY_ONCE, AT_LEAST_ONCE)


@dataclass(frozen=True, slots=True)
class Measured:
    """One side of one repetition: events/s and CPU time an event of its drains, and the times of single events."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    latencies_ms: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        rate, cpu_us, latency_ms = (statistics.median(each) for each in (self.rates, self.cpu_us, self.latencies_ms))
        return f"{rate:>12,.0f} events/s{cpu_us:>8.2f} us of CPU an event{latency_ms:>8.2f} ms an event"


class Pairs(Bench):
    """Both deliveries by turns."""

    way = EXACTLY_ONCE

    def measure(self, kind: str, turns: int) -> dict[str, Measured]:
        found = {name: Measured() for name in DELIVERIES}
        with Side("deliveries.py", self._directory / f"{kind}.stderr", kind) as side:
            for _ in range(0, self._warm_events if kind == SPARK else self._events, self._events):
                self._drained(side, "warm", self._events)
            for self.way in turned(turns):
                rate, cpu_us = self._drained(side, "warm", self._events)
                found[self.way].rates.append(rate)
                found[self.way].cpu_us.append(cpu_us)
            for self.way in DELIVERIES:  # not counted: the first of a process is slower, whichever it is
                list(self._latencies_s(side))
            for self.way in turned(turns):
                found[self.way].latencies_ms.extend(1000 * latency_s for latency_s in self._latencies_s(side))
        return found

    @contextmanager
    def _job(self, source: str) -> Iterator[tuple[Job, Database]]:
        with super()._job(source) as (job, database):
            yield replace(job, way=self.way), database


def turned(turns: int) -> Iterator[str]:
    """Each so often, and first as often as second."""
    for turn in range(turns):
        yield from DELIVERIES if turn % 2 == 0 else reversed(DELIVERIES)


def figures(kind: str, results: Mapping[str, list[Measured]]) -> list[Figure]:
    def both(what: str) -> dict[str, float]:
        return {
            name: statistics.median(value for each in found for value in getattr(each, what))
            for name, found in results.items()
        }

    rates, cpu_us, latencies_ms = both("rates"), both("cpu_us"), both("latencies_ms")
    others = {AT_LEAST_ONCE: latencies_ms[AT_LEAST_ONCE], EXACTLY_ONCE: latencies_ms[EXACTLY_ONCE]}
    return [
        Figure(
            name=f"exactly once, {kind}",
            unit="events/s",
            ours=rates[EXACTLY_ONCE],
            others={AT_LEAST_ONCE: rates[AT_LEAST_ONCE]},
            beside=AT_LEAST_ONCE,
            cpu_us=cpu_us,
            bound=0.95,
        ),
        Figure(
            name=f"exactly once, {kind}: one event's p50, what it adds",
            unit="ms",
            ours=latencies_ms[EXACTLY_ONCE] - latencies_ms[AT_LEAST_ONCE],
            others=others,
            bound=1.0,
            is_most=True,
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="The price of exactly once, beside the same pipeline at least once.")
    parser.add_argument("--only", choices=[PLAIN, SPARK], help="one of the pipelines")
    parser.add_argument("--warm-events", type=int, default=4_000_000, help="drained first, at least (%(default)s)")
    parser.add_argument("--events", type=int, default=1_600_000, help="of each backlog (%(default)s)")
    parser.add_argument("--probes", type=int, default=30, help="single events a turn (%(default)s)")
    parser.add_argument("--warm-probes", type=int, default=100, help="sent before, without a pause (%(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="of each delivery in a repetition (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="in fresh processes (%(default)s)")
    settings = vars(parser.parse_args())
    kinds = [settings["only"]] if settings["only"] else [PLAIN, SPARK]
    results: dict[str, dict[str, list[Measured]]] = {kind: {name: [] for name in DELIVERIES} for kind in kinds}
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    with postgres(directory) as server:
        sizes = {name: settings[name] for name in ("warm_events", "events", "probes", "warm_probes")}
        bench = Pairs(directory, server, cold_events=0, **sizes)
        for repetition in range(settings["repetitions"]):
            for kind in kinds:
                for name, measured in bench.measure(kind, settings["turns"]).items():
                    results[kind][name].append(measured)
                    say(f"{repetition + 1}. {kind:6}{name:14}{measured}")
    shutil.rmtree(directory, ignore_errors=True)
    found = [figure for kind in kinds for figure in figures(kind, results[kind])]
    return finish("exactly-once", found, settings=settings)


if __name__ == "__main__":
    sys.exit(main())
