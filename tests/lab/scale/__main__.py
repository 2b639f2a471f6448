"""Whole groups of hosts on virtual time, situation by situation: what they cost, and how soon they recover.

Prints a table for each group and writes it into docs/scaling.md. Exit code 1 if a figure misses its target.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from resource import RUSAGE_SELF, getrusage

from lab.scale.figures import missed, table, write
from lab.scale.group import ScaleGroup
from lab.scale.situations import Row, Setup, situations
from lab.simulation.loop import run_virtual

SETUPS = (
    Setup(name="3x32", hosts=3, leases=32, deaths=20),
    Setup(name="9x900", hosts=9, leases=900, situations=("join", "loaded join")),
    Setup(
        name="11x1920",
        hosts=11,
        leases=1920,
        deaths=5,
        situations=("idle", "outage", "join", "scaling", "death", "zone"),
    ),
    Setup(
        name="100x20000", hosts=100, leases=20_000, situations=("idle", "outage", "join", "scaling", "death", "zone")
    ),
    Setup(
        name="500x100000",
        hosts=500,
        leases=100_000,
        deaths=1,
        idle_minutes=1,
        situations=("idle", "join", "death"),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Whole groups of hosts on virtual time.")
    parser.add_argument("--only", default="", help="one group, such as 3x32; without it, all but the two largest")
    parser.add_argument("--situations", default="", help="some of them, by commas, for a try; the page is not written")
    given = parser.parse_args()
    chosen = [setup for setup in SETUPS if given.only == setup.name or not (given.only or setup.is_shared)]
    if not chosen:
        parser.error(f"--only: '{given.only}' is none of {', '.join(setup.name for setup in SETUPS)}")
    misses: list[str] = []
    for setup in chosen:
        only = tuple(filter(None, given.situations.split(",")))
        rows = run_virtual(_run(setup, only))
        misses += missed(setup, rows)
        say("\n".join(("", f"{setup.hosts} hosts, {setup.leases:,} leases", *table(rows))))
        if not only:
            write(setup.name, table(rows))
    say("\n".join(("", *(misses or ["every target is met"]))))
    return 1 if misses else 0


async def _run(setup: Setup, only: tuple[str, ...]) -> list[Row]:
    began, rows = time.monotonic(), list[Row]()
    group = ScaleGroup(setup.hosts, setup.leases, is_shared=setup.is_shared)
    gc.disable()  # next to nothing here is garbage in circles, and looking for it would take most of the time
    chosen = Setup(
        **{**{name: getattr(setup, name) for name in setup.__slots__}, **({"situations": only} if only else {})}
    )
    async for row in situations(chosen, group):
        rows.append(row)
        spent = f"{time.monotonic() - began:6.0f} s, {getrusage(RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB at most"
        say(f"{spent}  {setup.name}: {row.situation}, even after {row.even_s}")
    await group.close()
    return rows


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
