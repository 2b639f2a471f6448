"""The demo's bank, a role at a time: event generator, stream processor and view generator are processes of their own.

What a role starts from is cut once out of an undisturbed run, and put back for every case: the roles before it are not run
again, those behind it are.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import psycopg
import yaml
from plugins_cli import events_in, leases_in

from leases.lease import Lease
from pipeline.crash_point import VARIABLE
from scenarios.slow import SINKS
from service import demo_data

ROLES = ("generate", "transform", "balances")
MADE = {"generate": "raw-event", "transform": "transformed-event"}
LOGS = tuple(MADE.values())
FEEDS = {"files": "pipeline.connectors.files:FilesFeed", "log": "pipeline.connectors.log:LogFeed"}
PARTITIONS = 4
TRANSACTIONS = 1000
PAGE_EVENTS = 50
"""So that a partition is five batches."""
SLOW_PAGE_EVENTS = 25
"""Of a slow host: ten batches in a partition, so that there is more to read than it may."""
BUFFER_BYTES = {"generate": 17_000, "transform": 17_000, "balances": 7_700}
"""What a slow host reads ahead of each partition: two or three pages, behind three batches that are in hand or transformed."""
END_S = 240
"""On a machine that is busy with other things, too."""
LOOK_S = 0.05

TESTS = Path(__file__).parents[1]
ARCHIVE = TESTS.parent / "build" / "spark.jsa"
JAVA = "-XX:TieredStopAtLevel=1" + (
    f" -Xshare:auto -Xlog:disable -XX:SharedArchiveFile={shlex.quote(str(ARCHIVE))}" if ARCHIVE.exists() else ""
)
"""As tests/conftest.py has it: half a minute of Spark is not worth a better compiler."""


class Failed(Exception):
    """A process did not do what it had to."""


def until(condition: Callable[[], Any], what: str, within_s: float = END_S) -> Any:
    """What the condition came to in the end. Raises Failed."""
    ends = time.monotonic() + within_s
    while not (found := condition()):
        if time.monotonic() > ends:
            raise Failed(f"{what}: not within {within_s:g} s")
        threading.Event().wait(LOOK_S)
    return found


@dataclass(frozen=True, slots=True)
class Result:
    """What the whole bank came to. logs: log -> partition -> bodies, in order. rows: account -> balance, events."""

    logs: dict[str, dict[str, list[Any]]]
    rows: dict[str, tuple[Decimal, int]]

    @property
    def told(self) -> str:
        counts = {name: sum(map(len, parts.values())) for name, parts in self.logs.items()}
        return f"{sum(events for _, events in self.rows.values())} events in {len(self.rows)} balances, logs {counts}"


@dataclass(frozen=True, slots=True)
class Batch:
    """As the API tells it. order: when it was delivered."""

    host: str
    partition: str
    epoch: int
    start: str | None
    to: str
    events: int
    order: str


class Premises(Protocol):
    """Where a host works: the directory of its log, and the environment of its process."""

    @property
    def directory(self) -> Path: ...

    @property
    def environment(self) -> dict[str, str]: ...


class Host:
    """`leasehold run` with some of the pipelines."""

    def __init__(self, bank: Premises, name: str, settings: Path, armed: str | None, until_idle: bool) -> None:
        self.name = name
        self.log = bank.directory / f"{name}.log"
        self._errors = bank.directory / f"{name}.stderr"
        leasehold = str(Path(sys.executable).with_name("leasehold"))
        environment = {**bank.environment, **({VARIABLE: armed} if armed else {})}
        with self._errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [leasehold, "run", str(settings), *(["--until-idle"] if until_idle else [])],
                env=environment,
                stderr=errors,
                start_new_session=True,
            )

    def ended(self, within_s: float = END_S) -> int:
        """Its exit code. Raises Failed."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"host {self.name} did not end within {within_s:g} s: {self.words}") from None

    def frozen(self) -> None:
        """Returns once it has stopped itself. Raises Failed where it ends instead; `--until-idle` ends it some time."""
        until(self._is_frozen, f"host {self.name} freezes")

    def _is_frozen(self) -> bool:
        found, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
        if found and not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
            raise Failed(f"the point was not reached: exit code {self.process.returncode}")
        return bool(found)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    @property
    def words(self) -> str:
        """The last that it said."""
        log = self.log.read_text().splitlines()[-3:] if self.log.exists() else []
        return " | ".join([*log, *self._errors.read_text().splitlines()[-3:]])

    def said(self, event: str) -> int:
        """How often it has logged that."""
        return self.log.read_text().count(f'"event": "{event}"') if self.log.exists() else 0

    # What its API tells

    @property
    def is_ready(self) -> bool:
        return self._url is not None and self._metric("leasehold_ready") == 1

    @property
    def buffer_bytes(self) -> float:
        """What it has read and not delivered."""
        return self._metric("leasehold_buffer_bytes")

    def leases_owned(self, role: str) -> int:
        return int(self._metric(f'leasehold_leases_owned{{pipeline="{role}"}}'))

    def batches(self, role: str) -> list[Batch]:
        """Its own ones, oldest first."""
        items = json.loads(self._get(f"/api/batches?pipeline={role}"))["items"]
        found = [
            Batch(item["host"], item["partition"], item["epoch"], item["from"], item["to"], item["events"], item["at"])
            for item in items
            if item["host"] == self.name
        ]
        return sorted(found, key=lambda batch: batch.order)

    def _metric(self, name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", self._get("/metrics"), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def _get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self._url}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except OSError as error:
            raise Failed(f"host {self.name} does not answer {path}: {error}; {self.words}") from error

    @property
    def _url(self) -> str | None:
        found = re.search(r'"url": "(http[^"]+)"', self.log.read_text()) if self.log.exists() else None
        return found and found[1]


class Bank:
    """One directory and one database; `directory` is the same for all cases, since positions name places."""

    def __init__(self, directory: Path, server: Any, database: str = "bank") -> None:
        self.directory = directory / "bank"
        self.gate = self.directory / "gate"
        self._stages = directory / "stages"
        self._server = server
        self._database = database
        self._hosts: set[Host] = set()
        self._is_closed = False
        self.dsn = server.get_uri(database=database)
        directory.mkdir(exist_ok=True)
        self.environment = _environment() | {"LEASEHOLD_POSTGRES_DSN": self.dsn}

    def settings(self, host: str, roles: Sequence[str], slow: bool) -> Path:
        """slow: the host's sinks wait for the gate, and it reads ahead little, in smaller pages."""
        settings = yaml.safe_load(resources.files("service").joinpath("bank.yaml").read_text())
        settings["host"] = {"name": host}
        settings["log"] = {"format": "json", "file": f"{host}.log"}
        settings["leases"] |= {"duration_s": 6, "renew_s": 2}
        settings["spark"] |= {"driver_memory": "512m"}
        wanted = [each for each in settings["pipelines"] if each["name"] in roles]
        settings["pipelines"] = [self._slow(each) if slow else self._paged(each, PAGE_EVENTS) for each in wanted]
        path = self.directory / f"{host}.yaml"
        path.write_text(yaml.safe_dump(settings))
        return path

    def _paged(self, pipeline: dict[str, Any], events: int) -> dict[str, Any]:
        """The same feed in small pages, a batch each."""
        feed = pipeline["feed"]
        path = str(self.directory / feed["path"])
        feed = {**feed, "type": FEEDS[feed["type"]], "path": path, "page_events_max": events}
        return {**pipeline, "feed": feed, "batch_events_max": events}

    def _slow(self, pipeline: dict[str, Any]) -> dict[str, Any]:
        sink = pipeline["sink"]
        path = {"path": str(self.directory / sink["path"])} if "path" in sink else {}
        buffer_bytes = BUFFER_BYTES[pipeline["name"]]
        return {
            **self._paged(pipeline, SLOW_PAGE_EVENTS),
            "sink": {**sink, **path, "type": SINKS[sink["type"]], "gate": str(self.gate)},
            "buffer_bytes_max": buffer_bytes,
            "batch_bytes_max": buffer_bytes,
        }

    # Stages

    def open(self) -> None:
        """Before the first role."""
        self.directory.mkdir(parents=True)
        demo_data.write(demo_data.generated(TRANSACTIONS), self.directory, files=PARTITIONS)
        self._new_database()

    def keep(self, role: str) -> None:
        """What this role starts from: all that there is, but for what it and the roles behind it have made."""
        stage = self._stages / role
        shutil.copytree(self.directory, stage)
        for undone in (role, *behind(role)):
            if undone in MADE:
                shutil.rmtree(stage / MADE[undone])
            with closing(sqlite3.connect(stage / "leases.db", isolation_level=None)) as connection:
                connection.execute("DELETE FROM lease_documents WHERE id LIKE ?", (f"{undone}/%",))

    def put_back(self, role: str) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.copytree(self._stages / role, self.directory)
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

    def see_end(self, host: Host) -> None:
        """Raises Failed."""
        if (code := host.ended()) != 0:
            raise Failed(f"host {host.name} ended with {code}: {host.words}")

    def close(self) -> None:
        """Nothing of it goes on, and nothing of it is started."""
        self._is_closed = True
        for host in list(self._hosts):
            host.end()

    # Leases and files

    def leases(self, role: str) -> list[Lease]:
        return leases_in(self.directory / "leases.db", role)

    def locked(self) -> list[str]:
        """The files of SQLite that nobody can write to at this moment."""
        files = [self.directory / "leases.db", *(file for log in LOGS for file in (self.directory / log).glob("*.db"))]
        return [file.name for file in files if _is_locked(file)]

    # What came of it

    def counted(self) -> int:
        """The events in all balances."""
        return sum(events for _, events in self._rows().values())

    def result(self) -> Result:
        return Result({name: events_in(self.directory / name) for name in LOGS}, self._rows())

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


def behind(role: str) -> tuple[str, ...]:
    """The roles that work on what this one delivers."""
    return ROLES[ROLES.index(role) + 1 :]


def _environment() -> dict[str, str]:
    """Of hosts: they find the slow sinks, and Java starts quickly."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return {"SPARK_SUBMIT_OPTS": JAVA, **os.environ, "PYTHONPATH": path}


def _is_locked(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
        return False
