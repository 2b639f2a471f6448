"""Runs seeds, on all cores: `make sim SEEDS=500 FIRST=1 SIZE=small`, or one of them again: `make sim SEED=7`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context

import click
from lab.simulation.run import Verdict, simulated
from lab.simulation.setup import SIZES, Size
from lab.simulation.world import hasten

TAIL_LINES = 40
PROGRESS_S = 60


def main() -> int:
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seeds", type=positive, default=500)
    parser.add_argument("--first", type=positive, default=1)
    parser.add_argument("--seed", type=positive)
    parser.add_argument("--size", choices=list(SIZES), default="small")
    asked = parser.parse_args()
    if asked.seed is not None:
        return replayed(asked.seed, SIZES[asked.size])
    return ran(asked.first, asked.seeds, asked.size)


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def replayed(seed: int, size: Size) -> int:
    """The whole trace of one seed."""
    hasten()
    verdict = simulated(seed, size)
    click.echo("\n".join(verdict.trace))
    click.echo(f"seed {seed}: {len(verdict.found)} violations, trace {verdict.hash}")
    return 1 if verdict.found else 0


def ran(first: int, seeds: int, name: str) -> int:
    """Many seeds. A run in which nothing was delivered, or in which nothing went wrong, is a failure too."""
    started = time.monotonic()
    counts, simulated_s, failed = Counter[str](), 0.0, list[Verdict]()
    told_at = started
    for done, verdict in enumerate(verdicts(range(first, first + seeds), name), 1):
        if time.monotonic() - told_at > PROGRESS_S:
            told_at = time.monotonic()
            click.echo(f"{done} of {seeds} seeds, {len(failed)} violations", err=True)
        counts += verdict.counts
        simulated_s += verdict.simulated_s
        if verdict.found:
            failed.append(verdict)
            click.echo(report(verdict, SIZES[name]))
    minutes = (time.monotonic() - started) / 60
    click.echo(
        f"{seeds} seeds, {len(failed)} violations ({name}; {first} to {first + seeds - 1});"
        f" {simulated_s / 3600:.1f} hours simulated; {seeds / minutes:.0f} seeds a minute"
    )
    click.echo(", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
    idle = [what for what in ("batches", "sends") if not counts[what]]
    if not any(what.startswith("fault ") for what in counts):
        idle.append("faults")
    if idle:
        click.echo(f"this run shows nothing: it had no {', no '.join(idle)}")
    return 1 if failed or idle else 0


def verdicts(seeds: range, name: str) -> Iterator[Verdict]:
    """In seed order, on all cores; without traces of what went well. Forked, while there are no threads yet:
    to import everything anew takes as long as twenty seeds."""
    cores = min(os.cpu_count() or 1, len(seeds))
    with ProcessPoolExecutor(cores, get_context("fork"), initializer=hasten) as pool:
        yield from pool.map(partial(_untold, name=name), seeds)


def _untold(seed: int, name: str) -> Verdict:
    return simulated(seed, SIZES[name], is_told=False)


def report(verdict: Verdict, size: Size) -> str:
    tail = "\n".join(f"    {line}" for line in verdict.trace[-TAIL_LINES:])
    again = f"make sim SEED={verdict.seed} SIZE={size.name}"
    return f"seed {verdict.seed} violates {verdict.found[0]}\n{tail}\n  replay it: {again}"


if __name__ == "__main__":
    sys.exit(main())
