"""What a Python user may pick for the same job: log -> parse JSON -> sum for each account -> PostgreSQL, warm.

Leasehold, with Spark and all settings as they are by default, beside programs on DuckDB, Polars, bytewax and plain Python
(`peer_sides.py`). All read the same files, drain the same backlog in micro-batches of at most 100,000 events of a partition,
merge them into the same table, and must end with the same balances.

The others do less. None of them
- shares partitions among hosts, or takes over those of a host that died: each is one process, with no lease;
- stores a position, so each begins at the start again; bytewax could store one beside the output, which is at least once;
- keeps a host that was believed dead from writing;
- cuts batches by memory, sets bad events aside, or retries.

Prints, and writes build/bench/peers.json. Nothing is promised here: a ratio below 1 is a peer that is faster. CPU time is that of
the process, of its children and of PostgreSQL. A peer that is not installed is left out: bytewax has no wheel for Python 3.13.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from microbatch import Bench
from observer import postgres
from results import Figure, finish, say
from sides import Side

OURS = "leasehold"
SIDES = {
    OURS: ("ours.py",),
    "duckdb": ("peer_sides.py", "duckdb"),
    "polars": ("peer_sides.py", "polars"),
    "bytewax": ("peer_bytewax.py",),
    "python": ("peer_sides.py", "python"),
}

Found = dict[str, list[tuple[float, float]]]
"""By side: events a second, and microseconds of CPU time an event, of each drain."""


class Peers(Bench):
    def measure(self, name: str, drains: int) -> list[tuple[float, float]]:
        program, *arguments = SIDES[name]
        with Side(program, self._directory / f"{name}.stderr", *arguments) as side:
            for _ in range(0, self._warm_events if name == OURS else self._events, self._events):
                self._drained(side, "warm", self._events)
            return [self._drained(side, "warm", self._events) for _ in range(drains)]


def figures(results: Found) -> list[Figure]:
    rates, cpu_us = (
        {name: statistics.median(each[n] for each in found) for name, found in results.items()} for n in (0, 1)
    )
    return [
        Figure(
            name=f"log to PostgreSQL, compared with {name}",
            unit="events/s",
            ours=rates[OURS],
            others={name: rates[name]},
            beside=name,
            cpu_us={OURS: cpu_us[OURS], name: cpu_us[name]},
        )
        for name in results
        if name != OURS
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Leasehold beside what a Python user may pick for the same job.")
    parser.add_argument(
        "--warm-events", type=int, default=4_000_000, help="that Leasehold drains first, for Java (%(default)s)"
    )
    parser.add_argument("--events", type=int, default=800_000, help="of each backlog (%(default)s)")
    parser.add_argument("--drains", type=int, default=2, help="measured in each process (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=3, help="of each side, in fresh processes (%(default)s)")
    settings = vars(parser.parse_args())
    names = [name for name in SIDES if name in (OURS, "python") or find_spec(name)]
    results: Found = {name: [] for name in names}
    directory = Path(tempfile.mkdtemp(prefix="leasehold-bench-"))
    with postgres(directory) as server:
        sizes = {name: settings[name] for name in ("warm_events", "events")}
        bench = Peers(directory, server, cold_events=0, probes=0, warm_probes=0, **sizes)
        for repetition in range(settings["repetitions"]):
            for name, found in results.items():
                found.extend(bench.measure(name, settings["drains"]))
                rate, cpu_us = found[-1]
                say(f"{repetition + 1}. {name:10}{rate:>12,.0f} events/s{cpu_us:>8.2f} us of CPU an event")
    shutil.rmtree(directory, ignore_errors=True)
    return finish("peers", figures(results), settings=settings, repetitions=results)


if __name__ == "__main__":
    sys.exit(main())
