"""The demo's bank, a role at a time: event generator, stream processor and view generator are processes of their own.

What a role starts from is made once and put back for every case, so that only the role that fails is run twice.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import psycopg
import yaml
from plugins_cli import events_in

from pipeline.crash_point import VARIABLE
from service import demo_data

ROLES = ("generate", "transform", "balances")
PARTITIONS = 4
BATCH_EVENTS = 40
END_S = 180


class Failed(Exception):
    """A process did not end as it had to."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the whole bank came to. logs: log -> partition -> bodies, in order. rows: account -> balance, events."""

    logs: dict[str, dict[str, list[Any]]]
    rows: dict[str, tuple[Decimal, int]]

    @property
    def told(self) -> str:
        counts = {name: sum(map(len, parts.values())) for name, parts in self.logs.items()}
        return f"{sum(events for _, events in self.rows.values())} events in {len(self.rows)} balances, logs {counts}"


class Host:
    """`leasehold run` with some of the pipelines."""

    def __init__(self, bank: Bank, name: str, roles: Sequence[str], armed: str | None) -> None:
        self.name = name
        self.log = bank.directory / f"{name}.log"
        leasehold = str(Path(sys.executable).with_name("leasehold"))
        environment = {**os.environ, "LEASEHOLD_POSTGRES_DSN": bank.dsn, **({VARIABLE: armed} if armed else {})}
        self._errors = bank.directory / f"{name}.stderr"
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [leasehold, "run", str(bank.settings(name, roles)), "--until-idle"],
                env=environment,
                stderr=errors,
                start_new_session=True,
            )

    def ended(self, within_s: float = END_S) -> int:
        """Its exit code; what it has left behind (Spark's JVM) is gone as well. Raises Failed."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"host {self.name} did not end within {within_s:g} s: {self.words}") from None
        finally:
            self.end()

    def frozen(self) -> None:
        """Returns once it has stopped itself. Raises Failed where it ends instead; `--until-idle` ends it some time."""
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
            raise Failed(f"the point was not reached: exit code {self.process.returncode}")

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def words(self) -> str:
        """The last that it said."""
        log = self.log.read_text().splitlines()[-3:] if self.log.exists() else []
        return " | ".join([*log, *self._errors.read_text().splitlines()[-3:]])


class Bank:
    """One directory and one database; `directory` is the same for all cases, since positions name places."""

    def __init__(self, directory: Path, server: Any) -> None:
        self.directory = directory / "bank"
        self._stages = directory / "stages"
        self._server = server
        self.dsn = server.get_uri(database="bank")

    def settings(self, host: str, roles: Sequence[str]) -> Path:
        settings = yaml.safe_load(resources.files("service").joinpath("bank.yaml").read_text())
        settings["host"] = {"name": host}
        settings["log"] = {"format": "json", "file": f"{host}.log"}
        settings["leases"] |= {"duration_s": 6, "renew_s": 2}
        settings["spark"] |= {"driver_memory": "512m"}
        settings["pipelines"] = [
            {**each, "batch_events_max": BATCH_EVENTS} for each in settings["pipelines"] if each["name"] in roles
        ]
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def open(self) -> None:
        """Before the first role."""
        self.directory.mkdir()
        demo_data.write(demo_data.generated(), self.directory, files=PARTITIONS)
        self._new_database()

    def keep(self, role: str) -> None:
        """What this role starts from."""
        shutil.copytree(self.directory, self._stages / role)

    def put_back(self, role: str) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self._stages / role, self.directory)
        self._new_database()

    def _new_database(self) -> None:
        with psycopg.connect(self._server.get_uri(), autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS bank WITH (FORCE)")
            connection.execute("CREATE DATABASE bank")

    @contextmanager
    def running(self, name: str, *roles: str, armed: str | None = None) -> Iterator[Host]:
        host = Host(self, name, roles, armed)
        try:
            yield host
        finally:
            host.end()

    def run(self, name: str, *roles: str) -> None:
        """To its end. Raises Failed."""
        with self.running(name, *roles) as host:
            if (code := host.ended()) != 0:
                raise Failed(f"host {name} ended with {code}: {host.words}")

    def result(self) -> Result:
        logs = {name: events_in(self.directory / name) for name in ("raw-event", "transformed-event")}
        with psycopg.connect(self.dsn) as connection:
            rows = connection.execute("SELECT account, balance, events FROM balances").fetchall()
        return Result(logs, {account: (balance, events) for account, balance, events in rows})

    def assert_expected(self, result: Result) -> None:
        """By a computation that shares nothing with the pipelines. Raises Failed."""
        transactions = demo_data.generated()
        balances, events = demo_data.expected_balances(transactions), demo_data.expected_events(transactions)
        if result.rows != {account: (balances[account], events[account]) for account in balances}:
            raise Failed(f"the undisturbed run is wrong: {json.dumps(result.rows, default=str)}")
