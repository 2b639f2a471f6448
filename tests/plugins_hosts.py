"""A bank that goes on while hosts come, go, are killed and stopped: real processes, real Spark, real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from patience import PATIENCE_S, until
from plugins_cluster import spark_settings
from plugins_pg import database

from leasehold.leases.document import decode_lease, lease_prefix
from leasehold.leases.lease import Lease
from leasehold.leases.stores.sqlite import SqliteStore
from leasehold.leases.timing import Timing

PIPELINES = ("generate", "transform", "balances")
PARTITIONS = 4
BATCH_AGE_S = 1
"""Fewer batches than would be made at once, each of which costs some of a machine that has more to do."""
BACKLOG_MAX = 1000
"""More are not written before hosts have caught up: on a slow machine, what is left to deliver would grow all day."""


class HostProcess:
    """`leasehold run` as a process of its own."""

    def __init__(self, bank: Bank, name: str, *options: str) -> None:
        self.name = name
        self.log_file = bank.directory / f"{name}.log"
        leasehold = Path(sys.executable).with_name("leasehold")
        command = [str(leasehold), "run", str(bank.settings_of(name)), *options]
        self._stderr = self.log_file.with_suffix(".stderr").open("wb")
        self.process = subprocess.Popen(command, env=bank.environment, stderr=self._stderr, start_new_session=True)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has logged."""
        if not self.log_file.exists():
            return []
        lines = self.log_file.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def has_logged(self, event: str, **fields: Any) -> bool:
        return any(e["event"] == event and fields.items() <= e.items() for e in self.events)

    @property
    def errors(self) -> str:
        return self.log_file.with_suffix(".stderr").read_text()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self._stderr.close()


@dataclass(frozen=True, slots=True)
class Step:
    """A row of the sink's position history."""

    partition: str
    epoch: int
    owner: str
    start: str | None
    to: str


def freeze(process: subprocess.Popen[Any], directory: Path, name: str) -> None:
    """Stop a host outside of SQLite's transactions: one that holds a lock then would keep everybody out for as long.

    directory: of the lease file and of what else is in SQLite.
    """

    def is_frozen_aside() -> bool:
        process.send_signal(signal.SIGSTOP)
        until(lambda: _is_stopped(process.pid), f"all threads of host {name} are stopped")
        if all(map(_is_free, directory.rglob("*.db"))):
            return True
        process.send_signal(signal.SIGCONT)
        return False

    until(is_frozen_aside, f"host {name} is stopped outside of a transaction")


def _is_stopped(pid: int) -> bool:
    """Whether no thread can take a lock any more: on a busy machine, threads continue for a while after the signal.

    The state of a thread follows its name, which is in parentheses (proc_pid_stat(5)).
    """
    try:
        stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):  # a thread has ended meanwhile
        return False
    return bool(stats) and all(stat.rpartition(") ")[2].startswith("T") for stat in stats)


