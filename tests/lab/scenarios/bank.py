"""The demo's bank, a role at a time: event generator, stream processor and view generator are processes of their own.

What a role starts from is cut once out of an undisturbed run, and put back for every case: the roles before it are not run
again, those behind it are.
"""

from __future__ import annotations

import csv
import json
import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import yaml
from lab.scenarios.grounds import LOGS, PARTITIONS, Ground, MakeGround, behind
from lab.scenarios.host import Host, Process
from patience import Failed

from leasehold.leases.lease import Lease
from leasehold.service.cli.demo import transactions as demo_data

TRANSACTIONS = 1000
BATCH_EVENTS = 50
"""So that a partition is five batches."""
SLOW_PAGE_EVENTS = 25
"""Of a slow host: ten batches in a partition, so that there is more to read than it may."""

TESTS = Path(__file__).parents[2]
ARCHIVE = TESTS.parent / "build" / "spark.jsa"
JAVA = "-XX:TieredStopAtLevel=1" + (
    f" -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={shlex.quote(str(ARCHIVE))}" if ARCHIVE.exists() else ""
)
"""As tests/conftest.py has it: half a minute of Spark is not worth a better compiler."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the whole bank came to. logs: log -> file -> bodies, in order. rows: account -> balance, events."""

    logs: dict[str, dict[str, list[Any]]]
    rows: dict[str, tuple[Decimal, int]]

    @property
    def told(self) -> str:
        counts = {name: sum(map(len, parts.values())) for name, parts in self.logs.items()}
        return f"{sum(events for _, events in self.rows.values())} events in {len(self.rows)} balances, logs {counts}"


class Bank:
    """One ground and one database; `directory` is the same for all cases, since positions name places."""

    def __init__(self, directory: Path, server: Any, make: MakeGround, name: str = "bank") -> None:
        self.directory = directory / "bank"
        self.ground: Ground = make(self.directory, name)
        self.gate = self.directory / "gate"
        self._stages = directory / "stages"
        self._server = server
        self._database = name
        self._hosts: set[Host] = set()
        self._is_closed = False
        self.dsn = server.get_uri(database=name)
        self.ground.dsn = self.dsn
        directory.mkdir(exist_ok=True)
        self.environment = {**_environment(), **self.ground.environment, "LEASEHOLD_POSTGRES_DSN": self.dsn}

    def settings(self, host: str, roles: Sequence[str], slow: bool) -> Path:
        """slow: the host's sinks wait for the gate, and it reads ahead little, in smaller pages."""
        settings = self.ground.settings()
        settings["host"] = {"name": host}
        settings["log"] = {"format": "json", "file": f"{host}.log"}
        settings["leases"] = {"call_timeout_s": 3, **settings["leases"], "duration_s": 6}
        settings["spark"] |= {"driver_memory": "512m"}
        wanted = [each for each in settings["pipelines"] if each["name"] in roles]
        settings["pipelines"] = [
            self._slow(each) if slow else {**each, "batch_events_max": BATCH_EVENTS} for each in wanted
        ]
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def _slow(self, pipeline: dict[str, Any]) -> dict[str, Any]:
        buffer_bytes = self.ground.buffer_bytes[pipeline["name"]]
        return {
            **pipeline,
            "feed": self.ground.paged(pipeline["feed"], SLOW_PAGE_EVENTS),
            "batch_events_max": SLOW_PAGE_EVENTS,
            "sink": self.ground.slow(pipeline["sink"], self.gate),
            "buffer_bytes_max": buffer_bytes,
            "batch_bytes_max": buffer_bytes,
        }

    # Stages

    def open(self) -> None:
        """Before the first role."""
        self.directory.mkdir(parents=True)
        files = demo_data.write(demo_data.generated(TRANSACTIONS), self.directory, files=PARTITIONS)
        contents = {name: file.read_bytes() for name, file in zip(self.ground.files, files, strict=True)}
        for file in files:
            file.unlink()
        for name, content in contents.items():
            (self.directory / name).write_bytes(content)
        self.ground.open()
        self._new_database()

    def keep(self, role: str) -> None:
        """What this role starts from: all that there is, but for what it and the roles behind it have made."""
        stage = self._stages / role
        shutil.copytree(self.directory, stage)
        self.ground.undo(stage, (role, *behind(role)))

    def put_back(self, role: str) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self._stages / role, self.directory)
        self.ground.put_back((role, *behind(role)))
        self._new_database()

    def _new_database(self) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {self._database} WITH (FORCE)")
            connection.execute(f"CREATE DATABASE {self._database}")

    # Hosts

    @contextmanager
    def running(
        self, name: str, *roles: str, armed: str | None = None, slow: bool = False, until_idle: bool = True
    ) -> Iterator[Host]:
        if self._is_closed:
            raise Failed("told to end")
        host = Host(self, name, self.settings(name, roles, slow), armed, until_idle)
        self._hosts.add(host)
        try:
            yield host
        finally:
            host.end()
            self._hosts.discard(host)

    def run(self, name: str, *roles: str) -> None:
        """To its end. Raises Failed."""
        with self.running(name, *roles) as host:
            self.see_end(host)

    def see_end(self, host: Process) -> None:
        """Raises Failed."""
        if (code := host.ended()) != 0:
            raise Failed(f"host {host.name} ended with {code}: {host.words}")

    def close(self) -> None:
        """Nothing of it goes on, and nothing of it is started."""
        self._is_closed = True
        for host in list(self._hosts):
            host.end()

    # Leases

    def leases(self, role: str) -> list[Lease]:
        return self.ground.leases(role)

    def locked(self) -> list[str]:
        return self.ground.locked()

    # What came of it

    def transactions(self) -> dict[str, list[dict[str, str]]]:
        """File -> what is in it."""
        return {path.name: list(csv.DictReader(path.open(newline=""))) for path in self.directory.glob("*.csv")}

    def viewed(self) -> list[str]:
        """The partitions of which something is in the balances."""
        with psycopg.connect(self.dsn) as connection, suppress(psycopg.errors.UndefinedTable):
            rows = connection.execute("SELECT DISTINCT partition FROM leasehold_history").fetchall()
            return [str(partition) for (partition,) in rows]
        return []

    def counted(self) -> int:
        """The events in all balances."""
        return sum(events for _, events in self._rows().values())

    def result(self) -> Result:
        return Result({name: self.ground.events(name) for name in LOGS}, self._rows())

    def _rows(self) -> dict[str, tuple[Decimal, int]]:
        with psycopg.connect(self.dsn) as connection, suppress(psycopg.errors.UndefinedTable):
            rows = connection.execute("SELECT account, balance, events FROM balances").fetchall()
            return {account: (balance, events) for account, balance, events in rows}
        return {}

    def assert_expected(self, result: Result) -> None:
        """By a computation that shares nothing with the pipelines. Raises Failed."""
        transactions = demo_data.generated(TRANSACTIONS)
        balances, events = demo_data.expected_balances(transactions), demo_data.expected_events(transactions)
        if result.rows != {account: (balances[account], events[account]) for account in balances}:
            raise Failed(f"the undisturbed run is wrong: {json.dumps(result.rows, default=str)}")


def _environment() -> dict[str, str]:
    """Of hosts: they find the slow sinks, and Java starts quickly."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {"SPARK_SUBMIT_OPTS": JAVA, **os.environ, "PYTHONPATH": path}
