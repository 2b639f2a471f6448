"""All benchmarks, part by part, each in a process of its own: `make bench`, or some of them: `make bench ONLY=hub`.

A part that misses a target, or fails, does not keep the others from running. At the end there are one table, build/bench.json
and, if all parts ran, docs/performance.md. Exit code 1 where a target is missed or a part has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import page
from results import BUILD, PARTS, Figure, figures_of, read, say, table

HERE = Path(__file__).parent
SCRIPTS: Mapping[str, str] = {
    "micro-batches": "microbatch.py",
    "exactly-once": "exactly_once.py",
    "peers": "peers.py",
    "postgres-sink": "postgres_sink.py",
    "delta-sink": "delta_sink.py",
    "hub": "event_hubs.py",
    "kafka": "kafka_topics.py",
    "platforms": "platforms.py",
    "lease-store": "store_cost.py",
    "requests": "async_sink.py",
    "requests-in-trouble": "async_troubles.py",
    "partitions": "many_partitions.py",
    "executors": "executors.py",
    "handlers": "handlers.py",
}
RESULT = BUILD / "bench.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "--only", default="", metavar="WORD", help=f"of {', '.join(SCRIPTS)}: those with it in the name"
    )
    only: str = parser.parse_args().only
    parts = [only] if only in SCRIPTS else [part for part in SCRIPTS if only in part]
    if not parts:
        parser.error(f"no part has {only!r} in its name: {', '.join(SCRIPTS)}")
    failed = [part for part in parts if not run_part(part)]
    found = {part: read(part) for part in parts if part not in failed}
    figures = {part: figures_of(each) for part, each in found.items()}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(found, indent=2) + "\n")
    lines = [each for part in figures for each in figures[part]]
    say(f"{table(lines)}\n\nwritten to {RESULT}")
    if not only and not failed:
        page.write(figures, next(iter(found.values()))["machine"], datetime.now(UTC))
        say(f"and to {page.PAGE}")
    return report(lines, failed)


def run_part(part: str) -> bool:
    """Returns whether it measured its figures, whatever they are."""
    say(f"--- {part}")
    (PARTS / f"{part}.json").unlink(missing_ok=True)
    paths = [str(HERE), str(HERE.parents[1]), str(HERE.parents[2]), str(HERE.parents[2] / "docs")]
    command = [sys.executable, str(HERE / SCRIPTS[part])]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=False)
    return ended.returncode in (0, 1) and (PARTS / f"{part}.json").exists()


def report(figures: list[Figure], failed: list[str]) -> int:
    """Print what is missed and what has failed. Returns the exit code."""
    missed = [f"{each.name}: {each.value:.6g}, target {each.target}" for each in figures if each.is_missed]
    for line in missed:
        say(f"missed: {line}")
    for part in failed:
        say(f"failed: {part}; its error is above")
    return 1 if missed or failed else 0


if __name__ == "__main__":
    sys.exit(main())