def _is_free(database: Path) -> bool:
    """Whether somebody can write there, if not at once."""
    with closing(sqlite3.connect(database, timeout=2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                return False
            raise
        connection.execute("ROLLBACK")
    return True


class Bank:
    """The demo's pipelines, with transactions that go on arriving."""

    def __init__(self, directory: Path, postgres: Any, timing: Timing) -> None:
        self.directory = directory
        self.timing = timing
        self.environment = {**os.environ, "LEASEHOLD_POSTGRES_DSN": postgres.dsn}
        self.hosts: list[HostProcess] = []
        self.expected: defaultdict[str, Decimal] = defaultdict(Decimal)
        self.written = 0
        self._postgres = postgres
        self._random = random.Random(1)
        self._pause = threading.Event()
        self._writing: threading.Thread | None = None
        for number in range(PARTITIONS):
            (directory / f"transactions-{number}.csv").write_text("transaction_id,account,kind,amount,occurred_at\n")

    def settings_of(self, host: str) -> Path:
        """The demo's settings with another name, other intervals, and a log that tests can read."""
        settings = yaml.safe_load(resources.files("leasehold.service.cli.demo").joinpath("bank.yaml").read_text())
        settings["leases"] |= {
            "duration_s": self.timing.duration_s,
            "balance_s": self.timing.balance_s,
        }
        settings |= {"host": {"name": host}, "log": {"format": "json", "file": f"{host}.log"}}
        settings["spark"] = spark_settings(settings["spark"] | {"driver_memory": "512m"})
        for pipeline in settings["pipelines"]:
            pipeline["batch_age_max_s"] = BATCH_AGE_S
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    # Transactions

    def write(self, count: int) -> None:
        """Append whole lines to all files."""
        for number in range(PARTITIONS):
            with (self.directory / f"transactions-{number}.csv").open("a") as file:
                file.writelines(self._line() for _ in range(count // PARTITIONS))

    def keep_writing(self, count: int, every_s: float) -> None:
        def write() -> None:
            while not self._pause.wait(every_s):
                if self.written - self.delivered() < BACKLOG_MAX:
                    self.write(count)

        self._pause.clear()
        self._writing = threading.Thread(target=write, daemon=True)
        self._writing.start()

    def stop_writing(self) -> None:
        self._pause.set()
        if self._writing is not None:
            self._writing.join()

    def _line(self) -> str:
        account = f"account-{self._random.randrange(5)}"
        kind = self._random.choice(["deposit", "withdrawal"])
        amount = Decimal(self._random.randrange(1, 100_000)) / 100
        self.expected[account] += amount if kind == "deposit" else -amount
        self.written += 1
        return f"{self.written},{account},{kind},{amount},2026-01-01T00:00:00Z\n"

    # Hosts and leases

    def freeze(self, host: HostProcess) -> None:
        freeze(host.process, self.directory, host.name)

    def run(self, name: str, *options: str) -> HostProcess:
        host = HostProcess(self, name, *options)
        self.hosts.append(host)
        return host

    @property
    def leases(self) -> list[Lease]:
        return asyncio.run(self._read_leases())

    async def _read_leases(self) -> list[Lease]:
        store = SqliteStore(self.directory / "leases.db")
        try:
            documents = [document for name in PIPELINES for document in await store.list(lease_prefix(name))]
        finally:
            await store.close()
        return [decode_lease(document.id, document.body) for document in documents]

    def shares(self) -> Counter[str | None]:
        return Counter(lease.owner for lease in self.leases)

    def owns_all(self, name: str) -> bool:
        return self.shares() == {name: PARTITIONS * len(PIPELINES)}

    def is_shared_evenly(self, *names: str) -> bool:
        """In every pipeline and over all of them."""
        leases = self.leases
        parts = [[lease for lease in leases if lease.pipeline == name] for name in PIPELINES]
        is_whole = len(leases) == PARTITIONS * len(PIPELINES)
        return is_whole and all(self._is_even(part, names) for part in (*parts, leases))

    @staticmethod
    def _is_even(leases: list[Lease], names: tuple[str, ...]) -> bool:
        owned = Counter(lease.owner for lease in leases)
        counts = [owned[name] for name in names]
        return sum(counts) == len(leases) and max(counts) - min(counts) <= 1

    # What came of it

    def delivered(self) -> int:
        try:
            return int(self._postgres.fetch("SELECT coalesce(sum(events), 0) FROM balances")[0][0])
        except Exception as error:
            if "does not exist" in str(error):
                return 0
            raise

    def settle(self) -> None:
        """Stop writing, and see everything delivered."""
        self.stop_writing()
        until(lambda: self.delivered() >= self.written, f"{self.written} events delivered", self.delivered)

    def assert_exact(self) -> None:
        """Every transaction counted once, and no batch was repeated, dropped, or delivered under an epoch gone by."""
        balances = dict(self._postgres.fetch("SELECT account, balance FROM balances"))
        assert balances == dict(self.expected)
        assert self.delivered() == self.written
        self._assert_contiguous()

    def close(self) -> None:
        self.stop_writing()
        for host in self.hosts:
            host.end()

    def steps(self) -> list[Step]:
        """The history of the last sink, in the order of positions within each partition."""
        rows = self._postgres.fetch(
            'SELECT partition, epoch, owner, "from", "to" FROM leasehold_history ORDER BY partition, "to"::bigint'
        )
        return [Step(*row) for row in rows]

    def _assert_contiguous(self) -> None:
        """No batch repeated, none dropped, epochs never back."""
        before: dict[str, Step] = {}
        for step in self.steps():
            last = before.get(step.partition)
            assert step.start == (last.to if last else None), (last, step)
            assert last is None or step.epoch >= last.epoch, (last, step)
            before[step.partition] = step


@pytest.fixture(scope="module")
def postgres_of_module(postgres_server: Any) -> Iterator[Any]:
    """A database for all tests of a module."""
    yield from database(postgres_server)
