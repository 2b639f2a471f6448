"""What a host holds while it drains a log: bounded, however long the log is and however many partitions it has.

The Python process is measured by its resident set, its highest ever. The tree (Python, Spark's JVM, its Python workers) is
measured by proportional set sizes: forked workers share pages, which a sum of resident sets counts again for each. What Spark
keeps in files in memory (/dev/shm) belongs to no process and costs as much, and is added. PostgreSQL is not part of the tree.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from lab.bench.workload import MERGE, SETUP, write_log
from plugins_cli import Command, Commands
from plugins_pg import Postgres

from leasehold.pipeline.spark.master import roomy_shm

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not psutil.LINUX, reason="proportional set sizes are to be had on Linux alone"),
]

MB = 1_000_000
IN_FULL = "MEMORY_IN_FULL" in os.environ
EVENTS = 1_000_000 if IN_FULL else 500_000
"""The half is more than all that a host may hold, so its bounds are reached as well."""
CASES = [(1, 4, 600), (1, 32, 600), (3, 32, 1_000)] if IN_FULL else [(1, 4, 600)]
"""Pipelines, partitions of each, MB of Python: every partition may hold a page, and that page is copied into its job."""
TREE_BYTES_MAX = 2_500 * MB
LOOK_EVERY_S = 0.2
SCHEMA = "account STRING NOT NULL, value DECIMAL(20,2) NOT NULL"
SQL = "SELECT partition, account, sum(value) AS value, count(*) AS events FROM events GROUP BY partition, account"


@dataclass
class Peak:
    """The most that was seen at any time, in bytes."""

    python: int = 0
    tree: int = 0
    looks: int = 0

    def __str__(self) -> str:
        return f"Python {self.python // MB} MB, tree {self.tree // MB} MB at most, in {self.looks} looks"


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Where Spark keeps its files: in memory, as it does by default where there is enough of it."""
    directory = Path(tempfile.mkdtemp(prefix="leasehold-memory-", dir=roomy_shm()))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.parametrize(("pipelines", "partitions", "python_mb_max"), CASES)
def test_a_long_log_is_drained_within_bounds_and_counted_exactly(
    pipelines: int,
    partitions: int,
    python_mb_max: int,
    tmp_path: Path,
    scratch: Path,
    postgres: Postgres,
    leasehold: Commands,
) -> None:
    names = [f"balances_{number}" for number in range(pipelines)]
    sums = write_log(tmp_path / "log", EVENTS, seed=1, partitions=partitions)
    (tmp_path / "drain.yaml").write_text(yaml.safe_dump(settings(scratch, *names)))
    host = leasehold("run", "drain.yaml", "--until-idle", env={"LEASEHOLD_POSTGRES_DSN": postgres.dsn})
    peak = watched(host, scratch)
    print(peak)  # noqa: T201 - for whoever asks with -s
    assert host.ended() == 0, host.err
    assert [balances(postgres, name) == sums for name in names] == [True] * pipelines
    assert peak.looks > 10
    assert peak.python < python_mb_max * MB, peak
    assert peak.tree < TREE_BYTES_MAX, peak


def settings(scratch: Path, *pipelines: str) -> dict[str, object]:
    """Each sums the whole log; what is not said here is as it is by default."""
    return {
        "leases": {"type": "sqlite", "path": "leases.db"},
        "spark": {"master": "local[2]", "conf": {"spark.local.dir": str(scratch)}},
        "api": {"port": 0},
        "pipelines": [
            {
                "name": name,
                "feed": {"type": "log", "path": "log"},
                "schema": SCHEMA,
                "sql": SQL,
                "sink": {
                    "type": "postgres",
                    "dsn": "${LEASEHOLD_POSTGRES_DSN}",
                    "setup": SETUP.replace(" balances", f" {name}").replace("balances.", f"{name}."),
                    "merge": MERGE.replace(" balances", f" {name}").replace("balances.", f"{name}."),
                },
            }
            for name in pipelines
        ],
    }


def balances(postgres: Postgres, table: str) -> dict[str, int]:
    """In cents."""
    return {account: int(balance * 100) for account, balance in postgres.fetch(f"SELECT account, balance FROM {table}")}


def watched(command: Command, scratch: Path) -> Peak:
    """Looks again and again until the process has ended; one that ends while it is looked at does not count."""
    peak, python, never = Peak(), psutil.Process(command.process.pid), threading.Event()
    while command.process.poll() is None:
        with suppress(psutil.Error, OSError):
            tree = [python, *python.children(recursive=True)]
            held = sum(each.memory_full_info().pss for each in tree) + in_files(scratch)
            peak = Peak(max(peak.python, highest_rss(python)), max(peak.tree, held), peak.looks + 1)
        never.wait(LOOK_EVERY_S)
    return peak


def highest_rss(process: psutil.Process) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def in_files(directory: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in directory.rglob("*") if file.is_file())
